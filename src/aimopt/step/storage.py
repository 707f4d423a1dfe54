"""The memory of a tensor: whether it exists, and how many bytes it spans.

why_too_short("it", p)      None, or a Reason: a user may have freed or shortened the storage of a tensor
has_storage(x)              whether a tensor is plain memory at all
"""

from functools import lru_cache

import torch
from torch import Tensor

from aimopt.messages.reason import Reason


def why_too_short(name: str, x: Tensor) -> Reason | None:
    """Why the memory of a tensor cannot be read, or None."""
    if not has_storage(x) or x.numel() == 0:
        return None
    needed = x.storage_offset() * x.element_size() + extent(x)
    held = x.untyped_storage().nbytes()
    if needed <= held:
        return None
    return Reason(
        f"{name} needs {needed} bytes of memory and its storage holds {held}; was the storage freed or shortened?"
    )


def extent(x: Tensor) -> int:
    """The number of bytes from a tensor's first element to the end of its last one."""
    if x.is_contiguous() or x.numel() == 0:
        return x.nbytes
    return (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))) * x.element_size()


def is_expanded(x: Tensor) -> bool:
    """Whether several elements of a strided tensor share one memory address, by the test that torch itself uses."""
    if x.layout != torch.strided or x.is_contiguous():
        return False
    pairs = zip(x.shape, x.stride(), strict=True)
    return x.numel() > 0 and any(stride == 0 and size > 1 for size, stride in pairs)


def has_storage(x: Tensor) -> bool:
    """Whether a tensor's values are those in its memory. A type that redefines torch's operations may differ."""
    if not is_plain(type(x)) or x.is_meta or not torch._C._has_storage(x):
        return False
    return not (x._is_zerotensor() or torch._is_functional_tensor(x))


@lru_cache(maxsize=256)
def is_plain(kind: type) -> bool:
    """Whether a tensor type leaves torch's operations unchanged."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]
