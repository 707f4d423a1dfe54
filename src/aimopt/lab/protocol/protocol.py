"""How optimizers are compared on a task: the default values of a study.

    Protocol(optimizers=("Mine", "torch.optim:AdamW"), subject="Mine", reference="torch.optim:AdamW", search_steps=100)
    Protocol(options=same_options(weight_decay=0.1))        for every optimizer that has a weight_decay

A protocol names optimizers and their options; a task never does. `recipes.py` makes studies from protocols.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Callable[[str], Mapping[str, Any]]  # name of an optimizer -> options; it gets those that it has
TUNING_SEED = 5


def same_options(**options: Any) -> Options:
    """The same options for all optimizers."""
    return lambda optimizer: options


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Contenders, their options, and how long and how often they are trained."""

    optimizers: tuple[str, ...] = ()  # "Name" or "Name(option=value)"
    subject: str | None = None  # the contender that the headline is about
    reference: str | None = None  # the contender that the others are compared with
    options: Options = field(default=same_options())
    lr_factors: Mapping[str, float] = field(
        default_factory=dict
    )  # usual learning rate of an optimizer / lr of the task
    grid: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 10.0)  # learning rates of the search, in units of the usual one
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seed: int = TUNING_SEED
    search_steps: int | None = None  # length of a search run; None: the whole schedule
    published: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # other authors' mean and std, by optimizer
