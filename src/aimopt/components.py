"""The three axes of an optimizer, and the equation they share.

Every optimizer of this package is a filter, a geometry and a correction. One step of one parameter is

    m, seen = filter.update(state, g, t)                   the multiplier: an estimate of the gradient
    metric  = geometry.update(state, seen, t, pole)        the shape of the step, learned from gradients
    P(x)    = geometry.apply(x, metric)
    θ⁺      = θ − correction.displacement(P, m, ĝ, …)      η·P(m) + ℓ·P(ĝ − m), or a part of it

For example RADAR is `GradientDifference` + `Relativistic` + `FixedPoint`, Lion is `Lookback` + `Sign` + `Direct`.

A component is a frozen dataclass whose fields are its hyperparameters. They live as plain values in the parameter
group, next to `lr`, so that schedulers, trainers and checkpoints see them; the component is read back from the group
at every step. Fields named in `betas` are kept in the group's `betas` tuple: the filter's first, the geometry's last.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from inspect import isabstract
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

State = dict[str, Tensor]
Step = float | Tensor  # a step count, from 1; a tensor where the count must stay on the device
Initial = Callable[[Tensor], Tensor]  # from the first gradient: a state buffer before the first step


def zeros(gradient: Tensor) -> Tensor:
    """A buffer that starts at zero."""
    return torch.zeros_like(gradient, memory_format=torch.preserve_format)


def first_gradient(gradient: Tensor) -> Tensor:
    """A buffer that starts at the first gradient."""
    return gradient.clone(memory_format=torch.preserve_format)


def scalar_one(gradient: Tensor) -> Tensor:
    """A scalar that starts at one, kept where the step count is kept."""
    return torch.ones((), dtype=scalar_dtype(), device="cpu")  # whatever torch's default device is


def scalar_dtype() -> torch.dtype:
    """The dtype of step counts and other state scalars, as in torch."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def is_finite(value: Any) -> bool:
    """Whether a hyperparameter is a number, and neither infinite nor NaN."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


# The gradient of the previous step. Whoever declares it reads it; the step itself writes it, after all have read.
PREVIOUS_GRADIENT = "prev_grad"


@dataclass(frozen=True)
class Component(ABC):
    """A choice on one axis: abstract, or final and then a dataclass of its hyperparameters."""

    axis: ClassVar[str]
    registry: ClassVar[dict[str, type["Component"]]]
    betas: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if Component in cls.__bases__:
            cls.registry = {}
        else:
            known = cls.registry.setdefault(cls.__name__, cls)
            if known.__module__ != cls.__module__:
                raise TypeError(f"{known.__module__} has a {cls.axis} called {cls.__name__}; give yours another name")
            cls.registry[cls.__name__] = cls

    def buffers(self) -> dict[str, Initial]:
        """The state this component keeps for a parameter, and how each buffer starts."""
        return {}

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that are kept in the group under their own name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.betas}

    def decays(self) -> tuple[float, ...]:
        """The fields that are kept in the group's `betas`."""
        return tuple(getattr(self, name) for name in self.betas)

    @classmethod
    def lookup(cls, name: str) -> type[Self]:
        """The component of this axis that is called `name`."""
        part = cls.registry.get(name) if isinstance(name, str) else None
        if part is not None and not isabstract(part):
            return cast(type[Self], part)
        known = sorted(name for name, part in cls.registry.items() if not isabstract(part))
        raise ValueError(
            f"no {cls.axis} is called {name!r}; known are {known} "
            "(import the module that defines your own before you load its checkpoint)"
        )

    def _check(
        self,
        name: str,
        low: float,
        high: float = math.inf,
        *,
        open_low: bool = False,
        closed: bool = False,
        integer: bool = False,
    ) -> None:
        """Refuse a field that is not a finite number of [low, high), of (low, high), or if `closed` of [low, high]."""
        value = getattr(self, name)
        good = is_finite(value) and (not integer or isinstance(value, Integral))
        good = good and (low < value if open_low else low <= value) and (value <= high if closed else value < high)
        if not good:
            interval = f"{'(' if open_low else '['}{low:g}, {high:g}{']' if closed else ')'}".replace("inf", "∞")
            kind = "an integer" if integer else "a number"
            raise ValueError(f"{type(self).__name__}: {name} must be {kind} in {interval}, got {value!r}")

    def _check_choice(self, name: str, choices: tuple[Any, ...]) -> None:
        """Refuse a field that is none of `choices`."""
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{type(self).__name__}: {name} must be one of {list(choices)}, got {value!r}")


