"""Muon against torch's, for `aimopt bench step`: the products of matrices are nearly all of its step.

torch.optim.Muon converts every matrix to bfloat16, whatever its parameters are. So it is timed twice:

    torch Muon               as it is, where the processor has instructions for bfloat16 (without, a step takes minutes)
    torch Muon in float32    its own code, with that one conversion replaced by float32

Ours iterates in float32 on CPUs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

TORCH, TORCH_IN_FLOAT32 = "torch Muon", "torch Muon in float32"
DTYPES = {"Muon": torch.float32, "Muon, bfloat16 parameters": torch.bfloat16}
LEFT_OUT = f"{TORCH} is left out: this processor has no bfloat16 instructions, and without them a step takes minutes"


class Float32Conversion(TorchFunctionMode):
    """Makes `x.bfloat16()` a float32 copy: torch.optim.Muon calls it at one place, and then writes to the result."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        return func(*args, **(kwargs or {}))


class Float32Muon(torch.optim.Muon):
    """torch.optim.Muon with its iteration in float32."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step."""
        with Float32Conversion():
            return super().step(closure)  # type: ignore[no-untyped-call]


def has_bfloat16_products() -> bool:
    """Whether products of bfloat16 matrices are quick on this processor, as far as torch knows."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch was built without that library
        return False


def torch_peers(lr: float) -> Iterator[tuple[str, Callable[[Sequence[Tensor]], torch.optim.Optimizer]]]:
    """The names and constructors of torch's."""
    if has_bfloat16_products():
        yield TORCH, partial(torch.optim.Muon, lr=lr)
    yield TORCH_IN_FLOAT32, partial(Float32Muon, lr=lr)
