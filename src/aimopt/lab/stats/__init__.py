"""The statistics of a comparison of optimizers: numbers in, numbers and verdicts out.

values.py      which way is better, and that a diverged run is the worst value, never a missing one
seeds.py       within a task: the spread of a contender, and its paired difference from a reference
across.py      across tasks: average ranks and performance profiles
bootstrap.py   across tasks, as in reinforcement learning: interquartile mean, probability of improvement
curves.py      the step at which a curve reaches a target
tuning.py      the best of the learning rates tried

    compare({"RADAR": losses, "AdamW": others}, reference="AdamW", better="lower")["RADAR"].verdict
"""

from aimopt.lab.stats.across import average_rank, performance_profile
from aimopt.lab.stats.bootstrap import Interval, interquartile_mean, probability_of_improvement, stratified_bootstrap
from aimopt.lab.stats.curves import steps_to_target
from aimopt.lab.stats.seeds import ENOUGH_SEEDS, Difference, Spread, compare, holm, sign_flip_p, spread
from aimopt.lab.stats.tuning import Choice, select
from aimopt.lab.stats.values import Better

__all__ = [
    "ENOUGH_SEEDS",
    "Better",
    "Choice",
    "Difference",
    "Interval",
    "Spread",
    "average_rank",
    "compare",
    "holm",
    "interquartile_mean",
    "performance_profile",
    "probability_of_improvement",
    "select",
    "sign_flip_p",
    "spread",
    "steps_to_target",
    "stratified_bootstrap",
]
