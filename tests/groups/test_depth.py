"""Depth by names, and learning rates that decay towards the input."""

from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt import RADAR, groups
from aimopt.groups.depth import distances_from_output, is_inside_block
from optimizer_driver import advance


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # BEiT's and MAE's rule: embeddings below block 0, head and last norm at full rate.
        (["cls_token", "patch_embed.proj.x", "blocks.0.x", "blocks.1.x", "norm.x", "head.x"], [3, 3, 2, 1, 0, 0]),
        (["transformer.wte.weight", "transformer.h.0.x", "transformer.h.10.x", "transformer.h.9.x"], [4, 3, 1, 2]),
        (["conv1.weight", "layer1.0.conv1.x", "layer1.1.conv1.x", "layer2.0.downsample.0.x", "fc.x"], [4, 3, 2, 1, 0]),
        (["stages.0.blocks.0.x", "stages.0.blocks.1.x", "stages.1.downsample.x", "stages.1.blocks.0.x"], [4, 3, 2, 1]),
        # T5's sublayers are not blocks, and each tower is counted on its own.
        (["shared.x", "encoder.block.0.layer.0.x", "encoder.block.1.layer.1.x", "decoder.block.0.layer.2.x"],
         [3, 2, 1, 1]),
        # An expert's number is not a depth.
        (["layers.0.experts.7.x", "layers.1.experts.3.x"], [2, 1]),
    ],
)  # fmt: skip
def test_distances(names: list[str], expected: list[int]) -> None:
    assert distances_from_output(names) == expected


def test_a_part_of_a_block_is_inside_it() -> None:
    assert is_inside_block("model.layers.3.mlp")
    assert not is_inside_block("model.layers.3")
    assert not is_inside_block("lm_head")


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(4, 4)}) for _ in range(2)])
        self.head = nn.Linear(4, 5)


def rates(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}


EXPECTED = {
    "embed.weight": 0.125,
    "blocks.0.up.weight": 0.25,
    "blocks.0.up.bias": 0.25,
    "blocks.1.up.weight": 0.5,
    "blocks.1.up.bias": 0.5,
    "head.weight": 1.0,
    "head.bias": 1.0,
}


@pytest.mark.parametrize("name", ["hybrid", "radar", "torch"])
def test_learning_rates_decay_towards_the_input(name: str) -> None:
    model = Deep()
    if name == "hybrid":
        optimizer: torch.optim.Optimizer = aimopt.create("hybrid", model, lr=1.0, weight_decay=0.1, layer_decay=0.5)
    else:
        kind: Any = RADAR if name == "radar" else torch.optim.AdamW
        optimizer = kind(groups.split(model).all(weight_decay=0.1), lr=1.0)
        groups.layerwise(optimizer, model, 0.5)
    assert rates(optimizer) == EXPECTED
    decays = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    assert decays == {name: 0.1 if name.endswith("weight") and "embed" not in name else 0.0 for name in EXPECTED}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    advance(optimizer, list(model.parameters()), 2)
    scheduler.step()
    assert rates(optimizer) == {name: 0.5 * lr for name, lr in EXPECTED.items()}


def test_a_tensor_learning_rate_stays_a_tensor() -> None:
    model = Deep()
    optimizer = RADAR(groups.split(model).all(weight_decay=0.1), lr=torch.tensor(1.0))
    groups.layerwise(optimizer, model, 0.5)
    assert {name: lr.item() for name, lr in rates(optimizer).items()} == EXPECTED
    assert len({id(group["lr"]) for group in optimizer.param_groups}) == len(optimizer.param_groups)


def test_depths_may_be_given() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = RADAR(model.named_parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"no parameter is in a numbered block .*'0.weight'.*pass depth="):
        groups.layerwise(optimizer, model, 0.5)
    groups.layerwise(optimizer, model, 0.5, depth=lambda name: int(name.split(".")[0]))
    assert rates(optimizer) == {"0.weight": 0.5, "1.weight": 1.0}


def test_mistakes_are_named_and_change_nothing() -> None:
    model = Deep()
    optimizer = RADAR(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"decay must be a number in \(0, 1\], got 75"):
        groups.layerwise(optimizer, model, 75)
    with pytest.raises(ValueError, match=r"7 parameters of the optimizer.*are not in the model"):
        groups.layerwise(optimizer, Deep(), 0.5)
    advance(optimizer, list(model.parameters()), 1)
    with pytest.raises(ValueError, match="has stepped"):
        groups.layerwise(optimizer, model, 0.5)
    scheduled = RADAR(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.ConstantLR(scheduled)
    with pytest.raises(ValueError, match="before the scheduler is made"):
        groups.layerwise(scheduled, model, 0.5)
    assert [len(other.param_groups) for other in (optimizer, scheduled)] == [1, 1]
