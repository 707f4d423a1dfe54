"""Matrix geometries: the shape of a step that treats a parameter as a matrix, output × input.

    Spectral              P(UΣVᵀ) = UVᵀ, by Newton–Schulz steps            Muon
    NormalizedSpectral    the same, with rows of equal size on average     NorMuon
    Eigenbasis            Adam in the eigenbasis of the gradients          SOAP

All of them share three fields that say where the matrices of a tensor are:

    transposed=True       stored input × output, as Hugging Face's `Conv1D` and transposed convolutions are
    kernel="batch"        leading dimensions index independent matrices, as in the experts of a mixture
    row_blocks=3          the output side has 3 equal blocks that are matrices of their own, as in a fused QKV
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.parts.component import BIAS_CORRECTIONS, Geometry, Initial, State, StepCount, is_finite, zeros
from aimopt.parts.orthogonalization import POLAR_EXPRESS, QUINTIC, Quintic, exact_polar, newton_schulz, schedule
from aimopt.parts.tensor_list import TensorList, each, sqrt

ROW_MOMENT = "second_momentum_buffer"  # the state key of NorMuon, as in its authors' code


@dataclass(frozen=True, kw_only=True)
class MatrixGeometry(Geometry):
    """A geometry of matrices. By default a convolution kernel is flattened to output channels × all else."""

    transposed: bool = False
    kernel: str = "flatten"
    row_blocks: int = 1
    matrices_only = True

    def __post_init__(self) -> None:
        self._check_choice("transposed", (True, False))
        self._check_choice("kernel", ("flatten", "batch"))
        self._check("row_blocks", 1, integer=True)

    def why_unfit(self, shape: torch.Size) -> str | None:
        """Why a parameter of this shape, of at least two dimensions, has no such matrices; None if it has."""
        rows, columns = (0, 1) if self.kernel == "flatten" else (-2, -1)
        outputs = shape[columns if self.transposed else rows]
        if outputs % self.row_blocks == 0:
            return None
        return f"its {outputs} outputs cannot be split into row_blocks={self.row_blocks} equal blocks"

    def as_matrices(self, x: Tensor) -> Tensor:
        """The matrices of a tensor, output × input; leading dimensions index them if there are several."""
        if self.kernel == "flatten":
            x = (x.transpose(0, 1) if self.transposed else x).flatten(1)
        elif self.transposed:
            x = x.mT
        return x if self.row_blocks == 1 else x.unflatten(-2, (self.row_blocks, -1))

    def from_matrices(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        """The tensor of this shape whose matrices these are."""
        if self.row_blocks > 1:
            matrices = matrices.flatten(-3, -2)
        if not self.transposed:
            return matrices.reshape(shape)
        if self.kernel == "batch":
            return matrices.mT
        return matrices.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)


@dataclass(frozen=True)
class Orthogonalizing(MatrixGeometry):
    """A geometry that makes all singular values equal.

    `ns_steps` Newton–Schulz iterations in `ns_dtype`, or with `polar="exact"` the singular value decomposition (for
    tests). None is bfloat16, but float32 on a CPU: many have no bfloat16 instructions, and are very slow without them.
    `ns_coefficients` are three numbers, or "polar-express". `adjust_lr_fn` is torch.optim.Muon's: "original" scales by
    √max(1, outputs/inputs), "match_rms_adamw" by 0.2·√max(outputs, inputs).
    """

    ns_steps: int = 5
    ns_coefficients: Quintic | str = QUINTIC
    eps: float = 1e-7
    adjust_lr_fn: str | None = None
    polar: str = "newton-schulz"
    ns_dtype: str | None = None
    linear = False
    batch_elements: ClassVar[int] = 2**26  # matrices of one shape are orthogonalized together, up to this size

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("ns_steps", 1, 100, integer=True)
        self._check("eps", 0, open_low=True)
        self._check_choice("adjust_lr_fn", (None, "original", "match_rms_adamw"))
        self._check_choice("polar", ("newton-schulz", "exact"))
        self._check_choice("ns_dtype", (None, "bfloat16", "float32", "float64"))
        given = self.ns_coefficients
        three_numbers = isinstance(given, (tuple, list)) and len(given) == 3 and all(map(is_finite, given))
        if not three_numbers and given != POLAR_EXPRESS:
            raise ValueError(
                f"{type(self).__name__}: ns_coefficients must be three numbers or {POLAR_EXPRESS!r}, got {given!r}"
            )

    def orthogonalize(self, x: Tensor) -> Tensor:
        """The polar factor of a tensor's matrices; in a list, tensors of one shape are stacked and take one call."""
        if not isinstance(x, TensorList):
            return self._orthogonalize([x])[0]
        by_kind: dict[Any, list[int]] = {}
        for i, tensor in enumerate(x.items):
            by_kind.setdefault((tensor.shape, tensor.dtype), []).append(i)
        results: dict[int, Tensor] = {}
        for indices in by_kind.values():
            batch_size = max(1, self.batch_elements // max(1, x.items[indices[0]].numel()))
            for batch in (indices[k : k + batch_size] for k in range(0, len(indices), batch_size)):
                results |= zip(batch, self._orthogonalize([x.items[i] for i in batch]), strict=True)
        return cast(Tensor, TensorList([results[i] for i in range(len(x))]))

    def _orthogonalize(self, tensors: list[Tensor]) -> list[Tensor]:
        """The polar factors of tensors of one shape, all at once."""
        first = tensors[0]
        matrices = [self.as_matrices(x) for x in tensors]
        together = torch.stack(matrices) if len(tensors) > 1 else matrices[0]
        batch = together.flatten(0, -3) if together.ndim > 3 else together
        if self.polar == "exact":
            result = exact_polar(batch)
        else:
            dtype = self.ns_dtype or ("float32" if first.device.type == "cpu" else "bfloat16")
            steps = schedule(self.ns_coefficients, self.ns_steps)
            result = newton_schulz(batch.to(getattr(torch, dtype)), steps, self.eps)
        result = result.to(first.dtype).reshape(together.shape)
        parts = [result[i] for i in range(len(tensors))] if len(tensors) > 1 else [result]
        return [self.from_matrices(part, first.shape) for part in parts]

    def _scale(self, rows: int, columns: int) -> float:
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1, rows / columns))


