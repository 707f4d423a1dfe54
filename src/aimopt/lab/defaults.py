"""Default values that the functions of the lab and the command line share.

This module and `execution/resources.py` import nothing that takes time: the command line reads them at its start.
"""

SCALE = "mini"  # the scale of a task
STORE = "results"  # the folder of the runs
ROUNDS = 15  # timed steps per contender when costs are measured
