"""The axes of an optimizer, and the equation they share.

Every optimizer of this package is a filter, a geometry and a correction; and a decay and an iterate, which most leave
at their defaults. One step of one parameter is

    m, g_metric = filter.update(state, decay.gradient(g, θ), t)  the multiplier: an estimate of the gradient
    metric      = geometry.update(state, g_metric, t, pole)      the shape of the step, learned from gradients
    P(x)        = geometry.apply(x, metric)
    d           = correction.displacement(P, m, ĝ, …)            η·P(m) + ℓ·P(ĝ − m), or a part of it
    d, s        = decay.terms(θ, d, η)                           the shrinkage s of θ: weight decay
    θ⁺          = iterate.descend(θ, d, s)                       θ·(1−s) − d, or a step of another sequence

For example RADAR is `GradientDifference` + `Relativistic` + `FixedPoint`, Lion is `Lookback` + `Sign` + `Direct`, both
with `Decoupled` and `Last`.

A component is a frozen dataclass. Its fields are its hyperparameters. They are stored as plain values in the parameter
group, next to `lr`, so that schedulers, trainers and checkpoints see them; the component is read back from the group
at every step. Fields named in `betas` are stored in the group's `betas` tuple: the filter's first, the geometry's last.

A correction may evaluate the closure again: it then defines `solve`, and steps `Attempt`s. For example
`FixedPoint(iterations=3)` and `ExactQuadratic`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
    shaped: bool = False  # `make` decides the shape, such as that of a matrix's factor; such a step is not fused
    of_parameter: bool = False  # `make` gets the parameter instead of the gradient
    # How it is stored if the state's dtype is int8. None: never in 8 bits, because a small error would matter.
    code: Literal["signed", "unsigned"] | None = None

    def start(self, gradient: Tensor, p: Tensor) -> Tensor:
        """The first value of this buffer."""
        return self.make(p if self.of_parameter else gradient)

    def shape_for(self, p: Tensor, shape: Sequence[int] | None = None) -> torch.Size:
        """The shape of this buffer for a parameter; for a whole parameter of this shape, if p is a part of it."""
        shape = torch.Size(p.shape if shape is None else shape)
        if not self.shaped:
            return shape
        like = torch.empty(shape, dtype=p.dtype, device="meta")
        return self.make(torch.view_as_real(like) if p.is_complex() else like).shape  # as the step sees it


zeros = Initial(lambda gradient: torch.zeros_like(gradient, memory_format=torch.preserve_format))
signed_zeros = replace(zeros, code="signed")  # an average of gradients, or of other vectors
unsigned_zeros = replace(zeros, code="unsigned")  # an average of squares
first_gradient = Initial(lambda gradient: gradient.clone(memory_format=torch.preserve_format))
first_parameter = Initial(lambda p: p.clone(memory_format=torch.preserve_format), of_parameter=True)


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


def is_zero(value: Any) -> bool:
    """Whether a hyperparameter is known to be zero; it may also be a symbol, when a kernel is made."""
    return isinstance(value, (int, float)) and value == 0


# The values of the field `bias_correction`. A group stores one value for all parts that have this field, so "exact" is
# valid in each of them, also where it means the same as True.
BIAS_CORRECTIONS = (True, False, "exact")

# The state key of the previous step's gradient. Parts that declare this buffer read it; the step writes it at its end.
PREVIOUS_GRADIENT = "prev_grad"


@dataclass(frozen=True)
class Component(ABC):
    """A choice on one axis: abstract, or final and then a dataclass of its hyperparameters."""

    axis: ClassVar[str]
    registry: ClassVar[dict[str, type["Component"]]]
    betas: ClassVar[tuple[str, ...]] = ()
    wraps: ClassVar[str | None] = None  # the field that holds another part of this axis
    # Other names that a user may give for a field when a group is made: the field, and its value from theirs.
    aliases: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {}
    declares: ClassVar[dict[str, str]] = {}  # what every final class of this axis must say, True or False, and why

    def __init_subclass__(cls) -> None:
        if Component in cls.__bases__:
            cls.registry = {}
        else:
            if not isabstract(cls):
                cls._check_declarations()
            known = cls.registry.setdefault(cls.__name__, cls)
            if known.__module__ != cls.__module__:
                raise TypeError(f"{known.__module__} has a {cls.axis} called {cls.__name__}; give yours another name")
            cls.registry[cls.__name__] = cls

    @classmethod
    def _check_declarations(cls) -> None:
        for name, meaning in cls.declares.items():
            if not isinstance(getattr(cls, name, None), bool):
                raise TypeError(
                    f"{cls.__name__}: a {cls.axis} must say whether {meaning}; write `{name} = True` or "
                    f"`{name} = False` in the class"
                )

    def buffers(self) -> Mapping[str, Initial | Callable[[Tensor], Tensor]]:
        """The state of one parameter: the name of each buffer, and how it starts; a function gets the gradient."""
        return {}

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that the group stores under their own names; a wrapped part is a class name and its fields."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.betas}
        if self.wraps is None:
            return values
        inner: Component = values[self.wraps]
        return {**values, self.wraps: type(inner).__name__, **inner.hyperparameters()}

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
        # A tensor or an array is compared element by element, which gives no truth value.
        if isinstance(value, Tensor) or not isinstance(value, Hashable) or value not in choices:
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
    declares: ClassVar[dict[str, str]] = {"linear": "its map is linear, P(a·x + b·y) = a·P(x) + b·P(y)"}
    linear: ClassVar[bool]
    matrices_only: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()  # the filter's buffers that this geometry reads

    def why_unfit(self, shape: torch.Size) -> str | None:
        """Why a parameter of this shape cannot be stepped, or None; every shape of matrices is fit by default."""
        return None

    @abstractmethod
    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor | None:
        """Update the state with a gradient; return the metric of this step."""

    @abstractmethod
    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        """P(x)."""


class Correction(Component):
    """Decides what the θ-step adds to the descent point y = θ − η·P(m)."""

    axis = "correction"
    linear: ClassVar[bool] = True  # with a linear P, the displacement is linear in m and ĝ
    joint: ClassVar[bool] = False  # `solve` gets the parameters of all groups, which must all have this correction
    solves_linear_system: ClassVar[bool] = False  # needs a linear P and no decay after the step
    prediction: ClassVar[tuple[float, ...]] = (1.0,)  # ĝ, as weights of g, g_prev, …
    maps_residual: ClassVar[bool] = False  # the step is η·P(m) + ℓ·P(ĝ − m): two maps, unless P is linear

    @property
    def evaluates_again(self) -> bool:
        """Whether the step is made by `solve`, which evaluates the closure again: if the class defines it."""
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


@dataclass(frozen=True)
class Decay(Component):
    """Pulls the parameters towards zero, or holds them at a norm."""

    axis = "decay"
    weight_decay: float = 0.0
    takes_coefficient: ClassVar[bool] = True  # whether `weight_decay` has a meaning
    affine: ClassVar[bool] = True  # θ⁺ = a·θ − displacement, with an a that does not depend on the displacement
    projects: ClassVar[bool] = False  # whether `project` moves the parameters

    def __post_init__(self) -> None:
        if not is_finite(self.weight_decay) or self.weight_decay < 0:
            raise ValueError(f"weight_decay must be a finite number ≥ 0, got {self.weight_decay!r}")

    def gradient(self, g: Tensor, p: Tensor) -> Tensor:
        """The gradient of the objective, with what this decay adds to the objective."""
        return g

    def terms(
        self, p: Tensor, displacement: Tensor, rate: float | Tensor, state: State
    ) -> tuple[Tensor, float | Tensor | None]:
        """The displacement d and the shrinkage s of the step θ ← θ·(1−s) − d; None if nothing shrinks."""
        return displacement, None

    def project(self, p: Tensor, rate: float | Tensor, state: State) -> None:
        """Move the parameters once more, after the displacement."""


class Iterate(Component):
    """Decides which sequence of points the displacement moves, and at which point the model is evaluated."""

    axis = "iterate"
    moves_elsewhere: ClassVar[bool] = False  # whether the displacement moves another point than the parameters

    def descend(self, step: "Descent") -> None:
        """Move the parameters by a displacement."""
        step.move(step.p)

    def observe(self, state: State, p: Tensor, t: StepCount) -> None:
        """Take note of the point that the step has reached, or change it."""

    def evaluation_point(self, state: State, p: Tensor) -> Tensor | None:
        """The point at which the model is to be evaluated; None if it is the parameters."""
        return None

    def as_filter(self) -> Filter:
        """The filter that maps the parameters, step after step, to the point of evaluation, for `aimopt.theory`."""
        raise NotImplementedError(f"{type(self).__name__} is no constant filter of the parameters")


class Descent(NamedTuple):
    """The inputs of one descent θ ← θ·(1−s) − d."""

    p: Tensor
    displacement: Tensor
    shrinkage: float | Tensor | None
    rate: float | Tensor  # the learning rate of the group
    t: StepCount
    state: State

    def move(self, point: Tensor) -> None:
        """Move a point in place."""
        if self.shrinkage is not None:
            point.mul_(1 - self.shrinkage)
        point.sub_(self.displacement)


class DisplacementInputs(NamedTuple):
    """The inputs from which a correction computes one displacement."""

    geometry: Geometry
    metric: Tensor | None
    m: Tensor
    g: Tensor  # the gradient in the residual g − m
    lr: float | Tensor
    pole: float
    state: State
    p: Tensor  # θ

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
