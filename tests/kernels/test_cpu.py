"""The fused step on CPUs against the plain one: whatever the tensors look like, and the same bits on any threads."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aimopt
from aimopt import kernels
from aimopt.kernels import cpu
from driving import EXCEPT_MATRICES, advance, assert_same, drive, flat, parameters, push

Class = Any
every = pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)


@pytest.fixture(autouse=True)
def _kernel_is_there() -> None:
    assert isinstance(cpu.library(), cpu.Library), "install aimopt with a C++ compiler to test its kernel"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A tensor of random numbers that lies in memory in some way."""

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    if kind == "transposed" and len(shape) >= 2:
        return noise(*shape[::-1]).permute(*reversed(range(len(shape))))
    if kind == "channels_last" and len(shape) == 4:
        return noise(*shape).to(memory_format=torch.channels_last)
    if kind == "gaps":
        return noise(*shape, 2)[..., 1]
    if kind == "offset":
        size = torch.Size(shape).numel()
        return noise(size + 3)[3:].view(shape)
    return noise(*shape)


KINDS = ("plain", "transposed", "channels_last", "gaps", "offset")
SHAPE = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    st.integers(120, 400).map(lambda n: (n,)),
)


@settings(max_examples=150, deadline=None)
@given(
    optimizer=st.sampled_from(EXCEPT_MATRICES),
    layout=st.lists(st.tuples(SHAPE, st.sampled_from(KINDS), st.sampled_from(KINDS)), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
    count=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**20),
)
@pytest.mark.usefixtures("float64_scalars", "threads")
def test_it_does_what_the_plain_step_does(
    optimizer: Class, layout: Any, dtype: torch.dtype, decay: float, maximize: bool, count: int, seed: int
) -> None:
    torch.set_num_threads(count)
    ends = []
    for fused in (False, None):
        generator = torch.Generator().manual_seed(seed)
        params = [made(kind, shape, dtype, generator).requires_grad_() for shape, kind, _ in layout]
        options: Any = dict(weight_decay=decay, maximize=maximize, stochastic_rounding=False, fused=fused)
        stepping = optimizer(params, lr=0.01, **options)
        for _ in range(4):
            for p, (shape, _, kind) in zip(params, layout, strict=True):
                p.grad = made(kind, shape, dtype, generator)
            stepping.step()
        ends.append([*params, *(value for state in stepping.state.values() for value in state.values())])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    for plain, fused in zip(*ends, strict=True):
        assert fused.dtype == plain.dtype
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)


