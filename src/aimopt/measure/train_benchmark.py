"""The whole training step of a small GPT, forward and backward included: the cost of an optimizer in use.

The paper's overhead table, on this machine: time per step and peak memory under RADAR, AdamW and NAdam. Times are taken
in turn in one process. The forward and backward passes are timed separately too: they would be slower if the threads of
an optimizer disturbed torch's. Peak memory is measured in one process per optimizer; `RADAR in backward` frees every
gradient as soon as its parameter has moved.
"""

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import aimopt
from aimopt.measure.memory import peak_bytes
from aimopt.measure.processes import ctrl_c_held_back
from aimopt.measure.timing import Ratio, paired_ratio, state_bytes_per_parameter, time_in_turn
from aimopt.messages.text_table import text_table

VOCABULARY, CONTEXT, BATCH = 2048, 128, 4
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch AdamW fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "torch AdamW foreach": partial(torch.optim.AdamW, lr=1e-3, foreach=True),
    "torch NAdam foreach": partial(torch.optim.NAdam, lr=1e-3, foreach=True),
    "RADAR": partial(aimopt.RADAR, lr=1e-3),
    "RADAR in backward": partial(aimopt.RADAR, lr=1e-3),
    "AdamW": partial(aimopt.AdamW, lr=1e-3),
    "NAdam": partial(aimopt.NAdam, lr=1e-3),
}
REFERENCE = "torch AdamW fused"
IN_BACKWARD = "RADAR in backward"  # its step is part of the backward pass


class Block(nn.Module):
    """A layer of a decoder: attention and an MLP, each on a normalized residual stream."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of sequences to a batch of sequences."""
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, width: int = 256, layers: int = 6, heads: int = 4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next token at every position."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return self.norm(x) @ self.tokens.weight.T


class TrainTiming(NamedTuple):
    """The cost of one optimizer."""

    optimizer: str
    step_ms: float  # the whole training step
    ratio: Ratio  # step time / the reference's
    forward_backward_ms: float
    forward_backward_ratio: Ratio
    peak_mib: float  # of the process
    gradient_peak_mib: float  # of all gradients that are there at the same time
    state_bytes: float  # per parameter


class Trainer:
    """A model in training, on the same batch in every step: the time does not depend on the data."""

    def __init__(self, name: str, *, batch: int = BATCH, **size: int):
        torch.manual_seed(0)
        self.model = GPT(**size)
        self.optimizer = OPTIMIZERS[name](self.model.parameters())
        if name == IN_BACKWARD:
            assert isinstance(self.optimizer, aimopt.AIM)
            aimopt.in_backward(self.optimizer, self.model)
        self.batch = torch.randint(VOCABULARY, (batch, CONTEXT + 1))
        self.pass_seconds: list[float] = []

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.optimizer.zero_grad()
        start = time.perf_counter()
        logits = self.model(self.batch[:, :-1])
        cross_entropy(logits.flatten(0, 1), self.batch[:, 1:].flatten()).backward()
        self.pass_seconds.append(time.perf_counter() - start)
        self.optimizer.step()


def run(rounds: int, progress: Callable[[str], None] = print, **size: int) -> list[TrainTiming]:
    """Train with every optimizer in turn."""
    trainers = {name: Trainer(name, **size) for name in OPTIMIZERS}
    progress(f"{sum(p.numel() for p in trainers[REFERENCE].model.parameters()):,} parameters, {rounds} rounds")
    times = time_in_turn({name: trainer.step for name, trainer in trainers.items()}, rounds)
    passes = {name: trainer.pass_seconds[-rounds:] for name, trainer in trainers.items()}
    sizes = {name: state_bytes_per_parameter(trainer.optimizer) for name, trainer in trainers.items()}
    del trainers
    rows = []
    for name in OPTIMIZERS:
        progress(f"peak memory with {name}")
        rows.append(
            TrainTiming(
                name,
                statistics.median(times[name]) * 1e3,
                paired_ratio(times[name], times[REFERENCE]),
                statistics.median(passes[name]) * 1e3,
                paired_ratio(passes[name], passes[REFERENCE]),
                *peak_memory(name, size),
                sizes[name],
            )
        )
    return rows


def peak_memory(name: str, size: dict[str, int]) -> tuple[float, float]:
    """The peak memory of a process that trains with this optimizer, and that of its gradients alone, in MiB.

    `size` may also have the number of sequences per batch: `batch`.
    """
    with contextlib.ExitStack() as stack:
        with ctrl_c_held_back():
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        return pool.apply(_train_and_measure, (name, size))


def _train_and_measure(name: str, size: dict[str, int]) -> tuple[float, float]:
    trainer = Trainer(name, **size)
    for _ in range(3):
        trainer.step()
    return peak_bytes() / 2**20, _gradient_peak_bytes(trainer) / 2**20


def _gradient_peak_bytes(trainer: Trainer) -> int:
    """The most memory that gradients have at the same time in one step."""
    params, peak = list(trainer.model.parameters()), 0

    def count(arriving: Tensor) -> None:
        nonlocal peak
        peak = max(peak, arriving.nbytes + sum(p.grad.nbytes for p in params if p.grad is not None))

    for p in params:
        p.register_hook(count)  # before the gradient is complete, so before a step in backward
    trainer.step()
    return peak


def table(rows: Sequence[TrainTiming]) -> str:
    """The rows as text."""
    head: tuple[Any, ...] = (
        "optimizer",
        "step ms",
        f"/ {REFERENCE} [quartiles]",
        "forward+backward ms",
        "/ reference's",
        "peak MiB",
        "of it gradients",
        "state bytes",
    )
    body = [
        (
            row.optimizer,
            f"{row.step_ms:.1f}",
            str(row.ratio),
            f"{row.forward_backward_ms:.1f}",
            str(row.forward_backward_ratio),
            f"{row.peak_mib:.0f}",
            f"{row.gradient_peak_mib:.1f}",
            f"{row.state_bytes:.1f}",
        )
        for row in rows
    ]
    return text_table([head, *body])