class Transfer(NamedTuple):
    """A linear filter in the long run: H(z) = Σ numerator[i]·z⁻ⁱ / Σ denominator[i]·z⁻ⁱ."""

    numerator: tuple[float, ...]
    denominator: tuple[float, ...]


class Filter(Component):
    """Turns the stream of gradients into the multiplier m."""

    axis = "filter"

    @property
    @abstractmethod
    def pole(self) -> float:
        """How much of the state survives a step: the pole of the transfer function, the paper's β1."""

    @property
    def gain(self) -> float:
        """What the learning rate is multiplied by: m is an average, and the sum of heavy-ball is 1/(1−μ) times it."""
        return 1.0

    @abstractmethod
    def update(self, state: State, g: Tensor, t: Step) -> tuple[Tensor, Tensor]:
        """Advance the state by one gradient; return m and the gradient the geometry should see."""

    def transfer(self) -> Transfer:
        """From the gradient to m once bias correction has worn off: what `aimopt.theory` knows of a filter."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does in the long run: define transfer()")


class Geometry(Component):
    """Decides the shape of a step: the map P from a direction to a displacement of unit learning rate."""

    axis = "geometry"
    linear: ClassVar[bool]  # P(a·x + b·y) = a·P(x) + b·P(y): mixing before or after the map is the same
    matrices_only: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()  # the filter's buffers this geometry measures against

    @abstractmethod
    def update(self, state: State, g: Tensor, t: Step, pole: float) -> Tensor | None:
        """Observe a gradient; return the metric of this step."""

    @abstractmethod
    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        """P(x)."""


class Correction(Component):
    """Decides what the θ-step adds to the descent point y = θ − η·P(m)."""

    axis = "correction"
    joint: ClassVar[bool] = False  # it solves for all parameters at once, which takes a linear P
    prediction: ClassVar[tuple[float, ...]] = (1.0,)  # ĝ, as weights of g, g_prev, …

    @property
    def evaluations(self) -> int:
        """How many gradients the step takes; beyond the first they come from the closure, at the point reached."""
        return 1

    @abstractmethod
    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        """ℓ/η: the weight the gradient gets beside m."""

    @abstractmethod
    def displacement(self, step: "Displacement") -> Tensor:
        """What is subtracted from θ."""


class Displacement(NamedTuple):
    """What a correction may use to compute one displacement."""

    geometry: Geometry
    metric: Tensor | None
    m: Tensor
    g: Tensor  # the gradient the residual g − m is taken with
    lr: float | Tensor
    pole: float
    state: State

    def P(self, x: Tensor) -> Tensor:
        """The geometry's map."""
        return self.geometry.apply(x, self.metric)


