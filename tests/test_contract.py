"""torch's contract for a step and its state, for every named optimizer."""

import copy
import functools
import io
import itertools
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aimopt
from aimopt import AIM
from optimizer_driver import (
    ALL,
    EXCEPT_MATRICES,
    MATRICES,
    NEEDS_MATRICES,
    advance,
    assert_same,
    count_paths,
    drive,
    flat,
    parameters,
    push,
    shapes_for,
)

every = pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
every_element_wise = pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
Class = Any  # a named optimizer: its constructor takes more than AIM's


def end(Optimizer: Class, steps: int = 12, dtype: torch.dtype = torch.float64, **options: Any) -> Tensor:
    return drive(lambda p: Optimizer(p, lr=0.01, **options), parameters(shapes_for(Optimizer), dtype), steps)


def test_the_named_optimizers_only_pick_parts() -> None:
    for optimizer in ALL:
        own = {name for name in vars(optimizer) if not name.startswith("__") or name == "__init__"}
        assert own <= {"__init__", "step", "later_keywords"}  # torch hooks the inherited step in place
        assert optimizer.__mro__[1] is AIM


@every
def test_foreach_equals_the_plain_path(Optimizer: Class) -> None:
    for options in ({}, dict(maximize=True), dict(weight_decay=0.1)):
        with count_paths() as foreach_paths:
            foreach = end(Optimizer, foreach=True, **options)
        with count_paths() as plain_paths:
            plain = end(Optimizer, foreach=False, **options)
        assert set(foreach_paths) == {"foreach"}
        assert set(plain_paths) == {"plain"}
        assert_same(foreach, plain)


@every
def test_capturable_stores_step_counts_on_the_parameters_device(Optimizer: Class) -> None:
    assert_same(end(Optimizer, capturable=True), end(Optimizer), 1e-5)
    meta = [torch.zeros(shape, device="meta", requires_grad=True) for shape in shapes_for(Optimizer)]
    optimizer = Optimizer(meta, lr=0.01, capturable=True)
    for p in meta:
        p.grad = torch.zeros_like(p)
    optimizer.step()  # on the meta device a read of any value would raise
    assert all(value.is_meta for state in optimizer.state.values() for value in state.values())


@every
def test_a_tensor_lr_equals_a_number_lr_and_is_not_written(Optimizer: Class) -> None:
    for lr in (torch.tensor(0.01, dtype=torch.float64), torch.tensor([0.01], dtype=torch.float64)):
        for foreach in (False, True):
            build = lambda p, lr=lr, f=foreach: Optimizer(p, lr=lr, foreach=f)  # noqa: E731
            assert_same(drive(build, parameters(shapes_for(Optimizer)), 12), end(Optimizer))
        assert lr.item() == 0.01


@every_element_wise
def test_complex_parameters_are_pairs_of_reals(Optimizer: Class) -> None:
    for foreach in (False, True):
        complex_params = parameters([(3, 2), (4,)], torch.complex128)
        real_params = [torch.view_as_real(p.detach()).clone().requires_grad_() for p in complex_params]
        one = Optimizer(complex_params, lr=0.01, foreach=foreach, weight_decay=0.1)
        other = Optimizer(real_params, lr=0.01, weight_decay=0.1)
        for step in range(12):
            push(complex_params, step)
            for z, x in zip(complex_params, real_params, strict=True):
                assert z.grad is not None
                x.grad = torch.view_as_real(z.grad).clone()
            one.step()
            other.step()
        assert_same(torch.view_as_real(flat(complex_params)).flatten(), flat(real_params))
        buffers = [value for value in one.state[complex_params[0]].values() if value.ndim]
        assert all(value.is_complex() for value in buffers)


@every
def test_maximize_descends_the_negative(Optimizer: Class) -> None:
    params = parameters(shapes_for(Optimizer))
    optimizer = Optimizer(params, lr=0.01, weight_decay=0.1)
    for step in range(12):
        push(params, step)
        for p in params:
            assert p.grad is not None
            p.grad = -p.grad
        optimizer.step()
    climbing = parameters(shapes_for(Optimizer))
    climber = Optimizer(climbing, lr=0.01, weight_decay=0.1, maximize=True)
    for step in range(12):
        push(climbing, step)
        climber.step()
    # The noise is the same and the pull is that of each one's own point, so the two paths meet at every step.
    assert_same(flat(climbing), flat(params))


