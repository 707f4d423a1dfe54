"""The memory behind a tensor: whether it is there, and how far it reaches.

too_short("it", p)      None, or a sentence: a user may have freed or shortened the storage under a tensor
has_storage(x)          whether a tensor is plain memory at all
"""

from functools import lru_cache

import torch
from torch import Tensor


def too_short(name: str, x: Tensor) -> str | None:
    """Why the memory of a tensor cannot be read, or None."""
    if not has_storage(x) or x.numel() == 0:
        return None
    needed = x.storage_offset() * x.element_size() + extent(x)
    there = x.untyped_storage().nbytes()
    if needed <= there:
        return None
    return f"{name} needs {needed} bytes of memory and its storage holds {there}; was the storage freed or shortened?"


def extent(x: Tensor) -> int:
    """How many bytes lie between a tensor's first element and the end of its last one."""
    if x.is_contiguous() or x.numel() == 0:
        return x.nbytes
    return (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))) * x.element_size()


def is_expanded(x: Tensor) -> bool:
    """Whether several elements of a strided tensor share one place in memory, as far as torch itself looks."""
    if x.layout != torch.strided or x.is_contiguous():
        return False
    pairs = zip(x.shape, x.stride(), strict=True)
    return x.numel() > 0 and any(stride == 0 and size > 1 for size, stride in pairs)


def has_storage(x: Tensor) -> bool:
    """Whether a tensor is what its memory says: one whose type redefines torch's operations may not be."""
    if not is_plain(type(x)) or x.is_meta or not torch._C._has_storage(x):
        return False
    return not (x._is_zerotensor() or torch._is_functional_tensor(x))


@lru_cache(maxsize=256)
def is_plain(kind: type) -> bool:
    """Whether torch's operations on a type of tensor are torch's own."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]
