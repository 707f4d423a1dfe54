"""Residual networks for images of 32x32 (He et al. 2016), built from one convolution and one residual block.

    resnet50(classes=100)        the paper's: bottleneck blocks after a 3x3 stem without pooling, 23,705,252 parameters
    small_resnet(8, classes=10)  basic blocks of widths 16, 32 and 64; also 14, 20 and any other 6n + 2 layers

Where the shapes of input and output differ, the shortcut of a block is a 1x1 convolution (their option B).
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

Body = Callable[[int, int, int], nn.Sequential]  # (input channels, width, stride) to layers


class ResidualBlock(nn.Module):
    """The sum of a body and its shortcut."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module):
        super().__init__()
        self.body, self.past = body, shortcut  # `past` is the name in the weights that stores keep

    def forward(self, x: Tensor) -> Tensor:
        """Images in, images out."""
        return nn.functional.relu(self.body(x) + self.past(x))


def resnet50(classes: int = 100) -> nn.Sequential:
    """ResNet-50 with a stem for small images."""
    return _resnet(_bottleneck, widths=(64, 128, 256, 512), blocks=(3, 4, 6, 3), expansion=4, classes=classes)


def small_resnet(layers: int, classes: int) -> nn.Sequential:
    """The thin networks of He et al. for CIFAR-10: three stages of n basic blocks, 6n + 2 layers."""
    if layers < 8 or layers % 6 != 2:
        raise ValueError(f"a small ResNet cannot have {layers} layers; choose 6n + 2 of them: 8, 14, 20, …")
    return _resnet(_basic, widths=(16, 32, 64), blocks=3 * (layers // 6,), expansion=1, classes=classes)


def _resnet(body: Body, *, widths: Sequence[int], blocks: Sequence[int], expansion: int, classes: int) -> nn.Sequential:
    """A stem, stages that halve the image (except the first), and a mean over the remaining pixels."""
    channels = widths[0]
    layers: list[nn.Module] = [*_convolution(3, channels, 3), nn.ReLU()]
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            outputs = width * expansion
            same_shape = stride == 1 and channels == outputs
            shortcut = nn.Identity() if same_shape else _convolution(channels, outputs, 1, stride)
            layers.append(ResidualBlock(body(channels, width, stride), shortcut))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _basic(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(channels, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3))


def _bottleneck(channels: int, width: int, stride: int) -> nn.Sequential:
    """The stride is in the 3x3 convolution, as in most code since 2017; He et al. have it in the first one."""
    return nn.Sequential(
        *_convolution(channels, width, 1),
        nn.ReLU(),
        *_convolution(width, width, 3, stride),
        nn.ReLU(),
        *_convolution(width, 4 * width, 1),
    )


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm, initialized as in He et al. (2015) for the backward pass (fan out)."""
    convolution = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(width))
