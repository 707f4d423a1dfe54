"""Records of tensors: every change that a kernel relies on is seen, in C++ and in Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aimopt.kernels import records

DIFFERENT: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t().contiguous(),
    lambda x: x[:, :2],
    lambda x: x.reshape(-1),
    lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64),
    lambda x: x.real.half(),
    lambda x: x.t().contiguous().t(),
    torch._neg_view,
]
SAME_TENSOR: list[Callable[[Tensor], Tensor]] = [
    *DIFFERENT[:-1],
    lambda x: x.clone(),
    lambda x: x.new_zeros(7)[1:].view(2, 3),
]


class Subclass(torch.Tensor):
    """A tensor that may mean something else than its memory says."""

    @staticmethod
    def __new__(cls, x: Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, x)

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise AssertionError("nobody asks what it means")


def in_python(written: list[Tensor], grads: list[Tensor]) -> records.ListRecord:
    return records.ListRecord(written, grads)


@pytest.mark.parametrize("record", [records.record, in_python])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_every_difference_in_kind_is_seen(record: Any, dtype: torch.dtype) -> None:
    x, grad = torch.zeros(2, 3, dtype=dtype), torch.ones(4, 5, dtype=dtype)
    known = record([x], [grad])
    assert known.compare([x], [grad]) == ([grad.data_ptr()], False)
    elsewhere = torch.ones(21, dtype=dtype)[1:].view(4, 5)
    assert known.compare([x], [elsewhere]) == ([elsewhere.data_ptr()], False)
    assert known.compare([x.detach()], [grad]) is not None  # another object for the same memory, as parts of DTensors
    assert known.compare([torch._neg_view(x)], [grad]) is None
    assert known.compare([Subclass(x)], [grad]) is None
    assert known.compare([x], [Subclass(grad)]) is None
    with torch.inference_mode():
        assert known.compare([x], [grad]) is None
    for change in DIFFERENT:
        assert known.compare([x], [change(grad)]) is None, change
    assert not x.is_complex() or known.compare([x], [grad.conj()]) is None
    for change in SAME_TENSOR:
        before = x.data
        x.data = change(x.data)
        assert known.compare([x], [grad]) is None, change
        x.data = before
        assert known.compare([x], [grad]) is not None


@pytest.mark.parametrize("record", [records.record, in_python])
def test_a_shorter_storage_at_the_same_address_is_seen(record: Any) -> None:
    """Everything else is equal: two tensors over one array, and the storage of one is half of it."""
    array = np.zeros(100)
    x, grad = torch.zeros(0, dtype=torch.float64), torch.zeros(3)
    x.data = torch.from_numpy(array)[:50]
    known = record([x], [grad])
    x.data = torch.from_numpy(array[:50])
    assert known.compare([x], [grad]) is None
    x.data = torch.from_numpy(array)[:50]
    assert known.compare([x], [grad]) is not None


def test_the_native_record_is_used_where_it_can_be() -> None:
    assert isinstance(records.record([torch.zeros(2)], [torch.zeros(2)]), records.NativeRecord)
