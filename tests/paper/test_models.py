"""The networks have the size and the cost of the published ones."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from aimopt.paper.models.resnet import resnet50, small_resnet
from aimopt.paper.models.vit import ViT


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_papers_networks_have_its_number_of_parameters() -> None:
    with torch.device("meta"):
        assert parameters(ViT()) == 6_268_810
        assert parameters(resnet50(classes=100)) == 23_705_252


# Multiply-adds tell where a network halves its images. For ResNet-50 and images of 224, torchvision publishes 4.09e9:
# 0.12e9 in a stem that ours does not have, and the rest on (56/32)² times as many pixels. The others are He et al.'s,
# with the numbers of parameters in their table 6.
@pytest.mark.parametrize(
    ("layers", "expected_parameters", "multiply_adds"),
    [(20, 0.27e6, 41e6), (56, 0.85e6, 126e6), (50, 23.7e6, (4.09e9 - 0.12e9) * (32 / 56) ** 2)],
)
def test_resnets_have_the_published_size_and_cost(
    layers: int, expected_parameters: float, multiply_adds: float
) -> None:
    with torch.device("meta"):
        model = resnet50() if layers == 50 else small_resnet(layers, classes=10)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 32, 32))
    assert parameters(model) == pytest.approx(expected_parameters, rel=0.02)
    assert counter.get_total_flops() == pytest.approx(2 * multiply_adds, rel=0.01)


def test_a_small_resnet_of_impossible_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot have 9 layers; choose 6n"):
        small_resnet(9, classes=10)


@pytest.mark.parametrize("model", [ViT(width=24, layers=2, heads=2), small_resnet(8, classes=10)])
def test_images_become_scores(model: nn.Module) -> None:
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
