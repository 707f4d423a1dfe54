"""Stochastic rounding: small updates of 16-bit tensors are not lost.

A bfloat16 parameter near 1 moves in steps of 1/128. Rounded to the nearest value, an update of 1/1000 is lost every
time. Rounded up or down at random, with a probability that grows with nearness, it is preserved on average. For example

    round_stochastically(x, torch.bfloat16, t=1, rank=0, draw=0)

The random bits are a hash of the step, the parameter's position (`rank`) and the element's position in it. A hash has
32 bits, and a draw takes 16: `draw` counts the 16-bit tensors of a parameter, itself first, and two of them share a
hash. So a run is reproducible, copies of a model on several machines stay equal, and the kernels round to the same
bits. Of a sharded parameter the position in the whole counts (`origin`): a run does not depend on how it was sharded.
"""

from typing import Any

import torch
from torch import Tensor

from aimopt.parts.tensor_list import LOW_PRECISION
from aimopt.step.shards import Origin

_UNSIGNED = 0xFFFFFFFF


def round_stochastically(
    x: Tensor, dtype: torch.dtype, t: Any, rank: int, draw: int, origin: Origin | None = None
) -> Tensor:
    """Convert x, which has no gaps in memory, to bfloat16 or float16: to the value above or below, at random."""
    assert dtype in LOW_PRECISION
    step = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    key = _scramble(_scramble(_scramble(step) ^ rank) ^ (draw // 2))
    hashed = _scramble((_positions(x, origin) & _UNSIGNED) ^ key)
    random = (hashed & 0xFFFF if draw % 2 else hashed >> 16).to(torch.int32)
    bits = x.view(torch.int32)
    if dtype == torch.bfloat16:
        rounded = ((bits + random) & ~0xFFFF).view(torch.float32)
        return torch.where(x.isfinite(), rounded, x).to(dtype)
    normal = ((bits + (random >> 3)) & ~0x1FFF).view(torch.float32)
    # Below 2⁻¹⁴ the values are 2⁻²⁴ apart: add up to half of that on either side, then round to the nearest.
    small = x + ((random + 0.5) * 2.0**-40 - 2.0**-25)
    magnitude = x.abs()
    return torch.where(magnitude < 2.0**-14, small, torch.where(magnitude < 65520.0, normal, x)).to(dtype)


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
