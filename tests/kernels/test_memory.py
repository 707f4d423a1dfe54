"""What users do to their tensors between steps: a step works on what is there now, or says why it cannot."""

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
from aimopt import storage
from aimopt.components import Filter
from aimopt.kernels import records
from driving import advance, assert_same, flat, parameters, push

paths = pytest.mark.parametrize("fused", [None, False], ids=["fused", "plain"])


def stepped(params: list[Tensor], **options: Any) -> Any:
    """An optimizer that has seen these parameters."""
    optimizer = aimopt.RADAR(params, 0.01, **options)
    advance(optimizer, params, 2)
    return optimizer


def everything(optimizer: Any) -> list[Tensor]:
    """Copies of all that a step may change, as far as its memory is still there."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = [x for values in optimizer.state.values() for x in values.values()]
    return [x.detach().clone() for x in params + state if storage.too_short("", x) is None]


def assert_refuses(optimizer: Any, *, match: str) -> None:
    """The step says why it cannot be done, and changes nothing."""
    before = everything(optimizer)
    with pytest.raises(RuntimeError, match=match):
        optimizer.step()
    for x, y in zip(everything(optimizer), before, strict=True):
        assert torch.equal(x, y)


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
def test_read_only_memory_gets_a_sentence(fused: Any, tmp_path: Path) -> None:
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
    optimizer.state[p]["step"] = torch.zeros(3)
    with pytest.raises(
        RuntimeError, match=r"'step' must be a tensor of one real number, and is torch.float32 of shape"
    ):
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


def test_parameters_that_have_a_gradient_now_and_then_are_looked_at_closely_once() -> None:
    params = parameters([(5,), (6,), (7,)])
    optimizer = aimopt.RADAR(params, fused=True)
    layouts = []
    for step in range(8):
        push(params, step)
        if step % 2:
            params[0].grad = None
        optimizer.step()
        layouts.append(optimizer._memory[0]._last)
    assert len({*layouts}) == 2
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


def test_a_step_inside_vmap_is_refused_and_leaves_nothing_behind() -> None:
    (p,) = params = parameters([(5,)])
    optimizer = aimopt.RADAR(params)

    def step(x: Tensor) -> Tensor:
        p.grad = x
        optimizer.step()
        return x

    with pytest.raises(RuntimeError, match=r"its gradient is one of several in torch\.vmap"):
        torch.vmap(step)(torch.ones(3, 5, dtype=torch.float64))
    assert not optimizer.state
    push(params, 0)
    optimizer.step()
    assert int(optimizer.state[p]["step"]) == 1


@pytest.fixture
def no_native_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose C interface is not there."""
    monkeypatch.setattr(records, "torch_functions", lambda: None)


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
    seen = record([x], [grad])
    assert seen.compare([x], [grad]) == ([grad.data_ptr()], False)
    elsewhere = torch.ones(21, dtype=dtype)[1:].view(4, 5)
    assert seen.compare([x], [elsewhere]) == ([elsewhere.data_ptr()], False)
    assert seen.compare([x.detach()], [grad]) is not None  # another object for the same memory, as parts of DTensors
    assert seen.compare([torch._neg_view(x)], [grad]) is None
    assert seen.compare([Subclass(x)], [grad]) is None
    assert seen.compare([x], [Subclass(grad)]) is None
    with torch.inference_mode():
        assert seen.compare([x], [grad]) is None
    for change in DIFFERENT:
        assert seen.compare([x], [change(grad)]) is None, change
    assert not x.is_complex() or seen.compare([x], [grad.conj()]) is None
    for change in SAME_TENSOR:
        before = x.data
        x.data = change(x.data)
        assert seen.compare([x], [grad]) is None, change
        x.data = before
        assert seen.compare([x], [grad]) is not None


@pytest.mark.parametrize("record", [records.record, in_python])
def test_a_shorter_storage_at_the_same_address_is_seen(record: Any) -> None:
    """All else being equal: two tensors over one array, of which one knows only the half."""
    array = np.zeros(100)
    x, grad = torch.zeros(0, dtype=torch.float64), torch.zeros(3)
    x.data = torch.from_numpy(array)[:50]
    seen = record([x], [grad])
    x.data = torch.from_numpy(array[:50])
    assert seen.compare([x], [grad]) is None
    x.data = torch.from_numpy(array)[:50]
    assert seen.compare([x], [grad]) is not None


def test_the_native_record_is_used_where_it_can_be() -> None:
    assert isinstance(records.record([torch.zeros(2)], [torch.zeros(2)]), records.NativeRecord)


@paths
def test_an_empty_parameter_may_have_strides_of_zero(fused: Any) -> None:
    p = torch.zeros(0, 0, 0, 2).to(memory_format=torch.channels_last).requires_grad_()
    optimizer = aimopt.RADAR([p], fused=fused)
    advance(optimizer, [p], 2)
    p.grad = torch.zeros(0, 0, 0, 2, 2)[..., 1]  # its storage holds less than its offset
    optimizer.step()
    assert int(optimizer.state[p]["step"]) == 3