@every
@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_never_written(Optimizer: Class, foreach: bool) -> None:
    params = parameters(shapes_for(Optimizer))
    for options in (dict(maximize=True), dict(weight_decay=0.1)):
        optimizer = Optimizer(params, lr=0.01, foreach=foreach, **options)
        for step in range(3):
            push(params, step)
            before = [p.grad.clone() for p in params if p.grad is not None]
            versions = [p.grad._version for p in params if p.grad is not None]
            optimizer.step()
            for p, grad, version in zip(params, before, versions, strict=True):
                assert p.grad is not None
                assert torch.equal(p.grad, grad)
                assert p.grad._version == version


@every
def test_missing_empty_and_zero_gradients(Optimizer: Class) -> None:
    shapes = shapes_for(Optimizer)
    params = parameters(shapes)
    optimizer = Optimizer(params, lr=0.01, weight_decay=0.0)
    optimizer.step()  # no gradient anywhere
    assert not optimizer.state
    assert_same(flat(params), flat(parameters(shapes)))
    params[0].grad = torch.zeros_like(params[0])
    optimizer.step()
    assert_same(flat(params), flat(parameters(shapes)))
    assert list(optimizer.state) == params[:1]
    if Optimizer in EXCEPT_MATRICES:
        nothing = torch.zeros(0, 3, requires_grad=True)
        nothing.grad = torch.zeros(0, 3)
        for foreach in (False, True):
            Optimizer([nothing], lr=0.01, foreach=foreach, skip_nonfinite=True).step()


@every
def test_parameters_of_one_group_may_have_different_step_counts(Optimizer: Class) -> None:
    results = []
    for foreach in (False, True):
        params = parameters(shapes_for(Optimizer))
        optimizer = Optimizer(params, lr=0.01, foreach=foreach)
        for step in range(9):
            push(params, step)
            if step % 3:
                params[0].grad = None
            optimizer.step()
        assert [optimizer.state[p]["step"].item() for p in params] == [3] + [9] * (len(params) - 1)
        results.append(flat(params))
    assert_same(results[1], results[0])


@given(
    st.sampled_from(EXCEPT_MATRICES),
    st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=1, max_size=5),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_shapes_and_dtypes(Optimizer: Class, shapes: Any, dtype: torch.dtype, maximize: bool) -> None:
    ends = []
    for foreach in (False, True):
        params = parameters(shapes, dtype)
        optimizer = Optimizer(params, lr=0.01, weight_decay=0.1, foreach=foreach, maximize=maximize)
        advance(optimizer, params, 3)
        for p in params:
            assert all(value.shape in (p.shape, ()) for value in optimizer.state[p].values())
        ends.append(flat(params))
    torch.testing.assert_close(ends[1], ends[0])


def test_mixed_dtypes_in_one_group() -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
    for foreach in (False, True):
        params = [parameters([(4,)], dtype)[0] for dtype in dtypes]
        optimizer = functools.partial(aimopt.RADAR, lr=0.01, foreach=foreach, stochastic_rounding=False)
        together = optimizer(params)
        for step in range(5):
            for p in params:
                push([p], step)
            together.step()
        for p, dtype in zip(params, dtypes, strict=True):
            alone = drive(optimizer, parameters([(4,)], dtype), 5)
            assert torch.equal(p.detach(), alone)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_parameters_are_stepped_in_float32(Optimizer: Class, dtype: torch.dtype) -> None:
    for foreach in (False, True):
        params = parameters(shapes_for(Optimizer), dtype)
        optimizer = Optimizer(params, lr=0.01, foreach=foreach, stochastic_rounding=False)
        exact = [p.detach().float().requires_grad_() for p in params]
        reference = Optimizer(exact, lr=0.01, foreach=False)
        for step in range(30):
            push(params, step)
            for p, q in zip(params, exact, strict=True):
                assert p.grad is not None
                q.grad = p.grad.float()
                q.data.copy_(p.detach().float())
            optimizer.step()
            reference.step()
            for p, q in zip(params, exact, strict=True):
                assert torch.equal(p.detach(), q.detach().to(dtype))
        assert all(value.dtype == torch.float32 for state in optimizer.state.values() for value in state.values())
        for scale in (0.0, 1e-7, 6e4):  # underflowing and nearly overflowing gradients
            for p in params:
                p.grad = torch.full_like(p, scale)
            optimizer.step()
        assert all(p.isfinite().all() for p in params)


