"""Orthogonalization: matrix products that drive all singular values of a matrix towards 1.

A step x ← a·x + (b·A + c·A²)·x with A = x·xᵀ applies the polynomial a·σ + b·σ³ + c·σ⁵ to every singular value σ. The
coefficients are data:

    QUINTIC          one polynomial for all steps: quick, and σ ends between about 0.7 and 1.2 (Jordan 2024)
    POLAR_EXPRESS    one per step, each the best one for the interval that σ is in by then (Amsel et al. 2025)

The products are nearly all of Muon's step. `newton_schulz` chooses the form of the iteration that needs the fewest of
them, and `exact_polar` is the limit, by a singular value decomposition.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Quintic = tuple[float, float, float]  # (a, b, c)

# torch.optim.Muon has the same.
QUINTIC: Quintic = (3.4445, -4.7750, 2.0315)

# Algorithm 1 of Amsel, Persson, Musco and Gower 2025 (arXiv 2505.16932), for singular values in [0.001, 1].
_BEST_QUINTICS: tuple[Quintic, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
_LIMIT: Quintic = (1.875, -1.25, 0.375)  # all further steps
_SAFETY = 1.01  # p(x/1.01) in place of p(x): rounding may leave a singular value above the interval, where p diverges
POLAR_EXPRESS = "polar-express"

# Below this side a call costs more than the arithmetic that another form saves.
LARGE_SIDE = 256
# A symmetric product is computed in this many panels of rows, each one up to the diagonal.
PANELS = 4
_SYMMETRIC_SHARE = (PANELS + 1) / (2 * PANELS)  # of the arithmetic of a full product
# By how much a step on Gram matrices may stretch small singular values before the Gram matrix is computed anew:
# its rounding errors are stretched by the square. 50 keeps float32 within 1e-5 of the direct iteration (QUINTIC).
MAX_STRETCH = 50.0


def schedule(coefficients: Quintic | str, steps: int) -> tuple[Quintic, ...]:
    """The coefficients of each step, from a triple or `POLAR_EXPRESS`."""
    if not isinstance(coefficients, str):
        return (coefficients,) * steps
    assert coefficients == POLAR_EXPRESS
    safe = [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _BEST_QUINTICS[:steps]]
    return (*safe, *[_LIMIT] * (steps - len(safe)))


def newton_schulz(x: Tensor, coefficients: Sequence[Quintic], eps: float) -> Tensor:
    """Drive the singular values of a matrix, or of each one of a batch, towards 1: one step per triple.

    Large matrices in float32 or float64 take forms with fewer operations: symmetric products are computed up to the
    diagonal, and oblong matrices iterate on their Gram matrix. In float32 that changes the result by less than 1e-5.
    bfloat16 has too few bits for a Gram matrix; small matrices gain nothing.
    """
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    side, length = x.shape[-2:]
    if side < LARGE_SIDE or x.dtype not in (torch.float32, torch.float64):
        x = _iterate(x, coefficients)
    elif _operations_on_gram(side, length, coefficients) < _operations(side, length, len(coefficients)):
        x = _iterate_on_gram(x, coefficients)
    else:
        x = _iterate(x, coefficients, symmetric_product)
    return x.mT if tall else x


def _iterate(
    x: Tensor, coefficients: Sequence[Quintic], symmetric: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    for a, b, c in coefficients:
        if symmetric is None:
            A = x @ x.mT
            B = add_product(A, A, A, beta=b, alpha=c)
        else:
            A = symmetric(x, x.mT)
            B = symmetric(A, A).mul_(c).add_(A, alpha=b)
        x = add_product(x, B, x, beta=a)
    return x


def _iterate_on_gram(x: Tensor, coefficients: Sequence[Quintic]) -> Tensor:
    """The same steps on A = x·xᵀ, which is small if x is oblong: x ← Q·x at the end of each segment.

    With P = a + b·A + c·A², a step is Q ← Q·P and A ← P·A·P. All of them commute, so every product is symmetric.
    """
    for segment in _segments(coefficients):
        A = symmetric_product(x, x.mT)
        Q: Tensor | None = None
        for i, (a, b, c) in enumerate(segment):
            P = symmetric_product(A, A).mul_(c).add_(A, alpha=b)
            P.diagonal(dim1=-2, dim2=-1).add_(a)
            Q = P if Q is None else symmetric_product(Q, P)
            if i + 1 < len(segment):
                A = symmetric_product(symmetric_product(A, P), P)
        assert Q is not None
        x = Q @ x
    return x


def _segments(coefficients: Sequence[Quintic]) -> Iterator[list[Quintic]]:
    """The steps between two computations of the Gram matrix: small singular values grow by the product of the a's."""
    segment: list[Quintic] = []
    stretch = 1.0
    for step in coefficients:
        stretch *= abs(step[0])
        if segment and stretch > MAX_STRETCH:
            yield segment
            segment, stretch = [], abs(step[0])
        segment.append(step)
    yield segment


def symmetric_product(x: Tensor, y: Tensor) -> Tensor:
    """x·y, for factors whose product is symmetric: computed up to the diagonal, mirrored above it."""
    side = x.size(-2)
    product = x.new_empty((*x.shape[:-1], side))
    edges = [side * i // PANELS for i in range(PANELS + 1)]
    for start, end in pairwise(edges):
        product[..., start:end, :end] = x[..., start:end, :] @ y[..., :, :end]
        product[..., :start, start:end] = product[..., start:end, :start].mT
    return product


def _operations(side: int, length: int, steps: int) -> float:
    """The multiplications of the direct iteration: A, A² and one product with x per step."""
    return steps * (side**2 * length * (1 + _SYMMETRIC_SHARE) + side**3 * _SYMMETRIC_SHARE)


def _operations_on_gram(side: int, length: int, coefficients: Sequence[Quintic]) -> float:
    """The multiplications on Gram matrices: A and Q·x per segment; A² per step; Q·P and P·A·P between two steps."""
    segments = list(_segments(coefficients))
    small = sum(4 * len(segment) - 3 for segment in segments)
    return len(segments) * side**2 * length * (1 + _SYMMETRIC_SHARE) + small * side**3 * _SYMMETRIC_SHARE


def exact_polar(x: Tensor) -> Tensor:
    """UVᵀ of x = UΣVᵀ. A zero singular value has no direction and stays zero."""
    U, S, Vh = torch.linalg.svd(x, full_matrices=False)
    nonzero = 1e-12 * S.amax(-1, keepdim=True) < S
    return (U * nonzero.unsqueeze(-2)) @ Vh
