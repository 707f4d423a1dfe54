"""Shared memory, memory freed inside a step, invalid values and modes: a step equals the plain one, or is refused."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.parts.component import Filter
from memory_checks import assert_refuses, paths, stepped
from optimizer_driver import advance, assert_same, flat, parameters, push


def twins(edit: Callable[[Any, list[Tensor]], Any], shapes: Any = ((6,), (6,)), **options: Any) -> None:
    """The fused step and the plain one give the same result after an edit."""
    ends = []
    for fused in (None, False):
        params = parameters(shapes)
        optimizer = stepped(params, fused=fused, **options)
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


def test_a_gradient_in_another_groups_memory_in_another_order() -> None:
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
    """An unfused part may be a user's code, which can do anything to the tensors of a later group."""
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
        (dict(lr=torch.tensor(float("nan"))), "lr must be a finite number, got nan"),
        (dict(lr=torch.tensor([float("inf")])), "lr must be a finite number, got inf"),
        (dict(weight_decay="x"), "weight_decay must be a finite number"),
        (dict(decoupled_weight_decay="what"), "decoupled_weight_decay must be one of"),
        (dict(fused=5), "fused must be one of"),
        (dict(state_dtype="zzz"), "state_dtype must be one of"),
    ],
)
def test_an_invalid_value_in_a_later_group_changes_nothing(fused: Any, change: Any, match: str) -> None:
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
    assert_refuses(optimizer, match=r"^RADAR\.step: parameter 1 of group 0 cannot be stepped: its state 'step' is -1")


@paths
@pytest.mark.parametrize("count", [-1.0, float("nan")])
def test_an_invalid_step_count_in_a_later_group_changes_nothing(fused: Any, count: float) -> None:
    params = parameters([(5,), (6,)])
    optimizer = aimopt.RADAR([{"params": [p]} for p in params], 0.01, fused=fused)
    advance(optimizer, params, 1)
    before = flat(params)
    optimizer.state[params[1]]["step"] = torch.tensor(count)
    message = rf"^RADAR\.step: parameter 0 of group 1 cannot be stepped: its state 'step' is {count:g}"
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    assert torch.equal(flat(params), before)
    assert optimizer.state[params[0]]["step"] == 1


@paths
@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn])
def test_a_dtype_that_torch_cannot_compute_in(fused: Any, dtype: torch.dtype) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch says that complex32 is experimental
        p = torch.ones(4, dtype=dtype).requires_grad_()
        p.grad = torch.ones(4, dtype=dtype)
    with pytest.raises(RuntimeError, match=rf"it has dtype {dtype}, and only .*float32"):
        aimopt.SGDM([p], fused=fused).step()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch itself, for forward-mode gradients
def test_modes_that_follow_torchs_operations_see_the_step() -> None:
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


def test_a_step_under_fake_tensors_leaves_no_state() -> None:
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
    with pytest.raises(RuntimeError, match="its gradient is a functional tensor and the parameter is not"):
        torch.func.functionalize(step)(torch.ones(6, dtype=torch.float64))
    push(params, 3)
    optimizer.state[p]["exp_avg"] = torch._to_functional_tensor(torch.ones(6, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="'exp_avg' is a functional tensor and the parameter is not"):
        optimizer.step()
    assert torch.equal(flat(params), before)


@paths
def test_state_that_is_not_a_dict(fused: Any) -> None:
    (p,) = params = parameters([(5,)])
    optimizer = stepped(params, fused=fused)
    wrong: list[Any] = [None, [], 5, torch.zeros(2)]
    for state in wrong:
        optimizer.state[p] = state
        with pytest.raises(RuntimeError, match=r"its state is a .*, not a dict"):
            optimizer.step()


def test_tensors_that_the_user_deleted_are_freed() -> None:
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


def test_a_refused_step_frees_gradients() -> None:
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


def test_a_step_that_fails_after_its_beginning_frees_gradients() -> None:
    import weakref

    params = parameters([(5,), (6,)])
    optimizer = aimopt.RADAR([{"params": [p]} for p in params])
    advance(optimizer, params, 1)
    optimizer.state[params[0]]["step"].fill_(-1)
    push(params, 1)
    with pytest.raises(RuntimeError, match="parameter 0 of group 0 cannot be stepped"):
        optimizer.step()
    assert params[1].grad is not None
    grad = weakref.ref(params[1].grad)
    params[1].grad = None
    gc.collect()
    assert grad() is None
