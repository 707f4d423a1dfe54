"""Records of tensors: every change that a kernel relies on is seen, in C++ and in Python."""

from collections.abc import Callable
from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def native(written: list[Tensor], grads: list[Tensor]) -> Any:
    """The record of parameters that have no state."""
    return records.record([records.describe([x], grad) for x, grad in zip(written, grads, strict=True)])


def in_python(written: list[Tensor], grads: list[Tensor]) -> Any:
    return records.ListRecord([records.ListRow.of([x], grad) for x, grad in zip(written, grads, strict=True)])


both = pytest.mark.parametrize("record", [native, in_python])


@both
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


@both
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
    assert isinstance(native([torch.zeros(2)], [torch.zeros(2)]), records.NativeRecord)


@pytest.mark.parametrize("describe", [records.describe, records.ListRow.of])
def test_rows_are_put_together_in_any_order(describe: Any) -> None:
    """A record of some rows is equal to the tensors of those rows in that order alone."""
    sizes = (5, 70, 30, 2)
    rows = [([torch.zeros(n), torch.zeros(()), torch.ones(n)], torch.ones(n)) for n in sizes]
    described = [describe(written, grad) for written, grad in rows]

    def tensors(order: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
        chosen = [rows[i] for i in order]
        params, state = [written[0] for written, _ in chosen], [x for written, _ in chosen for x in written[1:]]
        return params + state, [grad for _, grad in chosen]

    orders = [order for count in (1, 2, 4) for order in permutations(range(len(sizes)), count)]
    for order in orders:
        known = records.record([described[i] for i in order])
        for other in orders:
            found = known.compare(*tensors(other))
            assert (found is not None) == (other == order)
        assert known.compare(*tensors(order)) == ([rows[i][1].data_ptr() for i in order], False)


def test_rows_of_both_kinds_are_equal_to_no_tensors() -> None:
    x, y, grad = torch.zeros(3), torch.zeros(3), torch.ones(3)
    mixed = records.record([records.describe([x], grad), records.ListRow.of([y], grad)])
    assert mixed.compare([x, y], [grad, grad]) is None
    assert mixed.compare([y], [grad]) is not None


@pytest.mark.parametrize("describe", [records.describe, records.ListRow.of])
def test_rows_of_both_inference_modes_are_equal_to_no_tensors(describe: Any) -> None:
    x, y, grad = torch.zeros(3), torch.zeros(3), torch.ones(3)
    rows = [describe([x], grad)]
    with torch.inference_mode():
        rows.append(describe([y], grad))
        assert records.record(rows).compare([x, y], [grad, grad]) is None
    assert records.record(rows).compare([x, y], [grad, grad]) is None


@both
@given(
    written=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=6),
    grad=st.tuples(st.integers(0, 40), st.integers(0, 12)),
)
def test_gradients_in_memory_that_a_step_writes_are_seen(
    record: Any, written: list[tuple[int, int]], grad: tuple[int, int]
) -> None:
    """Also if the written tensors overlap or contain each other. Spans are (first element, number of elements)."""
    memory = torch.zeros(60)
    tensors = [memory[start : start + size] for start, size in (*written, grad)]
    elements = [{*range(start, start + size)} for start, size in (*written, grad)]
    known = record(tensors[:-1], [tensors[-1]] * len(written))
    found = known.compare(tensors[:-1], [tensors[-1]] * len(written))
    assert found.overlap == any(elements[-1] & other for other in elements[:-1])
    assert known.is_disjoint == (sum(map(len, elements[:-1])) == len({*chain(*elements[:-1])}))
