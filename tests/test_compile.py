"""torch.compile traces the whole step of every optimizer, once."""

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import aimopt
from optimizer_driver import ALL, assert_same, flat, parameters, push, shapes_for

pytestmark = pytest.mark.filterwarnings("default")  # torch's compiler warns of its own affairs


def compiled_and_eager(build: Any, shapes: Any, steps: int, *, backend: str = "aot_eager") -> tuple[Any, Any, int]:
    torch._dynamo.reset()
    counters.clear()
    shapes = [
        shape for shape in shapes if shape
    ]  # torch 2.13 compiled never writes a 0-dim parameter, its own SGD's too
    eager, traced = parameters(shapes), parameters(shapes)
    reference, optimizer = build(eager), build(traced)
    step: Any = torch.compile(optimizer.step, fullgraph=True, backend=backend)
    for i in range(steps):
        push(eager, i)
        push(traced, i)
        for one in (reference, optimizer):
            for group in one.param_groups:
                rate = 0.01 / (1 + i)
                group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], torch.Tensor) else rate
        reference.step()
        step()
    assert not counters["graph_break"]
    return flat(traced), flat(eager), counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
def test_one_graph_for_all_learning_rates(Optimizer: Any) -> None:
    def build(params: Any) -> Any:
        return Optimizer(params, lr=torch.tensor(0.01, dtype=torch.float64), weight_decay=0.1)

    # A matrix and a tensor of more dimensions: the compiler takes its time for every tensor.
    ours, reference, graphs = compiled_and_eager(build, shapes_for(Optimizer)[::2], 4)
    assert graphs == 1
    assert_same(ours, reference, 1e-5)  # compiled step counts are float32 tensors, as in torch


def test_a_number_as_learning_rate_is_traced_twice() -> None:
    ours, reference, graphs = compiled_and_eager(lambda p: aimopt.RADAR(p, lr=0.01), shapes_for(aimopt.RADAR), 8)
    assert graphs == 2
    assert_same(ours, reference, 1e-5)


def test_combined_optimizers_with_the_default_backend() -> None:
    def build(params: Any) -> Any:
        return aimopt.groups.combine(aimopt.Muon(params[:1], 0.01), aimopt.RADAR(params[1:], 0.01))

    ours, reference, _ = compiled_and_eager(build, [(5, 4), (7,)], 3, backend="inductor")
    assert_same(ours, reference, 2e-3)  # Newton–Schulz runs in bfloat16, which inductor rounds elsewhere


def test_a_changed_hyperparameter_takes_effect() -> None:
    torch._dynamo.reset()
    eager, traced = parameters([(5,)]), parameters([(5,)])
    reference, optimizer = aimopt.RADAR(eager, 0.01), aimopt.RADAR(traced, 0.01)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for i, gamma in enumerate((0.1, 0.1, 0.5, 0.5, 0.1)):
        push(eager, i)
        push(traced, i)
        for one in (reference, optimizer):
            one.param_groups[0]["gamma"] = gamma
            one.param_groups[0]["betas"] = (0.9 - gamma, 0.99)
        reference.step()
        step()
        assert_same(flat(traced), flat(eager), 1e-5)


def test_a_step_that_is_refused_later_keeps_the_state_of_a_compiled_one() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = aimopt.RADAR([p], lr=0.01)
    p.grad = torch.ones(3)
    torch.compile(optimizer.step, backend="aot_eager")()
    average = optimizer.state[p]["exp_avg"].clone()
    p.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="its gradient is sparse"):
        optimizer.step()
    assert torch.equal(optimizer.state[p]["exp_avg"], average)


def test_a_first_step_that_cannot_be_compiled_says_why_and_changes_nothing() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = aimopt.RADAR([p], lr=0.01)
    p.grad = torch.ones(3).to_sparse()
    with pytest.raises(Exception, match=r"RADAR\.step: parameter 0 of group 0 .* its gradient is sparse"):
        torch.compile(optimizer.step, backend="aot_eager")()
    assert not optimizer.state
