"""Splitting a model's parameters, and one optimizer for several kinds of them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt import AIM, RADAR, Muon, groups
from aimopt.parts.composition import Parts
from optimizer_driver import advance, assert_same, flat, parameters, push


class Transformer(nn.Module):
    """Embedding, attention, norms, a convolution, a tied output layer and a frozen one."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.patch = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.hidden = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(1, 8))
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.patch(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.hidden(self.norm(self.frozen(x))) * self.scale)


def names(params: Any) -> set[str]:
    return {name for name, _ in params}


def test_matrices_are_the_hidden_weights() -> None:
    split = groups.split(Transformer())
    assert names(split.matrices) == {
        "patch.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "hidden.weight",
    }
    (undecayed,) = split.rest(weight_decay=0.1)
    assert undecayed["weight_decay"] == 0.0
    assert "embed.weight" in names(undecayed["params"])
    assert split.frozen == ["frozen.weight", "frozen.bias"]


def test_an_untied_head_is_decayed_but_is_not_a_matrix() -> None:
    split = groups.split(Transformer(tied=False))
    decayed, kept = split.rest(weight_decay=0.1)
    assert names(decayed["params"]) == {"head.weight"}
    assert {"embed.weight", "norm.weight", "norm.bias", "hidden.bias", "scale"} <= names(kept["params"])
    everything = split.all(weight_decay=0.1)
    assert sum(len(group["params"]) for group in everything) == len(split.decisions)
    assert "hidden.weight" in names(everything[0]["params"])


def test_the_head_can_be_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert names(groups.split(model).matrices) == {"0.weight", "1.weight"}
    assert names(groups.split(model, head="0").matrices) == {"1.weight", "2.weight"}
    with pytest.raises(ValueError, match="no module named 'output'"):
        groups.split(model, head="output")


def test_a_lone_linear_layer_is_the_output_layer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))
    assert names(groups.split(model).matrices) == {"0.weight"}


def test_the_output_of_attention_is_not_the_output_layer() -> None:
    model = nn.ModuleDict({"hidden": nn.Linear(8, 8), "attention": nn.MultiheadAttention(8, 2)})
    assert "attention.out_proj.weight" in names(groups.split(model).matrices)
    assert names(groups.split(model).matrices).isdisjoint({"hidden.weight"})


def test_odd_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(16, 8))
            self.token = nn.Parameter(torch.zeros(1, 1, 8))
            self.up = nn.ConvTranspose2d(4, 8, 3)
            self.gate = nn.Linear(8, 1)
            self.recurrent = nn.LSTM(8, 4)
            self.shared = nn.Linear(8, 8)
            self.same = self.shared
            self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    split = groups.split(Odd())
    assert names(split.matrices) == {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "shared.weight"}
    decayed = names(split.rest(weight_decay=0.1)[0]["params"])
    assert decayed >= {"up.weight", "gate.weight", "head.parametrizations.weight.original1"}
    assert decayed.isdisjoint({"positions", "token"})
    assert "shared.weight" not in names(groups.split(Odd(), head="same").matrices)


def test_every_decision_is_explained() -> None:
    table = groups.split(Transformer()).explain()
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert "embedding, shared by 2 modules" in lines["embed.weight"]
    assert "convolution kernel, 8×24 when flattened" in lines["patch.weight"]
    assert "frozen: left out" in lines["frozen.bias"]
    assert "hidden matrix" in lines["hidden.weight"]
    assert lines["hidden.weight"].split()[1:4] == ["8×8", "yes", "yes"]
    assert lines["scale"].split()[1:4] == ["1×8", "no", "no"]


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
    with pytest.raises(ValueError, match="at least one"):
        groups.combine()
    with pytest.raises(ValueError, match="got AdamW"):
        groups.combine(torch.optim.AdamW(params))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all differentiable, or none"):
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
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
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
    optimizer = copy.deepcopy(groups.combine(RADAR([b], 0.01, (0.8, 0.99)), Muon([a], 0.02)))
    optimizer.add_param_group({"params": [c]})
    assert optimizer.param_groups[-1]["betas"] == (0.8, 0.99)
    assert "momentum" not in optimizer.param_groups[-1]
