"""accelerate: `python examples/accelerate_loop.py`, with accelerate installed (or `accelerate launch …`).

The hybrid in an own training loop, with gradient accumulation, clipping and a scheduler; its state is saved and loaded.
"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aimopt


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = aimopt.create("hybrid", model, lr=3e-2, weight_decay=0.01)
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for _ in range(20):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    print(f"hybrid under accelerate: loss {losses[0]:.2f} → {losses[-1]:.4f}, state saved and loaded")


if __name__ == "__main__":
    main()
