"""The Lyapunov certificate: settings for which Theorem 2 of the paper bounds the average squared gradient.

    c = certificate(L=1, sigma2=0.1, nu_min=0.5, nu_max=1, lr=1e-3, ell=1e-5, beta1=0.9, gamma=0.1)
    c.feasible, c.reason                                 whether it holds, and which condition fails
    c.bound(1000, c.start(loss, squared_gradient), 32)   an upper bound of (1/T)·Σ E‖∇L(θ_k)‖²
    largest_stable_lr(L=1, nu_min=0.5, nu_max=1, …)      closed form
    certificate_of(optimizer, L=…, sigma2=…, …)          with η, ℓ, β1 and γ of the optimizer

The theorem is about V_k = L(θ_k) + c1·‖r_k‖² + c2·‖θ_k − θ_{k−1}‖², r_{k+1} = ∇L(θ_k) − m_{k+1}. It says that in
expectation

    V_{k+1} − V_k ≤ −d1·‖r_{k+1}‖² − d2·‖∇L(θ_k)‖² + C_v·σ²·(1/|B_k| + 1/|B_{k−1}|)

for an L-smooth objective, gradient variance σ², preconditioners within [ν_min, ν_max] and independent batches, without
bias correction. Three things differ from the paper, each with a counterexample in docs/derivations.md:

- **C_ε = 2[1+3(β1−γ)²]/(τβ1²)**: the paper's constant lacks the factor 1/β1² that comes from dividing its recursion by
  (1+τ)β1², and with it the bound is false.
- **The free constants have a best choice in closed form**: τ = 1/β1 − 1, c2 = c1·C_θ. With c1 = a·β1(1−β1) all products
  stay finite at β1 = 0, where r has no memory and c1 = 0:
  c1·C_r = a(1−β1)²,  c1·C_θ = 6a(β1−γ)²L²,  c1·C_ε = 2a[1+3(β1−γ)²].
- **The start**: the paper does not define r_0, and with r_0 = ∇L(θ_0) the first step breaks the inequality where
  (β1−γ)² > (1+τ)β1². `start` gives a V_0 for which it holds from m_0 = g_{−1} = 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aimopt.messages.reason import Reason
from aimopt.parts.component import Correction
from aimopt.theory.linear_step import Source, linear_step

# The smallest weight a gives the best bound but d1 = 0. The certificate uses a slightly larger one, so that d1 > 0.
_MARGIN = 1e-4


@dataclass(frozen=True)
class Certificate:
    """Theorem 2 at one setting. If a condition fails, `reason` says which, and the constants are NaN."""

    L: float
    sigma2: float
    nu_min: float
    nu_max: float
    lr: float
    ell: float
    beta1: float
    gamma: float
    reason: Reason | None = None
    tau: float = math.nan
    c1: float = math.nan
    c2: float = math.nan
    d1: float = math.nan
    d2: float = math.nan
    C_v: float = math.nan
    weight: float = math.nan  # a in the module's docstring

    @property
    def feasible(self) -> bool:
        """Whether the theorem covers this setting."""
        return self.reason is None

    def start(self, loss: float, squared_gradient: float) -> float:
        """V_0 for m_0 = g_{−1} = 0: L(θ_0) plus the term of the first residual, (β1−γ)·∇L(θ_0) in expectation."""
        return loss + self.weight * (1 - self.beta1) * (self.beta1 - self.gamma) ** 2 * squared_gradient

    def lyapunov(self, loss: float, squared_residual: float, squared_step: float) -> float:
        """V_k from L(θ_k), ‖r_k‖² and ‖θ_k − θ_{k−1}‖²."""
        return loss + self.c1 * squared_residual + self.c2 * squared_step

    def drift(self, squared_residual: float, squared_gradient: float, batch: float = math.inf) -> float:
        """The upper bound of E[V_{k+1} − V_k], from ‖r_{k+1}‖² and ‖∇L(θ_k)‖²; batch = ∞ means full gradients."""
        return -self.d1 * squared_residual - self.d2 * squared_gradient + 2 * self.C_v * self.sigma2 / batch

    def bound(self, T: int, V0: float, batch: float | Sequence[float] = math.inf, *, lowest: float = 0.0) -> float:
        """R(T): the upper bound of (1/T)·Σ E‖∇L(θ_k)‖² after T steps.

        `V0` is `start(…)`, `lowest` a lower bound of the objective, `batch` one batch size or one per step.
        """
        self._require()
        fixed = isinstance(batch, (int, float))
        sizes = [float(batch)] if isinstance(batch, (int, float)) else [float(size) for size in batch]
        if T < 1 or len(sizes) != (1 if fixed else T) or min(sizes) <= 0:
            raise ValueError(
                f"T must be at least 1, with a positive batch size per step, got T={T!r} and batch={batch!r}"
            )
        if lowest > V0:
            raise ValueError(f"V0={V0:g} is below the lower bound {lowest:g} of the objective; pass lowest=…")
        if fixed:
            variance = 2 * T / sizes[0]
        else:
            variance = sum(1 / size + 1 / previous for size, previous in zip(sizes, sizes[:1] + sizes, strict=False))
        return (V0 - lowest + self.C_v * self.sigma2 * variance) / (self.d2 * T)

    def floor(self, batch: float) -> float:
        """The limit of the bound for T → ∞ at a fixed batch size."""
        self._require()
        return 2 * self.C_v * self.sigma2 / (batch * self.d2)

    def _require(self) -> None:
        if not self.feasible:
            raise ValueError(f"this setting has no certificate: {self.reason}")

    def __str__(self) -> str:
        setting = f"η={self.lr:.4g}  ℓ={self.ell:.4g}  β1={self.beta1:.4g}  γ={self.gamma:.4g}"
        problem = f"L={self.L:.4g}  σ²={self.sigma2:.4g}  ν in [{self.nu_min:.4g}, {self.nu_max:.4g}]"
        if not self.feasible:
            return f"no certificate for {setting}\n  {problem}\n  {self.reason}"
        names = ("tau", "c1", "c2", "d1", "d2", "C_v")
        constants = "\n".join(f"  {name:<4} {getattr(self, name):.6g}" for name in names)
        return f"certified: {setting}\n  {problem}\n{constants}"


def certificate(
    *,
    L: float,
    sigma2: float,
    nu_min: float,
    nu_max: float,
    lr: float,
    ell: float = 0.0,
    beta1: float = 0.9,
    gamma: float = 0.1,
) -> Certificate:
    """Theorem 2 at one setting: the constants of its proof that give the smallest bound, or the reason there are none.

    L is the smoothness of the objective, sigma2 the variance of single-sample gradients, [nu_min, nu_max] the range of
    1/R; lr, ell, beta1 and gamma are the optimizer's.
    """
    _check(L=L, sigma2=sigma2, nu_min=nu_min, nu_max=nu_max, lr=lr, ell=ell, beta1=beta1, gamma=gamma)
    setting = Certificate(L, sigma2, nu_min, nu_max, lr, ell, beta1, gamma)
    interval = _weights(setting)
    if isinstance(interval, Reason):
        return replace(setting, reason=interval)
    low, high = interval
    # Every term of the bound grows with a, so a is small; at the smallest d1 would be 0.
    a = low + _MARGIN * min(high - low, lr * nu_max / (1 - beta1) ** 2)
    spread, momentum_lr = (beta1 - gamma) ** 2, lr - ell
    c2 = 6 * a * spread * L**2
    square_cost = 3 * (c2 + L / 2) * nu_max**2  # of the squares of the three terms of a step
    return replace(
        setting,
        tau=1 / beta1 - 1 if beta1 else math.inf,
        c1=a * beta1 * (1 - beta1),
        c2=c2,
        d1=a * (1 - beta1) ** 2 - momentum_lr * nu_max / 2 - square_cost * momentum_lr**2,
        d2=lr * nu_min / 2 - square_cost * lr**2,
        C_v=2 * a * (1 + 3 * spread) + ell * nu_max / 2 + square_cost * ell**2,
        weight=a,
    )


def _weights(c: Certificate) -> tuple[float, float] | Reason:
    """The open interval of a in which d1 > 0 and d2 > 0, or the condition that makes it empty."""
    spread = 18 * (c.beta1 - c.gamma) ** 2 * (c.L * c.nu_max) ** 2
    momentum_lr = c.lr - c.ell
    step = c.nu_max * momentum_lr
    slack1 = (1 - c.beta1) ** 2 - spread * momentum_lr**2
    slack2 = c.lr * c.nu_min / 2 - 1.5 * c.L * (c.lr * c.nu_max) ** 2
    if slack2 <= 0:
        limit = c.nu_min / (3 * c.L * c.nu_max**2)
        failure = f"d2 > 0 fails for every c1, c2: lr={c.lr:g} is not below ν_min/(3·L·ν_max²) = {limit:.4g}"
    elif slack1 <= 0:
        limit = (1 - c.beta1) / math.sqrt(spread)
        condition = f"lr − ell = {momentum_lr:g} is not below (1−β1)/(√18·|β1−γ|·L·ν_max) = {limit:.4g}"
        failure = f"d1 > 0 fails for every c1, c2: {condition}"
    else:
        low = (step / 2 + 1.5 * c.L * step**2) / slack1
        high = slack2 / (spread * c.lr**2) if spread else math.inf
        if low < high:
            return low, high
        failure = "d1 > 0 needs a large c2 and d2 > 0 a small one, and no c2 satisfies both"
    shape = dict(L=c.L, nu_min=c.nu_min, nu_max=c.nu_max, beta1=c.beta1, gamma=c.gamma)
    largest = largest_stable_lr(**shape, ell_ratio=c.ell / c.lr)
    return Reason(f"{failure}; lower lr below {largest:.4g} (at the same ell/lr)")


def largest_stable_lr(
    *, L: float, nu_min: float, nu_max: float, ell_ratio: float = 0.0, beta1: float = 0.9, gamma: float = 0.1
) -> float:
    """The limit below which every learning rate has a certificate, at a fixed ratio ℓ/η.

    The two conditions meet where a quadratic in u = η·L·ν_max vanishes (the cubic terms cancel): with κ = ν_min/ν_max
    and s = 1 − ℓ/η,  18(β1−γ)²·s(1+κs)·u² + 3(1−β1)²·u − κ(1−β1)² = 0.
    """
    _check(L=L, nu_min=nu_min, nu_max=nu_max, ell_ratio=ell_ratio, beta1=beta1, gamma=gamma)
    kappa, s = nu_min / nu_max, 1 - ell_ratio
    bend = 72 * ((beta1 - gamma) / (1 - beta1)) ** 2 * s * (1 + kappa * s) * kappa
    return 2 * kappa / (3 + math.sqrt(9 + bend)) / (L * nu_max)


def certificate_of(
    source: Source,
    correction: Correction | None = None,
    *,
    L: float,
    sigma2: float,
    nu_min: float,
    nu_max: float,
    lr: float | None = None,
    group: int = 0,
) -> Certificate:
    """The certificate of an optimizer with a one-pole filter and at most one fixed-point step.

    Any such average is RADAR's for some γ. If γ = β1 cancels it, the direction is g, and it is certified as β1 = 0.
    """
    step = linear_step(source, correction, lr=lr, group=group)
    (first, *later), (_, *decays) = step.momentum()
    one_pole = len(decays) <= 1 and len(later) <= 1
    averages = one_pole and math.isclose(first + sum(later), 1 + sum(decays), abs_tol=1e-9)
    if not averages or step.reevaluates or step.correction.prediction != (1.0,) or not step.is_linear:
        raise ValueError(
            f"{step.name}: Theorem 2 is about one-pole averages, linear geometries and at most one fixed-point step; "
            "for anything else there is no certificate here"
        )
    gamma = 0.0 - sum(later)
    if math.isnan(step.lr):
        raise ValueError(f"{step.name} has no learning rate here: pass lr=…")
    return certificate(
        L=L,
        sigma2=sigma2,
        nu_min=nu_min,
        nu_max=nu_max,
        lr=step.scaled_lr,
        ell=step.ratio * step.scaled_lr,
        beta1=0.0 - sum(decays),
        gamma=0.0 if abs(gamma) < 1e-12 else gamma,
    )


def _check(**values: float) -> None:
    """Refuse values for which Theorem 2 makes no statement."""
    conditions: dict[str, tuple[str, Callable[[float], bool]]] = {
        "L": ("> 0, the largest curvature", lambda x: x > 0),
        "sigma2": ("≥ 0, a variance", lambda x: x >= 0),
        "nu_min": ("> 0, the smallest preconditioner", lambda x: x > 0),
        "nu_max": ("> 0, the largest preconditioner", lambda x: x > 0),
        "lr": ("> 0", lambda x: x > 0),
        "ell": ("≥ 0", lambda x: x >= 0),
        "ell_ratio": ("in [0, 1], the theory needs ℓ ≤ η", lambda x: 0 <= x <= 1),
        "beta1": ("in [0, 1), or the filter never forgets", lambda x: 0 <= x < 1),
        "gamma": ("≥ 0", lambda x: x >= 0),
    }
    for name, value in values.items():
        condition, holds = conditions[name]
        if not (math.isfinite(value) and holds(value)):
            raise ValueError(f"{name} must be a finite number {condition}, got {value!r}")
    if values["nu_min"] > values["nu_max"]:
        raise ValueError(f"nu_min={values['nu_min']:g} exceeds nu_max={values['nu_max']:g}: they bound 1/R; swap them")
    if values.get("ell", 0.0) > values.get("lr", math.inf):
        raise ValueError(
            f"ell={values['ell']:g} exceeds lr={values['lr']:g}: the theorem needs ℓ ≤ η; use ell_ratio ≤ 1"
        )
