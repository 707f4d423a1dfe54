"""Paths of the design space's cells over a surface: real optimizers, each at its best learning rate.

    run = trajectories(PROBLEMS["rosenbrock"])        also "beale" and "valley", whose gradients are noisy
    print(run)                                        a row a cell: where it ended, and at which learning rate

The cells are those of the paper's table, four geometries by three θ-steps over one filter, EMA(0.9), with RADAR beside
them. The point is a 1×2 matrix, so that the spectral geometry has its say. A learning rate is chosen for each cell from
one grid by the mean loss over the last tenth of the run; noise is the same for all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aimopt.aim import AIM
from aimopt.components import Parts
from aimopt.corrections import Direct, FixedPoint, Secant
from aimopt.filters import EMA, GradientDifference
from aimopt.geometries import Euclidean, Relativistic, Sign, Spectral

GRID = tuple(10 ** (k / 3) for k in range(-9, 2))  # three a decade, from 0.001 to 2


@dataclass(frozen=True)
class Problem:
    """A function of two variables, where to start, where its minimum is, and which part of the plane to show."""

    title: str
    function: Callable[[Any, Any], Any]
    start: tuple[float, float]
    minimum: tuple[float, float]
    window: tuple[float, float, float, float]  # x from, x to, y from, y to
    noise: float = 0.0  # the standard deviation of each gradient's coordinates
    legend: str = "upper left"  # the corner of the picture that is free


PROBLEMS = {
    "rosenbrock": Problem(
        "Rosenbrock's valley",
        lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
        (-1.2, 1.0),
        (1.0, 1.0),
        (-1.7, 1.5, -0.9, 1.8),
        legend="lower left",
    ),
    "beale": Problem(
        "Beale's function",
        lambda x, y: (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2,
        (0.6, -1.3),
        (3.0, 0.5),
        (-0.5, 4.0, -1.8, 1.6),
    ),
    "valley": Problem(
        "A valley with gradient noise (standard deviation 2)",
        lambda x, y: 0.5 * (0.3 * (x + y) ** 2 + 15 * (y - x) ** 2),
        (-2.0, -1.2),
        (0.0, 0.0),
        (-2.4, 0.9, -2.2, 0.9),
        noise=2.0,
    ),
}

GEOMETRIES = {
    "Euclidean": Euclidean(),
    "weighted": Relativistic(beta2=0.99),
    "spectral": Spectral(polar="exact"),
    "infinity": Sign(),
}
CORRECTIONS = {"direct": Direct(), "fixed point": FixedPoint(), "secant": Secant()}


def cells() -> dict[tuple[str, str], Parts]:
    """(geometry, θ-step) → parts, and RADAR, which changes the filter too."""
    table = {(g, c): Parts(EMA(0.9), GEOMETRIES[g], CORRECTIONS[c]) for g in GEOMETRIES for c in CORRECTIONS}
    radar = Parts(GradientDifference(0.9, 0.1), GEOMETRIES["weighted"], FixedPoint(ell_ratio=0.01))
    return {**table, ("weighted", "RADAR"): radar}


@dataclass(frozen=True)
class Path:
    """The points of one run, a row each from the start on, and their losses."""

    lr: float
    points: NDArray[np.float64]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class Trajectories:
    """The best run of every cell on one problem."""

    problem: Problem
    paths: Mapping[tuple[str, str], Path]

    @property
    def steps(self) -> int:
        """How many steps each took."""
        return len(next(iter(self.paths.values())).losses) - 1

    def __str__(self) -> str:
        lines = [
            f"{self.problem.title}, {self.steps} steps from {self.problem.start}",
            f"  {'geometry':<11} {'θ-step':<12} {'lr':>9} {'last loss':>11} {'distance to the minimum':>24}",
        ]
        for (geometry, correction), path in self.paths.items():
            away = math.dist(path.points[-1], self.problem.minimum)
            lines.append(f"  {geometry:<11} {correction:<12} {path.lr:>9.2g} {path.losses[-1]:>11.3g} {away:>24.3g}")
        return "\n".join(lines)


def trajectories(problem: Problem, steps: int = 150, rates: Sequence[float] = GRID, seed: int = 0) -> Trajectories:
    """Run every cell at every learning rate, and keep the best of each."""
    if steps < 1 or not rates:
        raise ValueError(f"steps must be at least 1 and rates not empty, got steps={steps!r} and rates={rates!r}")
    generator = torch.Generator().manual_seed(seed)
    noise = problem.noise * torch.randn(steps, 1, 2, generator=generator, dtype=torch.float64)
    found = {}
    for cell, parts in cells().items():
        runs = _runs(problem, parts, rates, noise)
        found[cell] = min(runs, key=lambda path: _score(path, steps))
    return Trajectories(problem, found)


def _score(path: Path, steps: int) -> float:
    score = float(path.losses[-max(steps // 10, 1) :].mean())
    return score if math.isfinite(score) else math.inf


def _runs(problem: Problem, parts: Parts, rates: Sequence[float], noise: Tensor) -> list[Path]:
    """One run a learning rate, side by side: a parameter group each."""
    thetas = [torch.tensor([problem.start], dtype=torch.float64, requires_grad=True) for _ in rates]
    groups = [{"params": [theta], "lr": lr} for theta, lr in zip(thetas, rates, strict=True)]
    optimizer = AIM(groups, rates[0], **parts._asdict())
    points, losses = [], []
    for shake in [*noise, None]:
        here = torch.stack([theta.detach() for theta in thetas]).requires_grad_()
        loss = problem.function(here[:, 0, 0], here[:, 0, 1])
        points.append(here.detach()[:, 0])
        losses.append(loss.detach())
        if shake is not None:
            for theta, g in zip(thetas, torch.autograd.grad(loss.sum(), here)[0], strict=True):
                theta.grad = g + shake
            optimizer.step()
    all_points, all_losses = torch.stack(points).numpy(), torch.stack(losses).numpy()
    return [Path(lr, all_points[:, i], all_losses[:, i]) for i, lr in enumerate(rates)]
