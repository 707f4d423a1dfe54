"""Triton's interpreter, in which the kernels for GPUs run on tensors of the host, and what their tests share."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, FixedPoint, Relativistic
from aimopt.kernels import program_of
from aimopt.kernels.gpu import launch as gpu
from aimopt.kernels.program import Program
from aimopt.parts.component import Geometry, State, StepCount
from aimopt.parts.composition import Parts
from optimizer_driver import assert_same

PLAIN: dict[str, Any] = dict(foreach=False, fused=False)
RADAR_PARTS = (aimopt.GradientDifference(), Relativistic(), FixedPoint(ell_ratio=0.01))


def forget() -> None:
    """Triton decides when a kernel is made whether it is interpreted: make them anew."""
    gpu.why_unavailable.cache_clear()
    gpu._load_source.cache_clear()
    sys.modules.pop("aimopt.kernels.gpu.device_functions", None)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    forget()
    yield
    forget()


def interpreted(test: Any) -> Any:
    """In numpy, which warns of the values that lanes without a tensor have."""
    quiet = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
    return quiet(pytest.mark.usefixtures("interpreter")(test))


@dataclass(frozen=True)
class Elaborate(Geometry):
    """Every function that a step may use and ours do not."""

    width: float = 0.5
    linear = False

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        small = (g.abs() + 1e-4).log().exp().clamp(min=1e-3, max=1e3)
        near = torch.where(g == 0, 1.0, small.pow(1.5) + g.tanh() ** 3 + (1e-3 * g).tanh().square())
        return near.maximum(torch.zeros_like(g)) + small.minimum(g.square()).reciprocal().rsqrt() + self.width

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / metric.sqrt()


def program_for(optimizer: AIM) -> Any:
    group = optimizer.param_groups[0]
    program = program_of(Parts.from_group(group), group)
    assert isinstance(program, Program)
    return program


def state_of(optimizer: AIM, params: list[Tensor]) -> list[Tensor]:
    return [x for p in params for x in optimizer.state[p].values()]


def assert_all_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype
        assert_same(x, y, tolerance)
