"""What is compared with what: contenders on a task, each with a rate chosen by search, then trained from fresh seeds.

    compare("digits", "demo")                           the paper's eight optimizers
    ablation("digits", "demo")                          RADAR without γ, without ℓ, without both (RAD)
    sensitivity("digits", "demo", gamma=(0, 0.1), ell_ratio=(0, 0.01))     a heat map

A study is data. Which runs it consists of follows from it and from the results so far, since the final runs take the
learning rates that the search chose: `study.cells(runs)`. The runner asks that for what to do next, the report for what
is missing.
"""

import ast
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from aimopt.lab import optimizers, tasks
from aimopt.lab.config import RunConfig, frozen, written
from aimopt.lab.runs import SCORED, Run
from aimopt.lab.stats import Choice, select

TUNING_SEED = 5
# The paper's sensitivity studies; ℓ in units of the learning rate.
HEAT_MAP = {"ell_ratio": (1e-4, 1e-3, 1e-2, 1e-1, 1.0), "gamma": (0.0, 0.05, 0.1, 0.2, 0.4)}
DELTA = {"delta": (0.8, 0.9, 1.0, 1.1, 1.2)}
ZETA = {"zeta": (1e-18, 1e-17, 1e-16, 1e-15, 1e-14)}
Role = Literal["search", "final", "untuned"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An optimizer with options, under the name that tables give it."""

    label: str
    optimizer: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def named(cls, text: str) -> Self:
        """A contender as people write it: `RADAR`, `RADAR(gamma=0.05)`, `torch.optim:AdamW(betas=(0.9, 0.95))`."""
        name, bracket, rest = text.partition("(")
        try:
            call = ast.parse(f"f({rest if bracket else ')'}", mode="eval").body
            assert isinstance(call, ast.Call)
            assert not call.args
            options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            assert len(options) == len(call.keywords)  # none is given twice, and none is **
        except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
            raise ValueError(f"cannot read the optimizer {text!r}; write it as RADAR or RADAR(gamma=0.05)") from None
        known = optimizers.canonical(name.strip())
        said = ", ".join(f"{option}={value!r}" for option, value in options.items())
        return cls(label=f"{known}({said})" if said else known, optimizer=known, options=options)


class Cell(NamedTuple):
    """A run and its place in a study."""

    contender: str
    role: Role
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison. Its result is a function of the runs it consists of."""

    name: str
    task: str
    scale: str
    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]
    grid: tuple[float, ...]  # in units of the contender's usual rate; one number: no search
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the task, where they differ from the scale's
    reference: str  # whom the verdicts are about
    tuning_seed: int = TUNING_SEED
    untuned: bool = False  # also the usual rates, without search
    rate_of: str | None = None  # every contender takes the rate chosen for this one
    axes: tuple[str, ...] = ()  # the options by which the contenders differ

    def __post_init__(self) -> None:
        labels = [contender.label for contender in self.contenders]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ValueError(f"two contenders are called {twice!r}; give them different labels")
        for name in (self.reference, self.rate_of):
            if name is not None and name not in labels:
                raise ValueError(f"{name!r} is not among the contenders {', '.join(labels)}; add it or choose another")
        tasks.check_protocol(self.seeds, self.grid)
        if self.searches and self.tuning_seed in self.seeds:
            raise ValueError(f"seed {self.tuning_seed} tunes the learning rate and may not be a final seed as well")
        task = self.make_task()
        measured = -(-task.search_steps // task.evaluate_every)
        if self.searches and measured < SCORED:
            raise ValueError(
                f"a search run of {task.search_steps} steps evaluates every {task.evaluate_every}, {measured} times, "
                f"but scored by the mean of {SCORED}; lower evaluate_every or raise search_steps"
            )
        for contender in self.contenders:  # a mistake in the options is found before anything is trained
            self.finals(contender, self.usual_rate(contender))

    @property
    def searches(self) -> bool:
        """Whether the learning rate is searched for."""
        return len(self.grid) > 1

    def search(self, contender: Contender) -> list[RunConfig]:
        """The runs by which a contender's learning rate is chosen: the schedule's beginning, with the tuning seed."""
        if not self.searches:
            return []
        steps = self.make_task().search_steps
        return [self._run(contender, self.usual_rate(contender) * x, self.tuning_seed, steps) for x in self.grid]

    def finals(self, contender: Contender, lr: float) -> list[RunConfig]:
        """The runs that are compared, at a learning rate."""
        return [self._run(contender, lr, seed) for seed in self.seeds]

    def choice(self, contender: Contender, runs: Mapping[str, Run]) -> Choice | None:
        """The learning rate of the final runs; unknown while the search goes on or when all of it failed."""
        if self.rate_of is not None and contender.label != self.rate_of:
            return self.choice(self.contender(self.rate_of), runs)
        if not self.searches:
            return select({written(self.usual_rate(contender) * self.grid[0]): 0.0}, "lower")
        searched = [(config.lr, runs.get(config.identity)) for config in self.search(contender)]
        if any(run is None or run.status == "running" for _, run in searched):
            return None
        score = self.make_task().score
        scores = {lr: run.score(score) for lr, run in searched if run is not None and run.status != "failed"}
        return select(scores, score.better) if scores else None

    def cells(self, runs: Mapping[str, Run]) -> list[Cell]:
        """Every run that can be named by now, given the runs so far by identity."""
        named = [Cell(c.label, "search", config) for c in self._searching() for config in self.search(c)]
        shared = self.choice(self.contenders[0], runs) if self.rate_of is not None else None
        for contender in self.contenders:
            choice = shared if self.rate_of is not None else self.choice(contender, runs)
            if choice is not None:
                named += [Cell(contender.label, "final", config) for config in self.finals(contender, choice.rate)]
            if self.untuned:
                usual = self.finals(contender, self.usual_rate(contender))
                named += [Cell(contender.label, "untuned", config) for config in usual]
        return named

    def unnamed(self, runs: Mapping[str, Run]) -> int:
        """How many more runs there may be, once the search has chosen."""
        waiting = [c for c in self._searching() if self.choice(c, runs) is None and not self._search_failed(c, runs)]
        count = len(self.contenders) if waiting and self.rate_of is not None else len(waiting)
        return count * len(self.seeds)

    def count(self) -> int:
        """How many runs there will be at most."""
        finals = len(self.contenders) * len(self.seeds) * (2 if self.untuned and self.grid != (1.0,) else 1)
        return sum(len(self.search(contender)) for contender in self._searching()) + finals

    def contender(self, label: str) -> Contender:
        """The contender of a label."""
        return next(contender for contender in self.contenders if contender.label == label)

    def make_task(self) -> tasks.Task:
        """The task at this study's scale and settings."""
        return self._task

    @cached_property
    def _task(self) -> tasks.Task:
        return tasks.find(self.task).at(self.scale, self.settings)

    def usual_rate(self, contender: Contender) -> float:
        """A contender's learning rate without a search."""
        return self.make_task().lr * optimizers.usual_factor(contender.optimizer)

    def check(self) -> None:
        """Refuse a study whose optimizers refuse their options; reading one from a store does not make optimizers."""
        for contender in self.contenders:
            label = contender.label if contender.label.startswith(contender.optimizer) else ""
            label = label or f"{contender.optimizer} with {contender.label}"
            self.finals(contender, self.usual_rate(contender))[0].check_optimizer(label)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """A study from what `to_dict` gave, perhaps through a file."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise ValueError(f"a study has no {unknown[0]!r}; its fields are {', '.join(known)}")
        needed = [
            n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING and n not in fields
        ]
        if needed:
            raise ValueError(f"a study lacks {needed[0]!r}; its fields are {', '.join(known)}")
        try:
            contenders = tuple(Contender(**contender) for contender in fields["contenders"])
            numbers = {"seeds": tuple(map(int, fields["seeds"])), "grid": tuple(map(float, fields["grid"]))}
            settings = {name: frozen(value) for name, value in fields.get("settings", {}).items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"a study's contenders, seeds, grid or settings cannot be read: {error}") from None
        lists = {"axes": tuple(fields.get("axes", ())), **numbers, "settings": settings}
        return cls(**{**fields, **lists, "contenders": contenders})

    def _search_failed(self, contender: Contender, runs: Mapping[str, Run]) -> bool:
        found = [runs.get(config.identity) for config in self.search(contender)]
        return bool(found) and all(run is not None and run.status == "failed" for run in found)

    def _searching(self) -> Sequence[Contender]:
        return self.contenders if self.rate_of is None else [self.contender(self.rate_of)]

    def _run(self, contender: Contender, lr: float, seed: int, steps: int | None = None) -> RunConfig:
        key = (contender.label, lr, seed, steps)
        if key not in self._runs:
            self._runs[key] = RunConfig.of(
                self.task,
                self.scale,
                optimizer=contender.optimizer,
                options=contender.options,
                lr=lr,
                seed=seed,
                steps=steps,
                settings=self.settings,
            )
        return self._runs[key]

    @cached_property
    def _runs(self) -> dict[tuple[str, float, int, int | None], RunConfig]:
        return {}


def compare(task: str, scale: str = "mini", *, optimizers: Sequence[str] = optimizers.PAPER, **overrides: Any) -> Study:
    """The paper's protocol for some optimizers: `"RADAR"`, `"RADAR(gamma=0.05)"`, `"torch.optim:AdamW"`."""
    contenders = [Contender.named(text) for text in optimizers]
    labels = [contender.label for contender in contenders]
    reference = "AdamW" if "AdamW" in labels else labels[-1]
    return _study(task, scale, contenders, {"name": "compare", "reference": reference, "untuned": True, **overrides})


def ablation(task: str, scale: str = "mini", **overrides: Any) -> Study:
    """RADAR without its gradient difference, without its residual correction, and without both, which is RAD."""
    without = {
        "RADAR": {},
        "γ = 0": {"gamma": 0.0},
        "ℓ = 0": {"ell_ratio": 0.0},
        "γ = ℓ = 0": {"gamma": 0.0, "ell_ratio": 0.0},
    }
    contenders = [Contender(label=label, optimizer="RADAR", options=options) for label, options in without.items()]
    return _study(task, scale, contenders, {"name": "ablation", "reference": "RADAR", "rate_of": "RADAR", **overrides})


def sensitivity(
    task: str,
    scale: str = "mini",
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    optimizer: str = "RADAR",
    **overrides: Any,
) -> Study:
    """An optimizer over values of one or more of its options, at the rate chosen for its defaults; ℓ×γ unless said."""
    values = axes or HEAT_MAP
    contenders = [Contender.named(optimizer)]
    for chosen in itertools.product(*values.values()):
        options = dict(zip(values, chosen, strict=True))
        label = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items()
        )
        contenders.append(dataclasses.replace(contenders[0], label=label, options={**contenders[0].options, **options}))
    label = contenders[0].label
    name = "sensitivity-" + "-".join(values)
    return _study(
        task,
        scale,
        contenders,
        {"name": name, "reference": label, "rate_of": label, "axes": tuple(values), **overrides},
    )


def _study(task: str, scale: str, contenders: Sequence[Contender], fields: Mapping[str, Any]) -> Study:
    chosen = tasks.find(task).at(scale, fields.get("settings"))
    defaults = {"seeds": chosen.seeds, "grid": chosen.grid}
    study = Study(task=task, scale=scale, contenders=tuple(contenders), **{**defaults, **fields})
    study.check()
    return study
