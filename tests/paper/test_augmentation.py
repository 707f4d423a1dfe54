"""Augmentation: each operation is Pillow's to the last bit, each image gets its own, and a seed fixes them all."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images
from torch import Tensor

from aimopt.paper.augmentation import (
    OPERATIONS,
    POLICY,
    SIGNED,
    auto_augment,
    operate,
    random_crop,
    random_flip,
    strength,
)

FILL = (128, 128, 128)


def affine(image: Image.Image, *coefficients: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=FILL)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "nothing": lambda image, m: image,
    "shear_y": lambda image, m: affine(image, 1, 0, 0, m, 1, 0),
    "translate_x": lambda image, m: affine(image, 1, 0, m * image.width, 0, 1, 0),
    "translate_y": lambda image, m: affine(image, 1, 0, 0, 0, 1, m * image.height),
    "rotate": lambda image, m: image.rotate(m, fillcolor=FILL),
    "color": lambda image, m: ImageEnhance.Color(image).enhance(1 + m),
    "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1 + m),
    "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1 + m),
    "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + m),
    "solarize": lambda image, m: ImageOps.solarize(image, math.ceil(256 - m)),
    "posterize": lambda image, m: ImageOps.posterize(image, 8 - int(m)),
    "auto_contrast": lambda image, m: ImageOps.autocontrast(image),
    "equalize": lambda image, m: ImageOps.equalize(image),
    "invert": lambda image, m: ImageOps.invert(image),
}


def patches(size: int = 32) -> Tensor:
    """Photographs cut up, and images that leave an operation nothing to do."""
    photographs = torch.from_numpy(np.stack(load_sample_images().images)[:, 128:256, 256:384]).permute(0, 3, 1, 2)
    cut = photographs.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    flat = torch.full_like(cut[:1], 77)
    two_values, narrow = flat.clone(), 100 + cut[:1] % 2
    two_values[:, :, 0, 0] = 78
    return torch.cat([cut, flat, two_values, narrow, flat * 0, flat * 0 + 255])


def pillow(operation: str, image: Tensor, magnitude: float) -> Tensor:
    changed = PILLOW[operation](Image.fromarray(image.permute(1, 2, 0).numpy()), magnitude)
    return torch.from_numpy(np.array(changed)).permute(2, 0, 1)


def operate_all(operation: str, images: Tensor, magnitude: float) -> Tensor:
    index = torch.full((len(images),), OPERATIONS.index(operation))
    return operate(images, index, torch.full((len(images),), magnitude, dtype=torch.float64))


@pytest.mark.parametrize("operation", OPERATIONS[1:])
def test_an_operation_is_pillows(operation: str) -> None:
    images = patches()
    signs = (1, -1) if operation in SIGNED else (1,)
    for magnitude in {sign * strength(operation, level) for level in range(10) for sign in signs}:
        expected = torch.stack([pillow(operation, image, magnitude) for image in images])
        assert torch.equal(operate_all(operation, images, magnitude), expected)


def test_every_image_has_an_operation_of_its_own() -> None:
    images = patches()[-2 * len(OPERATIONS) :]
    names = [OPERATIONS[place % len(OPERATIONS)] for place in range(len(images))]
    magnitudes = [0.0 if name == "nothing" else strength(name, 7) for name in names]
    together = operate(
        images, torch.tensor([OPERATIONS.index(n) for n in names]), torch.tensor(magnitudes, dtype=torch.float64)
    )
    alone = [pillow(*each) for each in zip(names, images, magnitudes, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def outcomes(image: Tensor) -> dict[bytes, float]:
    """What AutoAugment makes of an image and how often, from its table and Pillow."""
    total: dict[bytes, float] = {}
    for first, second in POLICY:
        for one, chance in turn(image, *first):
            for two, then in turn(one, *second):
                key = two.numpy().tobytes()
                total[key] = total.get(key, 0.0) + chance * then / len(POLICY)
    return total


def turn(image: Tensor, operation: str, probability: float, level: int) -> list[tuple[Tensor, float]]:
    signs = (1, -1) if operation in SIGNED else (1,)
    changed = [(pillow(operation, image, s * strength(operation, level)), probability / len(signs)) for s in signs]
    return [(image, 1 - probability), *changed]


def test_auto_augment_follows_its_table() -> None:
    torch.manual_seed(0)
    image, count = patches(16)[5], 20_000
    expected = {key: chance for key, chance in outcomes(image).items() if chance}
    augmented = torch.cat([auto_augment(image.expand(1000, -1, -1, -1)) for _ in range(count // 1000)])
    found, times = augmented.flatten(1).unique(dim=0, return_counts=True)
    for row, seen in zip(found, times.tolist(), strict=True):
        chance = expected.pop(row.contiguous().numpy().tobytes())
        assert abs(seen - count * chance) < 5 * math.sqrt(count * chance)
    assert all(count * chance < 25 for chance in expected.values())


def test_a_seed_fixes_the_images() -> None:
    images, results = patches(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(auto_augment(random_flip(random_crop(images))))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_crops_are_parts_of_the_padded_image() -> None:
    torch.manual_seed(0)
    image = patches(8)[50]
    padded = np.pad(image.numpy(), ((0, 0), (2, 2), (2, 2)))
    parts = {padded[:, i : i + 8, j : j + 8].tobytes() for i in range(5) for j in range(5)}
    assert {crop.numpy().tobytes() for crop in random_crop(image.expand(1000, -1, -1, -1), padding=2)} == parts


def test_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    images = patches(4)[:1000]
    flipped = random_flip(images)
    changed = (flipped != images).flatten(1).any(1)
    assert torch.equal(flipped[changed], images[changed].flip(-1))
    assert 400 < changed.sum() < 600


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_seed_means_the_same_images_on_a_gpu() -> None:
    images, results = patches(), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        results.append(auto_augment(random_flip(random_crop(images.to(device)))).cpu())
    assert torch.equal(*results)
