"""Hugging Face's Trainer: `python examples/hf_trainer.py`, with transformers and accelerate installed.

A tiny GPT-2 learns to count. First RADAR by class and keywords: the Trainer makes the parameter groups. Then the hybrid
(Muon on hidden matrices, RADAR on the rest) as a finished optimizer, and once more, resumed from a checkpoint.
"""

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import aimopt

COUNTING = [{"input_ids": torch.arange(i, i + 8) % 16, "labels": torch.arange(i, i + 8) % 16} for i in range(16)]


def tiny_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = GPT2Config(vocab_size=16, n_positions=8, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(sizes)


def arguments(folder: str, **changes: Any) -> TrainingArguments:
    quiet: dict[str, Any] = {"report_to": "none", "dataloader_pin_memory": False, "disable_tqdm": True}
    return TrainingArguments(folder, max_steps=12, logging_steps=6, **quiet, **changes)


def train_by_class(folder: str) -> float:
    """`lr` belongs to the keywords: the Trainer's learning_rate is not passed on. Its weight_decay is."""
    trainer = Trainer(
        tiny_model(),
        arguments(folder, weight_decay=0.01, save_strategy="no"),
        train_dataset=COUNTING,
        optimizer_cls_and_kwargs=(aimopt.RADAR, {"lr": 3e-3, "gamma": 0.05}),
    )
    return trainer.train().training_loss


def train_hybrid(folder: str, checkpoint: str | None = None) -> torch.Tensor:
    """A finished optimizer, and None for the Trainer's own scheduler; return the trained weights."""
    model = tiny_model()
    optimizer = aimopt.create("hybrid", model, lr=3e-3, weight_decay=0.01)
    trainer = Trainer(model, arguments(folder, save_steps=6), train_dataset=COUNTING, optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=checkpoint)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(f"RADAR by class and keywords: mean loss {train_by_class(folder):.2f}")
        whole = train_hybrid(folder)
        resumed = train_hybrid(folder, checkpoint=f"{folder}/checkpoint-6")
        print(f"hybrid, resumed at step 6 of 12: weights differ by {(whole - resumed).abs().max():.1g}")


if __name__ == "__main__":
    main()
