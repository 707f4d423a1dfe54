"""One optimizer for several kinds of parameters."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import aimopt
from aimopt import AIM, RADAR, Muon, groups
from aimopt.parts.composition import Parts
from optimizer_driver import advance, assert_same, flat, parameters, push
from small_transformer import Transformer


def test_a_combination_steps_as_its_two_optimizers_do() -> None:
    shapes: Any = [(5, 4), (4, 9), (7,), (3,)]
    apart = parameters(shapes)
    muon, radar = Muon(apart[:2], 0.02, weight_decay=0.01), RADAR(apart[2:], 0.003, gamma=0.2)
    together = parameters(shapes)
    hybrid = groups.combine(Muon(together[:2], 0.02, weight_decay=0.01), RADAR(together[2:], 0.003, gamma=0.2))
    assert isinstance(hybrid, AIM)
    for step in range(8):
        push(apart, step)
        muon.step()
        radar.step()
        advance(hybrid, together, 1, first=step)
    assert_same(flat(together), flat(apart))
    saved = hybrid.state_dict()
    assert [group["geometry"] for group in saved["param_groups"]] == ["Spectral", "Relativistic"]
    other = groups.combine(Muon(together[:2]), RADAR(together[2:]))
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.02
    assert other.param_groups[1]["gamma"] == 0.2


def test_a_combination_can_also_be_written_as_groups() -> None:
    matrix, vector = parameters([(5, 4), (7,)])
    written: list[dict[str, Any]] = [
        {
            "params": [matrix],
            "filter": aimopt.EMA(0.95),
            "geometry": aimopt.Spectral(),
            "correction": aimopt.Direct(),
        },
        {"params": [vector]},
    ]
    optimizer = RADAR(written, lr=0.01)
    assert optimizer.param_groups[0]["betas"] == (0.95,)
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.999)
    advance(optimizer, [matrix, vector], 3)
    assert set(optimizer.state[matrix]) == {"step", "exp_avg"}


def test_a_combination_trains_a_model_under_one_scheduler() -> None:
    torch.manual_seed(0)
    model = Transformer()
    split = groups.split(model)
    optimizer = groups.combine(
        Muon(split.matrices, lr=0.02, weight_decay=0.01), RADAR(split.rest(weight_decay=0.01), lr=3e-3)
    )
    assert optimizer.param_groups[0]["param_names"][0] == "patch.weight"
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    tokens = torch.randint(0, 11, (4, 12))
    frozen = model.frozen.weight.clone()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert torch.equal(model.frozen.weight, frozen)


def test_optimizers_that_cannot_be_combined_are_refused() -> None:
    params = parameters([(2, 2)])
    with pytest.raises(ValueError, match="pass the optimizers"):
        groups.combine()
    with pytest.raises(ValueError, match="got AdamW"):
        groups.combine(torch.optim.AdamW(params))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="some optimizers are differentiable=True"):
        groups.combine(RADAR(params), RADAR(parameters([(2,)]), differentiable=True))
    used = RADAR(params)
    advance(used, params, 1)
    with pytest.raises(ValueError, match="before the first step"):
        groups.combine(used)


def test_a_combination_has_the_settings_of_its_first_optimizer() -> None:
    a, b, c = parameters([(2, 2), (3,), (4,)])
    optimizer = groups.combine(RADAR([b], maximize=True, weight_decay=0.3, foreach=False), Muon([a]))
    optimizer.add_param_group({"params": [c]})
    added = optimizer.param_groups[-1]
    assert (added["maximize"], added["weight_decay"], added["geometry"]) == (True, 0.3, "Relativistic")
    assert optimizer.param_groups[1]["maximize"] is False


def test_a_combined_optimizer_may_be_combined_and_keeps_its_betas() -> None:
    a, b, c, d = parameters([(2, 2), (3,), (4,), (5,)])
    combined = groups.combine(RADAR([b], betas=(0.5, 0.7)), Muon([a]))
    again = groups.combine(combined, RADAR([c]))
    again.add_param_group({"params": [d]})
    assert [group.get("betas") for group in again.param_groups] == [(0.5, 0.7), None, (0.9, 0.999), (0.5, 0.7)]


CYCLES: dict[str, Any] = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3),
}


@pytest.mark.parametrize("cycle", CYCLES.values(), ids=CYCLES.keys())
@pytest.mark.parametrize("first", ["Muon", "RADAR"])
def test_a_scheduler_cycles_the_momentum_of_every_group(cycle: Any, first: str) -> None:
    """β1 of the groups that have `betas`, and `momentum` of the others, as in the two optimizers alone."""
    a, b = parameters([(4, 3), (5,)])
    matrices, rest = Muon([a], 0.02), RADAR([b], 0.01)
    optimizer = groups.combine(*((matrices, rest) if first == "Muon" else (rest, matrices)))
    scheduler = cycle(optimizer)
    c, d = parameters([(4, 3), (5,)])
    alone = [Muon([c], 0.02), RADAR([d], 0.01)]
    schedulers = [cycle(o) for o in alone]
    poles = set()
    for step in range(8):
        push([a, b], step)
        optimizer.step()
        scheduler.step()
        push([c, d], step)
        for o, s in zip(alone, schedulers, strict=True):
            o.step()
            s.step()
        of_group = {Parts.from_group(group).filter.pole for group in optimizer.param_groups}
        assert of_group == {Parts.from_group(o.param_groups[0]).filter.pole for o in alone}
        poles |= of_group
    assert len(poles) > 5
    assert_same(flat([a, b]), flat([c, d]))


def test_a_cycled_momentum_survives_a_checkpoint() -> None:
    def build() -> Any:
        a, b = parameters([(4, 3), (5,)])
        optimizer = groups.combine(RADAR([b], 0.01), Muon([a], 0.02))
        return [b, a], optimizer, CYCLES["OneCycleLR"](optimizer)

    params, optimizer, scheduler = build()
    twins, resumed, its_scheduler = build()
    for step in range(8):
        if step == 4:
            resumed.load_state_dict(deepcopy(optimizer.state_dict()))
            its_scheduler.load_state_dict(scheduler.state_dict())
            for p, twin in zip(params, twins, strict=True):
                twin.data.copy_(p.data)
        push(params, step)
        optimizer.step()
        scheduler.step()
        if step >= 4:
            push(twins, step)
            resumed.step()
            its_scheduler.step()
    assert torch.equal(flat(params), flat(twins))
    alone = RADAR([twins[0]], 0.01)
    state = resumed.state_dict()
    alone.load_state_dict({"state": {0: state["state"][0]}, "param_groups": state["param_groups"][:1]})
    assert alone.param_groups[0]["betas"][0] == state["param_groups"][0]["momentum"]
    assert "momentum" not in alone.param_groups[0]


def test_a_group_that_is_added_later_has_the_parts_of_the_first_optimizer() -> None:
    a, b, c = parameters([(4, 3), (5,), (6,)])
    optimizer = deepcopy(groups.combine(RADAR([b], 0.01, (0.8, 0.99)), Muon([a], 0.02)))
    optimizer.add_param_group({"params": [c]})
    assert optimizer.param_groups[-1]["betas"] == (0.8, 0.99)
    assert "momentum" not in optimizer.param_groups[-1]


@pytest.mark.parametrize("recipe", ["combine", "hybrid"])
@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 4),  # an output layer, and no hidden matrix
        nn.Sequential(nn.Conv2d(3, 4, 2, bias=False)),  # nothing but a matrix
    ],
    ids=["no matrix", "no rest"],
)
def test_one_side_may_be_empty(recipe: str, model: nn.Module) -> None:
    if recipe == "hybrid":
        optimizer = aimopt.create("hybrid", model, lr=0.01)
    else:
        split = groups.split(model)
        optimizer = groups.combine(Muon(split.matrices, lr=0.02), RADAR(split.rest(weight_decay=0.1), lr=1e-3))
    before = flat(list(model.parameters()))
    advance(optimizer, list(model.parameters()), 2)
    assert (flat(list(model.parameters())) != before).all()
    assert all(group["params"] for group in optimizer.param_groups)


def test_a_frozen_model_is_refused() -> None:
    split = groups.split(nn.Linear(4, 4).requires_grad_(False))
    with pytest.raises(ValueError, match="is the whole model frozen"):
        groups.combine(Muon(split.matrices), RADAR(split.rest(weight_decay=0.1)))


def test_the_hybrid_is_muon_and_radar_with_one_learning_rate() -> None:
    torch.manual_seed(0)
    one, other = Transformer(tied=False).double(), Transformer(tied=False).double()
    other.load_state_dict(one.state_dict())
    hybrid = aimopt.create(
        "hybrid", one, lr=0.01, weight_decay=0.2, matrix_weight_decay=0.05, matrix_options={"momentum": 0.9}
    )
    split = groups.split(other)
    muon = Muon(split.matrices, 0.01, 0.05, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    radar = RADAR(split.rest(weight_decay=0.2), 0.01)
    assert {group["lr"] for group in hybrid.param_groups} == {0.01}
    for step in range(5):
        advance(hybrid, [p for p in one.parameters() if p.requires_grad], 1, first=step)
        push([p for p in other.parameters() if p.requires_grad], step)
        muon.step()
        radar.step()
    assert_same(flat(list(one.parameters())), flat(list(other.parameters())))


def test_both_sides_of_a_hybrid_can_be_chosen_by_name() -> None:
    torch.manual_seed(0)
    one, other = Transformer(tied=False).double(), Transformer(tied=False).double()
    other.load_state_dict(one.state_dict())
    options: dict[str, Any] = {"weight_decay": 0.2, "decay_all": True, "rest_options": {"betas": (0.8, 0.99)}}
    hybrid = aimopt.create("hybrid", one, lr=0.01, matrices="soap", rest="AdamW", **options)
    split = groups.split(other)
    soap = aimopt.SOAP(split.matrices, 0.01, weight_decay=0.2)
    rest = [p for group in split.rest(weight_decay=0.2) for _, p in group["params"]]
    adamw = torch.optim.AdamW(rest, 0.01, betas=(0.8, 0.99), weight_decay=0.2)  # it decays norms and biases, too
    for step in range(5):
        advance(hybrid, [p for p in one.parameters() if p.requires_grad], 1, first=step)
        push([p for p in other.parameters() if p.requires_grad], step)
        soap.step()
        adamw.step()
    assert_same(flat(list(one.parameters())), flat(list(other.parameters())))


def test_the_steps_of_both_sides_have_the_size_of_adams() -> None:
    """Under random gradients, an element of Adam's step has a size of about 0.2·lr: that is what Muon is scaled to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False))
    optimizer = aimopt.create("hybrid", model, lr=0.01, weight_decay=0.0)
    hidden, head = model.parameters()
    for _ in range(50):
        before = hidden.detach().clone(), head.detach().clone()
        hidden.grad, head.grad = torch.randn_like(hidden), torch.randn_like(head)
        optimizer.step()
    sizes = [(p - old).square().mean().sqrt().item() / 0.01 for p, old in zip((hidden, head), before, strict=True)]
    assert sizes[0] == pytest.approx(0.2, rel=0.2)
    assert 0.1 < sizes[1] < 0.4


