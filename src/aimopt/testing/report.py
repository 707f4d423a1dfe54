"""`check`: the checks of one part, as a table.

report = check(GradientDifference())
report.ok                       whether every row holds
print(report)                   one row per check: holds, fails, not fused, refused; and why
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from aimopt.checks import check_part
from aimopt.messages.text_table import text_table
from aimopt.parts.component import Component
from aimopt.parts.composition import AXES, Parts
from aimopt.parts.corrections import Direct, FixedPoint, Secant
from aimopt.parts.decays import Coupled, Decoupled
from aimopt.parts.filters import EMA, GradientDifference
from aimopt.parts.geometries import Adaptive, Euclidean, Sign
from aimopt.parts.iterates import Average, Last
from aimopt.testing import paths
from aimopt.testing.declarations import measured
from aimopt.testing.driving import float64_scalars

HOLDS, FAILS, NOT_FUSED, REFUSED = "holds", "FAILS", "not fused", "refused"
# The parts that a part is composed with: the first of each axis with all others, and each other one once.
PARTNERS: dict[str, tuple[Component, ...]] = {
    "filter": (EMA(), GradientDifference()),
    "geometry": (Adaptive(), Euclidean(), Sign()),
    "correction": (Direct(), FixedPoint(), Secant()),
    "decay": (Decoupled(0.01), Coupled(0.01)),
    "iterate": (Last(), Average(0.9)),
}
assert PARTNERS.keys() == AXES.keys()


@dataclass(frozen=True)
class Row:
    """One check: of what, its result, and what there is to say about it."""

    subject: str
    result: str
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """The checks of one part."""

    part: Component
    rows: tuple[Row, ...]

    @property
    def failures(self) -> tuple[Row, ...]:
        """The checks that fail."""
        return tuple(row for row in self.rows if row.result == FAILS)

    @property
    def ok(self) -> bool:
        """Whether no check fails. A step that is not fused, or a combination that is refused, is no failure."""
        return not self.failures

    def __str__(self) -> str:
        rows = [("check", "result", ""), *((row.subject, row.result, row.remark) for row in self.rows)]
        count = f"{len(self.failures)} of {len(self.rows)} checks fail" if self.failures else "every check holds"
        return f"{self.part!r}: {count}\n{text_table(rows)}"


def check(part: Component, *, compiled: bool = False, show: bool = True) -> Report:
    """Run on a part what this package's tests run on its own parts, print the table and return it.

    Its declarations are measured. It is composed with other parts: every path must end at the same point, also if a
    schedule changes hyperparameters, a checkpoint must go on to the bit, and every dtype and shape must work.
    `compiled` adds torch.compile. `show=False` prints nothing.
    """
    axis = getattr(part, "axis", None)
    if axis not in AXES or isinstance(part, type):
        raise ValueError(f"check takes a part, such as those in aimopt: an instance, not a class; got {part!r}")
    check_part(part, axis)
    with float64_scalars(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ell above lr, and those of torch
        rows = tuple(_rows(part, compiled))
    report = Report(part, rows)
    if show:
        print(report)
    return report


def _rows(part: Component, compiled: bool) -> Iterator[Row]:
    for name, measure in measured(part).items():
        yield _row(f"declares {name}", measure)
    cells = list(compositions(part))
    for name, parts in cells:
        reason = parts.why_refused()
        if reason is not None:
            yield Row(f"paths, {name}", REFUSED, reason)
            continue
        not_fused = paths.why_not_fused(parts)
        row = _row(f"paths, {name}", partial(paths.assert_paths_agree, parts, fusible=not_fused is None))
        yield replace(row, result=NOT_FUSED, remark=str(not_fused)) if not_fused and row.result == HOLDS else row
    valid = [parts for _, parts in cells if parts.why_refused() is None]
    if not valid:
        yield Row("compositions", FAILS, "every composition is refused")
        return
    yield _row("schedule of hyperparameters", lambda: paths.assert_schedule_agrees(valid[0], part.axis))
    yield _row("checkpoint", lambda: paths.assert_checkpoint_continues(valid[0]))
    if not valid[0].correction.evaluates_again:
        yield _row("dtypes and shapes", lambda: paths.assert_dtypes_agree(valid[0]))
        yield _row("train() and eval()", lambda: paths.assert_evaluation_is_undone(valid[0]))
    if compiled and not valid[0].correction.evaluates_again:
        yield _row("torch.compile", lambda: paths.assert_compiled_agrees(valid[0]))


def _row(subject: str, run: Callable[[], None]) -> Row:
    try:
        run()
    except Exception as error:  # whatever a part raises is a result
        text = " ".join(str(error).split())
        return Row(subject, FAILS, text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}")
    return Row(subject, HOLDS)


def compositions(part: Component) -> Iterator[tuple[str, Parts]]:
    """The part with the first partner of every axis, then with each other partner on one axis."""
    nonlinear = getattr(part, "linear", True) is False
    for axis, partners in PARTNERS.items():
        for partner in partners if axis != part.axis else ():
            is_base = partner is partners[0]
            if is_base and axis != next(a for a in AXES if a != part.axis):
                continue  # the base is composed once
            chosen = {a: ps[0] for a, ps in PARTNERS.items()} | {axis: partner, part.axis: part}
            parts = Parts(**{a: _matched(p, part, nonlinear) for a, p in chosen.items()})  # type: ignore[arg-type]
            yield " + ".join(type(p).__name__ for p in parts if p is not part), parts


def _matched(partner: Component, part: Component, nonlinear: bool) -> Component:
    """The partner with the values of the fields that it shares with the part, which a group stores once."""
    if partner is part:
        return part
    values: dict[str, Any] = {f.name: getattr(part, f.name) for f in fields(part) if f.name not in part.betas}
    if nonlinear:
        # At the first step a corrected m is g, and the sign of g − m is that of a rounding error.
        values.setdefault("bias_correction", False)
    shared = {f.name: values[f.name] for f in fields(partner) if f.name in values and f.name not in partner.betas}
    return replace(partner, **shared)
