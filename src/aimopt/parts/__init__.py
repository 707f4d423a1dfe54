"""The parts of an optimizer: one file per axis, one class per idea.

component.py declares the axes and the equation that they share; tensor_list.py has the arithmetic of the parts.
"""

from aimopt.parts import corrections, filters, geometries, matrices  # registers all parts: groups refer to them by name

__all__ = ["corrections", "filters", "geometries", "matrices"]
