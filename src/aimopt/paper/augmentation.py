"""Random changes of training images: one batch at a time, another change for every image, on any device.

    random_crop(images)     shifted by up to 4 pixels, filled with black
    random_flip(images)     half of the images mirrored
    auto_augment(images)    AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019, table 7)

Images are uint8 in the layout (batch, channel, row, column). Random numbers are drawn on the CPU by torch's generator,
so that a seed gives the same images on every device. An operation of AutoAugment is of one of three kinds, and each
kind is applied to the whole batch at once: moving pixels, changing values by a table, blending with another image. Each
operation equals Pillow's to the last bit. It is written by hand because torchvision does not import over a CPU torch.

The policy gives the strength of an operation as a level from 0 to 9. Level 9 is the end of the range in the paper's
table 6; shifts, angles and enhancements have a random sign; pixels from outside are grey. PyTorch ports read the paper
in this way. The authors' own code for CIFAR counts to level 10, shifts by at most 10 pixels, and enhances by
0.1 + 1.8·level/10.
"""

import torch
from torch import Tensor

GREY = 128

# Strength at level 9; at level 0 an operation does not change the image.
STRENGTHS = {
    "shear_y": 0.3,  # rows per column
    "translate_x": 150 / 331,  # share of the side
    "translate_y": 150 / 331,
    "rotate": 30.0,  # degrees
    "color": 0.9,  # added to or subtracted from the factor 1
    "contrast": 0.9,
    "brightness": 0.9,
    "sharpness": 0.9,
    "solarize": 256.0,  # number of values that are inverted, from the highest down
    "posterize": 4.0,  # number of low bits set to 0
    "auto_contrast": 0.0,
    "equalize": 0.0,
    "invert": 0.0,
}
SIGNED = ("shear_y", "translate_x", "translate_y", "rotate", "color", "contrast", "brightness", "sharpness")
OPERATIONS = ("nothing", *STRENGTHS)

# Sub-policies: two operations in turn, each with its probability and level.
POLICY = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("auto_contrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("auto_contrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("auto_contrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("auto_contrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("auto_contrast", 0.9, 1)),
)


def random_crop(images: Tensor, padding: int = 4) -> Tensor:
    """A random crop of each image padded with black on all sides; its size is the size of the image."""
    count, _, height, width = images.shape
    down, right = torch.randint(-padding, padding + 1, (2, count, 1, 1)).to(images.device)
    rows, columns = _grid(height, width, images.device)
    return _pick(images, rows + down, columns + right, fill=0)


def random_flip(images: Tensor) -> Tensor:
    """Each image mirrored left to right with probability one half."""
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(mirrored.to(images.device), images.flip(-1), images)


def auto_augment(images: Tensor) -> Tensor:
    """Each image through a random sub-policy of AutoAugment for CIFAR-10."""
    policy = torch.randint(len(POLICY), (len(images),))
    chances = torch.rand(len(images), 2)
    signs = 2.0 * torch.randint(2, (len(images), 2)) - 1
    for turn in range(2):
        names, probabilities, levels = zip(*(pair[turn] for pair in POLICY), strict=True)
        happens = chances[:, turn] < torch.tensor(probabilities)[policy]
        operations = torch.tensor([OPERATIONS.index(name) for name in names])[policy] * happens
        strengths = torch.tensor([strength(*each) for each in zip(names, levels, strict=True)], dtype=torch.float64)
        signed = torch.tensor([name in SIGNED for name in names])[policy]
        magnitudes = strengths[policy] * torch.where(signed, signs[:, turn], 1.0)
        images = operate(images, operations.to(images.device), magnitudes.to(images.device))
    return images


def strength(operation: str, level: int) -> float:
    """The strength of an operation at a level, in the unit of `STRENGTHS`."""
    share = STRENGTHS[operation] * level / 9
    return round(share) if operation == "posterize" else share


