"""Trajectories of the design space over a surface: real optimizers, each at its best learning rate.

    runs = trajectories(PROBLEMS["rosenbrock"])       also "beale", and "valley" with noisy gradients
    print(runs)                                       one row per combination: last point and learning rate

The combinations are those of the paper's table, four geometries by three θ-steps with one filter, EMA(0.9), and RADAR.
The point is a 1×2 matrix, because the spectral geometry needs one. For each combination the learning rate with the
smallest mean loss over the last tenth of the run is chosen from one grid; the noise is the same for all.
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
from aimopt.parts.composition import Parts
from aimopt.parts.corrections import Direct, FixedPoint, Secant
from aimopt.parts.filters import EMA, GradientDifference
from aimopt.parts.geometries import Euclidean, Relativistic, Sign
from aimopt.parts.matrices import Spectral

GRID = tuple(10 ** (k / 3) for k in range(-9, 2))  # three per decade, from 0.001 to 2


@dataclass(frozen=True)
class Problem:
    """A function of two variables, its start and minimum, and the part of the plane that a plot shows."""

    title: str
    function: Callable[[Any, Any], Any]
    start: tuple[float, float]
    minimum: tuple[float, float]
    window: tuple[float, float, float, float]  # lowest x, highest x, lowest y, highest y
    noise: float = 0.0  # standard deviation per coordinate of the gradient
    legend: str = "upper left"  # a corner of the plot that no path crosses


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


def combinations() -> dict[tuple[str, str], Parts]:
    """(geometry, θ-step) → parts; RADAR has its own filter."""
    table = {(g, c): Parts(EMA(0.9), GEOMETRIES[g], CORRECTIONS[c]) for g in GEOMETRIES for c in CORRECTIONS}
    radar = Parts(GradientDifference(0.9, 0.1), GEOMETRIES["weighted"], FixedPoint(ell_ratio=0.01))
    return {**table, ("weighted", "RADAR"): radar}


@dataclass(frozen=True)
class Trajectory:
    """One run: its points, one row per step from the start, and their losses."""

    lr: float
    points: NDArray[np.float64]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class Trajectories:
    """The best run of every combination on one problem."""

    problem: Problem
    by_combination: Mapping[tuple[str, str], Trajectory]

    @property
    def steps(self) -> int:
        """The number of steps of every run."""
        return len(next(iter(self.by_combination.values())).losses) - 1

    def __str__(self) -> str:
        lines = [
            f"{self.problem.title}, {self.steps} steps from {self.problem.start}",
            f"  {'geometry':<11} {'θ-step':<12} {'lr':>9} {'last loss':>11} {'distance to the minimum':>24}",
        ]
        for (geometry, correction), run in self.by_combination.items():
            distance = math.dist(run.points[-1], self.problem.minimum)
            lines.append(f"  {geometry:<11} {correction:<12} {run.lr:>9.2g} {run.losses[-1]:>11.3g} {distance:>24.3g}")
        return "\n".join(lines)


def trajectories(problem: Problem, steps: int = 150, rates: Sequence[float] = GRID, seed: int = 0) -> Trajectories:
    """Run every combination at every learning rate, and keep the best run of each."""
    if steps < 1 or not rates:
        raise ValueError(f"steps must be at least 1 and rates not empty, got steps={steps!r} and rates={rates!r}")
    generator = torch.Generator().manual_seed(seed)
    noise = problem.noise * torch.randn(steps, 1, 2, generator=generator, dtype=torch.float64)
    best = {}
    for combination, parts in combinations().items():
        runs = _run_all_rates(problem, parts, rates, noise)
        best[combination] = min(runs, key=lambda run: _score(run, steps))
    return Trajectories(problem, best)


def _score(run: Trajectory, steps: int) -> float:
    score = float(run.losses[-max(steps // 10, 1) :].mean())
    return score if math.isfinite(score) else math.inf


def _run_all_rates(problem: Problem, parts: Parts, rates: Sequence[float], noise: Tensor) -> list[Trajectory]:
    """One run per learning rate, at the same time: one parameter group per run."""
    thetas = [torch.tensor([problem.start], dtype=torch.float64, requires_grad=True) for _ in rates]
    groups = [{"params": [theta], "lr": lr} for theta, lr in zip(thetas, rates, strict=True)]
    optimizer = AIM(groups, rates[0], **parts._asdict())
    points, losses = [], []
    for step_noise in [*noise, None]:
        present = torch.stack([theta.detach() for theta in thetas]).requires_grad_()
        loss = problem.function(present[:, 0, 0], present[:, 0, 1])
        points.append(present.detach()[:, 0])
        losses.append(loss.detach())
        if step_noise is not None:
            for theta, g in zip(thetas, torch.autograd.grad(loss.sum(), present)[0], strict=True):
                theta.grad = g + step_noise
            optimizer.step()
    all_points, all_losses = torch.stack(points).numpy(), torch.stack(losses).numpy()
    return [Trajectory(lr, all_points[:, i], all_losses[:, i]) for i, lr in enumerate(rates)]