def test_the_hybrid_saves_and_loads_one_state() -> None:
    first, second = Transformer(tied=False), Transformer(tied=False)
    second.load_state_dict(first.state_dict())
    one, other = (aimopt.create("hybrid", model, lr=0.01) for model in (first, second))
    trainable = [[p for p in model.parameters() if p.requires_grad] for model in (first, second)]
    advance(one, trainable[0], 3)
    second.load_state_dict(first.state_dict())
    other.load_state_dict(deepcopy(one.state_dict()))  # torch would share the tensors
    for optimizer, params in zip((one, other), trainable, strict=True):
        advance(optimizer, params, 2, first=3)
    assert torch.equal(flat(trainable[0]), flat(trainable[1]))


def test_the_hybrid_needs_the_model() -> None:
    with pytest.raises(ValueError, match="so pass the model; got generator"):
        aimopt.create("hybrid", nn.Linear(2, 2).parameters(), lr=0.1)


def test_an_optimizer_explains_what_each_parameter_got() -> None:
    model = Transformer(tied=False)
    lines = groups.explain(aimopt.create("hybrid", model, lr=0.01, weight_decay=0.2)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["hidden.weight"] == ["8×8", "Spectral", "0.01", "0.2"]
    assert rows["head.weight"] == ["11×8", "Relativistic", "0.01", "0.2"]
    assert rows["norm.bias"] == ["8", "Relativistic", "0.01", "0"]
    assert "frozen.weight" not in rows
    unnamed = groups.explain(torch.optim.AdamW(model.head.parameters(), lr=torch.tensor(0.5)))
    assert unnamed.splitlines()[1].split() == ["0", "of", "group", "0", "11×8", "AdamW", "0.5", "0.01"]


def test_a_layer_that_is_stored_as_input_by_output_steps_as_its_transpose() -> None:
    """GPT-2's Conv1D is a linear layer stored the other way round: the shape rule must not be transposed with it."""
    torch.manual_seed(0)
    conv1d: Any = Conv1D
    stored = nn.Sequential(conv1d(48, 8), nn.Tanh(), nn.Linear(48, 4)).double()
    plain = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 4)).double()
    plain.load_state_dict(
        {name: value.T if name == "0.weight" else value for name, value in stored.state_dict().items()}
    )
    options = {"adjust_lr_fn": "original", "momentum": 0.9}
    inputs = torch.randn(16, 8, dtype=torch.float64)
    for model in stored, plain:
        optimizer = aimopt.create("hybrid", model, lr=0.1, matrix_options=options)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    # Newton–Schulz runs in float32. A transposed shape rule would change steps of 0.1 by √6.
    torch.testing.assert_close(stored[0].weight.T, plain[0].weight, rtol=0, atol=1e-4)


def test_experts_step_as_matrices_of_their_own() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj = nn.Parameter(torch.randn(3, 6, 4, dtype=torch.float64))

    together = Experts()
    apart = [p.detach().clone().requires_grad_() for p in together.up_proj]
    one = aimopt.create("hybrid", together, lr=0.1)
    other = Muon(apart, lr=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        together.up_proj.grad = torch.randn(3, 6, 4, dtype=torch.float64)
        for p, grad in zip(apart, together.up_proj.grad, strict=True):
            p.grad = grad.clone()
        one.step()
        other.step()
    torch.testing.assert_close(together.up_proj, torch.stack(apart), rtol=1e-6, atol=1e-7)
