"""A step as a linear filter of the gradients: what the theory needs of an optimizer, read from its parts.

    linear_step(optimizer)                        an AIM or a named optimizer; `group=1` for its second group
    linear_step(EMA(0.9))                         a filter alone, which gives m
    linear_step(EMA(0.9), FixedPoint())           a filter and a correction: what moves the parameter
    linear_step(Parts(EMA(), Sign(), Direct()))   parts
    linear_step(Average(0.99))                    an iterate: the point of evaluation as a filter of the parameters

A linear geometry acts on the direction and does not change its transfer function. A nonlinear one (`Sign`, `Spectral`)
matters in one case: if it maps m and the residual separately, then only m is a linear filter of the gradients. The same
holds for a correction that is not linear, such as `Cautious`.

The transfer functions here are closed forms of what filters (`transfer`) and corrections (`ratio`, `prediction`)
declare. The tests compare them with steps of real optimizers.
"""

import math
from dataclasses import dataclass

import numpy as np

from aimopt.aim import AIM
from aimopt.parts.component import Correction, Filter, Geometry, Iterate, Transfer
from aimopt.parts.composition import Parts
from aimopt.parts.corrections import Direct
from aimopt.parts.geometries import Euclidean
from aimopt.parts.iterates import Last

Source = AIM | Filter | Iterate | tuple[Filter, Correction] | Parts
LAST = Last()


@dataclass(frozen=True)
class LinearStep:
    """The parts of an optimizer and the learning rate they run at (NaN if it is not known)."""

    filter: Filter
    geometry: Geometry
    correction: Correction
    lr: float
    name: str
    iterate: Iterate = LAST

    @property
    def scaled_lr(self) -> float:
        """η as the correction gets it: the learning rate times the filter's gain."""
        return self.lr * self.filter.gain

    @property
    def ratio(self) -> float:
        """ℓ/η."""
        ratio = float(self.correction.ratio(self.scaled_lr, self.filter.pole))
        if math.isnan(ratio):
            raise ValueError(
                f"{self.name}: ℓ is a fixed number here, so that ℓ/η depends on the learning rate; pass lr=…"
            )
        return ratio

    @property
    def is_linear(self) -> bool:
        """Whether the whole step is linear, with a metric that is treated as constant."""
        return self.geometry.linear and self.correction.linear

    @property
    def only_m_is_linear(self) -> bool:
        """Whether a nonlinear correction, or a nonlinear map of the residual, follows m: no linear filter has that."""
        if not self.correction.linear:
            return True
        return not self.geometry.linear and self.correction.maps_residual and self.ratio != 0

    @property
    def reevaluates(self) -> bool:
        """Whether one step evaluates more than one gradient."""
        return self.correction.evaluates_again

    def momentum(self) -> Transfer:
        """The transfer function from g to m; an unstable one is refused."""
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
        """From g to the direction m + (ℓ/η)·(ĝ − m); to m if no more than that is linear."""
        numerator, denominator = self.momentum()
        if self.only_m_is_linear:
            return Transfer(numerator, denominator)
        predicted = np.convolve(self.correction.prediction, denominator)
        mixed = np.zeros(max(len(numerator), len(predicted)))
        mixed[: len(numerator)] += np.multiply(1 - self.ratio, numerator)
        mixed[: len(predicted)] += self.ratio * predicted
        return reduced(Transfer(tuple(mixed.tolist()), denominator))


def roots(transfer: Transfer) -> tuple[list[complex], list[complex]]:
    """Zeros and poles in z, without pairs that cancel: a state that does not reach m, such as an average at γ = β1."""
    order = max(map(len, transfer))
    zeros, poles = ([complex(root) for root in np.roots(np.pad(c, (0, order - len(c))))] for c in transfer)
    for pole in list(poles):
        near = [zero for zero in zeros if abs(zero - pole) < 1e-7]
        if near:
            zeros.remove(near[0])
            poles.remove(pole)
    return zeros, poles


def reduced(transfer: Transfer) -> Transfer:
    """The same function of z with the smallest number of terms."""
    zeros, poles = roots(transfer)
    if len(poles) == max(map(len, transfer)) - 1 or not any(transfer.numerator):
        return transfer
    leading = next(c for c in transfer.numerator if c)
    numerator, denominator = (np.atleast_1d(np.real(np.poly(z))) for z in (zeros, poles))
    delay = (0.0,) * (len(poles) - len(zeros))
    return Transfer((*delay, *(leading * numerator).tolist()), tuple(denominator.tolist()))


def linear_step(
    source: Source, correction: Correction | None = None, *, lr: float | None = None, group: int = 0
) -> LinearStep:
    """Read the parts and the learning rate of an optimizer, or take the given parts."""
    parts = _parts(source, group)
    name = type(source).__name__ if isinstance(source, Iterate) else ""
    if isinstance(source, AIM):
        name = type(source).__name__
        if lr is None:
            lr = float(source.param_groups[group]["lr"]) or None  # 0 at the start of a warm-up: not known yet
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr must be a finite number > 0, got {lr!r}; the theory is about a step that moves")
    if correction is not None:
        parts = parts._replace(correction=correction)
    named_parts = (part for part in (parts.filter, parts.correction) if not isinstance(part, Direct))
    name = name or " + ".join(type(part).__name__ for part in named_parts)
    return LinearStep(*parts[:3], math.nan if lr is None else lr, name, parts.iterate)


def _parts(source: Source, group: int) -> Parts:
    if isinstance(source, AIM):
        if not 0 <= group < len(source.param_groups):
            raise ValueError(f"group must be one of the optimizer's {len(source.param_groups)}, from 0, got {group!r}")
        return Parts.from_group(source.param_groups[group])
    if isinstance(source, Parts):
        return source
    if isinstance(source, Iterate):
        source = source.as_filter()
    if isinstance(source, Filter):
        return Parts(source, Euclidean(), Direct())
    if isinstance(source, tuple) and [getattr(part, "axis", "") for part in source] == ["filter", "correction"]:
        return Parts(source[0], Euclidean(), source[1])
    raise ValueError(
        f"got {source!r}; give an optimizer of aimopt, a filter, an iterate, a pair (filter, correction) or aimopt's "
        "Parts"
    )
