"""A study: contenders on a task. A search chooses a learning rate per contender, and the final runs use new seeds.

    study = compare("spirals", optimizers=["Mine", "torch.optim:AdamW"])      (recipes.py makes studies)
    study.cells({})                                                           the runs that can start now

A study is data. Which runs it has depends on the results so far: a search decides what to try next, and chooses the
learning rate of the final runs; with `looks`, seeds are added until a contender is decided. So the scheduler asks
`study.cells(runs)` what to run next, and the report asks it what is missing. There are two kinds of study:

    search=None, looks=()                      one run per rate of a grid, then a fixed number of seeds
    search=Search(), looks=(5, 10, 20, 40)     in rounds and looks: stats/tuning.py and sequential.py have the rules
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from aimopt.lab.defaults import TUNED
from aimopt.lab.protocol import facts, import_paths, optimizers, schedule, schema, tasks
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.older_records import LATER_FIELDS, updated_definition, updated_record
from aimopt.lab.protocol.protocol import TUNING_SEED, PublishedTable, check_published, is_comparison
from aimopt.lab.protocol.run_config import RunConfig, frozen, rounded, settings_of_run
from aimopt.lab.protocol.schedule import Cell
from aimopt.lab.protocol.schema import (
    Shape,
    fields,
    flag,
    integer,
    list_of,
    map_of,
    nonempty_text,
    number,
    optional,
    text,
)
from aimopt.lab.protocol.search import FARTHEST, MAX_TRIALS, Search, check_tuned, search_from, with_options
from aimopt.lab.protocol.search import SHAPE as SEARCH
from aimopt.lab.protocol.task import Task, has_type
from aimopt.lab.results.run import SCORED, Run
from aimopt.lab.stats.tuning import Point, PointChoice

COMPARISON = "compare"  # the name of a comparison, unless its author gives another
_CONTENDER = fields(
    {"label": nonempty_text, "optimizer": text},
    {"options": map_of(schema.plain), "lr": optional(number(above=0)), "tune": list_of(text)},
)
_PUBLISHED = fields({"source": text, "scale": text, "results": map_of(list_of(number(), length=2))})


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An optimizer with options, under the label that tables show."""

    label: str
    optimizer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float | None = None  # usual learning rate, at the middle of the search; None: that of the task
    tune: tuple[str, ...] = ()  # what is searched besides the learning rate

    @classmethod
    def named(cls, text: str) -> Self:
        """A contender from a text: `Mine`, `Mine(weight_decay=0.1)`, `torch.optim:AdamW(tune='beta1')`."""
        optimizer, options = optimizers.from_text(text)
        shown = ", ".join(f"{option}={value!r}" for option, value in options.items())
        label = f"{optimizer}({shown})" if shown else optimizer
        tuned = options.get("tune", ())
        tune = (tuned,) if isinstance(tuned, str) else tuned
        if not isinstance(tune, tuple | list) or not all(isinstance(name, str) for name in tune):
            raise ValueError(
                f"tune of {label} must be {' or '.join(map(repr, TUNED))}, or a tuple of both, got {tuned!r}"
            )
        own = {option: value for option, value in options.items() if option != "tune"}
        return cls(label=label, optimizer=optimizer, options=own, tune=tuple(tune))


def stored(shape: Shape, read: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    """The metadata of a field that files hold: the shape that its value must have there, and how to read it."""
    return {"shape": shape, "read": read}


def _contenders(records: Sequence[Mapping[str, Any]]) -> tuple[Contender, ...]:
    return tuple(Contender(**{**record, "tune": tuple(record.get("tune", ()))}) for record in records)


def _frozen_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: frozen(value) for name, value in settings.items()}


