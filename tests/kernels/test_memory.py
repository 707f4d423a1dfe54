"""Changes that users make to tensors between steps: a step uses the present tensors, or says why it cannot."""

import copy
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.kernels import records
from memory_checks import assert_refuses, paths, stepped
from optimizer_driver import advance, assert_same, flat, parameters, push


@paths
def test_data_replaced_by_a_smaller_view_at_the_same_address(fused: Any) -> None:
    (p,) = parameters([(300,)])
    optimizer = stepped([p], fused=fused)
    whole = p.data
    before = whole.clone()
    p.data = p.data[:10]
    assert_refuses(optimizer, match=r"RADAR.step: parameter 0 of group 0 .* shape \(10,\) and the gradient \(300,\)")
    assert torch.equal(whole, before)
    p.grad = None
    p.grad = torch.ones(10, dtype=torch.float64)
    assert_refuses(optimizer, match=r"shape \(10,\) and the state 'exp_avg' \(300,\).*del optimizer.state\[p\]")
    del optimizer.state[p]
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].shape == (10,)


def test_nothing_outside_a_parameter_is_written() -> None:
    whole = torch.zeros(300, dtype=torch.float64)
    p = whole[:290].requires_grad_()
    optimizer = stepped([p], fused=True)
    p.data = whole[:10]
    with pytest.raises(RuntimeError, match="shape"):
        optimizer.step()
    p.data = whole[:290]
    advance(optimizer, [p], 1)
    assert not whole[290:].any()


@paths
@pytest.mark.parametrize("shape", [(6, 6), (4, 9)])
def test_data_transposed_in_place_under_an_old_gradient(fused: Any, shape: tuple[int, int]) -> None:
    ends = []
    for path in (fused, False):
        (p,) = params = parameters([shape])
        optimizer = stepped(params, fused=path)
        p.data = p.data.t()
        if shape[0] == shape[1]:
            optimizer.step()
            ends.append(p.detach().clone())
        else:
            assert_refuses(optimizer, match=r"shape \(9, 4\) and the gradient \(4, 9\)")
    if ends:
        assert_same(ends[0], ends[1])


def freed(x: Tensor) -> None:
    x.untyped_storage().resize_(0)


def shortened(x: Tensor) -> None:
    x.untyped_storage().resize_(x.untyped_storage().nbytes() // 2)


@paths
@pytest.mark.parametrize("damage", [freed, shortened])
@pytest.mark.parametrize("which", ["it", "gradient", "exp_avg", "exp_avg_sq", "step"])
def test_storage_that_was_freed_or_shortened(fused: Any, damage: Callable[[Tensor], None], which: str) -> None:
    """As sharded training does between steps."""
    p, other = params = parameters([(40,), (5,)])
    optimizer = stepped(params, fused=fused)
    damage({"it": p, "gradient": p.grad, **optimizer.state[p]}[which])
    assert_refuses(optimizer, match=rf"RADAR.step: parameter 0 .*{which}.* needs \d+ bytes .* storage holds \d+")
    assert int(optimizer.state[other]["step"]) == 2


@paths
@pytest.mark.parametrize("damage", [freed, shortened])
@pytest.mark.parametrize(
    "options", [{}, {"skip_nonfinite": True}, {"weight_decay": 1.0, "decoupled_weight_decay": False}]
)
def test_a_first_step_on_memory_that_is_gone(fused: Any, damage: Callable[[Tensor], None], options: Any) -> None:
    for which in ("param", "grad"):
        fine, p = params = parameters([(5,), (40,)])
        push(params, 0)
        Optimizer = aimopt.RADAR if "weight_decay" in options else aimopt.Adan  # which keeps its first gradient
        optimizer: Any = Optimizer(params, fused=fused, **options)
        before = fine.detach().clone()
        damage(p if which == "param" else p.grad)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="parameter 1 of group 0"):
            optimizer.step()
        assert torch.equal(fine, before)
        assert not optimizer.state  # nothing was begun with gradients of a step that failed


def test_storage_that_moved_away_and_back_shorter() -> None:
    """The allocator may give the old address again, to a storage that is too short."""
    (p,) = params = parameters([(65536,)])
    optimizer = stepped(params, fused=True)
    address = p.data_ptr()
    for _ in range(20):  # with glibc once is enough, the address sanitizer never gives an address again
        p.untyped_storage().resize_(0)
        p.untyped_storage().resize_(262144)
        if p.data_ptr() == address:
            break
    assert_refuses(optimizer, match="needs 524288 bytes of memory and its storage holds 262144")


