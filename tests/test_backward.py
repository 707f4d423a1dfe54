"""A step in backward is the usual step, to the bit, without the gradients; what it cannot do is refused."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aimopt
from aimopt import kernels
from aimopt.kernels.memory import GroupMemory
from aimopt.kernels.program import Program
from aimopt.parts.composition import Parts
from optimizer_driver import EXCEPT_MATRICES, count_paths, flat


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: on a busy machine, threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """A small model with tied weights, a parameter that is used in every second pass only, and one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.layers = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 8), nn.LayerNorm(8))
        self.sometimes, self.never = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(3))
        self.passes = 0

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.tokens(tokens))
        self.passes += 1
        return (x * self.sometimes if self.passes % 2 else x) @ self.tokens.weight.T


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def loss_of(model: nn.Module, t: int) -> Tensor:
    tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(t))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: Any, steps: int = 6, first: int = 0, schedule: Any = None) -> Tensor:
    """The usual loop; with a step in backward, no gradient may be left after backward."""
    for t in range(first, first + steps):
        loss_of(model, t).backward()
        if optimizer._in_backward is not None:
            assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        if schedule is not None:
            schedule.step()
        optimizer.zero_grad()
    return flat(list(model.parameters()))


def hybrid(model: nn.Module) -> aimopt.AIM:
    split = aimopt.groups.split(model)
    return aimopt.groups.combine(aimopt.Muon(split.matrices, lr=0.02), aimopt.RADAR(split.rest(weight_decay=0.1), 0.01))


@pytest.mark.parametrize("bucket_bytes", [0, 600])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "state_dtype": "bfloat16"}], ids=["default", "narrow"])
@pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
def test_the_result_is_that_of_the_usual_loop_to_the_bit(Optimizer: Any, options: Any, bucket_bytes: int) -> None:
    """Also where 16-bit state is rounded at random: the random numbers depend on a parameter's index."""
    ends, counts = [], []
    for in_backward in (True, False):
        model = net(torch.bfloat16 if options else torch.float32)
        optimizer = Optimizer(model.named_parameters(), lr=0.01, **options)
        if in_backward:
            aimopt.in_backward(optimizer, model, bucket_bytes=bucket_bytes)
        with count_paths() as paths:
            ends.append(train(model, optimizer))
        counts.append(dict(paths))
    assert torch.equal(ends[0], ends[1])
    assert counts[0] == counts[1]
    group = optimizer.param_groups[0]
    assert ("fused" in counts[0]) == isinstance(kernels.program_of(Parts.from_group(group), group), Program)


def test_combined_optimizers() -> None:
    ends = []
    for in_backward in (True, False):
        model = net()
        optimizer = hybrid(model)
        if in_backward:
            aimopt.in_backward(optimizer, model)
        ends.append(train(model, optimizer))
    torch.testing.assert_close(ends[0], ends[1])


def test_one_gradient_at_a_time() -> None:
    """Before a parameter moves, only its own gradient is there."""
    model = net()
    present: list[int] = []

    def count(_: Tensor) -> None:
        present.append(sum(p.grad is not None for p in model.parameters()))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(count)
    optimizer = aimopt.RADAR(model.parameters())
    handle = aimopt.in_backward(optimizer, model, bucket_bytes=0)
    train(model, optimizer, steps=2)
    assert present == [1] * 15  # `sometimes` is not used in the second pass
    handle.remove()
    present.clear()
    loss_of(model, 0).backward()
    assert present == list(range(1, 9))


def test_tensors_are_checked_thoroughly_once() -> None:
    model = net()
    optimizer = aimopt.RADAR(model.parameters())
    aimopt.in_backward(optimizer, model, bucket_bytes=0)
    train(model, optimizer, steps=2)
    with patch.object(GroupMemory, "_check_thoroughly", side_effect=AssertionError):
        train(model, optimizer, steps=4, first=2)


def test_gradients_of_several_passes_add_up() -> None:
    """Also for the parameter that gets a gradient in an earlier pass and none in the last one."""
    ends = []
    for in_backward in (True, False):
        model = net()
        optimizer = aimopt.Adan(model.parameters(), lr=0.01)  # its state begins with the first gradient
        handle = aimopt.in_backward(optimizer, model, bucket_bytes=0) if in_backward else None
        for t in range(0, 9, 3):
            for micro in range(3):
                if handle is not None and micro < 2:
                    with handle.accumulating():
                        loss_of(model, t + micro).backward()
                    assert model.tokens.weight.grad is not None
                else:
                    loss_of(model, t + micro).backward()
            assert (model.tokens.weight.grad is None) == in_backward
            optimizer.step()
            optimizer.zero_grad()
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])


