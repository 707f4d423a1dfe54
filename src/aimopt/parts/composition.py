"""A composition: one choice on every axis, and how a parameter group stores it.

    parts = Parts(EMA(0.9), Adaptive(0.999), Direct())      Adam, with the default decay and iterate
    parts.to_group()                                        {"filter": "EMA", "betas": (0.9, 0.999), "eps": 1e-8, …}
    Parts.from_group(group)                                 the same parts

A group holds plain values: the class of each part by its name, and the hyperparameters of all parts next to `lr`. A
part that a part wraps is there in the same way: `Cautious(FixedPoint())` is {"correction": "Cautious", "inner":
"FixedPoint", …}.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, cast

from aimopt.parts.component import Component, Correction, Decay, Filter, Geometry, Initial, Iterate
from aimopt.parts.decays import Decoupled
from aimopt.parts.iterates import Last


class Parts(NamedTuple):
    """One choice on every axis: an optimizer."""

    filter: Filter
    geometry: Geometry
    correction: Correction
    decay: Decay = Decoupled()
    iterate: Iterate = Last()

    @property
    def names(self) -> str:
        """The classes, without a decay and an iterate that do nothing special."""
        shown = [part for part in self if type(part) not in (Decoupled, Last)]
        return " + ".join(type(part).__name__ for part in shown)

    def buffers(self) -> dict[str, Initial]:
        """The state of one parameter, except its step count."""
        return {
            name: initial if isinstance(initial, Initial) else Initial(initial)
            for part in self
            for name, initial in part.buffers().items()
        }

    def validate(self) -> None:
        """Refuse a combination that makes no sense, and say what to use instead."""
        names = self.names
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
        self._validate_last_axes(names)

    def why_refused(self) -> str | None:
        """Why this combination is refused, or None."""
        try:
            self.validate()
            self.to_group()
        except ValueError as error:
            return str(error)
        return None

    def _validate_last_axes(self, names: str) -> None:
        correction, decay, iterate = (type(part).__name__ for part in self[2:])
        if self.correction.solves_linear_system and not (self.decay.affine or self._decay_is_off):
            raise ValueError(
                f"{names}: {correction} cannot solve for a point that {decay} moves as well; use Decoupled or Coupled"
            )
        if self.iterate.moves_elsewhere and self.correction.evaluates_again:
            raise ValueError(
                f"{names}: {correction} evaluates the closure at the point that it moves, and {iterate} moves another "
                "one; use Direct, FixedPoint(iterations=1) or Secant"
            )
        if self.iterate.moves_elsewhere and self.decay.projects and not self._decay_is_off:
            raise ValueError(
                f"{names}: {decay} moves the parameters after the step, and {iterate} steps another point; "
                "use Decoupled"
            )

    @property
    def _decay_is_off(self) -> bool:
        return self.decay.takes_coefficient and self.decay.weight_decay == 0

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
    def from_group(cls, group: dict[str, Any], *, complete: bool = True) -> "Parts":
        """The parts that a parameter group describes. They are cached by value, because every step reads them.

        A group that need not be `complete` may lack hyperparameters, which then have their default values.
        """
        try:
            classes = tuple([axis.lookup(group[name]) for name, axis in AXES.items()])
        except KeyError as error:
            raise ValueError(f"it has no {error}; put it back") from None
        wrapped = tuple([part.lookup(_wrapped_name(part, group)) for part in classes if part.wraps is not None])
        values = tuple([_hashable(group.get(key, _ABSENT)) for key in _keys(classes, wrapped)])
        try:
            return _parts(classes, wrapped, values, complete)
        except TypeError:  # an unhashable value is invalid: building the part raises the error that says so
            return _parts.__wrapped__(classes, wrapped, values, complete)


AXES: dict[str, type[Component]] = {axis.axis: axis for axis in (Filter, Geometry, Correction, Decay, Iterate)}
assert tuple(AXES) == Parts._fields
_ABSENT = "(absent)"
# A scheduler that cycles momentum writes this key to all groups of an optimizer, if some of them have a HeavyBall. In a
# group that has `betas` it is the first of them.
CYCLED = "momentum"


def parts_of_groups(groups: Sequence[dict[str, Any]], called: str = "") -> list[Parts]:
    """The parts of each group of a user. The error for an invalid one names what was called, and the group."""
    parts = []
    for index, group in enumerate(groups):
        try:
            parts.append(Parts.from_group(group))
        except ValueError as error:
            raise ValueError(f"{called}: group {index}: {error}".removeprefix(": ")) from None
    return parts


def _wrapped_name(part: type[Component], group: dict[str, Any]) -> str:
    if part.wraps not in group:
        raise ValueError(f"{part.__name__} wraps another {part.axis}; set {part.wraps!r} to its name")
    return cast(str, group[part.wraps])


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _keys(classes: tuple[type[Component], ...], wrapped: tuple[type[Component], ...]) -> tuple[str, ...]:
    """The group keys from which parts of these classes, and the parts that they wrap, are read."""
    names = [f.name for part in (*classes, *wrapped) for f in fields(part) if f.name not in part.betas]
    filter, geometry, *_ = classes
    return tuple(dict.fromkeys(names + (["betas", CYCLED] if filter.betas else list(geometry.betas))))


@lru_cache(maxsize=4096)
def _parts(
    classes: tuple[type[Component], ...], wrapped: tuple[type[Component], ...], values: tuple[Any, ...], complete: bool
) -> Parts:
    keys = _keys(classes, wrapped)
    group = {name: value for name, value in zip(keys, values, strict=True) if value is not _ABSENT}
    is_cycled = all(f.name != CYCLED for part in (*classes, *wrapped) for f in fields(part))
    missing = [name for name in keys if name not in group and not (name == CYCLED and is_cycled)]
    if complete and missing:
        raise ValueError(f"it has no {missing[0]!r}; put it back")
    filter, geometry, *_ = classes
    names = (*filter.betas, *geometry.betas)
    beta_values: dict[type[Component], dict[str, Any]] = {}
    if filter.betas and "betas" in group:
        betas = group.pop("betas")
        if not isinstance(betas, tuple) or len(betas) != len(names):
            raise ValueError(f"betas must be the {len(names)} numbers ({', '.join(names)}), got {betas!r}")
        if CYCLED in group and is_cycled:
            betas = (group[CYCLED], *betas[1:])
        count = len(filter.betas)
        beta_values[filter] = dict(zip(filter.betas, betas[:count], strict=True))
        beta_values[geometry] = dict(zip(geometry.betas, betas[count:], strict=True))
    elif not filter.betas:
        beta_values[geometry] = {name: group[name] for name in geometry.betas if name in group}
    return Parts(*[_build(part, group, beta_values.get(part, {})) for part in classes])  # type: ignore[arg-type]


def _build(part: type[Component], group: dict[str, Any], betas: dict[str, Any]) -> Component:
    """The part of this class, and the part that it wraps, from their values in a group."""
    values = {f.name: group[f.name] for f in fields(part) if f.name in group and f.name not in part.betas}
    if part.wraps is not None:
        values[part.wraps] = _build(part.lookup(values[part.wraps]), group, {})
    return part(**values, **betas)
