"""The fused step in Triton, in Triton's interpreter on tensors of the host, against the plain path.

What an interpreter lets pass, a compiler may not: the last tests compile printed kernels for a GPU that is not there.
"""

import copy
import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, NAMED, RADAR, AdamW, Adaptive, Belief, Direct, FixedPoint, Lion, NAdam, Relativistic, kernels
from aimopt.components import Geometry, Parts, State, Step
from aimopt.kernels import gpu, program_of
from aimopt.kernels.tables import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from aimopt.kernels.triton_source import ELEMENT_OPS, UNIFORM_OPS, source
from driving import NEEDS_MATRICES, advance, assert_same, flat, parameters, push
from test_design_space import CORRECTIONS, FILTERS, GEOMETRIES, build, refused

triton = pytest.importorskip("triton")


def forget() -> None:
    """Triton decides when a kernel is made whether it is interpreted: make them anew."""
    gpu.missing.cache_clear()
    gpu.kernels.cache_clear()
    sys.modules.pop("aimopt.kernels.device_functions", None)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    forget()
    yield
    forget()


interpreted = pytest.mark.usefixtures("interpreter")
PLAIN: dict[str, Any] = dict(foreach=False, fused=False)
SHAPES = ((5, 4), (1030,), (0,), ())


@dataclass(frozen=True)
class Elaborate(Geometry):
    """Every function that a step may use and ours do not."""

    width: float = 0.5
    linear = False

    def update(self, state: State, g: Tensor, t: Step, pole: float) -> Tensor:
        small = (g.abs() + 1e-4).log().exp().clamp(min=1e-3, max=1e3)
        near = torch.where(g == 0, 1.0, small.pow(1.5) + g.tanh() ** 3 + (1e-3 * g).tanh().square())
        return near.maximum(torch.zeros_like(g)) + small.minimum(g.square()).reciprocal().rsqrt() + self.width

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / metric.sqrt()


def fusible(cell: tuple[Any, Any, Any]) -> bool:
    _, geometry, correction = cell
    return not geometry.matrices_only and not correction.joint and correction.evaluations == 1


def run(cell: Any, dtype: torch.dtype, steps: int = 3, **options: Any) -> list[Tensor]:
    """Where parameters and state end."""
    params = parameters(SHAPES, dtype)
    optimizer = build(params, cell, **options)
    advance(optimizer, params, steps)
    return [flat(params), *state_of(optimizer, params)]


def state_of(optimizer: AIM, params: list[Tensor]) -> list[Tensor]:
    return [x for p in params for x in optimizer.state[p].values()]


def assert_all_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype
        assert_same(x, y, tolerance)


def cells_of(filter: Any, geometry: Any) -> Iterator[tuple[Any, Any, Any]]:
    if not geometry.linear and hasattr(filter, "bias_correction"):
        filter = replace(filter, bias_correction=False)  # else the sign of g − m is that of a rounding error at first
    for correction in CORRECTIONS:
        if not refused(filter, geometry, correction):
            yield filter, geometry, correction


@interpreted
@pytest.mark.parametrize("filter", FILTERS, ids=repr)
@pytest.mark.parametrize("geometry", [*GEOMETRIES, Elaborate()], ids=repr)
def test_every_composition_that_has_a_program_steps_as_the_plain_path_does(filter: Any, geometry: Any) -> None:
    for cell in cells_of(filter, geometry):
        group = build(parameters(), cell).param_groups[0] if fusible(cell) else None
        if group is None:
            with pytest.raises(ValueError, match="fused=True"):
                build(parameters(((3, 2),)), cell, fused=True)
            continue
        assert not isinstance(program_of(Parts(*cell), group), str)
        assert_all_same(run(cell, torch.float64, fused=True), run(cell, torch.float64, **PLAIN), 1e-12)
        assert_all_same(run(cell, torch.float32, fused=True), run(cell, torch.float32, **PLAIN), 2e-6)
