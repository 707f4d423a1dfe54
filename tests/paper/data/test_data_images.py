"""Every form of CIFAR becomes the same images and labels."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from aimopt.paper.data import images
from aimopt.paper.data.dataset import Content

random = np.random.default_rng(0)
TRAIN = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
TEST = random.integers(0, 256, (6, 32, 32, 3), np.uint8)
TRAIN_LABELS, TEST_LABELS = (random.integers(0, 100, n, np.uint8) for n in (20, 6))


def archive(path: Path, members: dict[str, bytes]) -> dict[str, Path]:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return {path.name: path}


def records(pixels: NDArray[np.uint8], *labels: NDArray[np.uint8]) -> bytes:
    """Label bytes, then the red, the green and the blue plane of each image."""
    return b"".join(
        bytes(int(label[i]) for label in labels) + b"".join(image[..., c].tobytes() for c in range(3))
        for i, image in enumerate(pixels)
    )


def picture(pixels: NDArray[np.uint8], format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, lossless=True)
    return buffer.getvalue()


def binary10(folder: Path) -> dict[str, Content]:
    parts = zip(np.split(TRAIN, 5), np.split(TRAIN_LABELS, 5), strict=True)
    members = {f"batch_{i}": records(*part) for i, part in enumerate(parts)} | {"test": records(TEST, TEST_LABELS)}
    read = images.binary_reader([f"batch_{i}" for i in range(5)], "test", labels=1)
    return dict(read(archive(folder / "binary.tgz", members)))


def binary100(folder: Path) -> dict[str, Content]:
    members = {
        "train": records(TRAIN, TRAIN_LABELS // 5, TRAIN_LABELS),
        "test": records(TEST, TEST_LABELS // 5, TEST_LABELS),
    }
    return dict(images.binary_reader(["train"], "test", labels=2)(archive(folder / "binary.tgz", members)))


def png_rows(folder: Path) -> dict[str, Content]:
    batches = enumerate(np.split(TRAIN, 5), 1)
    members = {f"package/data_batch_{i}.png": picture(part.reshape(4, 1024, 3), "png") for i, part in batches}
    members["package/test_batch.png"] = picture(TEST.reshape(6, 1024, 3), "png")
    members["package/train_lables.json"] = json.dumps(TRAIN_LABELS.tolist()).encode()
    members["package/test_lables.json"] = json.dumps(TEST_LABELS.tolist()).encode()
    return dict(images.read_png_rows(archive(folder / "rows.tgz", members)))


def grids(folder: Path) -> dict[str, Content]:
    def grid(name: str, pixels: NDArray[np.uint8]) -> None:
        rows = [np.concatenate(list(row), axis=1) for row in np.split(pixels, 2)]
        (folder / f"{name}.webp").write_bytes(picture(np.concatenate(rows), "webp"))

    for i, part in enumerate(np.split(TRAIN, 5)):
        grid(f"train_{i}", part)
    grid("test", TEST)
    np.savez(folder / "labels.npz", train_fine=TRAIN_LABELS, test_fine=TEST_LABELS)
    return dict(images.read_grids({path.name: path for path in folder.iterdir()}))


@pytest.mark.parametrize("form", [binary10, binary100, png_rows, grids])
def test_every_form_gives_the_same(form: Callable[[Path], dict[str, Content]], tmp_path: Path) -> None:
    for name, content in form(tmp_path).items():
        assert not isinstance(content, Path)
        (tmp_path / name).write_bytes(content)
    loaded = images.load(tmp_path)
    assert torch.equal(loaded.train, torch.from_numpy(TRAIN))
    assert torch.equal(loaded.test, torch.from_numpy(TEST))
    assert torch.equal(loaded.train_labels, torch.from_numpy(TRAIN_LABELS.astype(np.int64)))
    assert torch.equal(loaded.test_labels, torch.from_numpy(TEST_LABELS.astype(np.int64)))


def test_writing_to_the_images_does_not_change_the_cache(tmp_path: Path) -> None:
    for name in ("train", "train_labels", "test", "test_labels"):
        (tmp_path / name).write_bytes(bytes(3072))
    images.load(tmp_path).train.fill_(1)
    assert (tmp_path / "train").read_bytes() == bytes(3072)


def test_labels_with_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "labels.npz", train_fine=np.array([{}], object), test_fine=TEST_LABELS)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        images.read_grids({"labels.npz": tmp_path / "labels.npz"})
