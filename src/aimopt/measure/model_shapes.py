"""The parameter shapes of real models, without the models.

MODELS["gpt2"]()    GPT-2, 124,439,808 parameters in 148 tensors
MODELS["tiny"]()    500 small vectors: the overhead of a step, without much arithmetic
"""

from collections.abc import Callable

Shapes = list[tuple[int, ...]]


def gpt2(layers: int = 12, width: int = 768, vocabulary: int = 50257, positions: int = 1024) -> Shapes:
    """GPT-2 with tied embeddings."""
    norm: Shapes = [(width,), (width,)]
    attention: Shapes = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    mlp: Shapes = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(vocabulary, width), (positions, width), *(norm + attention + norm + mlp) * layers, *norm]


def gpt2_matrices() -> Shapes:
    """The hidden matrices of GPT-2, for optimizers of matrices; input × output, as Hugging Face stores them."""
    return [shape for shape in gpt2()[2:] if len(shape) == 2]


def resnet50(classes: int = 100) -> Shapes:
    """ResNet-50 with the 3×3 stem for 32×32 images."""

    def convolution(inputs: int, outputs: int, kernel: int) -> Shapes:
        return [(outputs, inputs, kernel, kernel), (outputs,), (outputs,)]  # with its batch norm

    shapes = convolution(3, 64, 3)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(inputs, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            if block == 0:
                shapes += convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*shapes, (classes, inputs), (classes,)]


def vit(layers: int = 7, width: int = 384, tokens: int = 65, patch: int = 48, classes: int = 10) -> Shapes:
    """The paper's vision transformer for CIFAR-10, 6.3M parameters."""
    norm: Shapes = [(width,), (width,)]
    linear: Shapes = [(width, width), (width,)]
    layer = norm + linear * 4 + norm + linear * 2
    return [
        (1, 1, width),
        (1, tokens, width),
        (width, patch),
        (width,),
        *layer * layers,
        *norm,
        (classes, width),
        (classes,),
    ]


def tiny(tensors: int = 500) -> Shapes:
    """Vectors of 8 to 56 numbers."""
    return [(8 * (i % 7 + 1),) for i in range(tensors)]


MODELS: dict[str, Callable[[], Shapes]] = {
    "gpt2": gpt2,
    "gpt2-matrices": gpt2_matrices,
    "resnet50": resnet50,
    "vit": vit,
    "tiny": tiny,
}
MATRICES = ("gpt2-matrices",)  # the models for optimizers of matrices alone