def test_schedules_checkpoints_and_removal() -> None:
    """torch warns if a schedule steps before its optimizer, and a warning is an error here."""
    ends = []
    for in_backward in (True, False):
        model = net()
        optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=12)
        handle = aimopt.in_backward(optimizer, model) if in_backward else None
        train(model, optimizer, steps=4, schedule=schedule)
        loaded = aimopt.RADAR(model.parameters(), lr=0.5)
        loaded.load_state_dict(optimizer.state_dict())
        if handle is not None:
            handle.remove()
            handle = aimopt.in_backward(loaded, model)
        train(model, loaded, steps=4, first=4)
        if handle is not None:
            handle.remove()
        train(model, loaded, steps=4, first=8)
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])


def test_a_closure_is_evaluated_once() -> None:
    ends = []
    for in_backward in (True, False):
        model = net()
        optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
        if in_backward:
            aimopt.in_backward(optimizer, model)

        def closure(model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        ends.append(torch.tensor(losses))
    assert torch.equal(ends[0], ends[1])


def test_groups_that_change_on_the_way() -> None:
    ends = []
    for in_backward in (True, False):
        model = net()
        layers, rest = list(model.layers.parameters()), [model.tokens.weight, model.sometimes]
        optimizer = aimopt.RADAR([{"params": layers}], lr=0.01, state_dtype="bfloat16")
        if in_backward:
            aimopt.in_backward(optimizer, model, bucket_bytes=0)
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
        optimizer.add_param_group({"params": rest, "lr": 0.1})
        optimizer.param_groups.reverse()
        for t in range(1, 5):
            loss_of(model, t).backward()
            optimizer.step()
            model.zero_grad()
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])


def test_diagnostics() -> None:
    figures = []
    for in_backward in (True, False):
        model = net()
        optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
        if in_backward:
            aimopt.in_backward(optimizer, model, bucket_bytes=0)
        watch = aimopt.watch(optimizer, every=2)
        train(model, optimizer, steps=5)
        assert watch.steps == 5
        figures += watch.read()
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)


def clipped_by_hand(model: nn.Module, max_norm: float, steps: int) -> Tensor:
    """The rule of `max_norm` in a usual loop: n is the norm of the last step, or of this one so far if larger."""
    order: list[Tensor] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(order.append)
    optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
    last = 0.0
    for t in range(steps):
        order.clear()
        loss_of(model, t).mul(1 + t % 3).backward()
        squares = 0.0
        for x in order:
            assert x.grad is not None
            squares += x.grad.square().sum().item()
            x.grad.mul_(min(1.0, max_norm / (max(last, squares**0.5) + 1e-6)))
        last = squares**0.5
        optimizer.step()
        optimizer.zero_grad()
    return flat(list(model.parameters()))


def test_clipping_follows_its_rule() -> None:
    model = net(torch.float64)
    optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
    handle = aimopt.in_backward(optimizer, model, max_norm=0.5, bucket_bytes=0)
    assert handle.last_norm is None
    for t in range(7):
        loss_of(model, t).mul(1 + t % 3).backward()
        optimizer.step()
    expected = clipped_by_hand(net(torch.float64), 0.5, 7)
    torch.testing.assert_close(flat(list(model.parameters())), expected, rtol=1e-9, atol=1e-9)
    assert handle.last_norm is not None
    assert handle.last_norm > 0.5


