"""The constants of Theorem 2, measured on a real model: L, σ², ν_min and ν_max.

    constants = estimate(model, loss, (x, y), optimizer)    data: a pair of tensors, or batches such as a DataLoader's
    print(constants)                                        the values, and how they were measured
    constants.certificate()                                 Theorem 2 at the optimizer's settings
    constants.certificate(nu_max=constants.nu_max_worst)    with a ν_max that holds for every gradient

The theorem needs bounds that hold everywhere, and these are measured at the present parameters: L by a power iteration
on Hessian–vector products, which approaches it from below; σ² on a sample of gradients; ν_min and ν_max in the
optimizer's next step. So a certificate holds near these parameters. It is conservative all the same: the proof bounds
sums of three terms at every stage, and at ζ = 1e-16 the preconditioner alone may reach 1e8.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from aimopt.aim import AIM
from aimopt.parts.composition import Parts
from aimopt.step.move import Move, to_working_dtype
from aimopt.theory.lyapunov import Certificate, certificate, certificate_of

Loss = Callable[[Any, Tensor], Tensor]
Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
Vector = list[Tensor]


@dataclass(frozen=True)
class CurvatureEstimate:
    """Measured at the present parameters; ν is NaN if no optimizer was given."""

    L: float
    sigma2: float
    loss: float
    squared_gradient: float
    nu_min: float
    nu_max: float
    nu_max_worst: float  # 1/R of a coordinate with gradient zero in every step
    iterations: int  # of the power iteration
    samples: int  # gradients of single samples in σ²
    optimizer: AIM | None

    def certificate(self, **changed: float) -> Certificate:
        """Theorem 2 with these constants; keywords replace any of L, sigma2, nu_min, nu_max, lr, ell, beta1, gamma."""
        if self.optimizer is None:
            raise ValueError("certificate() needs ν and η, but no optimizer was given to estimate(); pass it one")
        problem = {name: changed.pop(name, getattr(self, name)) for name in ("L", "sigma2", "nu_min", "nu_max")}
        names = ("lr", "ell", "beta1", "gamma")
        groups = range(len(self.optimizer.param_groups))
        certificates = [certificate_of(self.optimizer, **problem, group=group) for group in groups]
        settings = {tuple(getattr(c, name) for name in names) for c in certificates}
        if len(settings) > 1 and not changed.keys() >= set(names):
            raise ValueError(
                f"the groups of the optimizer differ in (lr, ell, beta1, gamma): {sorted(settings)}; "
                "Theorem 2 is about one setting: pass all four"
            )
        return certificate(**problem, **{**dict(zip(names, settings.pop(), strict=True)), **changed})

    def __str__(self) -> str:
        rows = [
            (
                "L",
                f"{self.L:.4g}",
                f"largest curvature at these parameters: {self.iterations} power iterations, from below",
            ),
            ("σ²", f"{self.sigma2:.4g}", f"variance of single-sample gradients, over {self.samples} samples"),
            ("loss", f"{self.loss:.4g}", "over all the data"),
            ("‖∇L‖²", f"{self.squared_gradient:.4g}", ""),
            ("ν", f"{self.nu_min:.4g} … {self.nu_max:.4g}", "range of 1/R in the next step"),
            (
                "ν worst",
                f"{self.nu_max_worst:.4g}",
                "1/R of a coordinate without gradient: an upper bound for every step",
            ),
        ]
        return "\n".join(f"  {name:<8} {value:<22} {meaning}".rstrip() for name, value, meaning in rows)


def estimate(
    model: nn.Module,
    loss: Loss,
    data: Data,
    optimizer: AIM | None = None,
    *,
    samples: int = 256,
    iterations: int = 100,
    seed: int = 0,
) -> CurvatureEstimate:
    """Measure L, σ² and ν at the model's present parameters. Parameters, gradients and buffers are not changed.

    `loss(model(x), y)` must be the mean over a batch. Dropout makes L noisy, and batch normalization in training mode
    has no gradients of single samples: call `model.eval()` first, or skip σ² with `samples=0`.
    """
    batches = list(_batches(data))
    problem = _Problem(model, loss, batches)
    value, mean = problem.gradient()
    generator = torch.Generator().manual_seed(seed)
    L, iterations_used = _largest_curvature(problem, iterations, generator)
    sigma2, samples_used = _variance(problem, mean, samples, generator)
    low, high, worst = (math.nan,) * 3 if optimizer is None else _preconditioner_range(optimizer, problem, mean)
    squared_gradient = _inner(mean, mean)
    return CurvatureEstimate(
        L, sigma2, value, squared_gradient, low, high, worst, iterations_used, samples_used, optimizer
    )


class _Problem:
    """The objective over all batches, as a function of the trainable parameters."""

    def __init__(self, model: nn.Module, loss: Loss, batches: list[tuple[Tensor, Tensor]]):
        self.model, self.loss, self.batches = model, loss, batches
        self.named: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.params = list(self.named.values())
        self.count = sum(len(y) for _, y in batches)
        if not self.params or not self.count:
            raise ValueError("estimate needs a model with trainable parameters and at least one sample of data")

    def batch_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one batch; running statistics are updated in copies."""
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return self.loss(functional_call(self.model, (self.named, buffers), (x,)), y)

    def differentiate(self, value: Tensor, *, twice: bool = False) -> Vector:
        """The gradient, zero for unused parameters; `twice` allows to differentiate it again."""
        gradient = torch.autograd.grad(
            value, self.params, create_graph=twice, allow_unused=True, materialize_grads=True
        )
        return list(gradient)

    def gradient(self) -> tuple[float, Vector]:
        """Loss and gradient over all the data."""
        total, mean = 0.0, [torch.zeros_like(p) for p in self.params]
        for x, y in self.batches:
            value = self.batch_loss(x, y)
            share = len(y) / self.count
            total += share * value.item()
            mean = [m + share * g for m, g in zip(mean, self.differentiate(value), strict=True)]
        return total, mean

    def curvature(self, direction: Vector) -> Vector:
        """Hessian times direction, over all the data."""
        total = [torch.zeros_like(p) for p in self.params]
        for x, y in self.batches:
            with sdpa_kernel(SDPBackend.MATH):  # attention's fused kernels cannot be differentiated twice
                slopes = self.differentiate(self.batch_loss(x, y), twice=True)
            along = torch.stack([(g * d).sum() for g, d in zip(slopes, direction, strict=True)]).sum()
            if along.requires_grad:  # it does not if the loss is linear
                share = len(y) / self.count
                total = [t + share * h for t, h in zip(total, self.differentiate(along), strict=True)]
        return total