@every
def test_strides_do_not_matter(Optimizer: Class) -> None:
    """Also of a 1×1 kernel, which is contiguous in either layout."""
    for shape, foreach in itertools.product([(4, 3, 2, 2), (4, 3, 1, 1)], (False, True)):
        plain = parameters([shape])
        strange = [
            plain[0].detach().clone().to(memory_format=torch.channels_last).requires_grad_(),
            plain[0].detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0).requires_grad_(),
        ]
        expected = drive(lambda p: Optimizer(p, lr=0.01), plain, 8)
        for p in strange:
            optimizer = Optimizer([p], lr=0.01, foreach=foreach)
            assert p.stride() != plain[0].stride()
            strides = p.stride()
            advance(optimizer, [p], 8)
            # A 1×1 kernel is a matrix without a copy. Stored by columns, its products round differently, in float32.
            rounds = shape[2:] == (1, 1) and Optimizer.__name__ in NEEDS_MATRICES
            assert_same(p.detach().flatten(), expected, 1e-6 if rounds else 1e-12)
            assert p.stride() == strides


@every
def test_sparse_gradients_are_refused(Optimizer: Class) -> None:
    p = torch.ones(4, 2, requires_grad=True)
    p.grad = torch.eye(4, 2).to_sparse()
    with pytest.raises(
        RuntimeError, match=r"parameter 'table' .* its gradient is sparse; make its layer with sparse=F"
    ):
        Optimizer([("table", p)], lr=0.01).step()


@every
def test_nonfinite_gradients_propagate_unless_skipped(Optimizer: Class) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        params = parameters(shapes_for(Optimizer))
        skipping = Optimizer([{"params": params[:1]}, {"params": params[1:]}], lr=0.01, skip_nonfinite=True)
        advance(skipping, params, 3)
        before, state = flat(params), copy.deepcopy(skipping.state_dict()["state"])
        push(params, 3)
        assert params[-1].grad is not None
        params[-1].grad.view(-1)[0] = bad
        skipping.step()
        assert torch.equal(flat(params), before)
        after = skipping.state_dict()
        assert after["param_groups"][0]["skipped_steps"] == 1
        assert all(torch.equal(after["state"][i][key], state[i][key]) for i in state for key in state[i])
        advance(skipping, params, 3, first=3)
        assert_same(flat(params), end(Optimizer, 6))
    if Optimizer in EXCEPT_MATRICES:
        plain = Optimizer(params, lr=0.01)
        push(params, 6)
        assert params[-1].grad is not None
        params[-1].grad.fill_(torch.nan)
        plain.step()
        if Optimizer.__name__ not in ("Lion", "AcceleratedLion"):  # torch's sign of NaN is 0 in lion-pytorch too
            assert params[-1].isnan().all()


@every
def test_the_closure_is_called_once_with_gradients_enabled_and_its_loss_returned(Optimizer: Class) -> None:
    params = parameters(shapes_for(Optimizer))
    optimizer = Optimizer(params, lr=0.01)
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        push(params, 0)
        return torch.tensor(42.0)

    with torch.no_grad():
        assert optimizer.step(closure) == 42.0
    assert calls == [True]
    assert optimizer.step() is None