@pytest.mark.usefixtures("no_native_record")
def test_without_it_lists_see_the_same() -> None:
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


def twins(edit: Callable[[Any, list[Tensor]], Any], shapes: Any = ((6,), (6,)), **options: Any) -> None:
    """The fused step and the plain one end at the same place after an edit."""
    ends = []
    for fused in (None, False):
        params = parameters(shapes)
        optimizer = aimopt.RADAR(params, 0.01, fused=fused, **options)
        advance(optimizer, params, 2)
        edit(optimizer, params)
        advance(optimizer, params, 2, first=2)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_state_that_parameters_share() -> None:
    def share_count(optimizer: Any, params: list[Tensor]) -> None:
        optimizer.state[params[0]]["step"] = optimizer.state[params[1]]["step"]

    def interleave(optimizer: Any, params: list[Tensor]) -> None:
        x = torch.zeros(12, dtype=torch.float64)
        optimizer.state[params[0]]["exp_avg"], optimizer.state[params[1]]["exp_avg"] = x[::2], x[:6]

    for edit in (share_count, interleave):
        twins(edit)


def test_parameters_that_overlap_in_part_and_with_gaps() -> None:
    ends = []
    for fused in (None, False):
        x = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        params = [x[::2].requires_grad_(), x[:30].requires_grad_()]
        optimizer = aimopt.AdamW(params, 0.01, weight_decay=0.5, fused=fused)
        advance(optimizer, params, 3)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_a_gradient_of_another_group_s_memory_in_another_order() -> None:
    ends = []
    for fused in (None, False):
        a, b = params = parameters([(5, 5), (5, 5)])
        optimizer = aimopt.RADAR([{"params": [a]}, {"params": [b]}], 0.01, fused=fused)
        for t in range(3):
            push(params, t)
            b.grad = a.detach().t()
            optimizer.step()
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_memory_freed_by_code_that_runs_within_the_step() -> None:
    """A part that is not fused is a user's code, and may do anything to the tensors of a later group."""
    victim = torch.ones(1000, dtype=torch.float64).requires_grad_()
    freeing = [False]

    class Frees(Filter):
        @property
        def pole(self) -> float:
            return 0.0

        def update(self, state: Any, g: Tensor, t: Any) -> tuple[Tensor, Tensor]:
            if float(g.sum()) > 0 and freeing[0]:  # a branch on a value: not fused
                victim.untyped_storage().resize_(8)
            return g, g

    (p,) = parameters([(4,)])
    groups: list[dict[str, Any]] = [{"params": [p], "filter": Frees()}, {"params": [victim]}]
    optimizer = aimopt.AIM(groups, 0.01, filter=aimopt.EMA(0.9), geometry=aimopt.Adaptive(0.999))
    for freeing[0] in (False, True):
        p.grad, victim.grad = torch.ones_like(p), torch.ones(1000, dtype=torch.float64)
        if freeing[0]:
            with pytest.raises(RuntimeError, match=r"AIM.step: parameter 0 of group 1 .* its storage holds 8"):
                optimizer.step()
        else:
            optimizer.step()
    Filter.registry.pop("Frees")


@pytest.mark.parametrize("which", ["grad", "param"])
def test_memory_freed_by_a_closure_that_is_called_again(which: str) -> None:
    (p,) = parameters([(5,)])
    calls = [0]
    parts: Any = dict(
        filter=aimopt.EMA(0.9), geometry=aimopt.Adaptive(0.999), correction=aimopt.FixedPoint(iterations=2)
    )
    optimizer = aimopt.AIM([p], 0.01, **parts)

    def closure() -> Tensor:
        calls[0] += 1
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        if calls[0] == 4:
            (p if which == "param" else p.grad).untyped_storage().resize_(0)  # type: ignore[union-attr]
        return loss

    optimizer.step(closure)
    count = int(optimizer.state[p]["step"])
    with pytest.raises(RuntimeError, match=r"AIM.step: parameter 0 of group 0 .* its storage holds 0"):
        optimizer.step(closure)
    assert int(optimizer.state[p]["step"]) == count


@paths
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(lr="0.1"), "lr must be a finite number, got '0.1'"),
        (dict(lr=None), "lr must be a finite number"),
        (dict(lr=float("nan")), "lr must be a finite number"),
        (dict(lr=torch.ones(2)), "Tensor lr must be 1-element"),
        (dict(lr=torch.ones((), dtype=torch.complex64)), "a tensor lr must be a real number"),
        (dict(weight_decay="x"), "weight_decay must be a finite number"),
        (dict(decoupled_weight_decay="what"), "decoupled_weight_decay must be one of"),
        (dict(fused=5), "fused must be one of"),
        (dict(state_dtype="zzz"), "state_dtype must be one of"),
    ],
)
def test_a_bad_value_in_a_later_group_moves_nothing(fused: Any, change: Any, match: str) -> None:
    params = parameters([(5,), (6,)])
    optimizer = aimopt.RADAR([{"params": [p]} for p in params], 0.01, fused=fused)
    advance(optimizer, params, 1)
    before = flat(params)
    optimizer.param_groups[1].update(change)
    with pytest.raises(ValueError, match=rf"RADAR.step: group 1: {match}"):
        optimizer.step()
    assert torch.equal(flat(params), before)


