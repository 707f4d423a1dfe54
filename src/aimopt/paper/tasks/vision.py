"""The paper's vision settings: CIFAR-10 with a vision transformer, CIFAR-100 with ResNet-50.

    Cifar10ViT.at_scale("paper")
    Cifar10ViT.at_scale("paper", {"auto_augment": False})    only crops and flips

The paper trains for 100 epochs with "standard data augmentation" and gives few other settings. The others were inferred
from the family of code that it follows. The split is ours: the test images are the official ones, and the search is
scored on the last images of each class in the training set. No run trains on them; the paper may have.

The scale `mini` is the same code on the same data, but with the first few images of each class, small networks and no
AutoAugment. It compares optimizers under these conditions and does not reproduce the paper's numbers.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aimopt.lab.protocol.supervised import Batch, Splits, Supervised
from aimopt.paper import augmentation
from aimopt.paper.data import cifar10, cifar100
from aimopt.paper.data.images import Images
from aimopt.paper.models.resnet import resnet50, small_resnet
from aimopt.paper.models.vit import ViT
from aimopt.paper.tasks.classification import classification

ChannelValues = tuple[float, float, float]  # red, green, blue; from 0 to 1

EPOCH = 45_000 // 128
MINI = {"log_every": 10, "auto_augment": False}


@dataclass(frozen=True, kw_only=True)
class Cifar(Supervised):
    """Small images in equally large classes; the training loss and the reported loss have label smoothing."""

    margin: ClassVar[float] = 0.005
    classes: ClassVar[int]
    channel_means: ClassVar[ChannelValues]  # of the training images, per channel
    channel_deviations: ClassVar[ChannelValues]

    lr: float = 1e-3
    steps: int = 100 * EPOCH
    evaluate_every: int = EPOCH
    log_every: int = EPOCH // 9
    warmup_steps: int = 5 * EPOCH
    last_lr: float = 1e-5
    batch_size: int = 128
    label_smoothing: float = 0.1
    auto_augment: bool = True
    train_per_class: int
    valid_per_class: int
    test_per_class: int

    @abstractmethod
    def images(self) -> Images:
        """The dataset."""

    @abstractmethod
    def network(self) -> nn.Module:
        """A new network; it maps standardized images to class scores."""

    def prepare(self) -> None:
        self.images()

    def data(self) -> Splits:
        images = self.images()
        train, test = _indices_by_class(images.train_labels), _indices_by_class(images.test_labels)
        available, wanted = train.shape[1], self.train_per_class + self.valid_per_class
        if min(self.train_per_class, self.valid_per_class, self.test_per_class) < 1:
            raise ValueError("train_per_class, valid_per_class and test_per_class must be at least 1")
        if wanted > available or self.test_per_class > test.shape[1]:
            raise ValueError(
                f"{wanted} images per class for training and search and {self.test_per_class} for test are too many; "
                f"there are {available} and {test.shape[1]}"
            )
        return Splits(
            train=_select(train[:, : self.train_per_class], images.train, images.train_labels),
            valid=_select(train[:, available - self.valid_per_class :], images.train, images.train_labels),
            test=_select(test[:, : self.test_per_class], images.test, images.test_labels),
        )

    def random_examples(self) -> Splits:
        def images(count: int) -> Batch:  # `expand` needs no memory
            return torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8).expand(count, 3, 32, 32), torch.zeros(
                count
            ).long()

        valid, test = self.classes * self.valid_per_class, self.classes * self.test_per_class
        return Splits(train=images(self.batch_size), valid=images(valid), test=images(test))

    def model(self) -> nn.Module:
        return nn.Sequential(Standardize(self.channel_means, self.channel_deviations), self.network())

    def augment(self, batch: Batch) -> Batch:
        images, labels = batch
        images = augmentation.random_flip(augmentation.random_crop(images))
        return (augmentation.auto_augment(images) if self.auto_augment else images), labels

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.measures(model, batch)["loss"]

    def measures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return classification(model(batch[0]), batch[1], self.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class Cifar10ViT(Cifar):
    """CIFAR-10 and the vision transformer with 6,268,810 parameters."""

    title: ClassVar[str] = "CIFAR-10, ViT (6.3M)"
    titles: ClassVar[Mapping[str, str]] = {"mini": "CIFAR-10, ViT (115k)", "mini-1": "CIFAR-10 subset, small ViT"}
    classes: ClassVar[int] = 10
    channel_means: ClassVar[ChannelValues] = (0.4914, 0.4822, 0.4465)
    channel_deviations: ClassVar[ChannelValues] = (0.2470, 0.2435, 0.2616)
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            **MINI,
            "lr": 4e-3,
            "batch_size": 128,
            "steps": 500,
            "evaluate_every": 50,
            "warmup_steps": 40,
            "patch": 8,
            "width": 64,
            "layers": 4,
            "heads": 4,
            "hidden": 64,
            "train_per_class": 4500,
            "valid_per_class": 100,
            "test_per_class": 1000,
        },
        "mini-1": {
            **MINI,
            "batch_size": 64,
            "steps": 900,
            "evaluate_every": 75,
            "warmup_steps": 45,
            "patch": 8,
            "width": 64,
            "layers": 4,
            "heads": 4,
            "hidden": 64,
            "train_per_class": 1000,
            "valid_per_class": 100,
            "test_per_class": 100,
        },
    }

    train_per_class: int = 4500
    valid_per_class: int = 500
    test_per_class: int = 1000
    patch: int = 4
    width: int = 384
    layers: int = 7
    heads: int = 12
    hidden: int = 384

    def images(self) -> Images:
        return cifar10()

    def network(self) -> nn.Module:
        return ViT(patch=self.patch, width=self.width, layers=self.layers, heads=self.heads, hidden=self.hidden)


@dataclass(frozen=True, kw_only=True)
class Cifar100ResNet(Cifar):
    """CIFAR-100 and ResNet-50 with 23,705,252 parameters; `small_resnet` makes the other depths."""

    title: ClassVar[str] = "CIFAR-100, ResNet-50"
    titles: ClassVar[Mapping[str, str]] = {"mini": "CIFAR-100, ResNet-8", "mini-1": "CIFAR-100 subset, ResNet-8"}
    classes: ClassVar[int] = 100
    channel_means: ClassVar[ChannelValues] = (0.5071, 0.4867, 0.4408)
    channel_deviations: ClassVar[ChannelValues] = (0.2675, 0.2565, 0.2761)
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            **MINI,
            "lr": 4e-3,
            "batch_size": 64,
            "steps": 500,
            "evaluate_every": 50,
            "warmup_steps": 40,
            "depth": 8,
            "train_per_class": 450,
            "valid_per_class": 10,
            "test_per_class": 50,
        },
        "mini-1": {
            **MINI,
            "lr": 2e-3,
            "batch_size": 32,
            "steps": 500,
            "evaluate_every": 50,
            "warmup_steps": 25,
            "depth": 8,
            "train_per_class": 100,
            "valid_per_class": 10,
            "test_per_class": 10,
        },
    }

    train_per_class: int = 450
    valid_per_class: int = 50
    test_per_class: int = 100
    depth: int = 50

    def images(self) -> Images:
        return cifar100()

    def network(self) -> nn.Module:
        network: Any = resnet50(classes=100) if self.depth == 50 else small_resnet(self.depth, classes=100)
        return network.to(memory_format=torch.channels_last)  # about twice as fast on a CPU


class Standardize(nn.Module):
    """Map bytes to numbers with mean 0 and standard deviation 1 over the dataset, per channel."""

    means: Tensor
    deviations: Tensor

    def __init__(self, means: ChannelValues, deviations: ChannelValues):
        super().__init__()
        self.register_buffer("means", 255 * torch.tensor(means).view(3, 1, 1), persistent=False)
        self.register_buffer("deviations", 255 * torch.tensor(deviations).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Standardize images."""
        return (images - self.means) / self.deviations


def _indices_by_class(labels: Tensor) -> Tensor:
    """The indices of the examples of each class, in order: one row per class."""
    return labels.argsort(stable=True).view(int(labels.max()) + 1, -1)


def _select(indices: Tensor, images: Tensor, labels: Tensor) -> Batch:
    return images[indices.flatten()].permute(0, 3, 1, 2).contiguous(), labels[indices.flatten()]