def _published(record: Mapping[str, Any] | None) -> PublishedTable | None:
    if record is None:
        return None
    results = {label: (mean, std) for label, (mean, std) in record["results"].items()}
    return PublishedTable(**{**record, "results": results})


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison of contenders. Its result depends only on its runs."""

    name: str = field(metadata=stored(nonempty_text))
    task: str = field(metadata=stored(text))
    scale: str = field(metadata=stored(text))
    contenders: tuple[Contender, ...] = field(metadata=stored(list_of(_CONTENDER), _contenders))
    # The contender in the headline; None: the first that is not the reference.
    subject: str | None = field(default=None, metadata=stored(optional(text)))
    # The contender that the others are compared with.
    reference: str = field(metadata=stored(text))
    seeds: tuple[int, ...] = field(metadata=stored(list_of(integer(0)), tuple))
    # In units of the contender's usual learning rate; one number: no search.
    grid: tuple[float, ...] = field(metadata=stored(list_of(number()), lambda rates: tuple(map(float, rates))))
    # Length of a search run, which trains the beginning of the schedule.
    search_steps: int = field(metadata=stored(integer(1)))
    # Settings of the task, if they differ from its scale.
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=stored(map_of(schema.plain), _frozen_values))
    # Results of other authors for these contenders.
    published: PublishedTable | None = field(default=None, metadata=stored(optional(_PUBLISHED), _published))
    tuning_seed: int = field(default=TUNING_SEED, metadata=stored(integer(0)))
    # Whether contenders are also trained at their usual learning rates.
    untuned: bool = field(default=False, metadata=stored(flag))
    # The contender that is searched; all others take its learning rate.
    rate_of: str | None = field(default=None, metadata=stored(optional(text)))
    # The options that differ between contenders.
    axes: tuple[str, ...] = field(default=(), metadata=stored(list_of(text), tuple))
    # How reports name an axis; otherwise by the name of its option.
    symbols: Mapping[str, str] = field(default_factory=dict, metadata=stored(map_of(text)))
    # The search in rounds; None: the grid, on the beginning of the schedule and with the tuning seed.
    search: Search | None = field(default=None, metadata=stored(optional(SEARCH), search_from))
    # How many of the seeds each look has; a contender stops when it is decided. Empty: all seeds, and one test.
    looks: tuple[int, ...] = field(default=(), metadata=stored(list_of(integer(2)), tuple))
    # The relative difference that counts, for verdicts in looks.
    margin: float = field(default=0.0, metadata=stored(number(), float))
    # Of a study that was read from a store: its facts, and its file name without the ending.
    stored_facts: Facts | None = field(default=None, compare=False, repr=False)
    stored_as: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        labels = [contender.label for contender in self.contenders]
        duplicate = next((label for label, count in collections.Counter(labels).items() if count > 1), None)
        if duplicate is not None:
            raise ValueError(f"two contenders are called {duplicate!r}; name each once, or give them different labels")
        for name in (self.reference, self.rate_of, self.subject):
            if name is not None and name not in labels:
                raise ValueError(f"{name!r} is not among the contenders {', '.join(labels)}; add it or choose another")
        check_seeds(self.seeds)
        check_rates("grid", self.grid)
        check_looks(self.looks, self.seeds, self.margin)
        check_published(self.published)
        for seed in self.tuning_seeds:
            if seed in self.seeds:
                raise ValueError(
                    f"seed {seed} tunes the learning rate and cannot be a final seed too; leave it out of seeds"
                )
        for axis in self.axes:
            if not any(axis in contender.options for contender in self.contenders):
                raise ValueError(f"no contender has the axis {axis!r} among its options; name an option that they have")
        self._check_axes()
        self._check_tuned()
        self._check_lengths()
        self._check_rates()

    def _check_axes(self) -> None:
        for contender, axis in itertools.product(self.contenders, self.axes):
            known = self.facts.contenders.get(contender.label)
            for options in (contender.options, known.options if known else {}):
                if _holds_names(options.get(axis)):
                    raise ValueError(f"{axis} of {contender.label} cannot be an axis: its value holds names and values")

    def _check_tuned(self) -> None:
        for contender in self.contenders:
            if contender.tune and self.search is None:
                raise ValueError(f"{contender.label} tunes options, which the search on a grid cannot; see --protocol")
            if contender.label in self.facts.contenders:
                options = self.facts.contenders[contender.label].options
                check_tuned(contender.tune, options, contender.label)

    def _check_lengths(self) -> None:
        """Refuse a search with a length that cannot be trained or scored."""
        steps, interval = self.facts.settings["steps"], self.facts.settings["evaluate_every"]
        if not has_type(self.search_steps, int) or not 1 <= self.search_steps <= steps:
            raise ValueError(
                f"search_steps={self.search_steps} must be a whole number from 1 to steps={steps}: "
                "the search trains the beginning of the schedule"
            )
        evaluations = -(-self.search_steps // interval)
        if self.searches and evaluations < SCORED:
            raise ValueError(
                f"a search run of {self.search_steps} steps evaluates every {interval} steps, {evaluations} times, "
                f"but is scored by the mean of {SCORED}; lower evaluate_every or raise search_steps"
            )

    def _check_rates(self) -> None:
        """Refuse learning rates that are not positive, finite numbers."""
        for contender in self.contenders:
            if contender.label not in self.facts.contenders:
                raise ValueError(f"the facts of a study lack its contender {contender.label!r}")
            for factor in (1.0, *self.grid, *(FARTHEST if self.search else ())):
                rate = self.usual_rate(contender)
                if not 0 < rate * factor < math.inf:
                    raise ValueError(
                        f"the rate {factor:g}·{rate:g} of {contender.label} is not a positive number; change lr or grid"
                    )

    @property
    def searches(self) -> bool:
        """Whether a search chooses the learning rates."""
        return self.search is not None or len(self.grid) > 1

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds of the search runs; no final run has one of them."""
        if self.search is not None:
            return self.search.seeds
        return (self.tuning_seed,) if self.searches else ()

    @property
    def is_comparison(self) -> bool:
        """Whether this is a comparison of optimizers, whatever its name is: it counts in the results of a report."""
        return is_comparison(self.rate_of, self.axes)

    @property
    def headline_contender(self) -> str | None:
        """The contender that the headline is about; None if there is only the reference."""
        others = (contender.label for contender in self.contenders if contender.label != self.reference)
        return self.subject or next(others, None)

    def final_runs(self, contender: Contender, point: Point, count: int | None = None) -> list[RunConfig]:
        """The final runs of a contender at a point: one per seed, or only for the first seeds."""
        return [self.run_config(contender, point, seed) for seed in self.seeds[:count]]

    def search_runs(self, contender: Contender, runs: Mapping[str, Run]) -> list[RunConfig]:
        """The search runs of a contender with a known config, given the runs so far by identity."""
        return schedule.search_runs(self, contender, schedule.search_plan(self, contender, runs))

    def choice(self, contender: Contender, runs: Mapping[str, Run]) -> PointChoice | None:
        """The point of the final runs; None if the search has not ended, or if all of its runs failed."""
        return schedule.search_plan(self, contender, runs).choice

    def cells(self, runs: Mapping[str, Run]) -> list[Cell]:
        """Every run with a known config, given the runs so far by identity."""
        return schedule.cells(self, runs)

    def count_unknown_runs(self, runs: Mapping[str, Run]) -> int:
        """The number of final runs without a known config, because the search has not chosen their learning rate."""
        return schedule.count_unknown_runs(self, runs)

    def max_run_count(self) -> int:
        """The largest possible number of runs."""
        return schedule.max_run_count(self)

    def contender(self, label: str) -> Contender:
        """The contender with a label."""
        return next(contender for contender in self.contenders if contender.label == label)

    def task_and_optimizers(self) -> list[str]:
        """The names of the task and of all optimizers; a name may be an import path."""
        return [self.task, *(contender.optimizer for contender in self.contenders)]

    def make_task(self) -> Task:
        """The task at this study's scale and settings."""
        return self._task

    @cached_property
    def _task(self) -> Task:
        return tasks.find(self.task).at_scale(self.scale, self.settings)

    def usual_rate(self, contender: Contender) -> float:
        """The learning rate of a contender without a search."""
        return self.facts.contenders[contender.label].usual_rate

    @cached_property
    def facts(self) -> Facts:
        """What the study reads from code. A study from a store has stored facts, and loads no code."""
        if self.stored_facts is not None:
            return self.stored_facts
        contenders = {c.label: (c.optimizer, c.options, c.lr) for c in self.contenders}
        return Facts.from_code(self.task, self.scale, self.settings, contenders)

    def check(self) -> None:
        """Refuse options that an optimizer refuses. Reading a study from a store does not build optimizers."""
        for contender in self.contenders:
            label = contender.label if contender.label.startswith(contender.optimizer) else ""
            label = label or f"{contender.optimizer} with {contender.label}"
            self.run_config(contender, Point(self.usual_rate(contender)), self.seeds[0]).check_optimizer(label)

    def to_dict(self) -> dict[str, Any]:
        """The definition of the study, as plain numbers, strings, lists and dictionaries."""
        definition = {name: getattr(self, name) for name in _STORED}
        contenders = map(dataclasses.asdict, self.contenders)
        definition["contenders"] = tuple({k: v for k, v in c.items() if v not in (None, ())} for c in contenders)
        for name in ("published", "search"):
            definition[name] = definition[name] and dataclasses.asdict(definition[name])
        # The fields of search and looks are left out of a study without them, so that its record stays what it was.
        unused = () if self.search or self.looks else ("search", "looks", "margin")
        return {name: value for name, value in definition.items() if value is not None and name not in unused}

    def to_record(self) -> dict[str, Any]:
        """The definition and the facts, as a store holds them."""
        return {**self.to_dict(), "facts": self.facts.to_dict()}

    @classmethod
    def from_dict(cls, definition: Mapping[str, Any], *, trust: bool = True) -> Self:
        """A study from the result of `to_dict`, which may have been read from a file; loads the code that it names.

        Without `trust`, import paths are refused: only tasks and optimizers with a registered name are loaded.
        """
        SHAPE(definition, "a study")
        import_paths.check_trusted([definition["task"], *(c["optimizer"] for c in definition["contenders"])], trust)
        return cls(**_fields_of(updated_definition(definition)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, trust: bool = False, stored_as: str | None = None) -> Self:
        """A study from the result of `to_record`, or of `to_dict`: if it has no facts, its code is loaded.

        Tasks and optimizers with a registered name are loaded. Import paths are only loaded with `trust`.
        """
        SHAPE(record, "a study")
        updated, stored_facts = updated_record(record, trust=trust)
        return cls(**_fields_of(updated), stored_facts=stored_facts, stored_as=stored_as)

    def run_config(self, contender: Contender, point: Point, seed: int, steps: int | None = None) -> RunConfig:
        """The config of a run of a contender; without `steps`, over the whole schedule."""
        key = (contender.label, point, seed, steps)
        if key not in self._runs:
            contender_facts = self.facts.contenders[contender.label]
            self._runs[key] = RunConfig(
                task=self.task,
                scale=self.scale,
                settings=self._settings_of_runs,
                optimizer=contender.optimizer,
                options=with_options(contender_facts.options, dict(point.options)),
                lr=rounded(point.rate),
                seed=seed,
                steps=self.facts.settings["steps"] if steps is None else steps,
                sources=contender_facts.sources,
            )
        return self._runs[key]

    @cached_property
    def _settings_of_runs(self) -> dict[str, Any]:
        return settings_of_run(self.facts.settings)

    @cached_property
    def _runs(self) -> dict[tuple[str, Point, int, int | None], RunConfig]:
        return {}


_STORED = {f.name: f.metadata for f in dataclasses.fields(Study) if "shape" in f.metadata}
_REQUIRED = [f.name for f in dataclasses.fields(Study) if f.default is f.default_factory is dataclasses.MISSING]
SHAPE = fields(
    {name: _STORED[name]["shape"] for name in _REQUIRED if name not in LATER_FIELDS},
    {
        **{name: metadata["shape"] for name, metadata in _STORED.items() if name not in _REQUIRED},
        **{name: _STORED[name]["shape"] for name in LATER_FIELDS},
        "facts": facts.SHAPE,
    },
)


def _fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a study, from a record with the right shape; without its facts."""
    return {name: metadata["read"](record[name]) for name, metadata in _STORED.items() if name in record}


def check_seeds(seeds: Sequence[Any]) -> None:
    """Refuse final seeds that are not different integers."""
    if not all(has_type(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds must be whole numbers from 0, got {seeds}")
    _check_different("seeds", seeds)


def check_rates(name: str, rates: Sequence[Any]) -> None:
    """Refuse learning rates, which the user calls `name`, that are not different positive numbers."""
    if not all(has_type(rate, float) and rate > 0 for rate in rates):
        raise ValueError(f"{name} must be positive numbers, got {rates}")
    _check_different(name, rates)


def _check_different(name: str, values: Sequence[Any]) -> None:
    if len(values) > MAX_TRIALS:
        raise ValueError(f"{name} has {len(values)} numbers, and may have {MAX_TRIALS} at most; leave some out")
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} must be one or more different numbers, got {values}")


def check_looks(looks: Sequence[int], seeds: Sequence[int], margin: float) -> None:
    """Refuse looks that do not grow, or that need more seeds than there are."""
    if list(looks) != sorted(set(looks)) or (looks and not 2 <= looks[0] <= looks[-1] == len(seeds)):
        raise ValueError(
            f"looks must grow from at least 2 to the number of seeds, {len(seeds)}, got {tuple(looks)}; "
            "for example looks=(5, 10) with seeds=tuple(range(10))"
        )
    if looks and not 0 < margin < 1:
        raise ValueError(f"margin must be a relative difference between 0 and 1, such as 0.01, got {margin}")


def _holds_names(value: Any) -> bool:
    """Whether a value is a mapping, or has one in its lists."""
    return any(map(_holds_names, value)) if isinstance(value, list | tuple) else isinstance(value, Mapping)
