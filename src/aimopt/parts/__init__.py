"""The parts of an optimizer: one file per axis, one class per idea.

component.py declares the axes and the equation that they share, composition.py puts one part of each axis together;
tensor_list.py has the arithmetic of the parts.
"""

# Importing these registers all parts: groups refer to them by name.
from aimopt.parts import corrections, decays, filters, geometries, iterates, matrices

__all__ = ["corrections", "decays", "filters", "geometries", "iterates", "matrices"]
