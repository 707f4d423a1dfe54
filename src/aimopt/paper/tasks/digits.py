"""The handwritten digits of scikit-learn and a small vision transformer: real data, seconds per run, no download."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aimopt.lab.protocol.supervised import Batch, Splits, Supervised
from aimopt.paper.models.vit import ViT
from aimopt.paper.tasks.classification import classification


@dataclass(frozen=True, kw_only=True)
class Digits(Supervised):
    """1,797 images of 8x8 pixels: 900 for training, 357 for the search and 540 for the report."""

    title: ClassVar[str] = "Digits, ViT (18k)"
    margin: ClassVar[float] = 0.16  # half the standard deviation of a paired difference: there are only 540 test images
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn",)
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "demo": {},
        "mini": {"steps": 1400, "warmup_steps": 70},
    }

    lr: float = 1e-2
    steps: int = 140  # 10 epochs
    evaluate_every: int = 28
    log_every: int = 7
    warmup_steps: int = 14
    batch_size: int = 64

    def data(self) -> Splits:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        images = (images / 8 - 1).reshape(-1, 1, 8, 8)
        x, x_test, y, y_test = train_test_split(images, labels, test_size=540, random_state=0, stratify=labels)
        x_train, x_valid, y_train, y_valid = train_test_split(x, y, test_size=357, random_state=0, stratify=y)
        train, valid, test = (
            (torch.as_tensor(x).float(), torch.as_tensor(y))
            for x, y in ((x_train, y_train), (x_valid, y_valid), (x_test, y_test))
        )
        return Splits(train, valid, test)

    def model(self) -> nn.Module:
        return ViT(image=8, channels=1, patch=2, width=32, layers=2, heads=4, hidden=64)

    def measures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return classification(model(batch[0]), batch[1])