@every
@pytest.mark.parametrize("decoupled", [True, False, "proximal"])
@pytest.mark.usefixtures("float64_scalars")
def test_every_kind_of_decay(Optimizer: Class, decoupled: Any) -> None:
    ends = []
    for fused in (False, True):
        optimizer = Optimizer(parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        optimizer.param_groups[0]["decoupled_weight_decay"] = decoupled
        params = optimizer.param_groups[0]["params"]
        advance(optimizer, params, 10)
        ends.append(flat(params))
    assert_same(ends[1], ends[0])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("threads")
def test_the_same_bits_for_any_number_of_threads(Optimizer: Class, dtype: torch.dtype) -> None:
    shapes = [(70001,), (3,), (130, 257), (), (0,), (64, 64)]
    ends = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        ends.append(drive(lambda p: Optimizer(p, lr=0.01, weight_decay=0.1, fused=True), parameters(shapes, dtype), 3))
    for end in ends[1:]:
        assert torch.equal(end, ends[0])


@every
def test_instruction_sets_agree(Optimizer: Class) -> None:
    """To rounding with the baseline, which has no fused products; to the bit with one another."""
    lib = cpu.library()
    assert isinstance(lib, cpu.Library)
    ends = []
    for isa in range(lib.isa + 1):
        params = parameters([(1001,), (7, 9)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, fused=True)
        push(params, 0)
        optimizer.step()
        plan = optimizer._fused[0]._plan
        plan.lib = lib._replace(isa=isa)
        advance(optimizer, params, 5, first=1)
        ends.append(flat(params))
    torch.testing.assert_close(ends[0], ends[-1], rtol=1e-5, atol=1e-5)
    for end in ends[2:]:
        assert torch.equal(end, ends[1])


def test_tensors_with_different_counts_share_a_step() -> None:
    ends = []
    for fused in (False, True):
        params = parameters([(5,), (6,), (7,)])
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        for step in range(6):
            push(params, step)
            params[step % 3].grad = None
            optimizer.step()
        ends.append(flat(params))
        assert [int(optimizer.state[p]["step"]) for p in params] == [4, 4, 4]
    assert_same(ends[1], ends[0])


@pytest.mark.parametrize(
    "lr", [0.01, torch.tensor(0.01, dtype=torch.float64), torch.tensor([0.01], dtype=torch.float64)]
)
def test_a_learning_rate_may_be_a_tensor_and_may_change(lr: Any) -> None:
    params = parameters()
    optimizer = aimopt.RADAR(params, lr, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    reference = parameters()
    plain = aimopt.RADAR(reference, 0.01, foreach=False)
    other = torch.optim.lr_scheduler.StepLR(plain, 2, 0.5)
    for step in range(6):
        for p, o, s in ((params, optimizer, scheduler), (reference, plain, other)):
            push(p, step)
            o.step()
            s.step()
    assert_same(flat(params), flat(reference))


def test_a_schedule_of_beta1_is_followed() -> None:
    ends = []
    for fused in (False, True):
        params = parameters()
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
        for step in range(10):
            push(params, step)
            optimizer.step()
            scheduler.step()
        ends.append(flat(params))
    assert_same(ends[1], ends[0])


def test_gradients_are_not_written() -> None:
    params = parameters([(200,), (3, 3)])
    for options in ({}, {"maximize": True}, {"weight_decay": 0.1, "decoupled_weight_decay": False}):
        optimizer = aimopt.RADAR(params, fused=True, **options)
        push(params, 0)
        before = [p.grad.clone() for p in params if p.grad is not None]
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True) if p.grad is not None)


def test_what_moves_between_steps_is_found_again() -> None:
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
        for step in range(8):
            disturb(optimizer, params, step)
            push(params, step)
            optimizer.step()
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


def test_a_parameter_with_gaps_is_refused_where_fused_is_demanded_and_else_steps_plainly() -> None:
    p = torch.randn(6, 2, dtype=torch.float64)[:, 0].requires_grad_()
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="fused=True, but no kernel reaches parameter 0 of its group"):
        aimopt.RADAR([p], fused=True).step()
    before = p.detach().clone()
    aimopt.RADAR([p]).step()
    assert not torch.equal(p, before)


def test_fused_true_on_another_device_says_why() -> None:
    with pytest.raises(ValueError, match=r"fused=True: .*meta.*leave fused=None"):
        aimopt.RADAR([torch.zeros(3, device="meta", requires_grad=True)], fused=True)
    with pytest.raises(ValueError, match=r"float8"):
        aimopt.RADAR([torch.zeros(3).to(torch.float8_e4m3fn).requires_grad_()], fused=True)


def test_sharded_parameters_are_stepped_where_they_are(tmp_path: Any) -> None:
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


def test_two_optimizers_step_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def run(seed: int) -> Tensor:
        return drive(lambda p: aimopt.RADAR(p, 0.01, fused=True), parameters([(40000,)], seed=seed), 10)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    for seed, end in enumerate(together):
        assert torch.equal(end, run(seed))


@pytest.mark.parametrize(("fused", "dtype"), [*itertools.product((None, True), (torch.float32, torch.bfloat16))])
def test_under_a_gradient_scaler(fused: bool | None, dtype: torch.dtype) -> None:
    """Scaled gradients are stepped as if they were not, written nowhere, and an infinite one skips the step whole."""
    ends = []
    for scaled in (True, False):
        params = parameters([(50,), (3, 4)], dtype)
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for step in range(8):
            optimizer.zero_grad()
            loss = torch.stack([(p.float() - step).square().sum() for p in params]).sum()
            scaler.scale(loss).backward()
            if step == 4:
                params[0].grad = torch.full_like(params[0], torch.inf)
                if not scaled:
                    continue
            given = [p.grad.clone() for p in params if p.grad is not None]
            scaler.step(optimizer)
            if fused:
                assert all(torch.equal(p.grad, g) for p, g in zip(params, given, strict=True) if p.grad is not None)
            scaler.update()
        assert scaler.get_scale() == (2.0**9 if scaled else 1.0)
        assert {int(state["step"]) for state in optimizer.state.values()} == {7}
        ends.append(flat(params))
    assert torch.equal(*ends)


