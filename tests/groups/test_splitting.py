"""Splitting a model's parameters, by our rules and by own ones."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from aimopt import groups
from small_transformer import Transformer


def names(params: Any) -> set[str]:
    """The names of parameters, or of those in groups."""
    return {name for item in params for name, _ in (item["params"] if isinstance(item, dict) else [item])}


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
    with pytest.raises(ValueError, match=r"groups\.split: the model has no module 'output'"):
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
            self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
            self.grouped = nn.Conv2d(8, 8, 3, groups=2)
            self.up_grouped = nn.ConvTranspose2d(8, 8, 3, groups=2)
            self.gate = nn.Linear(8, 1)
            self.recurrent = nn.LSTM(8, 4)
            self.shared = nn.Linear(8, 8)
            self.same = self.shared
            self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    split = groups.split(Odd())
    recurrent = {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0"}
    assert names(split.matrices) == {*recurrent, "shared.weight", "up.weight", "grouped.weight"}
    layouts = {d.name: d.layout for d in split.decisions if d.layout}
    assert layouts == {"up.weight": {"transposed": True}, "grouped.weight": {"row_blocks": 2}}
    decayed = names(split.rest(weight_decay=0.1)[0]["params"])
    assert decayed >= {"gate.weight", "depthwise.weight", "up_grouped.weight", "head.parametrizations.weight.original1"}
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


def kinds(split: groups.Split) -> dict[str, tuple[bool, bool]]:
    return {d.name: (d.matrix, d.decay) for d in split.decisions}


def test_parametrized_weights_are_the_weights_of_their_layers() -> None:
    parametrizations = nn.utils.parametrizations
    model = nn.ModuleDict(
        {
            "normed": parametrizations.weight_norm(nn.Linear(8, 6)),
            "spectral": parametrizations.spectral_norm(nn.Conv1d(4, 8, 3)),
            "embed": parametrizations.weight_norm(nn.Embedding(5, 8)),
            "head": nn.Linear(8, 4),
        }
    )
    found = kinds(groups.split(model))
    assert found["normed.parametrizations.weight.original1"] == (True, True)
    assert found["normed.parametrizations.weight.original0"] == (False, False)  # a scale per row
    assert found["spectral.parametrizations.weight.original"] == (True, True)
    assert found["embed.parametrizations.weight.original1"] == (False, False)
    one_scale = parametrizations.weight_norm(nn.Linear(8, 6), dim=None)  # type: ignore[arg-type]
    assert kinds(groups.split(one_scale))["parametrizations.weight.original0"] == (False, False)
    alone = parametrizations.weight_norm(nn.Linear(8, 6))
    assert kinds(groups.split(alone))["parametrizations.weight.original0"] == (False, False)


class LowRank(nn.Module):
    """A parametrization of a user: the weight is a product of two matrices."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = weight.shape
        return torch.ones(rows, 2), torch.ones(2, columns)


def test_the_factors_of_a_parametrization_are_no_matrices_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    register_parametrization(model[0], "weight", LowRank())
    split = groups.split(model)
    factors = [d for d in split.decisions if "original" in d.name]
    assert [(tuple(d.parameter.shape), d.matrix, d.decay) for d in factors] == [
        ((6, 2), False, True),
        ((2, 4), False, True),
    ]
    assert all("factor" in d.reason for d in factors)


def test_fused_matrices_are_taken_apart_where_that_is_asked_for() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)
            self.lstm, self.gru = nn.LSTM(8, 4), nn.GRU(8, 4)
            self.qkv_proj = nn.Linear(8, 24)
            self.grouped = nn.ModuleDict({"qkv_proj": nn.Linear(8, 12)})  # fewer keys than queries: unequal blocks
            self.query_key_value = nn.Linear(8, 24)  # alternate per head
            self.gate_up_proj = nn.Linear(8, 32)
            self.head = nn.Linear(8, 3)

    blocks = {d.name: d.layout["row_blocks"] for d in groups.split(Heads(), split_fused=True).decisions if d.layout}
    assert blocks == {
        "attention.in_proj_weight": 3,
        "lstm.weight_ih_l0": 4,
        "lstm.weight_hh_l0": 4,
        "gru.weight_ih_l0": 3,
        "gru.weight_hh_l0": 3,
        "qkv_proj.weight": 3,
        "gate_up_proj.weight": 2,
    }


def test_own_rules_come_first_and_the_first_that_matches_decides() -> None:
    def small_convolutions(name: str, parameter: torch.Tensor, module: nn.Module) -> groups.Treatment | None:
        return groups.as_rest(lr=0.5) if isinstance(module, nn.Conv1d) and parameter.ndim == 3 else None

    split = groups.split(
        Transformer(),
        rules=[
            ("hidden.*", groups.as_rest(decay=False)),
            (re.compile("in_proj_w"), groups.as_matrix(row_blocks=6, lr=0.25)),
            small_convolutions,
            ("hidden.weight", groups.as_matrix()),
            ("embed.*", groups.as_matrix(decay=False)),
        ],
    )
    found = kinds(split)
    assert found["hidden.weight"] == (False, False)
    assert found["attention.out_proj.weight"] == (True, True)  # ours
    reasons = {d.name: d.reason for d in split.decisions}
    assert reasons["hidden.weight"] == "own rule 'hidden.*'"
    assert reasons["attention.in_proj_weight"].startswith("own rule 'in_proj_w'")
    assert reasons["patch.weight"] == "own rule small_convolutions"
    options = [{key: value for key, value in group.items() if key != "params"} for group in split.matrices]
    assert options == [{"weight_decay": 0.0}, {"row_blocks": 6, "lr": 0.25}, {}]
    assert {"weight_decay": 0.1, "lr": 0.5} in [
        {key: value for key, value in group.items() if key != "params"} for group in split.rest(weight_decay=0.1)
    ]
    # An optimizer of all shapes has no use for the layout of matrices.
    assert not any("row_blocks" in group for group in split.all(weight_decay=0.1))


def test_an_own_rule_keeps_the_layout_of_a_layer() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(4, 8, 3), nn.Linear(8, 2))
    (decision, *_) = groups.split(model, rules=[("0.weight", groups.as_matrix(decay=False))]).decisions
    assert (decision.decay, decision.layout) == (False, {"transposed": True})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (("hiden.weight", groups.as_rest()), "has the pattern 'hiden.weight'.* did you mean 'hidden.weight'?"),
        ((re.compile("nothing"), groups.as_rest()), "no parameter of the model has the pattern 'nothing'"),
        (("hidden.weight", "rest"), "rule 'hidden.weight' must give a Treatment or None, got 'rest'"),
        (("hidden.bias", groups.as_matrix()), r"makes 'hidden.bias' a matrix, but its shape is \(8,\)"),
        ("hidden.weight", "a rule is a pair such as"),
        (lambda name, p, module: True, "rule <lambda> must give a Treatment or None, got True"),
    ],
)
def test_mistakes_in_rules_are_named(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups.split(Transformer(), rules=[rule])


def test_norms_are_known_by_the_name_of_their_class() -> None:
    class OwnRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

    (decision,) = groups.split(OwnRMSNorm()).decisions
    assert (decision.decay, decision.reason) == (False, "normalization")


def test_a_layer_of_a_numbered_block_is_not_the_output_layer() -> None:
    blocks = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"up": nn.Linear(8, 8)}) for _ in range(2)])})
    assert names(groups.split(blocks).matrices) == {"layers.0.up.weight", "layers.1.up.weight"}
    plain = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 3)])})
    assert names(groups.split(plain).matrices) == {"layers.0.weight"}