def _largest_curvature(problem: _Problem, iterations: int, generator: torch.Generator) -> tuple[float, int]:
    """‖H‖ by power iteration: the norm of H·v for unit v grows to it, whatever the sign of the eigenvalue."""
    v = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for p in problem.params]
    largest = 0.0
    for iteration in range(1, iterations + 1):
        scale = math.sqrt(_inner(v, v))
        if scale == 0:
            return 0.0, iteration
        v = problem.curvature([x / scale for x in v])
        previous, largest = largest, math.sqrt(_inner(v, v))
        if abs(largest - previous) <= 1e-6 * largest:
            return largest, iteration
    return largest, iterations


def _variance(problem: _Problem, mean: Vector, samples: int, generator: torch.Generator) -> tuple[float, int]:
    """The mean of ‖∇l(θ, ξ) − ∇L(θ)‖² over at most `samples` samples, drawn without replacement; and their number."""
    positions = [(b, i) for b, (_, y) in enumerate(problem.batches) for i in range(len(y))]
    chosen = torch.randperm(len(positions), generator=generator)[:samples].tolist()
    total = 0.0
    for index in chosen:
        b, i = positions[index]
        x, y = problem.batches[b]
        single = problem.differentiate(problem.batch_loss(x[i : i + 1], y[i : i + 1]))
        deviation = [g - m for g, m in zip(single, mean, strict=True)]
        total += _inner(deviation, deviation)
    return total / len(chosen) if chosen else math.nan, len(chosen)


def _preconditioner_range(optimizer: AIM, problem: _Problem, mean: Vector) -> tuple[float, float, float]:
    """The smallest and largest 1/R in the optimizer's next step, and the largest 1/R after zero gradients only."""
    gradients = {id(p): g for p, g in zip(problem.params, mean, strict=True)}
    low, high, worst = math.inf, 0.0, 0.0
    for group in optimizer.param_groups:
        parts = Parts.from_group(group)
        if not parts.geometry.linear:
            name = type(parts.geometry).__name__
            raise ValueError(f"{name} is not linear: it has no ν_min and ν_max, so Theorem 2 does not apply")
        for p in group["params"]:
            if id(p) not in gradients:
                raise ValueError("the optimizer holds a parameter that the model does not; pass the one that trains it")
            theta, g = to_working_dtype(p.detach()), to_working_dtype(gradients[id(p)])
            scale = _next_scale(parts, group, theta, g, dict(optimizer.state.get(p, {})))
            low, high = min(low, scale.min().item()), max(high, scale.max().item())
            zero = torch.zeros_like(g)
            worst = max(worst, _next_scale(parts, group, zero, zero, {}).max().item())
    return low, high, worst


def _next_scale(parts: Parts, group: dict[str, Any], theta: Tensor, g: Tensor, state: dict[str, Tensor]) -> Tensor:
    """1/R of the step after `state`: a move observes the gradient on copies, and does not go."""
    t = float(state.get("step", 0.0)) + 1
    copies = {
        name: to_working_dtype(state[name]).clone() if name in state else initial.start(g, theta)
        for name, initial in parts.buffers().items()
    }
    move = Move(parts, group, theta, g, copies, t)
    return parts.geometry.apply(torch.ones_like(g), move.metric)


def _inner(x: Vector, y: Vector) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(x, y, strict=True))


def _batches(data: Data) -> Iterable[tuple[Tensor, Tensor]]:
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor):
        return [data]
    return ((x, y) for x, y in cast(Iterable[tuple[Tensor, Tensor]], data))
