"""Stochastic rounding: what is kept in 16 bits still adds up.

A bfloat16 parameter near 1 moves in steps of 1/128, and rounded to the nearest value an update of 1/1000 is lost every
time. Rounded up or down by chance, each as likely as the other value is near, it is kept on average. For example

    round_stochastically(x, torch.bfloat16, t=1, rank=0, salt=0)

The chance is a hash of the step, the parameter's place (`rank`), the buffer (`salt`) and the element. So a run is
reproducible, copies of a model on several machines stay equal, and the kernels round to the same bits as this.
"""

from typing import Any

import torch
from torch import Tensor

from aimopt.tensors import LOW_PRECISION

_UNSIGNED = 0xFFFFFFFF


def round_stochastically(x: Tensor, dtype: torch.dtype, t: Any, rank: int, salt: int) -> Tensor:
    """Bring x, which fills its memory, to bfloat16 or float16: to the value above or below, by chance."""
    assert dtype in LOW_PRECISION
    step = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    key = _scramble(_scramble(_scramble(step) ^ rank) ^ salt)
    element = torch.arange(x.numel(), device=x.device).as_strided(x.shape, x.stride())  # its place in memory
    chance = (_scramble((element & _UNSIGNED) ^ key) >> 16).to(torch.int32)
    bits = x.view(torch.int32)
    if dtype == torch.bfloat16:
        rounded = ((bits + chance) & ~0xFFFF).view(torch.float32)
        return torch.where(x.isfinite(), rounded, x).to(dtype)
    normal = ((bits + (chance >> 3)) & ~0x1FFF).view(torch.float32)
    # Below 2⁻¹⁴ the values lie 2⁻²⁴ apart: half of that to either side, then to the nearest.
    small = x + ((chance + 0.5) * 2.0**-40 - 2.0**-25)
    size = x.abs()
    return torch.where(size < 2.0**-14, small, torch.where(size < 65520.0, normal, x)).to(dtype)


def _scramble(x: Any) -> Any:
    """A hash of 32 bits (Wellons' lowbias32), of a number or of every element."""
    x = x & _UNSIGNED
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _UNSIGNED
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _UNSIGNED
    return x ^ (x >> 16)
