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
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from aimopt.lab import facts, optimizers, references, shapes, tasks
from aimopt.lab.config import RunConfig, frozen, of_a_run, written
from aimopt.lab.facts import Facts
from aimopt.lab.runs import SCORED, Run
from aimopt.lab.shapes import fields, filled, flag, list_of, map_of, nothing_or, number, text, whole
from aimopt.lab.stats import Choice, select

TUNING_SEED = 5
# The paper's sensitivity studies; ℓ in units of the learning rate.
HEAT_MAP = {"ell_ratio": (1e-4, 1e-3, 1e-2, 1e-1, 1.0), "gamma": (0.0, 0.05, 0.1, 0.2, 0.4)}
DELTA = {"delta": (0.8, 0.9, 1.0, 1.1, 1.2)}
ZETA = {"zeta": (1e-18, 1e-17, 1e-16, 1e-15, 1e-14)}
Role = Literal["search", "final", "untuned"]
_CONTENDER = fields({"label": filled, "optimizer": text}, {"options": map_of(shapes.plain)})
SHAPE = fields(
    {
        "name": filled,
        "task": text,
        "scale": text,
        "contenders": list_of(_CONTENDER),
        "seeds": list_of(whole(0)),
        "grid": list_of(number()),
        "reference": text,
    },
    {
        "settings": map_of(shapes.plain),
        "tuning_seed": whole(0),
        "untuned": flag,
        "rate_of": nothing_or(text),
        "axes": list_of(text),
        "facts": facts.SHAPE,
    },
)


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
    kept_facts: Facts | None = field(default=None, compare=False, repr=False)  # of a study that was read from a store

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
        for axis in self.axes:
            if not any(axis in contender.options for contender in self.contenders):
                raise ValueError(f"no contender has the axis {axis!r} among its options; name one that they differ by")
        for contender, axis in itertools.product(self.contenders, self.axes):
            if isinstance(contender.options.get(axis), Mapping):
                raise ValueError(f"{axis} of {contender.label} cannot be an axis: its value holds names and values")
        self._check_facts()

    def _check_facts(self) -> None:
        """Refuse what could not be trained; of a new study, a mistake in the options is found here."""
        settings = self.facts.settings
        measured = -(-settings["search_steps"] // settings["evaluate_every"])
        if self.searches and measured < SCORED:
            raise ValueError(
                f"a search run of {settings['search_steps']} steps evaluates every {settings['evaluate_every']}, "
                f"{measured} times, but scored by the mean of {SCORED}; lower evaluate_every or raise search_steps"
            )
        for contender in self.contenders:
            if contender.label not in self.facts.contenders:
                raise ValueError(f"the facts of a study lack its contender {contender.label!r}")
            for factor in (1.0, *self.grid):
                rate = self.usual_rate(contender)
                if not 0 < rate * factor < math.inf:
                    raise ValueError(
                        f"the rate {factor:g}·{rate:g} of {contender.label} is no positive number; change grid"
                    )

    @property
    def searches(self) -> bool:
        """Whether the learning rate is searched for."""
        return len(self.grid) > 1

    def search(self, contender: Contender) -> list[RunConfig]:
        """The runs by which a contender's learning rate is chosen: the schedule's beginning, with the tuning seed."""
        if not self.searches:
            return []
        steps = self.facts.settings["search_steps"]
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
        score = self.facts.score
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

    def task_and_optimizers(self) -> list[str]:
        """Their names, which may say where code lies."""
        return [self.task, *(contender.optimizer for contender in self.contenders)]

    def make_task(self) -> tasks.Task:
        """The task at this study's scale and settings."""
        return self._task

    @cached_property
    def _task(self) -> tasks.Task:
        return tasks.find(self.task).at(self.scale, self.settings)

    def usual_rate(self, contender: Contender) -> float:
        """A contender's learning rate without a search."""
        return self.facts.contenders[contender.label].usual_rate

    @cached_property
    def facts(self) -> Facts:
        """What the study takes from code; one that was read from a store has them with it, and loads none."""
        if self.kept_facts is not None:
            return self.kept_facts
        named = {c.label: (c.optimizer, c.options) for c in self.contenders}
        return Facts.from_code(self.task, self.scale, self.settings, named)

    def check(self) -> None:
        """Refuse a study whose optimizers refuse their options; reading one from a store does not make optimizers."""
        for contender in self.contenders:
            label = contender.label if contender.label.startswith(contender.optimizer) else ""
            label = label or f"{contender.optimizer} with {contender.label}"
            self.finals(contender, self.usual_rate(contender))[0].check_optimizer(label)

    def to_dict(self) -> dict[str, Any]:
        """The question, as plain numbers, strings, lists and dictionaries."""
        question = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "kept_facts"}
        question["contenders"] = tuple(dataclasses.asdict(contender) for contender in self.contenders)
        return {name: value for name, value in question.items() if value is not None}

    def to_record(self) -> dict[str, Any]:
        """The question with its facts, as a store keeps it."""
        return {**self.to_dict(), "facts": self.facts.to_dict()}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """A study from what `to_dict` gave, perhaps through a file; loads the code that it names."""
        SHAPE(kept, "a study")
        return cls(**_fields_of(kept))

    @classmethod
    def from_record(cls, kept: Mapping[str, Any], *, trust: bool = False) -> Self:
        """A study from what `to_record` gave, or `to_dict`: without facts, its task and optimizers are looked up.

        Those of the package are looked up by name. Code that lies elsewhere is only loaded with `trust`.
        """
        SHAPE(kept, "a study")
        if "facts" in kept:
            return cls(**_fields_of(kept), kept_facts=Facts.from_dict(kept["facts"]))
        references.check_trusted([kept["task"], *(c["optimizer"] for c in kept["contenders"])], trust)
        try:
            return cls(**_fields_of(kept))
        except ValueError:
            raise
        except Exception as error:  # whatever loading a task or an optimizer raises
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _search_failed(self, contender: Contender, runs: Mapping[str, Run]) -> bool:
        found = [runs.get(config.identity) for config in self.search(contender)]
        return bool(found) and all(run is not None and run.status == "failed" for run in found)

    def _searching(self) -> Sequence[Contender]:
        return self.contenders if self.rate_of is None else [self.contender(self.rate_of)]

    def _run(self, contender: Contender, lr: float, seed: int, steps: int | None = None) -> RunConfig:
        key = (contender.label, lr, seed, steps)
        if key not in self._runs:
            own = self.facts.contenders[contender.label]
            self._runs[key] = RunConfig(
                task=self.task,
                scale=self.scale,
                settings=self._settings_of_runs,
                optimizer=contender.optimizer,
                options=own.options,
                lr=written(lr),
                seed=seed,
                steps=self.facts.settings["steps"] if steps is None else steps,
                sources=own.sources,
            )
        return self._runs[key]

    @cached_property
    def _settings_of_runs(self) -> dict[str, Any]:
        return of_a_run(self.facts.settings)

    @cached_property
    def _runs(self) -> dict[tuple[str, float, int, int | None], RunConfig]:
        return {}


def _fields_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a study whose shape was checked, without its facts."""
    lists = {
        "contenders": tuple(Contender(**contender) for contender in kept["contenders"]),
        "seeds": tuple(kept["seeds"]),
        "grid": tuple(map(float, kept["grid"])),
        "settings": {name: frozen(value) for name, value in kept.get("settings", {}).items()},
        "axes": tuple(kept.get("axes", ())),
    }
    return {name: value for name, value in {**kept, **lists}.items() if name != "facts"}


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