def test_a_buffer_that_starts_at_the_first_gradient_starts_at_the_unscaled_one() -> None:
    ends = []
    for scaled in (True, False):
        params = parameters([(20,)], torch.float32)
        optimizer = aimopt.Adan(params, 0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale((params[0] - step).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(flat(params))
    assert torch.equal(*ends)


@pytest.mark.parametrize("way", ["watched", "compiled"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it first compiles
def test_a_step_that_is_not_fused_after_all_unscales_too(way: str) -> None:
    ends = []
    for scaled in (True, False):
        params = parameters([(20,), (3, 4)], torch.float32)
        optimizer: Any = aimopt.SGDM(params, 0.01, fused=True)
        step = torch.compile(optimizer.step, backend="eager") if way == "compiled" else optimizer.step
        if way == "watched":
            aimopt.watch(optimizer, every=2)
        for t in range(4):
            push(params, t)
            if scaled:
                optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
                for p in params:
                    assert p.grad is not None
                    p.grad.mul_(1024)
            step()
        ends.append(flat(params))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("Optimizer", [aimopt.AdamW, aimopt.RADAR], ids=lambda o: o.__name__)
def test_a_huge_scale_does_no_harm(Optimizer: Class) -> None:
    ends = []
    for scale in (1.0, 2.0**76):
        params = parameters([(50,)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, fused=True)
        for t in range(3):
            push(params, t)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
            for p in params:
                assert p.grad is not None
                p.grad.mul_(scale)
            optimizer.step()
        ends.append(flat(params))
    torch.testing.assert_close(*ends)


def both_ways(step: Any, make: Any, steps: int = 6, Optimizer: Class = aimopt.RADAR, **options: Any) -> None:
    """Step with and without the kernel, after `step(optimizer, params, t)` has set the gradients; compare."""
    ends = []
    for fused in (None, False):
        params = make()
        optimizer = Optimizer(params, lr=0.01, fused=fused, **options)
        for t in range(steps):
            step(optimizer, params, t)
            optimizer.step()
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_gradients_with_a_conjugate_or_negative_bit() -> None:
    def conjugate(optimizer: Any, params: list[Tensor], t: int) -> None:
        push(params, t)
        if t % 2:
            params[0].grad = params[0].grad.conj()  # type: ignore[union-attr]

    both_ways(conjugate, lambda: parameters([(9,)], torch.complex128))

    def negative(optimizer: Any, params: list[Tensor], t: int) -> None:
        push(params, t)
        if t % 2:
            params[0].grad = torch._neg_view(params[0].grad)  # type: ignore[arg-type]

    both_ways(negative, lambda: parameters([(9,)]))


def test_a_square_matrix_that_is_transposed_in_place() -> None:
    def transpose(optimizer: Any, params: list[Tensor], t: int) -> None:
        if t == 3:
            params[0].grad = None
            params[0].data = params[0].data.t()
        push(params, t)

    both_ways(transpose, lambda: parameters([(6, 6)]))


def test_parameters_that_share_memory_are_stepped_one_after_the_other() -> None:
    def shared() -> list[Tensor]:
        memory = torch.randn(50000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return [memory[:40000].requires_grad_(), memory[10000:].requires_grad_(), *parameters([(5,)])]

    both_ways(lambda _, params, t: push(params, t), shared, Optimizer=aimopt.SGDM)


@pytest.mark.parametrize("Optimizer", [aimopt.SGDM, aimopt.AdamW, aimopt.RADAR], ids=lambda o: o.__name__)
def test_a_gradient_that_is_the_parameter_itself(Optimizer: Class) -> None:
    def alias(optimizer: Any, params: list[Tensor], t: int) -> None:
        params[0].grad = params[0].detach()

    both_ways(alias, lambda: parameters([(300,)]), Optimizer=Optimizer)


def test_a_first_gradient_in_another_order_does_not_cost_the_kernel() -> None:
    (p,) = params = parameters([(4, 6)])
    optimizer = aimopt.RADAR(params, fused=True)
    p.grad = torch.ones(6, 4, dtype=torch.float64).t()
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].is_contiguous()


def test_fused_true_that_cannot_be_leaves_everything_as_it_was() -> None:
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


def test_status_tells_what_is_live() -> None:
    status = kernels.status()
    assert status["fused, CPU"].startswith("on: ")
    assert "torch's threads" in status["fused, CPU"]
