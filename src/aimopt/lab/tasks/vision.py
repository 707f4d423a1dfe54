"""The paper's vision settings: CIFAR-10 with a vision transformer, CIFAR-100 with ResNet-50.

    Cifar10ViT.at("paper")
    Cifar10ViT.at("paper", {"auto_augment": False})    crops and flips alone

The paper trains for 100 epochs with "standard data augmentation" and says little more; what else is a setting here was
inferred from the code family it follows. The split is ours: test images are the official ones, and the search goes by
the last images of each class in the training set, on which no run trains. The paper may have trained on all of them.

The scale `mini` is the same code on the same data, but with the first few images of each class, small networks and no
AutoAugment. It shows how optimizers compare on that, not what the paper found.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aimopt.lab import augmentation
from aimopt.lab.data import Images, cifar10, cifar100
from aimopt.lab.models.resnet import resnet50, small_resnet
from aimopt.lab.models.vit import ViT
from aimopt.lab.tasks.classification import classification
from aimopt.lab.tasks.supervised import Batch, Splits, Supervised

Colour = tuple[float, float, float]  # red, green, blue; 1 is full

EPOCH = 45_000 // 128
MINI = {"log_every": 10, "auto_augment": False}


@dataclass(frozen=True, kw_only=True)
class Cifar(Supervised):
    """Small images in equally large classes; the loss is smoothed in training and in what is reported."""

    channel_means: ClassVar[Colour]  # of the training images
    channel_deviations: ClassVar[Colour]

    lr: float = 1e-3
    steps: int = 100 * EPOCH
    search_steps: int = 10 * EPOCH
    evaluate_every: int = EPOCH
    log_every: int = EPOCH // 9
    warmup_steps: int = 5 * EPOCH
    last_lr: float = 1e-5
    weight_decay: float = 5e-5
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
        """A new network, from standardized images to scores."""

    def prepare(self) -> None:
        self.images()

    def data(self) -> Splits:
        images = self.images()
        train, test = _places_by_class(images.train_labels), _places_by_class(images.test_labels)
        there, wanted = train.shape[1], self.train_per_class + self.valid_per_class
        if min(self.train_per_class, self.valid_per_class, self.test_per_class) < 1:
            raise ValueError("train_per_class, valid_per_class and test_per_class must be at least 1: each has its use")
        if wanted > there or self.test_per_class > test.shape[1]:
            raise ValueError(
                f"{wanted} images a class for training and search and {self.test_per_class} for test are too many: "
                f"there are {there} and {test.shape[1]}"
            )
        return Splits(
            train=_taken(train[:, : self.train_per_class], images.train, images.train_labels),
            valid=_taken(train[:, there - self.valid_per_class :], images.train, images.train_labels),
            test=_taken(test[:, : self.test_per_class], images.test, images.test_labels),
        )

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
    titles: ClassVar[Mapping[str, str]] = {"mini": "CIFAR-10 subset, small ViT"}
    channel_means: ClassVar[Colour] = (0.4914, 0.4822, 0.4465)
    channel_deviations: ClassVar[Colour] = (0.2470, 0.2435, 0.2616)
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (0.8011, 0.0112),
        "RAD": (0.8307, 0.0051),
        "Adam": (0.8240, 0.0078),
        "AdamW": (0.8339, 0.0039),
        "NAdam": (0.8200, 0.0107),
        "Adan": (0.8029, 0.0086),
        "AdaBelief": (0.8322, 0.0078),
        "Lion": (0.8063, 0.0089),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            **MINI,
            "batch_size": 64,
            "steps": 900,
            "search_steps": 450,
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
    """CIFAR-100 and ResNet-50 with 23,705,252 parameters; other depths are those of `small_resnet`."""

    title: ClassVar[str] = "CIFAR-100, ResNet-50"
    titles: ClassVar[Mapping[str, str]] = {"mini": "CIFAR-100 subset, ResNet-8"}
    channel_means: ClassVar[Colour] = (0.5071, 0.4867, 0.4408)
    channel_deviations: ClassVar[Colour] = (0.2675, 0.2565, 0.2761)
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (1.6190, 0.0088),
        "RAD": (1.6787, 0.0108),
        "Adam": (1.6244, 0.0100),
        "AdamW": (1.6771, 0.0191),
        "NAdam": (1.6326, 0.0122),
        "Adan": (1.6338, 0.0068),
        "AdaBelief": (1.6831, 0.0086),
        "Lion": (1.7078, 0.0152),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            **MINI,
            "lr": 2e-3,
            "batch_size": 32,
            "steps": 500,
            "search_steps": 250,
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
        return network.to(memory_format=torch.channels_last)  # about twice as fast on a processor


class Standardize(nn.Module):
    """Bytes to numbers whose mean over the dataset is 0 and whose deviation is 1, channel by channel."""

    means: Tensor
    deviations: Tensor

    def __init__(self, means: Colour, deviations: Colour):
        super().__init__()
        self.register_buffer("means", 255 * torch.tensor(means).view(3, 1, 1), persistent=False)
        self.register_buffer("deviations", 255 * torch.tensor(deviations).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images in, images out."""
        return (images - self.means) / self.deviations


def _places_by_class(labels: Tensor) -> Tensor:
    """Where the examples of each class are, in order: one row a class."""
    return labels.argsort(stable=True).view(int(labels.max()) + 1, -1)


def _taken(places: Tensor, images: Tensor, labels: Tensor) -> Batch:
    return images[places.flatten()].permute(0, 3, 1, 2).contiguous(), labels[places.flatten()]
