"""The statistics of a comparison of optimizers. Numbers go in; numbers and verdicts come out.

    values.py      which direction is better; a diverged run counts as the worst value and is never dropped
    paired.py      within one task: the spread of one contender, and its paired difference from a reference
    ranking.py     across tasks: average ranks and performance profiles
    bootstrap.py   across tasks, as in reinforcement learning: interquartile mean, probability of improvement
    targets.py     the step at which a curve reaches a target
    tuning.py      the best learning rate of a search

    paired_differences({"Mine": losses, "Other": others}, reference="Other", better="lower")["Mine"].verdict

Nothing here imports another part of the lab.
"""

from aimopt.lab.stats.bootstrap import Interval, interquartile_mean, probability_of_improvement, stratified_bootstrap
from aimopt.lab.stats.paired import (
    ENOUGH_SEEDS,
    Difference,
    Spread,
    differences_on_shared_seeds,
    holm,
    paired_differences,
    sign_flip_p,
    spread,
)
from aimopt.lab.stats.ranking import average_rank, performance_profile
from aimopt.lab.stats.targets import steps_to_target
from aimopt.lab.stats.tuning import RateChoice, select_rate
from aimopt.lab.stats.values import Better

__all__ = [
    "ENOUGH_SEEDS",
    "Better",
    "Difference",
    "Interval",
    "RateChoice",
    "Spread",
    "average_rank",
    "differences_on_shared_seeds",
    "holm",
    "interquartile_mean",
    "paired_differences",
    "performance_profile",
    "probability_of_improvement",
    "select_rate",
    "sign_flip_p",
    "spread",
    "steps_to_target",
    "stratified_bootstrap",
]