@dataclass(frozen=True)
class Spectral(Orthogonalizing):
    """Steepest descent in the spectral norm: P(UΣVᵀ) ≈ UVᵀ, scaled by the matrix's shape."""

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return cast(Tensor, each(self._scaled, self.orthogonalize(x)))

    def _scaled(self, x: Tensor) -> Tensor:
        scale = self._scale(*self.as_matrices(x).shape[-2:])
        return x if scale == 1 else x * scale


@dataclass(frozen=True)
class NormalizedSpectral(Orthogonalizing):
    """NorMuon's geometry: orthogonalized, then every row (the weights of one output) divided by its size on average.

    u ← β₂·u + (1−β₂)·mean(O²) per row of the polar factor O, and P = O/(√u + ε), rescaled to the norm of O and by the
    matrix's shape (Li et al. 2025, arXiv 2510.05491, as in the authors' code); with adjust_lr_fn="match_rms_adamw" to a
    root mean square of 0.2, as in their Algorithm 1. If a step maps several directions, u observes the first of them.
    """

    beta2: float = 0.95
    row_eps: float = 1e-10
    betas = ("beta2",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta2", 0, 1)
        self._check("row_eps", 0)

    def buffers(self) -> dict[str, Initial]:
        return {ROW_MOMENT: Initial(lambda g: torch.zeros_like(self.as_matrices(g)[..., :1]), shaped=True)}

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Any:
        return RowMoments(state[ROW_MOMENT], state[ROW_MOMENT].clone())

    def apply(self, x: Tensor, metric: Any) -> Tensor:
        orthogonal = self.orthogonalize(x)
        moments = each(self._observe, orthogonal, metric.before)
        metric.store(moments)
        return cast(Tensor, each(self._normalize, orthogonal, moments))

    def _observe(self, orthogonal: Tensor, moment: Tensor) -> Tensor:
        mean_square = self.as_matrices(orthogonal).square().mean(-1, keepdim=True)
        return moment.lerp(mean_square.to(moment.dtype), 1 - self.beta2)

    def _normalize(self, orthogonal: Tensor, moment: Tensor) -> Tensor:
        matrices = self.as_matrices(orthogonal)
        rows, columns = matrices.shape[-2:]
        normalized = matrices / (moment.sqrt() + self.row_eps)
        norm = _frobenius_norm(normalized) + self.row_eps
        if self.adjust_lr_fn == "match_rms_adamw":
            scale = 0.2 * math.sqrt(rows * columns) / norm
        else:
            scale = _frobenius_norm(matrices) / norm * self._scale(rows, columns)
        return self.from_matrices(normalized * scale, orthogonal.shape)


def _frobenius_norm(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


class RowMoments:
    """The second moments of rows in one step: each direction that is mapped starts from those before the step."""

    def __init__(self, buffer: Tensor, before: Tensor):
        self.buffer, self.before = buffer, before
        self._stored = False

    def store(self, moments: Tensor) -> None:
        """Keep those of the first direction for the next step."""
        if not self._stored:
            self.buffer.copy_(moments)
            self._stored = True


@dataclass(frozen=True)
class Eigenbasis(MatrixGeometry):
    """SOAP's geometry: Adam in the eigenbasis of Shampoo's factors (Vyas et al. 2024, arXiv 2409.11321).

    L ← β·L + (1−β)·G·Gᵀ and likewise R of GᵀG, with β = `shampoo_beta` (None: β₂). Their eigenvectors Q_L, Q_R are
    computed from the first gradient, and every `precondition_frequency` steps one QR step brings them up to date. Then
    P(x) = Q_L·(Q_Lᵀ·x·Q_R / √v)·Q_Rᵀ, with v the second moment of the rotated gradient. A side longer than `max_side`
    is not rotated.

    As in the authors' code no gradient is rotated by a basis that has seen it, and ε is added before v's bias
    correction. The first gradient makes the basis and moves nothing; it does enter the average m, which the authors
    leave out.
    """

    beta2: float = 0.95
    eps: float = 1e-8
    shampoo_beta: float | None = None
    precondition_frequency: int = 10
    max_side: int = 10_000
    bias_correction: bool | str = True
    betas = ("beta2",)
    linear = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta2", 0, 1)
        self._check("eps", 0)
        if self.shampoo_beta is not None:
            self._check("shampoo_beta", 0, 1)
        self._check("precondition_frequency", 1, integer=True)
        self._check("max_side", 1, integer=True)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    def buffers(self) -> dict[str, Initial]:
        return {
            "exp_avg_sq": zeros,
            "left_factor": Initial(lambda g: self._square(g, -2), shaped=True),
            "right_factor": Initial(lambda g: self._square(g, -1), shaped=True),
            # Not rotated, if this geometry replaces another one in the middle of a run.
            "left_basis": Initial(lambda g: _identity_like(self._square(g, -2)), shaped=True),
            "right_basis": Initial(lambda g: _identity_like(self._square(g, -1)), shaped=True),
        }

    def _square(self, g: Tensor, side: int) -> Tensor:
        """A zero matrix for one side; an empty one if the side is too long to be rotated."""
        matrices = self.as_matrices(g)
        length = matrices.size(side)
        if length > self.max_side:
            return matrices.new_zeros((0, 0))
        return matrices.new_zeros((*matrices.shape[:-2], length, length))

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Any:
        left, right = state["left_basis"], state["right_basis"]
        factors = state["left_factor"], state["right_factor"]
        R = each(self._observe, g, state["exp_avg_sq"], *factors, left, right, t)
        return Rotation(each(_saved, left), each(_saved, right), R)

    def apply(self, x: Tensor, metric: Any) -> Tensor:
        return cast(Tensor, each(self._precondition, x, *metric))

    def _precondition(self, x: Tensor, left: Tensor, right: Tensor, R: Tensor) -> Tensor:
        left, right, R = left.to(x.dtype), right.to(x.dtype), R.to(x.dtype)
        rotated = rotate(self.as_matrices(x), left, right)
        return self.from_matrices(rotate(rotated / R, left.mT, right.mT), x.shape)

    def _observe(
        self, g: Tensor, v: Tensor, left: Tensor, right: Tensor, left_basis: Tensor, right_basis: Tensor, t: StepCount
    ) -> Tensor:
        """Advance the state by one gradient; return √v + ε in the rotated basis, bias correction included."""
        G, V = self.as_matrices(g), self.as_matrices(_saved(v))
        sides = [side for side in ((left, left_basis, -2), (right, right_basis, -1)) if side[0].numel()]
        first: Any = t == 1
        # The authors bring the basis up to date at the end of a step; nothing reads it before the next one begins.
        due: Any = (t > 2) & ((t - 2) % self.precondition_frequency == 0)
        for factor, basis, dim in sides if due is not False else ():
            order, refreshed = qr_step(_saved(factor), _saved(basis))
            V = choose(due, V.take_along_dim(order.unsqueeze(-1 if dim == -2 else -2), dim), V)
            basis.copy_(choose(due, refreshed, basis))
        square = rotate(G, _saved(left_basis), _saved(right_basis)).square()
        V = choose(first, V, V.lerp(square.to(V.dtype), 1 - self.beta2))
        if first is not True:  # else V is a view of v, of which torch may not copy to v
            v.copy_(self.from_matrices(V, v.shape))
        self._observe_factors(G, sides, first)
        c = 1 - self.beta2 ** (t - 1) if self.bias_correction else 1.0
        R = (V.sqrt() + self.eps) / sqrt(c)
        return choose(first, torch.full_like(R, math.inf), R)

    def _observe_factors(self, G: Tensor, sides: list[tuple[Tensor, Tensor, int]], first: Any) -> None:
        beta = self.beta2 if self.shampoo_beta is None else self.shampoo_beta
        for factor, basis, dim in sides:
            factor.lerp_(G @ G.mT if dim == -2 else G.mT @ G, 1 - beta)
            if first is not False:
                basis.copy_(choose(first, eigenvectors(factor), basis))


def _saved(buffer: Tensor) -> Tensor:
    """A buffer; a copy if autograd will save it for its backward pass, because the next step writes to the buffer."""
    return buffer.clone() if buffer.requires_grad else buffer


def _identity_like(zero: Tensor) -> Tensor:
    zero.diagonal(dim1=-2, dim2=-1).fill_(1)
    return zero


class Rotation(NamedTuple):
    """The metric of `Eigenbasis`: two bases, and √v + ε between them."""

    left: Tensor
    right: Tensor
    R: Tensor


def rotate(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·x·right; an empty basis leaves its side as it is."""
    x = left.mT @ x if left.numel() else x
    return x @ right if right.numel() else x


def eigenvectors(symmetric: Tensor) -> Tensor:
    """The eigenvectors, those of the largest eigenvalues first."""
    return torch.linalg.eigh(symmetric).eigenvectors.flip(-1)


def qr_step(factor: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One step of orthogonal iteration: the present order of the basis by eigenvalue, and the basis after the step."""
    product = factor @ basis
    order = (basis * product).sum(-2).argsort(-1, descending=True)
    return order, torch.linalg.qr(product.take_along_dim(order.unsqueeze(-2), -1)).Q


def choose(condition: Any, new: Tensor, old: Tensor) -> Tensor:
    """One of two tensors. A condition on the device chooses there: nothing waits, so that a step can be captured."""
    if isinstance(condition, bool):
        return new if condition else old
    return torch.where(condition, new, old)