def alias_itself(p: Tensor) -> Tensor:
    return p.detach()


def alias_at_an_offset(p: Tensor) -> Tensor:
    return torch.as_strided(p.detach(), p.shape, p.stride(), p.storage_offset() + 1)


def alias_reversed(p: Tensor) -> Tensor:
    return p.detach().t() if p.ndim == 2 else p.detach()


@pytest.mark.parametrize("Optimizer", [aimopt.SGDM, aimopt.AdamW, aimopt.RADAR, aimopt.Adan], ids=lambda o: o.__name__)
@pytest.mark.parametrize("alias", [alias_itself, alias_at_an_offset, alias_reversed])
@pytest.mark.parametrize("beside", ["nothing", "plain"])
def test_a_gradient_in_the_memory_of_its_parameter(Optimizer: Any, alias: Any, beside: str) -> None:
    """Also where another parameter of the group takes the plain path."""
    ends = []
    for fused in (None, False):
        memory = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        p = memory[:36].view(6, 6).requires_grad_()
        params = [p] if beside == "nothing" else [p, torch.ones(6, 2, dtype=torch.float64)[:, 0].requires_grad_()]
        optimizer = Optimizer(params, lr=0.01, fused=fused)
        for t in range(5):
            push(params, t)
            p.grad = alias(p)
            optimizer.step()
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


@paths
def test_a_gradient_in_the_memory_of_another_parameter_or_of_the_state(fused: Any) -> None:
    ends = []
    for path in (fused, False):
        a, b = params = parameters([(30,), (30,)])
        optimizer = stepped(params, fused=path)
        for t in range(4):
            push(params, t)
            a.grad = b.detach()
            b.grad = optimizer.state[a]["exp_avg"]
            optimizer.step()
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_a_gradient_in_shared_memory_that_torch_does_not_know_of() -> None:
    """Two tensors over one numpy array: different storages, the same memory."""
    ends = []
    for fused in (None, False):
        array = np.linspace(-1, 1, 60)
        p = torch.from_numpy(array[:50]).requires_grad_()
        optimizer = aimopt.RADAR([p], 0.01, fused=fused)
        for _ in range(3):
            p.grad = torch.from_numpy(array[7:57])
            optimizer.step()
        ends.append(flat([p]))
    assert_same(ends[0], ends[1])


@paths
def test_read_only_memory_is_refused_with_a_message(fused: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.zeros(5000))
    with warnings.catch_warnings(action="ignore"):  # torch says once that it is not writable
        p = torch.from_numpy(np.load(tmp_path / "weights.npy", mmap_mode="r")).requires_grad_()
    p.grad = torch.ones_like(p)
    optimizer = aimopt.RADAR([p], fused=fused)
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 0 cannot be stepped: .*read-only memory"):
        optimizer.step()
    assert not p.any()


@paths
def test_inference_tensors_are_left_to_inference_mode(fused: Any) -> None:
    with torch.inference_mode():
        p = torch.zeros(5)
    optimizer = aimopt.RADAR([p], fused=fused)
    p.grad = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"made in torch\.inference_mode"):
        optimizer.step()
    with torch.inference_mode():
        optimizer.step()
        assert p.all()


@paths
def test_an_expanded_parameter_leaves_state_as_it_was(fused: Any) -> None:
    _, p = params = parameters([(6,), (6,)])
    optimizer = stepped(params, fused=fused)
    p.data = torch.zeros(1, dtype=torch.float64).expand(6)
    assert_refuses(optimizer, match="parameter 1 .*expanded")
    p.data = torch.zeros(6, dtype=torch.float64)
    optimizer.state[p]["exp_avg"] = torch.zeros(1, dtype=torch.float64).expand(6)
    assert_refuses(optimizer, match="'exp_avg' is expanded")


@paths
@pytest.mark.parametrize(
    ("replace", "match"),
    [
        (lambda x: x.tolist(), "'exp_avg' is a list, not a tensor"),
        (lambda x: x.to(torch.complex128), "'exp_avg' has dtype torch.complex128"),
        (lambda x: x.to(torch.int64), "'exp_avg' has dtype torch.int64"),
        (lambda x: x.to_sparse(), "'exp_avg' has layout torch.sparse_coo"),
        (lambda x: x[:-1], r"the state 'exp_avg' \(5,\)"),
        (lambda x: x.to("meta"), "on meta"),
    ],
)
def test_state_replaced_by_hand(fused: Any, replace: Callable[[Tensor], Any], match: str) -> None:
    (p,) = params = parameters([(6,)])
    optimizer = stepped(params, fused=fused)
    good = optimizer.state[p]["exp_avg"]
    optimizer.state[p]["exp_avg"] = replace(good)
    with pytest.raises(RuntimeError, match=match):
        optimizer.step()
    optimizer.state[p]["exp_avg"] = good
    optimizer.step()
    for count in (torch.zeros(3), torch.ones((), dtype=torch.bfloat16), torch.ones((), dtype=torch.complex64)):
        optimizer.state[p]["step"] = count
        expected = f"'step' must be a tensor of one number in float32 or float64, and is {count.dtype} of shape"
        with pytest.raises(RuntimeError, match=expected):
            optimizer.step()


