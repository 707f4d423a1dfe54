"""The three axes of an optimizer, and the equation they share.

Every optimizer of this package is a filter, a geometry and a correction. One step of one parameter is

    m, g_metric = filter.update(state, g, t)                     the multiplier: an estimate of the gradient
    metric      = geometry.update(state, g_metric, t, pole)      the shape of the step, learned from gradients
    P(x)        = geometry.apply(x, metric)
    θ⁺          = θ − correction.displacement(P, m, ĝ, …)        η·P(m) + ℓ·P(ĝ − m), or a part of it

For example RADAR is `GradientDifference` + `Relativistic` + `FixedPoint`, Lion is `Lookback` + `Sign` + `Direct`.

A component is a frozen dataclass. Its fields are its hyperparameters. They are stored as plain values in the parameter
group, next to `lr`, so that schedulers, trainers and checkpoints see them; the component is read back from the group
at every step. Fields named in `betas` are stored in the group's `betas` tuple: the filter's first, the geometry's last.

A correction may evaluate the closure again: it then defines `solve`, and steps `Attempt`s. For example
`FixedPoint(iterations=3)` and `ExactQuadratic`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from inspect import isabstract
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor

State = dict[str, Tensor]
StepCount = float | Tensor  # from 1; a tensor if the count must stay on the device


@dataclass(frozen=True)
class Initial:
    """How a state buffer starts: `make` gets the first gradient. For example `zeros` and `scalar(1.0)`."""

    make: Callable[[Tensor], Tensor]
    scalar: bool = False  # one number per parameter, stored on the device of the step count
    # How it is stored if the state's dtype is int8. None: never in 8 bits, as a buffer that a small error would spoil.
    code: Literal["signed", "unsigned"] | None = None


zeros = Initial(lambda gradient: torch.zeros_like(gradient, memory_format=torch.preserve_format))
signed_zeros = replace(zeros, code="signed")  # an average of gradients, or of other vectors
unsigned_zeros = replace(zeros, code="unsigned")  # an average of squares
first_gradient = Initial(lambda gradient: gradient.clone(memory_format=torch.preserve_format))


def scalar(value: float) -> Initial:
    """A number that starts at this value."""
    # An explicit device: torch's default device may be another.
    return Initial(lambda _: torch.tensor(value, dtype=scalar_dtype(), device="cpu"), scalar=True)


def scalar_dtype() -> torch.dtype:
    """The dtype of step counts and other state scalars, as in torch."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def is_finite(value: Any) -> bool:
    """Whether a hyperparameter is a finite real number."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


# The state key of the previous step's gradient. Parts that declare this buffer read it; the step writes it at its end.
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

    def buffers(self) -> Mapping[str, Initial | Callable[[Tensor], Tensor]]:
        """The state of one parameter: the name of each buffer, and how it starts; a function gets the gradient."""
        return {}

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that are stored in the group under their own names."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.betas}

    def beta_values(self) -> tuple[float, ...]:
        """The fields that are stored in the group's `betas`."""
        return tuple(getattr(self, name) for name in self.betas)

    @classmethod
    def lookup(cls, name: str) -> type[Self]:
        """The component of this axis with this class name."""
        part = cls.registry.get(name) if isinstance(name, str) else None
        if part is not None and not isabstract(part):
            return cast(type[Self], part)
        known = sorted(name for name, part in cls.registry.items() if not isabstract(part))
        raise ValueError(
            f"no {cls.axis} is called {name!r}; known are {known} "
            "(if it is your own, import the module that defines it before you load the checkpoint)"
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
        """Refuse a field that is not a finite number in [low, high); the flags open or close the ends."""
        value = getattr(self, name)
        valid = is_finite(value) and (not integer or isinstance(value, Integral))
        valid = valid and (low < value if open_low else low <= value) and (value <= high if closed else value < high)
        if not valid:
            interval = f"{'(' if open_low else '['}{low:g}, {high:g}{']' if closed else ')'}".replace("inf", "∞")
            kind = "an integer" if integer else "a number"
            raise ValueError(f"{type(self).__name__}: {name} must be {kind} in {interval}, got {value!r}")

    def _check_choice(self, name: str, choices: tuple[Any, ...]) -> None:
        """Refuse a field with a value that is not in `choices`."""
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{type(self).__name__}: {name} must be one of {list(choices)}, got {value!r}")


class Transfer(NamedTuple):
    """A linear filter after bias correction has faded: H(z) = Σ numerator[i]·z⁻ⁱ / Σ denominator[i]·z⁻ⁱ."""

    numerator: tuple[float, ...]
    denominator: tuple[float, ...]


class Filter(Component):
    """Turns the stream of gradients into the multiplier m."""

    axis = "filter"

    @property
    @abstractmethod
    def pole(self) -> float:
        """The fraction of the state that survives one step: the pole of the transfer function, the paper's β1."""

    @property
    def gain(self) -> float:
        """The factor on the learning rate: m is an average, and heavy-ball's sum is 1/(1−μ) times that average."""
        return 1.0

    @abstractmethod
    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        """Advance the state by one gradient; return m, and the gradient that the geometry observes."""

    def transfer(self) -> Transfer:
        """From the gradient to m, after bias correction has faded. `aimopt.theory` reads it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no transfer function for aimopt.theory: define transfer()"
        )


class Geometry(Component):
    """Decides the shape of a step: the map P from a direction to a displacement of unit learning rate."""

    axis = "geometry"
    linear: ClassVar[bool]  # P(a·x + b·y) = a·P(x) + b·P(y)
    matrices_only: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()  # the filter's buffers that this geometry reads

    @abstractmethod
    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor | None:
        """Update the state with a gradient; return the metric of this step."""

    @abstractmethod
    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        """P(x)."""


class Correction(Component):
    """Decides what the θ-step adds to the descent point y = θ − η·P(m)."""

    axis = "correction"
    joint: ClassVar[bool] = False  # `solve` gets the parameters of all groups, which must all have this correction
    solves_linear_system: ClassVar[bool] = False  # needs a linear P and no decay after the step
    prediction: ClassVar[tuple[float, ...]] = (1.0,)  # ĝ, as weights of g, g_prev, …
    maps_residual: ClassVar[bool] = False  # the step is η·P(m) + ℓ·P(ĝ − m): two maps, unless P is linear

    @property
    def evaluates_again(self) -> bool:
        """Whether the step is made by `solve`, which evaluates the closure again: whoever defines it wants it run."""
        return self.joint or type(self).solve is not Correction.solve

    @abstractmethod
    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        """ℓ/η: the weight of the gradient next to m."""

    @abstractmethod
    def displacement(self, step: "DisplacementInputs") -> Tensor:
        """The tensor that is subtracted from θ."""

    def solve(self, attempts: "Sequence[Attempt]") -> Iterator[None]:
        """The whole step, where gradients are needed at more points than one: place every attempt at its final point.

        Each `yield` evaluates the closure at the present point; `attempt.gradient()` is the new gradient. The attempts
        are those of one group, or of all groups if the correction is `joint`. Other groups may run in the same rounds.
        """
        for attempt in attempts:
            attempt.place(self.displacement(attempt.inputs))
        return iter(())


class DisplacementInputs(NamedTuple):
    """The inputs from which a correction computes one displacement."""

    geometry: Geometry
    metric: Tensor | None
    m: Tensor
    g: Tensor  # the gradient in the residual g − m
    lr: float | Tensor
    pole: float
    state: State

    def P(self, x: Tensor) -> Tensor:
        """The geometry's map."""
        return self.geometry.apply(x, self.metric)


class Attempt(Protocol):
    """Parameters of one group in a step that evaluates the closure again; see `Correction.solve`."""

    @property
    def correction(self) -> Correction:
        """The correction of these parameters' group; in a joint step, groups may differ in its hyperparameters."""

    @property
    def inputs(self) -> DisplacementInputs:
        """The inputs of a displacement, with the first gradient."""

    @property
    def decays_first(self) -> bool:
        """Whether θ is decayed before the displacement, so that even a zero displacement moves it."""

    def place(self, displacement: Tensor) -> None:
        """Move the parameters to the point that this displacement leads to from θ."""

    def gradient(self) -> Tensor:
        """The gradient of the last evaluation of the closure."""


class Parts(NamedTuple):
    """One choice on every axis: an optimizer."""

    filter: Filter
    geometry: Geometry
    correction: Correction

    def buffers(self) -> dict[str, Initial]:
        """The state of one parameter, except its step count."""
        return {
            name: initial if isinstance(initial, Initial) else Initial(initial)
            for part in self
            for name, initial in part.buffers().items()
        }

    def validate(self) -> None:
        """Refuse a combination that makes no sense, and say what to use instead."""
        names = " + ".join(type(part).__name__ for part in self)
        if self.filter.gain != 1.0 and not self.geometry.linear:
            raise ValueError(
                f"{names}: {type(self.geometry).__name__} ignores the size of m, so the sum of "
                f"{type(self.filter).__name__} would only multiply lr by {self.filter.gain:g}; "
                "use HeavyBall(momentum, normalized=True) or EMA"
            )
        for name, initial in self.buffers().items():
            if not callable(initial.make):
                raise ValueError(
                    f"{names}: buffers() must say how {name!r} starts, got {initial.make!r}; use torch.zeros_like, or "
                    "zeros, first_gradient and scalar(1.0) from aimopt.parts.component"
                )
        missing = [name for name in self.geometry.reads if name not in self.filter.buffers()]
        if missing:
            raise ValueError(
                f"{names}: {type(self.geometry).__name__} measures gradients against the filter's {missing[0]!r}, "
                f"which {type(self.filter).__name__} does not keep; use EMA, GradientDifference or QuasiHyperbolic"
            )
        if self.correction.solves_linear_system and not self.geometry.linear:
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
                if group.setdefault(name, value) != value:
                    raise ValueError(
                        f"{type(part).__name__} has {name}={value!r} and another part has {group[name]!r}; a parameter "
                        f"group stores one {name} for both: pass the same value to both"
                    )
        if self.filter.betas:
            group["betas"] = (*self.filter.beta_values(), *self.geometry.beta_values())
        else:  # no `betas` without a β1: schedulers cycle its first entry
            group.update(zip(self.geometry.betas, self.geometry.beta_values(), strict=True))
        return group

    @classmethod
    def from_group(cls, group: dict[str, Any]) -> "Parts":
        """The parts that a parameter group describes. They are cached by value, because every step reads them."""
        classes = tuple([axis.lookup(group[name]) for name, axis in AXES.items()])
        values = tuple([_hashable(group.get(key, _ABSENT)) for key in _keys(classes)])
        try:
            return _parts(classes, values)
        except TypeError:  # an unhashable value is invalid: building the part raises the error that says so
            return _parts.__wrapped__(classes, values)


AXES: dict[str, type[Component]] = {axis.axis: axis for axis in (Filter, Geometry, Correction)}
assert tuple(AXES) == Parts._fields
_ABSENT = "(absent)"


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _keys(classes: tuple[type[Component], ...]) -> tuple[str, ...]:
    """The group keys from which parts of these classes are read."""
    names = [f.name for part in classes for f in fields(part) if f.name not in part.betas]
    filter, geometry, _ = classes
    return tuple(dict.fromkeys(names + (["betas"] if filter.betas else list(geometry.betas))))


@lru_cache(maxsize=4096)
def _parts(classes: tuple[type[Component], ...], values: tuple[Any, ...]) -> Parts:
    group = {name: value for name, value in zip(_keys(classes), values, strict=True) if value is not _ABSENT}
    filter, geometry, _ = classes
    names = (*filter.betas, *geometry.betas)
    if filter.betas and "betas" in group:
        betas = group.pop("betas")
        if not isinstance(betas, tuple) or len(betas) != len(names):
            raise ValueError(f"betas must be the {len(names)} numbers ({', '.join(names)}), got {betas!r}")
        beta_values = [betas[: len(filter.betas)], betas[len(filter.betas) :], ()]
    else:
        beta_values = [(), tuple(group[name] for name in geometry.betas if name in group), ()]
    built = []
    for part, values_of_part in zip(classes, beta_values, strict=True):
        arguments = {f.name: group[f.name] for f in fields(part) if f.name in group and f.name not in part.betas}
        built.append(part(**arguments, **dict(zip(part.betas, values_of_part, strict=False))))
    return Parts(*built)  # type: ignore[arg-type]
