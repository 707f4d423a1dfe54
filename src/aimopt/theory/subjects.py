"""What the theory looks at: the filter and the correction of an optimizer, read from wherever they are.

    subject(optimizer)                        an AIM or a named optimizer; `group=1` for its second group
    subject(EMA(0.9))                         a filter alone, which is m
    subject(EMA(0.9), FixedPoint())           a filter and a correction: what moves the parameter
    subject(Parts(EMA(), Sign(), Direct()))   three parts

A geometry that is linear acts on whatever comes out and does not matter here; one that is not (`Sign`, `Spectral`)
matters only in that it may map m and the residual apart, and then nothing but m is a linear filter of the gradients.
"""

import math
from dataclasses import dataclass

import numpy as np

from aimopt.aim import AIM
from aimopt.components import Correction, Filter, Geometry, Parts, Transfer
from aimopt.corrections import Direct, Residual
from aimopt.geometries import Euclidean

Source = AIM | Filter | tuple[Filter, Correction] | Parts


@dataclass(frozen=True)
class Subject:
    """A filter, a correction and the learning rate they run at (NaN where none is known)."""

    filter: Filter
    correction: Correction
    geometry: Geometry
    lr: float
    name: str

    @property
    def rate(self) -> float:
        """η as the correction sees it: the learning rate in the scale of an average."""
        return self.lr * self.filter.gain

    @property
    def ratio(self) -> float:
        """ℓ/η."""
        ratio = float(self.correction.ratio(self.rate, self.filter.pole))
        if math.isnan(ratio):
            raise ValueError(
                f"{self.name}: ℓ is a fixed number here, so that ℓ/η depends on the learning rate; pass lr=…"
            )
        return ratio

    @property
    def maps_apart(self) -> bool:
        """Whether a nonlinear geometry maps m and the residual separately, which no linear filter describes."""
        return not self.geometry.linear and isinstance(self.correction, Residual) and self.ratio != 0

    @property
    def reevaluates(self) -> bool:
        """Whether the step evaluates gradients at points of its own."""
        return self.correction.evaluations > 1 or self.correction.joint

    def momentum(self) -> Transfer:
        """From g to m, refused where it is unstable."""
        numerator, denominator = self.filter.transfer()
        poles = np.roots(denominator)
        if poles.size and not np.abs(poles).max() < 1:
            worst = poles[np.abs(poles).argmax()]
            raise ValueError(
                f"{self.name} is unstable: its pole {worst:.6g} is not inside the unit circle, so m grows without "
                "bound; choose decays below 1"
            )
        return reduced(Transfer(tuple(map(float, numerator)), tuple(map(float, denominator))))

    def direction(self) -> Transfer:
        """From g to the direction m + (ℓ/η)·(ĝ − m), or to m where a nonlinear geometry maps the two apart."""
        numerator, denominator = self.momentum()
        if self.maps_apart:
            return Transfer(numerator, denominator)
        predicted = np.convolve(self.correction.prediction, denominator)
        mixed = np.zeros(max(len(numerator), len(predicted)))
        mixed[: len(numerator)] += np.multiply(1 - self.ratio, numerator)
        mixed[: len(predicted)] += self.ratio * predicted
        return reduced(Transfer(tuple(mixed.tolist()), denominator))


def roots(transfer: Transfer) -> tuple[list[complex], list[complex]]:
    """Zeros and poles in z, without those that cancel: a state that nothing sees, such as an average at γ = β1."""
    order = max(map(len, transfer))
    zeros, poles = ([complex(root) for root in np.roots(np.pad(c, (0, order - len(c))))] for c in transfer)
    for pole in list(poles):
        near = [zero for zero in zeros if abs(zero - pole) < 1e-7]
        if near:
            zeros.remove(near[0])
            poles.remove(pole)
    return zeros, poles


def reduced(transfer: Transfer) -> Transfer:
    """The same function of z with no more terms than it takes."""
    zeros, poles = roots(transfer)
    if len(poles) == max(map(len, transfer)) - 1 or not any(transfer.numerator):
        return transfer
    leading = next(c for c in transfer.numerator if c)
    numerator, denominator = (np.atleast_1d(np.real(np.poly(found))) for found in (zeros, poles))
    ahead = (0.0,) * (len(poles) - len(zeros))
    return Transfer((*ahead, *(leading * numerator).tolist()), tuple(denominator.tolist()))


def subject(
    source: Source, correction: Correction | None = None, *, lr: float | None = None, group: int = 0
) -> Subject:
    """Read the parts and the learning rate of an optimizer, or take the parts given."""
    geometry: Geometry = Euclidean()
    name = ""
    if isinstance(source, AIM):
        if not 0 <= group < len(source.param_groups):
            raise ValueError(f"group must be one of the optimizer's {len(source.param_groups)}, from 0, got {group!r}")
        settings = source.param_groups[group]
        filter, geometry, found = Parts.from_group(settings)
        lr = float(settings["lr"]) or None if lr is None else lr  # zero at the start of a warm-up is no rate yet
        name = type(source).__name__
    elif isinstance(source, Parts):
        filter, geometry, found = source
    elif isinstance(source, Filter):
        filter, found = source, Direct()
    elif isinstance(source, tuple) and list(map(_axis, source)) == ["filter", "correction"]:
        filter, found = source
    else:
        raise ValueError(
            f"got {source!r}; give an optimizer of aimopt, a filter, a pair (filter, correction) or aimopt's Parts"
        )
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr must be a finite number > 0, got {lr!r}; the theory is about a step that moves")
    chosen = found if correction is None else correction
    title = name or " + ".join(type(p).__name__ for p in (filter, chosen) if not isinstance(p, Direct))
    return Subject(filter, chosen, geometry, math.nan if lr is None else lr, title)


def _axis(part: object) -> str:
    return getattr(part, "axis", "")