def operate(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Apply one operation per image, an index into `OPERATIONS`, with one signed strength per image (float64)."""
    chosen = {name: operations == index for index, name in enumerate(OPERATIONS)}
    images = _move(images, chosen, magnitudes)
    images = _map_values(images, chosen, magnitudes)
    return _blend(images, chosen, magnitudes)


def _move(images: Tensor, chosen: dict[str, Tensor], magnitudes: Tensor) -> Tensor:
    """Shear, shift or rotate: an affine map of the coordinates, around the centre for rotations, nearest pixel."""
    height, width = images.shape[-2:]

    def only(operation: str) -> Tensor:
        return torch.where(chosen[operation], magnitudes, 0.0)

    angle = -torch.deg2rad(only("rotate"))
    cosine, sine = angle.cos(), angle.sin()
    shear = only("shear_y") - sine
    x = width * only("translate_x") + (width - cosine * width - sine * height) / 2
    y = height * only("translate_y") + (height + sine * width - cosine * height) / 2
    rows, columns = _grid(height, width, images.device)
    from_column = _fixed(x + (cosine + sine) / 2) + _fixed(cosine) * columns + _fixed(sine) * rows
    from_row = _fixed(y + (shear + cosine) / 2) + _fixed(shear) * columns + _fixed(cosine) * rows
    return _pick(images, from_row >> 16, from_column >> 16, fill=GREY)


def _fixed(values: Tensor) -> Tensor:
    """In units of 2⁻¹⁶, like the coordinates of Pillow."""
    return (values * 65536 + 0.5).floor().long()[:, None, None]


def _map_values(images: Tensor, chosen: dict[str, Tensor], magnitudes: Tensor) -> Tensor:
    """Change values by a table, one table per channel of each image."""
    pixels = images.flatten(2).long()
    values = torch.arange(256, device=images.device)

    def only(operation: str) -> Tensor:
        return torch.where(chosen[operation], magnitudes, 0.0)[:, None, None]

    inverted = chosen["invert"][:, None, None] | (values >= 256 - only("solarize"))
    dropped = only("posterize").long()
    tables = (torch.where(inverted, 255 - values, values) >> dropped << dropped).expand(-1, images.shape[1], -1)
    tables = torch.where(chosen["auto_contrast"][:, None, None], _contrast_tables(pixels, values), tables)
    tables = torch.where(chosen["equalize"][:, None, None], _equalization_tables(pixels, values), tables)
    return tables.gather(2, pixels).to(torch.uint8).view_as(images)


def _contrast_tables(pixels: Tensor, values: Tensor) -> Tensor:
    """Tables that stretch the values of each channel to the range 0 to 255."""
    lowest, highest = (extreme[:, :, None].double() for extreme in (pixels.amin(2), pixels.amax(2)))
    scale = torch.full_like(lowest, 255) / (highest - lowest).clamp(min=1)  # 255 / x would round twice
    stretched = (values * scale + -lowest * scale).clamp(0, 255).long()
    return torch.where(highest > lowest, stretched, values)


def _equalization_tables(pixels: Tensor, values: Tensor) -> Tensor:
    """Tables that make the values of each channel about equally frequent."""
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int64, device=pixels.device)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels))
    count_of_highest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - count_of_highest) // 255
    below = counts.cumsum(2) - counts
    equalized = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, values)


def _blend(images: Tensor, chosen: dict[str, Tensor], magnitudes: Tensor) -> Tensor:
    """Blend each image with a duller one, or move it away from that one."""
    enhancing = ("color", "contrast", "brightness", "sharpness")
    color, contrast, brightness, sharpness = (chosen[name][:, None, None, None] for name in enhancing)
    colors = images.int()
    weights = torch.tensor([19595, 38470, 7471], device=images.device).view(3, 1, 1)  # of ITU-R 601-2, in 2⁻¹⁶
    grey = ((colors * weights).sum(1, keepdim=True) + 0x8000) >> 16
    pixels = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)
    dull = torch.where(color, grey, torch.where(contrast, mean, torch.where(sharpness, _smooth(colors), 0)))
    enhanced = color | contrast | brightness | sharpness
    factor = torch.where(enhanced, 1 + magnitudes[:, None, None, None], 1.0).float()
    return (dull + factor * (colors - dull)).clamp(0, 255).to(torch.uint8)


def _smooth(colors: Tensor) -> Tensor:
    """Means over 3x3 pixels, with weight 5 for the middle pixel; the pixels at the border stay."""
    height, width = colors.shape[-2:]
    around = sum(colors[..., i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3))
    inner = colors[..., 1:-1, 1:-1]
    smooth = colors.clone()
    smooth[..., 1:-1, 1:-1] = (2 * (around + 4 * inner) + 13) // 26
    return smooth


def _grid(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.arange(height, device=device)[:, None], torch.arange(width, device=device)


def _pick(images: Tensor, rows: Tensor, columns: Tensor, fill: int) -> Tensor:
    """The pixels at coordinates given per image; coordinates outside give `fill`."""
    height, width = images.shape[-2:]
    rows, columns = torch.broadcast_tensors(rows, columns)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    indices = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
    picked = images.flatten(2).gather(2, indices[:, None].expand(-1, images.shape[1], -1)).view_as(images)
    return torch.where(inside[:, None], picked, fill)