@paths
def test_lazily_negated_or_conjugated_memory_cannot_be_written(fused: Any) -> None:
    (p,) = params = parameters([(6,)], torch.complex128)
    optimizer = stepped(params, fused=fused)
    p.data = p.data.conj()
    assert_refuses(optimizer, match=r"parameter 0 .* it is a lazily negated, conjugated or zero view")
    p.data = p.data.resolve_conj()
    optimizer.step()
    optimizer.state[p]["step"] = torch._neg_view(optimizer.state[p]["step"])
    assert_refuses(optimizer, match="'step' is a lazily negated")


@paths
def test_groups_that_are_removed_and_added(fused: Any) -> None:
    ends = []
    for path in (fused, False):
        a, b, c = params = parameters([(30,), (40,), (50,)])
        optimizer = aimopt.RADAR([{"params": [a]}, {"params": [b]}], 0.01, fused=path)
        advance(optimizer, params, 2)
        optimizer.param_groups.pop(0)
        advance(optimizer, params, 2, first=2)
        optimizer.add_param_group({"params": [c]})
        optimizer.param_groups.reverse()
        advance(optimizer, params, 2, first=4)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_parameters_without_a_gradient_in_some_steps_are_checked_thoroughly_once() -> None:
    params = parameters([(5,), (6,), (7,)])
    optimizer = aimopt.RADAR(params, fused=True)
    snapshots = []
    for step in range(8):
        push(params, step)
        if step % 2:
            params[0].grad = None
        optimizer.step()
        snapshots.append(optimizer._kernels.memories[0]._last)
    assert len({*snapshots}) == 2
    assert [int(optimizer.state[p]["step"]) for p in params] == [4, 8, 8]


def test_a_removed_group_is_not_kept_alive() -> None:
    import weakref

    params = parameters([(30,), (40,)])
    optimizer = aimopt.RADAR([{"params": [p]} for p in params], fused=True)
    advance(optimizer, params, 2)
    state = weakref.ref(optimizer.state[params[0]]["exp_avg"])
    del optimizer.state[params[0]], optimizer.param_groups[0]
    gc.collect()
    assert state() is None


def test_a_step_inside_vmap_is_refused_and_leaves_no_state() -> None:
    (p,) = params = parameters([(5,)])
    optimizer = aimopt.RADAR(params)

    def step(x: Tensor) -> Tensor:
        p.grad = x
        optimizer.step()
        return x

    with pytest.raises(RuntimeError, match=r"its gradient is one of a batch in torch\.vmap"):
        torch.vmap(step)(torch.ones(3, 5, dtype=torch.float64))
    assert not optimizer.state
    push(params, 0)
    optimizer.step()
    assert int(optimizer.state[p]["step"]) == 1


@pytest.fixture
def no_native_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without its C interface."""
    monkeypatch.setattr(records, "torch_functions", lambda: None)


@paths
def test_an_empty_parameter_may_have_strides_of_zero(fused: Any) -> None:
    p = torch.zeros(0, 0, 0, 2).to(memory_format=torch.channels_last).requires_grad_()
    optimizer = aimopt.RADAR([p], fused=fused)
    advance(optimizer, [p], 2)
    p.grad = torch.zeros(0, 0, 0, 2, 2)[..., 1]  # its storage holds less than its offset
    optimizer.step()
    assert int(optimizer.state[p]["step"]) == 3


@pytest.mark.usefixtures("no_native_record")
def test_records_in_python_see_the_same() -> None:
    assert isinstance(records.describe([torch.zeros(2)], torch.zeros(2)), records.ListRow)
    test_data_replaced_by_a_smaller_view_at_the_same_address(None)
    test_storage_that_moved_away_and_back_shorter()
    ends = []
    for fused in (True, False):
        params = parameters([(30,), (4, 5)])
        optimizer = stepped(params, fused=fused)
        params[0].data = params[0].data.clone()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        advance(optimizer, params, 3)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])