@every
def test_hooks(Optimizer: Class) -> None:
    params = parameters(shapes_for(Optimizer))
    optimizer = Optimizer(params, lr=0.01)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: seen.append(f"saved {len(state['state'])}"))
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    advance(optimizer, params, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before", "after", f"saved {len(params)}", "loading", "loaded"]


@every
def test_a_group_can_be_added_later(Optimizer: Class) -> None:
    params = parameters(shapes_for(Optimizer))
    optimizer = Optimizer(params[:1], lr=0.01)
    advance(optimizer, params, 3)
    optimizer.add_param_group({"params": params[1:], "lr": 0.5})
    assert optimizer.param_groups[1]["lr"] == 0.5
    advance(optimizer, params, 3, first=3)
    assert [optimizer.state[p]["step"].item() for p in params] == [6] + [3] * (len(params) - 1)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": params[:1]})
    with pytest.raises(ValueError, match="weight_decay must be a finite number"):
        optimizer.add_param_group({"params": parameters(MATRICES, seed=1), "weight_decay": -1.0})
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer.add_param_group(params)
    assert len(optimizer.param_groups) == 2


@every
def test_copies_and_pickles_continue_equally(Optimizer: Class) -> None:
    params = parameters(shapes_for(Optimizer))
    optimizer = Optimizer(params, lr=0.01)
    advance(optimizer, params, 4)
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        own = clone.param_groups[0]["params"]
        advance(clone, own, 4, first=4)
        assert_same(flat(own), end(Optimizer, 8))


@every
def test_saving_and_loading(Optimizer: Class) -> None:
    for foreach in (False, True):
        params = parameters(shapes_for(Optimizer))
        optimizer = Optimizer(params, lr=0.01, foreach=foreach)
        advance(optimizer, params, 4)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = Optimizer(params, lr=0.7, weight_decay=0.5)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert other.param_groups[0]["lr"] == 0.01
        advance(other, params, 4, first=4)
        assert_same(flat(params), end(Optimizer, 8))


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_amsgrad_handles_huge_gradients_as_torch_does(size: float) -> None:
    """Below the overflow of v, and above: then the maximum stays infinite, and the parameter does not move."""
    ends = []
    for AdamW in (torch.optim.AdamW, aimopt.AdamW):
        p = torch.ones(3, requires_grad=True)
        optimizer = AdamW([p], lr=0.1, weight_decay=0.0, amsgrad=True)
        for value in (1.0, size, 1.0, 1.0):
            p.grad = torch.full((3,), value)
            optimizer.step()
        ends.append(p.detach())
    assert ends[1].isfinite().all()
    assert_same(ends[1], ends[0], 1e-6)


def test_gradients_with_a_conjugate_bit() -> None:
    z = torch.tensor([1.0 + 2.0j, -3.0 + 0.5j], dtype=torch.complex128)
    grad = torch.tensor([0.3 - 1.0j, 2.0 + 0.1j], dtype=torch.complex128)
    ends = []
    for lazy in (grad.conj(), grad.conj().resolve_conj()):
        p = z.clone().requires_grad_()
        p.grad = lazy
        aimopt.RADAR([p], 0.1).step()
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_a_refused_step_changes_no_group() -> None:
    first, second = parameters([(3,), (4, 2)])
    optimizer = aimopt.RADAR([{"params": [first]}, {"params": [second]}], 0.1)
    before = flat([first, second])
    first.grad, second.grad = torch.ones_like(first), torch.eye(4, 2, dtype=torch.float64).to_sparse()
    for options in (dict(skip_nonfinite=True), dict(skip_nonfinite=False)):
        optimizer.param_groups[0].update(options)
        with pytest.raises(RuntimeError, match="its gradient is sparse"):
            optimizer.step()
    optimizer.param_groups[1]["betas"] = (2.0, 0.9)
    second.grad = torch.ones_like(second)
    with pytest.raises(ValueError, match="beta must be"):
        optimizer.step()
    assert torch.equal(flat([first, second]), before)
    assert not optimizer.state


def test_muon_on_a_matrix_of_realistic_size() -> None:
    """On a CPU without usable bfloat16 instructions a bfloat16 product of this size would end the process."""
    params = parameters([(96, 64), (64, 96)], torch.float32)
    advance(aimopt.Muon(params, 0.01), params, 3)
    assert all(p.isfinite().all() for p in params)
