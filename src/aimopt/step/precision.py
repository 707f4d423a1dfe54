"""Stochastic rounding: small updates of 16-bit tensors are not lost.

A bfloat16 parameter near 1 moves in steps of 1/128. Rounded to the nearest value, an update of 1/1000 is lost every
time. Rounded up or down at random, with a probability that grows with nearness, it is preserved on average. For example

    round_stochastically(x, torch.bfloat16, t=1, param_index=0, draw=0)

The random bits are a hash of the step, the parameter's index in its optimizer and the element's position in it.
`draws` counts the tensors of a parameter that are rounded. Two of them share a hash of 32 bits: one takes its upper
bits, one its lower. So a run is reproducible, copies of a model on several machines stay equal, and the kernels round
to the same bits. Of a sharded parameter the position in the whole counts (`origin`): a run does not depend on how it
was sharded. State in 8 bits takes its random bits from here as well (`quantization.py`).

    random_bits(16, positions, t=1, param_index=0, draw=0)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aimopt.parts.tensor_list import LOW_PRECISION
from aimopt.step.shards import Origin

HASH_BLOCK = 128  # elements whose random bits are on one line
_UNSIGNED = 0xFFFFFFFF


def round_stochastically(
    x: Tensor, dtype: torch.dtype, t: Any, param_index: int, draw: int, origin: Origin | None = None
) -> Tensor:
    """Convert x, which has no gaps in memory, to bfloat16 or float16: to the value above or below, at random."""
    assert dtype in LOW_PRECISION
    random = random_bits(16, _positions(x, origin), t, param_index, draw)
    bits = x.view(torch.int32)
    if dtype == torch.bfloat16:
        rounded = ((bits + random) & ~0xFFFF).view(torch.float32)
        return torch.where(x.isfinite(), rounded, x).to(dtype)
    normal = ((bits + (random >> 3)) & ~0x1FFF).view(torch.float32)
    # Below 2⁻¹⁴ the values are 2⁻²⁴ apart: add up to half of that on either side, then round to the nearest.
    small = x + ((random + 0.5) * 2.0**-40 - 2.0**-25)
    magnitude = x.abs()
    return torch.where(magnitude < 2.0**-14, small, torch.where(magnitude < 65520.0, normal, x)).to(dtype)


def random_bits(bits: int, positions: Tensor, t: Any, param_index: int, draw: int) -> Tensor:
    """Random numbers of so many bits, 18 at most, for the elements of a parameter at these positions.

    They are on a line with random coefficients per block, at the hash of the place in the block. That is less
    arithmetic than a hash per element, and independent for any two elements (Dietzfelbinger's multiply-shift hashing).
    """
    summand = _scramble((positions // HASH_BLOCK & _UNSIGNED) ^ _key(t, param_index, draw))
    line = (_scramble(positions % HASH_BLOCK) * (_scramble(summand) | 1) + summand) & _UNSIGNED
    hashed = line ^ (line >> 16)
    return (hashed & ((1 << bits) - 1) if draw % 2 else hashed >> (32 - bits)).to(torch.int32)


def _key(t: Any, param_index: int, draw: int) -> Any:
    step = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    return _scramble(_scramble(_scramble(step) ^ param_index) ^ (draw // 2))


def draws(sizes: Sequence[int]) -> dict[int, int]:
    """The draw of each tensor that is rounded, by its position: first those of 2 bytes per element, then those of 1.

    `sizes` are the bytes per element of a parameter and of its buffers, in this order.
    """
    rounded = [[i for i, size in enumerate(sizes) if size == narrow] for narrow in (2, 1)]
    return {i: draw for draw, i in enumerate(rounded[0] + rounded[1])}


def _positions(x: Tensor, origin: Origin | None) -> Tensor:
    """The position in memory of each element: in that of the whole, if x is a local part."""
    if origin is None:
        return torch.arange(x.numel(), device=x.device).as_strided(x.shape, x.stride())
    offset, strides = origin
    positions = torch.full(x.shape, offset, dtype=torch.int64, device=x.device)
    for dim, stride in enumerate(strides):
        index = torch.arange(x.size(dim), device=x.device) * stride
        positions += index.view(-1, *[1] * (x.ndim - dim - 1))
    return positions


def _scramble(x: Any) -> Any:
    """A 32-bit hash (Wellons' lowbias32) of a number, or of every element of a tensor."""
    x = x & _UNSIGNED
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _UNSIGNED
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _UNSIGNED
    return x ^ (x >> 16)
