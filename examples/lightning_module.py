"""Lightning: `python examples/lightning_module.py`, with lightning installed.

Automatic optimization takes what configure_optimizers returns, and passes a closure to each step: corrections
that evaluate it again work too. In manual optimization you call step yourself.
"""

import logging
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import aimopt


class Automatic(lightning.LightningModule):
    """The hybrid under a scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        self.losses: list[float] = []

    def configure_optimizers(self) -> Any:
        optimizer = aimopt.create("hybrid", self, lr=3e-2, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    def training_step(self, batch: Any, index: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.losses.append(loss.item())
        return loss


class Manual(Automatic):
    """RADAR, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return aimopt.RADAR(aimopt.groups.split(self).all(weight_decay=0.01), lr=1e-2)

    def training_step(self, batch: Any, index: int) -> Tensor:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, index)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=1.0)
        optimizer.step()
        return loss


def train(module: Automatic) -> list[float]:
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=10, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, loader)
    return module.losses


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for module in Automatic(), Manual():
        torch.manual_seed(0)
        losses = train(module)
        print(f"{type(module).__name__} optimization: loss {losses[0]:.2f} → {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
