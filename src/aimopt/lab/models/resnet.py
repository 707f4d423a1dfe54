"""Residual networks for images of 32x32 (He et al. 2016), built from one convolution and one residual block.

    resnet50(classes=100)        the paper's: bottlenecks behind a 3x3 stem without pooling, 23,705,252 parameters
    small_resnet(8, classes=10)  basic blocks of widths 16, 32 and 64; also 14, 20 and any other 6n + 2 layers

Where the shapes of input and output differ, the way past a block is a 1x1 convolution (their option B).
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

Body = Callable[[int, int, int], nn.Sequential]  # of (channels in, width, stride)


class Residual(nn.Module):
    """A body and the way past it, added up."""

    def __init__(self, body: nn.Sequential, past: nn.Module):
        super().__init__()
        self.body, self.past = body, past

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
    """A stem, stages of which each but the first halves the image, and a mean over what is left of it."""
    channels = widths[0]
    layers: list[nn.Module] = [*_convolution(3, channels, 3), nn.ReLU()]
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            outside = width * expansion
            same = stride == 1 and channels == outside
            past = nn.Identity() if same else _convolution(channels, outside, 1, stride)
            layers.append(Residual(body(channels, width, stride), past))
            channels = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _basic(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(channels, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3))


def _bottleneck(channels: int, width: int, stride: int) -> nn.Sequential:
    """Strided in the middle, as implementations have it since 2017, where He et al. stride at once."""
    return nn.Sequential(
        *_convolution(channels, width, 1),
        nn.ReLU(),
        *_convolution(width, width, 3, stride),
        nn.ReLU(),
        *_convolution(width, 4 * width, 1),
    )


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    """A normalized convolution, drawn as He et al. (2015) do, for what goes backward."""
    convolution = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(width))