def test_an_infinite_norm_is_forgotten() -> None:
    p = nn.Parameter(torch.ones(2))
    model = nn.ParameterList([p])
    optimizer = aimopt.SGDM([p], lr=0.0)
    handle = aimopt.in_backward(optimizer, model, max_norm=1.0)
    for scale in (3.0, float("inf"), 4.0):
        (p * scale).sum().backward()
        optimizer.step()
        assert handle.last_norm is not None
        assert handle.last_norm.isfinite()
    assert handle.last_norm == pytest.approx(4 * 2**0.5)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another package's": (lambda m: aimopt.in_backward(torch.optim.SGD(m.parameters(), 0.1), m), "got SGD"),  # type: ignore[arg-type]
    "twice": (
        lambda m: [aimopt.in_backward(o, m) for o in [aimopt.RADAR(m.parameters())] * 2],
        "stepped in backward already; call remove()",
    ),
    "max_norm": (
        lambda m: aimopt.in_backward(aimopt.RADAR(m.parameters()), m, max_norm=0.0),
        "max_norm must be a finite number above 0, got 0.0",
    ),
    "another model": (
        lambda m: aimopt.in_backward(aimopt.RADAR(m.named_parameters()), net()),
        "parameter 'sometimes' of the optimizer is not a parameter of the model",
    ),
    "closures": (
        lambda m: aimopt.in_backward(
            aimopt.AIM(
                m.parameters(),
                0.1,
                filter=aimopt.EMA(),
                geometry=aimopt.Euclidean(),
                correction=aimopt.FixedPoint(iterations=2),
            ),
            m,
        ),
        "group 0: FixedPoint evaluates the model again within a step",
    ),
    "skip_nonfinite": (
        lambda m: aimopt.in_backward(aimopt.RADAR(m.parameters(), skip_nonfinite=True), m),
        "skip_nonfinite=True cannot skip a step of which the last layers have already moved",
    ),
    "differentiable": (
        lambda m: aimopt.in_backward(aimopt.RADAR(m.parameters(), differentiable=True), m),
        "differentiable=True needs the gradients after the step",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str) -> None:
    attach, message = REFUSED[case]
    with pytest.raises(ValueError, match="in_backward") as error:
        attach(net())
    assert message in str(error.value)


def test_an_option_that_is_set_later_is_refused_before_anything_moves() -> None:
    model = net()
    optimizer = aimopt.RADAR(model.parameters())
    aimopt.in_backward(optimizer, model)
    before = flat(list(model.parameters()))
    optimizer.param_groups[0]["skip_nonfinite"] = True
    with pytest.raises(ValueError, match="in_backward: group 0: skip_nonfinite=True cannot skip"):
        loss_of(model, 0).backward()
    assert torch.equal(flat(list(model.parameters())), before)


@pytest.fixture
def stepping() -> tuple[nn.Module, aimopt.AIM]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = aimopt.RADAR(model.named_parameters())
    aimopt.in_backward(optimizer, model, bucket_bytes=0)
    return model, optimizer


def test_a_second_pass_in_one_step_is_refused(stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    model, optimizer = stepping
    model(torch.ones(2, 3)).sum().backward()
    before = flat(list(model.parameters()))
    with pytest.raises(RuntimeError, match=r"parameter '2\.\w+' got a second gradient in one step.*accumulating"):
        model(torch.ones(2, 3)).sum().backward()
    assert torch.equal(flat(list(model.parameters())), before)
    optimizer.zero_grad()
    optimizer.step()
    model(torch.ones(2, 3)).sum().backward()


def test_a_retained_graph_cannot_be_used_again(stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    """torch itself notices that the weights are no longer those of the forward pass."""
    model, optimizer = stepping
    loss = model(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_graph_of_gradients_is_refused(stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    model, _ = stepping
    with pytest.raises(RuntimeError, match=r"in_backward: backward\(create_graph=True\)"):
        model(torch.ones(2, 3)).sum().backward(create_graph=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations(reentrant: bool, stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    """Reentrant checkpoints run backward within backward: a layer that is used twice then gets two gradients."""
    model, _ = stepping
    x = torch.ones(2, 3, requires_grad=True)
    y = checkpoint(model, x, use_reentrant=reentrant) + checkpoint(model, 2 * x, use_reentrant=reentrant)
    if reentrant:
        with pytest.raises(RuntimeError, match=r"second gradient in one step.*use_reentrant=False"):
            y.sum().backward()
    else:
        y.sum().backward()


def test_a_scaler_is_refused(stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    model, optimizer = stepping
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    with pytest.raises(ValueError, match="RADAR has stepped in backward, with gradients that a GradScaler"):
        scaler.step(optimizer)


def test_a_parameter_that_cannot_be_stepped_is_named(stepping: tuple[nn.Module, aimopt.AIM]) -> None:
    model, optimizer = stepping
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.state[model[0].bias]["exp_avg"] = torch.zeros(9)  # type: ignore[index]
    with pytest.raises(RuntimeError, match=r"RADAR\.step: parameter '0\.bias' cannot be stepped"):
        model(torch.ones(2, 3)).sum().backward()