class Parts(NamedTuple):
    """One choice on every axis: an optimizer."""

    filter: Filter
    geometry: Geometry
    correction: Correction

    def buffers(self) -> dict[str, Initial]:
        """The whole state of a parameter, apart from its step count."""
        return {name: initial for part in self for name, initial in part.buffers().items()}

    def validate(self) -> None:
        """Refuse a combination that has no meaning, and say what to pick instead."""
        names = " + ".join(type(part).__name__ for part in self)
        if self.filter.gain != 1.0 and not self.geometry.linear:
            raise ValueError(
                f"{names}: {type(self.geometry).__name__} ignores the size of m, so the sum of "
                f"{type(self.filter).__name__} would only multiply lr by {self.filter.gain:g}; "
                "use HeavyBall(momentum, normalized=True) or EMA"
            )
        missing = [name for name in self.geometry.reads if name not in self.filter.buffers()]
        if missing:
            raise ValueError(
                f"{names}: {type(self.geometry).__name__} measures gradients against the filter's {missing[0]!r}, "
                f"which {type(self.filter).__name__} does not keep; use EMA, GradientDifference or QuasiHyperbolic"
            )
        if self.correction.joint and not self.geometry.linear:
            raise ValueError(
                f"{names}: {type(self.correction).__name__} solves a linear system and "
                f"{type(self.geometry).__name__} is not linear; use FixedPoint(iterations=…) or Secant"
            )

    def to_group(self) -> dict[str, Any]:
        """The plain values that describe these parts in a parameter group."""
        group: dict[str, Any] = {}
        for part in self:
            group[part.axis] = type(part).__name__
            for name, value in part.hyperparameters().items():
                if name in _RESERVED:
                    raise ValueError(f"{type(part).__name__}: a group has another use for {name!r}; rename the field")
                if group.setdefault(name, value) != value:
                    raise ValueError(
                        f"{type(part).__name__} has {name}={value!r} where another part has {group[name]!r}; a "
                        f"parameter group keeps one {name} for both: give them the same"
                    )
        if self.filter.betas:
            group["betas"] = (*self.filter.decays(), *self.geometry.decays())
        else:  # without a β1 there is no `betas`, whose first entry schedulers cycle
            group.update(zip(self.geometry.betas, self.geometry.decays(), strict=True))
        return group

    @classmethod
    def from_group(cls, group: dict[str, Any]) -> "Parts":
        """The parts a parameter group describes; equal groups share them, so that reading one is cheap."""
        classes = tuple([axis.lookup(group[axis.axis]) for axis in _AXES])
        values = tuple([_hashable(group.get(key, _ABSENT)) for key in _keys(classes)])
        try:
            return _parts(classes, values)
        except TypeError:  # a value that cannot be hashed cannot be right, and building the part says so
            return _parts.__wrapped__(classes, values)


_AXES: tuple[type[Component], ...] = (Filter, Geometry, Correction)
_RESERVED = frozenset(
    [
        "params",
        "param_names",
        "lr",
        "betas",
        "weight_decay",
        "decoupled_weight_decay",
        "filter",
        "geometry",
        "correction",
        "maximize",
        "foreach",
        "fused",
        "state_dtype",
        "stochastic_rounding",
        "capturable",
        "differentiable",
        "skip_nonfinite",
        "skipped_steps",
    ]
)
_ABSENT = "(absent)"


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _keys(classes: tuple[type[Component], ...]) -> tuple[str, ...]:
    """The group keys that parts of these classes are read from."""
    own = [f.name for part in classes for f in fields(part) if f.name not in part.betas]
    filter, geometry, _ = classes
    return tuple(dict.fromkeys(own + (["betas"] if filter.betas else list(geometry.betas))))


@lru_cache(maxsize=4096)
def _parts(classes: tuple[type[Component], ...], values: tuple[Any, ...]) -> Parts:
    group = {name: value for name, value in zip(_keys(classes), values, strict=True) if value is not _ABSENT}
    filter, geometry, _ = classes
    names = (*filter.betas, *geometry.betas)
    if filter.betas and "betas" in group:
        betas = group.pop("betas")
        if not isinstance(betas, tuple) or len(betas) != len(names):
            raise ValueError(f"betas must be the {len(names)} numbers ({', '.join(names)}), got {betas!r}")
        decays = [betas[: len(filter.betas)], betas[len(filter.betas) :], ()]
    else:
        decays = [(), tuple(group[name] for name in geometry.betas if name in group), ()]
    built = []
    for part, own in zip(classes, decays, strict=True):
        given = {f.name: group[f.name] for f in fields(part) if f.name in group and f.name not in part.betas}
        built.append(part(**given, **dict(zip(part.betas, own, strict=False))))
    return Parts(*built)  # type: ignore[arg-type]
