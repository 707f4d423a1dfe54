"""One arithmetic for a tensor and for a list of tensors.

A component is written once, in plain tensor arithmetic. Given a `Tensor` it is the readable reference; given a
`TensorList` the same lines run as torch's multi-tensor (`_foreach_`) kernels. For example

    e.mul_(beta).add_(g, alpha=1 - beta)      one tensor, or all tensors of a group
    R = (v * delta**2 + zeta).sqrt()          likewise

So the annotations of this package say `Tensor` for both.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

LOW_PRECISION = (torch.float16, torch.bfloat16)

# The multi-tensor functions that also take a 0-dim tensor (a tensor learning rate) as their second operand.
_TAKE_A_TENSOR_SCALAR = frozenset({"add", "mul", "div", "add_", "mul_", "div_"})


class TensorList:
    """Tensors that are treated as one. A method without a multi-tensor kernel runs tensor by tensor."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[Tensor]):
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(
                f"a list of tensors has no {name!r}; use aimopt.parts.tensor_list.each, which works tensor by tensor"
            )
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> "TensorList":
        foreach = getattr(torch, f"_foreach_{name}", None)
        plain_tensor = any(isinstance(a, Tensor) for a in (*args, *kwargs.values()))
        if foreach is None or (plain_tensor and name not in _TAKE_A_TENSOR_SCALAR):
            return each(lambda x, *rest: getattr(x, name)(*rest, **kwargs), self, *args)
        result = foreach(self.items, *(a.items if isinstance(a, TensorList) else a for a in args), **kwargs)
        return self if name.endswith("_") else TensorList(result)

    def __add__(self, other: Any) -> "TensorList":
        return self._call("add", other)

    def __sub__(self, other: Any) -> "TensorList":
        return self._call("add", -other) if isinstance(other, Tensor) else self._call("sub", other)

    def __mul__(self, other: Any) -> "TensorList":
        return self._call("mul", other)

    def __truediv__(self, other: Any) -> "TensorList":
        return self._call("div", other)

    def __pow__(self, other: Any) -> "TensorList":
        return self._call("pow", other)

    def __abs__(self) -> "TensorList":
        return self._call("abs")

    def __lt__(self, other: Any) -> "TensorList":
        return self._call("lt", other)

    def __gt__(self, other: Any) -> "TensorList":
        return self._call("gt", other)

    def __le__(self, other: Any) -> "TensorList":
        return self._call("le", other)

    def __ge__(self, other: Any) -> "TensorList":
        return self._call("ge", other)

    def __eq__(self, other: Any) -> "TensorList":  # type: ignore[override]
        return self._call("eq", other)

    def __ne__(self, other: Any) -> "TensorList":  # type: ignore[override]
        return self._call("ne", other)

    def __neg__(self) -> "TensorList":
        return self._call("neg")

    def __rsub__(self, other: Any) -> "TensorList":
        return self._call("neg") + other

    def __rtruediv__(self, other: Any) -> "TensorList":
        return self._call("reciprocal") * other

    def __rpow__(self, base: float) -> "TensorList":
        return TensorList(torch._foreach_pow(base, self.items))

    def __iadd__(self, other: Any) -> "TensorList":
        return self._call("add_", other)

    def __isub__(self, other: Any) -> "TensorList":
        return self._call("add_", -other) if isinstance(other, Tensor) else self._call("sub_", other)

    def __imul__(self, other: Any) -> "TensorList":
        return self._call("mul_", other)

    def __itruediv__(self, other: Any) -> "TensorList":
        return self._call("div_", other)

    def __ipow__(self, other: Any) -> "TensorList":
        return self._call("pow_", other)

    __radd__ = __add__
    __rmul__ = __mul__
    __hash__: ClassVar[None]  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch, tensor by tensor."""
        return each(lambda *row: func(*row, **(kwargs or {})), *args)


def each(function: Callable[..., Any], *args: Any) -> Any:
    """Apply `function` to a tensor, or to each tensor of lists; other arguments are passed to every call."""
    lengths = {len(a) for a in args if isinstance(a, TensorList)}
    if not lengths:
        return function(*args)
    (length,) = lengths
    columns = [a.items if isinstance(a, TensorList) else [a] * length for a in args]
    return TensorList([function(*row) for row in zip(*columns, strict=True)])


def mix(x: Any, a: Any, y: Any, b: Any) -> Any:
    """a·x + b·y, with one temporary if b is a number. torch.compile needs none, and would trace again per alpha."""
    if isinstance(b, (Tensor, TensorList)) or torch.compiler.is_compiling():
        return x * a + y * b
    return (x * a).add_(y, alpha=b)


def sqrt(x: Any) -> Any:
    """The square root of a number, a tensor or a list of tensors."""
    return math.sqrt(x) if isinstance(x, (int, float)) else x.sqrt()


def at_most(x: Any, limit: float) -> Any:
    """The smaller one of a number, or of each number of a tensor or list, and the limit."""
    return min(x, limit) if isinstance(x, (int, float)) else x.clamp(max=limit)


def is_multiple(t: Any, k: int) -> Any:
    """1 if the step count is a multiple of k, otherwise 0. Exact in the dtype of the count."""
    if isinstance(t, (int, float)):
        return float(t % k == 0)
    return (t - (t / k).floor() * k == 0) * 1.0


def over_all_ranks(reduced: Any) -> Any:
    """A sum or norm, or one per row, taken over all ranks if it is that of a distributed tensor.

    torch would add up the parts of the ranks later, and in 2.7 the arithmetic until then may use the numbers of an
    earlier call.
    """
    if not hasattr(type(reduced), "redistribute"):
        return reduced
    from torch.distributed.tensor import Replicate  # not at the top: it is slow, and loaded where it is needed

    return reduced.redistribute(placements=[Replicate()] * reduced.device_mesh.ndim)


def inner(x: Any, y: Any) -> Tensor:
    """The inner product, summed over all tensors, as a 0-dim tensor: nothing waits for the device."""
    if isinstance(x, TensorList):
        return torch.stack([inner(a, b) for a, b in zip(x.items, y.items, strict=True)]).sum()
    total: Tensor = over_all_ranks((x * y).sum())
    return total
