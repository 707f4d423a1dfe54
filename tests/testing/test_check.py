"""`aimopt.testing.check`: every part of this package passes, and each kind of mistake is found."""

from dataclasses import dataclass
from inspect import isabstract
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.parts.component import (
    Component,
    Correction,
    Decay,
    Descent,
    DisplacementInputs,
    Filter,
    Geometry,
    Initial,
    Iterate,
    State,
    StepCount,
    Transfer,
    zeros,
)
from aimopt.parts.composition import AXES
from aimopt.parts.filters import Coefficients
from aimopt.testing import Report, check

Kind = Any


def ours() -> list[Any]:
    classes = [part for axis in AXES.values() for part in axis.registry.values()]
    return [part() for part in classes if not isabstract(part) and part.__module__.startswith("aimopt")]


VARIANTS = [
    aimopt.VarianceReduced(clip_norm=1.0),
    aimopt.TwoSpeed(0.8, 0.99, 2.0, 5, 7, normalized=True),
    aimopt.Cautious(aimopt.FixedPoint(), rescale=False),
    aimopt.Cautious(aimopt.Secant(), "count"),
    aimopt.FixedPoint(iterations=2),
    aimopt.Relativistic(order=2, amsgrad=True),
]


@pytest.mark.parametrize("part", [*ours(), *VARIANTS], ids=repr)
def test_every_part_of_this_package_passes(part: Component) -> None:
    report = check(part, show=False)
    assert report.ok, str(report)
    assert {part.axis for part in ours()} == AXES.keys()
    assert any(row.subject.startswith("paths") for row in report.rows)


def test_compiled_steps_are_checked_on_request() -> None:
    report = check(aimopt.GradientDifference(), compiled=True, show=False)
    assert report.ok
    assert [row.result for row in report.rows if row.subject == "torch.compile"] == ["holds"]


def test_the_table_says_what_is_fused_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(aimopt.Cautious())
    out = capsys.readouterr().out
    assert out == f"{report}\n"
    assert "Cautious(inner=Direct(), rescale='mean'): every check holds" in out
    assert "not fused  it needs the 'sum' of a whole tensor" in out
    assert check(aimopt.HeavyBall(), show=False).rows[4].result == "refused"  # with Sign: the sum only multiplies lr


@dataclass(frozen=True)
class WrongTransfer(Filter):
    """An average that declares the transfer function of another one."""

    pole = 0.5

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": zeros}

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return state["exp_avg"].mul_(0.5).add_(g, alpha=0.5).clone(), g

    def transfer(self) -> Transfer:
        return Transfer((0.1,), (1.0, -0.9))


@dataclass(frozen=True)
class Forgetful(Filter):
    """An average that is not in the state, so that a checkpoint loses it; and that differs from path to path."""

    pole = 0.5

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": zeros}

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        offset = 0.01 if isinstance(t, float) else 0.02
        return g + offset, g


@dataclass(frozen=True)
class WritesIntoGradients(Filter):
    """A filter that changes the gradient in place."""

    pole = 0.0

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return g.mul_(0.5), g


@dataclass(frozen=True)
class Crooked(Geometry):
    """Says that it is linear, and is not."""

    linear = True

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x / (x.abs() + 1)


@dataclass(frozen=True)
class WrongRatio(Correction):
    """Declares another ℓ than it uses, and does not map the residual as it says."""

    maps_residual = True

    def ratio(self, lr: float | Tensor, pole: float) -> float:
        return 0.5

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.P(step.m * 0.9 + step.g * 0.1) * step.lr


@dataclass(frozen=True)
class Restless(Decay):
    """Decays whatever its coefficient is, after the step as well, and by the displacement."""

    def terms(self, p: Tensor, displacement: Tensor, rate: Any, state: State) -> tuple[Tensor, Any]:
        return displacement, displacement * displacement

    def project(self, p: Tensor, rate: Any, state: State) -> None:
        p.mul_(0.99)


@dataclass(frozen=True)
class Elsewhere(Iterate):
    """Steps twice as far as it should."""

    def descend(self, step: Descent) -> None:
        step.move(step.p)
        step.move(step.p)


@dataclass(frozen=True)
class KnowsNumbers(aimopt.EMA):
    """Does something else while its decay is followed as a symbol."""

    def coefficients(self, t: StepCount) -> Coefficients:
        return super().coefficients(t) if isinstance(self.beta, float) else Coefficients(0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("part", "subject", "remark"),
    [
        (KnowsNumbers(), "schedule of hyperparameters", "fused steps end"),
        (
            WrongTransfer(),
            "declares transfer",
            "transfer() gives the gradient of 0 steps ago the weight 0.1, and update() 0.5",
        ),
        (WrongTransfer(), "declares pole", "pole is 0.5"),
        (Forgetful(), "paths", "'capturable': True"),
        (WritesIntoGradients(), "dtypes and shapes", "the step writes into p.grad"),
        (Crooked(), "declares linear", "linear is True, and sums come out"),
        (WrongRatio(), "declares ratio, prediction", "Tensor-likes are not close"),
        (WrongRatio(), "declares maps_residual", "Tensor-likes are not close"),
        (Restless(), "declares affine", "the shrinkage depends on the displacement"),
        (Restless(), "declares projects", "project() moves the parameters"),
        (Restless(), "declares no decay at 0", "weight_decay=0 moves the parameters"),
        (Elsewhere(), "declares moves_elsewhere", "a step is not θ − displacement"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_a_mistake_is_found(part: Component, subject: str, remark: str) -> None:
    report = check(part, show=False)
    assert not report.ok
    failures = [row for row in report.failures if row.subject.startswith(subject)]
    assert failures, str(report)
    for words in remark.split(" and update() "):
        assert words in failures[0].remark
    assert f"{len(report.failures)} of {len(report.rows)} checks fail" in str(report)


@dataclass(frozen=True)
class Raises(Geometry):
    """Fails in some step."""

    linear = False

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        raise KeyError("metric")

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x


def test_an_error_of_a_part_is_a_result() -> None:
    report = check(Raises(), show=False)
    assert isinstance(report, Report)
    assert {row.remark for row in report.failures} == {"KeyError: 'metric'"}


@pytest.mark.parametrize("nonsense", [aimopt.EMA, 3, "EMA", torch.nn.Linear(2, 2)])
def test_only_a_part_can_be_checked(nonsense: Any) -> None:
    with pytest.raises(ValueError, match="check takes a part"):
        check(nonsense)


def test_a_part_without_a_declaration_is_refused_when_its_class_is_made() -> None:
    def geometry(**declarations: Any) -> Any:
        methods = {"update": lambda *_: None, "apply": lambda _, x, metric: x}
        return type("Undeclared", (Geometry,), {**methods, **declarations})

    for declarations in ({}, {"linear": None}, {"linear": "yes"}):
        with pytest.raises(TypeError) as caught:
            geometry(**declarations)
        assert str(caught.value) == (
            "Undeclared: a geometry must say whether its map is linear, P(a·x + b·y) = a·P(x) + b·P(y); write "
            "`linear = True` or `linear = False` in the class"
        )
    assert "Undeclared" not in Geometry.registry
    assert cast(Any, geometry(linear=False)).linear is False
    del Geometry.registry["Undeclared"]
