"""How optimizers are compared on a task: the default values of a study.

    Protocol(optimizers=("Mine", "torch.optim:AdamW"), subject="Mine", reference="torch.optim:AdamW", search_steps=100)
    Protocol(options=same_options(weight_decay=0.1))        for every optimizer that has a weight_decay

A protocol names optimizers and their options; a task never does. `recipes.py` makes studies from protocols. With a
`search` and `looks`, results decide what is run next; without, it is a grid on one tuning seed, and fixed seeds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aimopt.lab.protocol.search import Search
from aimopt.lab.stats.sequential import LOOKS

Options = Callable[[str], Mapping[str, Any]]  # name of an optimizer -> options; it gets those that it has
TUNING_SEED = 5
SEEDS = (0, 1, 2, 3, 4)


def same_options(**options: Any) -> Options:
    """The same options for all optimizers."""
    return lambda optimizer: options


def is_comparison(rate_of: str | None, axes: Sequence[str]) -> bool:
    """Whether a study compares optimizers, each with a search of its own; in other studies they share one rate."""
    return rate_of is None and not axes


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Results that other authors published. Reports show them beside the results of a study."""

    source: str  # who published them, as reports name it: "the manual"
    scale: str  # the scale of the task at which they hold; a study at another scale shows only their ranking
    results: Mapping[str, tuple[float, float]]  # mean and standard deviation, by optimizer


def check_published(published: object) -> None:
    """Refuse published results without a source, as they were given to older versions."""
    if not isinstance(published, PublishedTable | None):
        raise ValueError(
            f"published must be a PublishedTable, with the source and the scale of its results, got {published!r}"
        )


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Contenders, their options, and how long and how often they are trained."""

    optimizers: tuple[str, ...] = ()  # "Name" or "Name(option=value)"
    explored: tuple[str, ...] = ()  # what an exploration tries, if it is given nothing; empty: `optimizers`
    subject: str | None = None  # the contender that the headline is about
    reference: str | None = None  # the contender that the others are compared with
    options: Options = field(default=same_options())
    # The usual learning rate of an optimizer, divided by the lr of the task.
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    grid: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 10.0)  # learning rates of the search, in units of the usual one
    seeds: tuple[int, ...] = SEEDS
    tuning_seed: int = TUNING_SEED
    search_steps: int | None = None  # length of a search run; None: the whole schedule
    search: Search | None = None  # None: the grid
    looks: tuple[int, ...] = ()  # numbers of seeds after which verdicts are given; empty: after all seeds
    margin: float | None = None  # the relative difference that counts; None: that of the task
    published: PublishedTable | None = None
    # How reports name options that a study varies, such as {"momentum": "β"}; otherwise by their own names.
    symbols: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_published(self.published)

    def sequential(self) -> "Protocol":
        """This protocol with the search in rounds, on whole schedules, and seeds in blocks until all is decided."""
        search, seeds = Search(), tuple(range(LOOKS[-1]))
        return replace(self, search=search, search_steps=None, tuning_seed=search.seeds[0], looks=LOOKS, seeds=seeds)

    def fixed(self) -> "Protocol":
        """This protocol with a search on a grid, and a fixed number of seeds."""
        return replace(self.with_fixed_seeds(), search=None, tuning_seed=TUNING_SEED) if self.search else self

    def with_fixed_seeds(self) -> "Protocol":
        """This protocol without looks."""
        return replace(self, looks=(), seeds=SEEDS) if self.looks else self

    def search_length(self, steps: int) -> int:
        """The length of a search run on a task with a schedule of this many steps."""
        return min(self.search_steps or steps, steps)

    def published_for(self, labels: Iterable[str]) -> PublishedTable | None:
        """The published results of these contenders; None if there are none."""
        known = self.published.results if self.published else {}
        results = {label: known[label] for label in labels if label in known}
        return replace(self.published, results=results) if self.published and results else None
