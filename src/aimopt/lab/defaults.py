"""Default values that the functions of the lab and the command line share.

This module and `execution/resources.py` import nothing that takes time: the command line reads them at its start.
"""

SCALE = "mini"  # the scale of a task
STORE = "results"  # the folder of the runs
TUNED = ("beta1", "weight_decay")  # what can be searched besides the learning rate
ROUNDS = 15  # timed steps per contender when costs are measured
RUNGS = (1, 3, 9)  # seeds per rung of an exploration
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # its learning rates, in units of the usual one