@paths
def test_a_learning_rate_whose_memory_was_freed(fused: Any) -> None:
    lr = torch.tensor(0.1)
    params = parameters([(5,)])
    optimizer = aimopt.SGDM(params, lr=lr, fused=fused)
    advance(optimizer, params, 1)
    lr.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"SGDM.step: group 0: lr needs 4 bytes .* holds 0"):
        optimizer.step()


@paths
def test_a_step_count_below_zero(fused: Any) -> None:
    params = parameters([(5,), (6,)])
    optimizer = stepped(params, fused=fused)
    optimizer.state[params[1]]["step"].fill_(-1)
    assert_refuses(optimizer, match="parameter 1 of group 0 cannot be stepped: its state 'step' is -1")


@paths
@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn])
def test_a_dtype_that_torch_cannot_compute_in(fused: Any, dtype: torch.dtype) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch says that complex32 is experimental
        p = torch.ones(4, dtype=dtype).requires_grad_()
        p.grad = torch.ones(4, dtype=dtype)
    with pytest.raises(RuntimeError, match=rf"it has dtype {dtype}, and only .*float32"):
        aimopt.SGDM([p], fused=fused).step()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch itself, for forward-mode gradients
def test_whoever_follows_torch_s_operations_sees_the_step() -> None:
    from torch.autograd import forward_ad
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.seen += 1
            return function(*args, **(kwargs or {}))

    params = parameters([(5,)])
    optimizer = stepped(params)
    with Counts():  # type: ignore[no-untyped-call]
        optimizer.step()
    assert Counts.seen > 0
    optimizer.param_groups[0]["fused"] = True
    refused = pytest.raises(RuntimeError, match=r"fused=True, but no kernel reaches .*dispatch mode")
    with Counts(), refused:  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.param_groups[0]["fused"] = None
    with forward_ad.dual_level(), torch.no_grad():
        params[0].grad = forward_ad.make_dual(torch.ones_like(params[0]), torch.ones_like(params[0]))
        optimizer.step()
        assert forward_ad.unpack_dual(params[0]).tangent is not None


def test_a_step_under_fake_tensors_leaves_nothing_behind() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for began in (False, True):
        params = parameters([(5,)])
        push(params, 0)
        optimizer = aimopt.RADAR(params)
        if began:
            optimizer.step()
        before = flat(params)
        with FakeTensorMode(), pytest.raises((RuntimeError, AssertionError)):
            optimizer.step()
        assert torch.equal(flat(params), before)
        assert bool(optimizer.state) is began
        optimizer.step()
    with torch.device("meta"):
        p = torch.ones(3, device="cpu", requires_grad=True)
        p.grad = torch.ones(3, device="cpu")
        aimopt.NAdam([p]).step()


@paths
def test_functional_tensors_have_no_memory_of_their_own(fused: Any) -> None:
    (p,) = params = parameters([(6,)])
    optimizer = stepped(params, fused=fused)

    def step(x: Tensor) -> Tensor:
        p.grad = x
        optimizer.step()
        return x + 1

    before = flat(params)
    with pytest.raises(RuntimeError, match="its gradient is a functional tensor and it is not"):
        torch.func.functionalize(step)(torch.ones(6, dtype=torch.float64))
    push(params, 3)
    optimizer.state[p]["exp_avg"] = torch._to_functional_tensor(torch.ones(6, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="'exp_avg' is a functional tensor and it is not"):
        optimizer.step()
    assert torch.equal(flat(params), before)


@paths
def test_state_that_is_no_dict(fused: Any) -> None:
    (p,) = params = parameters([(5,)])
    optimizer = stepped(params, fused=fused)
    wrong: list[Any] = [None, [], 5, torch.zeros(2)]
    for state in wrong:
        optimizer.state[p] = state
        with pytest.raises(RuntimeError, match=r"its state is a .*, not a dict"):
            optimizer.step()


def test_nothing_is_kept_alive_that_the_user_let_go() -> None:
    import weakref

    for fused in (None, False):
        p = torch.nn.Parameter(torch.zeros(10))
        p.grad = torch.ones(10)
        optimizer = aimopt.RADAR([p], fused=fused)
        optimizer.step()
        gone = weakref.ref(p)
        optimizer.param_groups.clear()
        optimizer.state.clear()
        del p
        gc.collect()
        assert gone() is None


def test_a_refused_step_lets_gradients_go() -> None:
    import weakref

    fine, gaps = parameters([(5,)])[0], torch.randn(6, 2, dtype=torch.float64)[:, 0].requires_grad_()
    optimizer = aimopt.RADAR([{"params": [fine]}, {"params": [gaps]}], fused=True)
    push([fine, gaps], 0)
    with pytest.raises(RuntimeError, match="no kernel reaches"):
        optimizer.step()
    assert fine.grad is not None
    grad = weakref.ref(fine.grad)
    fine.grad = None
    gc.collect()
    assert grad() is None
