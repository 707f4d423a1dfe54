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
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from aimopt.parts.component import Geometry, State, StepCount, is_finite
from aimopt.parts.orthogonalization import POLAR_EXPRESS, QUINTIC, Coefficients, exact_polar, newton_schulz, schedule
from aimopt.parts.tensor_list import TensorList, each


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

    `ns_steps` Newton–Schulz iterations in `ns_dtype` (None: bfloat16, but float32 on a CPU, where bfloat16 is slow or
    worse), or with `polar="exact"` the singular value decomposition (for tests). `ns_coefficients` are three numbers, or
    "polar-express". `adjust_lr_fn` is torch.optim.Muon's: "original" scales by √max(1, outputs/inputs),
    "match_rms_adamw" by 0.2·√max(outputs, inputs).
    """

    ns_steps: int = 5
    ns_coefficients: Coefficients | str = QUINTIC
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
