"""Memory layouts of tensors, and changes between steps: a kernel reaches a tensor, or leaves it to the plain path."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from optimizer_driver import assert_same, count_paths, drive, flat, parameters, push

Class = Any


def test_tensors_that_move_between_steps_are_located_again() -> None:
    """New memory, another dtype, another layout, other state under the same parameter objects."""

    def disturb(optimizer: Any, params: list[Tensor], step: int) -> None:
        if step == 2:
            params[0].data = params[0].data.clone()
        if step == 3:
            params[1].data = params[1].data.to(memory_format=torch.channels_last)
        if step == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 5:
            for p in params:
                p.grad = None
                p.data = p.data.float()
        if step == 6:
            optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"].clone()

    ends = []
    for fused in (None, False):
        params = parameters([(30,), (2, 3, 4, 5)])
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        with count_paths() as paths:
            for step in range(8):
                disturb(optimizer, params, step)
                push(params, step)
                optimizer.step()
        # Parameter 1 has state in another memory order after step 3, and both have state in float64 after step 5.
        assert paths["fused"] == (3 * 2 + 2 if fused is None else 0)
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def test_autograd_notices_that_parameters_moved() -> None:
    w = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
    optimizer = aimopt.RADAR([w], fused=True)
    loss = (w * w).sum()
    w.grad = torch.ones_like(w)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_complex_parameters_are_fused_as_pairs() -> None:
    def run(fused: bool) -> Tensor:
        return drive(lambda p: aimopt.RADAR(p, 0.01, fused=fused), parameters(dtype=torch.complex128))

    assert_same(run(True), run(False))


def test_a_parameter_with_gaps_is_refused_with_fused_true_and_otherwise_steps_unfused() -> None:
    p = torch.randn(6, 2, dtype=torch.float64)[:, 0].requires_grad_()
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match=r"RADAR.step: fused=True, but no kernel reaches parameter 0 of group 0"):
        aimopt.RADAR([p], fused=True).step()
    before = p.detach().clone()
    aimopt.RADAR([p]).step()
    assert not torch.equal(p, before)


def test_fused_true_on_another_device_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"fused=True: .*meta.*leave fused=None"):
        aimopt.RADAR([torch.zeros(3, device="meta", requires_grad=True)], fused=True)
    with pytest.raises(ValueError, match=r"float8"):
        aimopt.RADAR([torch.zeros(3).to(torch.float8_e4m3fn).requires_grad_()], fused=True)


def test_sharded_parameters_are_stepped_locally(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        whole = parameters([(6, 4), (5,)])
        spread = [distribute_tensor(p.detach(), mesh, [Shard(0)]).requires_grad_() for p in whole]
        optimizer = aimopt.RADAR(spread, 0.01, fused=True)
        reference = aimopt.RADAR(whole, 0.01, foreach=False)
        for step in range(4):
            push(whole, step)
            for p, q in zip(whole, spread, strict=True):
                assert p.grad is not None
                q.grad = distribute_tensor(p.grad, mesh, [Shard(0)])
            optimizer.step()
            reference.step()
        assert_same(flat([p.full_tensor() for p in spread]), flat(whole))  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()


def both_ways(step: Any, make: Any, *, fused_tensors: int, Optimizer: Class = aimopt.RADAR) -> None:
    """Step with and without the kernel, after `step(optimizer, params, t)` has set the gradients; compare."""
    ends = []
    for fused in (None, False):
        params = make()
        optimizer = Optimizer(params, lr=0.01, fused=fused)
        with count_paths() as paths:
            for t in range(6):
                step(optimizer, params, t)
                optimizer.step()
        assert paths["fused"] == (fused_tensors if fused is None else 0)
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_gradients_with_a_conjugate_or_negative_bit() -> None:
    def conjugate(optimizer: Any, params: list[Tensor], t: int) -> None:
        push(params, t)
        if t % 2:
            params[0].grad = params[0].grad.conj()  # type: ignore[union-attr]

    both_ways(conjugate, lambda: parameters([(9,)], torch.complex128), fused_tensors=6)

    def negative(optimizer: Any, params: list[Tensor], t: int) -> None:
        push(params, t)
        if t % 2:
            params[0].grad = torch._neg_view(params[0].grad)  # type: ignore[arg-type]

    both_ways(negative, lambda: parameters([(9,)]), fused_tensors=6)


def test_a_square_matrix_that_is_transposed_in_place() -> None:
    def transpose(optimizer: Any, params: list[Tensor], t: int) -> None:
        if t == 3:
            params[0].grad = None
            params[0].data = params[0].data.t()
        push(params, t)

    both_ways(transpose, lambda: parameters([(6, 6)]), fused_tensors=3)  # then the state is in another order


def test_parameters_that_share_memory_are_stepped_one_after_the_other() -> None:
    def shared() -> list[Tensor]:
        memory = torch.randn(50000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return [memory[:40000].requires_grad_(), memory[10000:].requires_grad_(), *parameters([(5,)])]

    both_ways(lambda _, params, t: push(params, t), shared, fused_tensors=6, Optimizer=aimopt.SGDM)


@pytest.mark.parametrize("Optimizer", [aimopt.SGDM, aimopt.AdamW, aimopt.RADAR], ids=lambda o: o.__name__)
def test_a_gradient_that_is_the_parameter_itself(Optimizer: Class) -> None:
    def alias(optimizer: Any, params: list[Tensor], t: int) -> None:
        params[0].grad = params[0].detach()

    both_ways(alias, lambda: parameters([(300,)]), fused_tensors=6, Optimizer=Optimizer)


def test_a_first_gradient_in_another_order_is_fused() -> None:
    (p,) = params = parameters([(4, 6)])
    optimizer = aimopt.RADAR(params, fused=True)
    p.grad = torch.ones(6, 4, dtype=torch.float64).t()
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].is_contiguous()


def test_fused_true_without_a_kernel_changes_nothing() -> None:
    (fine,) = parameters([(5,)])
    gaps = torch.randn(6, 2, dtype=torch.float64)[:, 0].requires_grad_()
    before = fine.detach().clone()
    for groups in ([fine, gaps], [{"params": [fine]}, {"params": [gaps]}]):
        optimizer = aimopt.RADAR(groups, fused=True)
        push([fine, gaps], 0)
        with pytest.raises(RuntimeError, match="no kernel reaches"):
            optimizer.step()
        assert torch.equal(fine, before)
        assert all(int(state["step"]) == 0 for state in optimizer.state.values())


def test_fused_true_with_state_that_no_kernel_takes_is_refused_early() -> None:
    with pytest.raises(ValueError, match="state_dtype"):
        aimopt.RADAR(parameters(), fused=True, state_dtype="bfloat16")
