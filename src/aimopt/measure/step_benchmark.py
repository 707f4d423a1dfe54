"""The optimizer step alone: ours against torch's fused and foreach AdamW, published peers, and the memory bandwidth.

All optimizers of one comparison step the same parameters with the same gradients; only their states differ.
`streaming` is a plain loop that reads and writes the same bytes as our step, almost without arithmetic.
"""

import importlib
import statistics
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aimopt
from aimopt.kernels.addresses import address_row
from aimopt.kernels.cpu.library import library
from aimopt.measure.model_shapes import MODELS, Shapes
from aimopt.measure.timing import Ratio, paired_ratio, state_bytes_per_parameter, time_in_turn
from aimopt.messages.reason import Reason
from aimopt.messages.text_table import text_table

LARGE = ("gpt2", "resnet50")  # a step of the others takes milliseconds: they get more rounds
LR = 1e-6  # the same gradient in every step: with this, parameters hardly move


class TimedOptimizer(NamedTuple):
    """An optimizer of a comparison."""

    name: str
    build: Callable[[Sequence[Tensor]], torch.optim.Optimizer]


class Family(NamedTuple):
    """One of our optimizers, and the peers it is compared with."""

    ours: TimedOptimizer
    peers: tuple[TimedOptimizer, ...]


class StepTiming(NamedTuple):
    """One of our optimizers and one peer on one model."""

    model: str
    parameters: int
    ours: str
    peer: str
    ours_ms: float
    peer_ms: float
    ratio: Ratio  # our time / the peer's time
    ours_state_bytes: float  # per parameter
    peer_state_bytes: float


def _peer(module: str, name: str, **options: Any) -> Callable[[Sequence[Tensor]], torch.optim.Optimizer] | None:
    """A published optimizer; None if it is not installed."""
    try:
        optimizer = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return partial(optimizer, lr=LR, **options)


def _installed(*candidates: tuple[str, Any]) -> tuple[TimedOptimizer, ...]:
    return tuple(TimedOptimizer(name, build) for name, build in candidates if build is not None)


def families() -> list[Family]:
    """The comparisons for which peers are installed."""
    adamw = partial(torch.optim.AdamW, lr=LR)
    peers = {
        "RADAR": _installed(
            ("torch AdamW fused", partial(adamw, fused=True)),
            ("torch AdamW foreach", partial(adamw, foreach=True)),
            ("pytorch-rad RADAR", _peer("rad.optim", "RADAR")),
            ("pytorch-rad RADAR foreach", _peer("rad.optim", "RADAR", foreach=True)),
        ),
        "Adan": _installed(
            ("pytorch_optimizer Adan", _peer("pytorch_optimizer", "Adan")),
            ("pytorch_optimizer Adan foreach", _peer("pytorch_optimizer", "Adan", foreach=True)),
        ),
        "AdaBelief": _installed(
            ("adabelief-pytorch", _peer("adabelief_pytorch", "AdaBelief", print_change_log=False)),
            ("pytorch_optimizer AdaBelief", _peer("pytorch_optimizer", "AdaBelief")),
        ),
        "Lion": _installed(
            ("lion-pytorch", _peer("lion_pytorch", "Lion")),
            ("pytorch_optimizer Lion", _peer("pytorch_optimizer", "Lion")),
        ),
        "NAdam": _installed(("torch NAdam foreach", partial(torch.optim.NAdam, lr=LR, foreach=True))),
    }
    ours = {name: TimedOptimizer(name, partial(getattr(aimopt, name), lr=LR)) for name in peers}
    return [Family(ours[name], installed) for name, installed in peers.items() if installed]


def time_family(model: str, shapes: Shapes, family: Family, rounds: int) -> list[StepTiming]:
    """Time the optimizers of a family in turn."""
    params = [torch.zeros(shape).normal_(std=0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizers = {name: build(params) for name, build in (family.ours, *family.peers)}
    calls: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in optimizers.items()}
    ours = family.ours.name
    optimizers[ours].step()
    count = sum(p.numel() for p in params)
    streaming = streaming_over(params, optimizers[ours])
    if streaming is not None and count > 1e6:  # below that, the time of the call dominates
        calls["streaming"] = streaming
    times = time_in_turn(calls, rounds)
    sizes = {name: state_bytes_per_parameter(optimizer) for name, optimizer in optimizers.items()}
    return [
        StepTiming(
            model,
            count,
            ours,
            peer,
            statistics.median(times[ours]) * 1e3,
            statistics.median(times[peer]) * 1e3,
            paired_ratio(times[ours], times[peer]),
            sizes[ours],
            sizes.get(peer, sizes[ours]),
        )
        for peer in calls
        if peer != ours
    ]


def streaming_over(params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """A plain loop over the memory that one step of `optimizer` reads and writes; None without the kernel's library."""
    lib = library()
    if isinstance(lib, Reason):
        return None
    own_buffers = [[torch.zeros_like(x) for x in optimizer.state[p].values() if x.ndim] for p in params]
    streams = [(p, *buffers, p.grad) for p, buffers in zip(params, own_buffers, strict=True) if p.grad is not None]
    rows = array("q", (number for tensors in streams for number in address_row(tensors)))

    def stream() -> None:
        lib.stream(rows.buffer_info()[0], len(streams), len(streams[0]), torch.get_num_threads())

    return stream


def run(models: Sequence[str], rounds: int, progress: Callable[[str], None] = print) -> list[StepTiming]:
    """All comparisons on the given models."""
    rows = []
    for model in models:
        for family in families():
            progress(f"{model}: {family.ours.name} against {', '.join(peer.name for peer in family.peers)}")
            rows += time_family(model, MODELS[model](), family, rounds * (1 if model in LARGE else 5))
    return rows


def table(rows: Sequence[StepTiming]) -> str:
    """The rows as text."""
    head = ("model", "ours", "peer", "ours ms", "peer ms", "ours / peer [quartiles]", "state bytes: ours", "peer")
    body = [
        (
            row.model,
            row.ours,
            row.peer,
            f"{row.ours_ms:.2f}",
            f"{row.peer_ms:.2f}",
            str(row.ratio),
            f"{row.ours_state_bytes:.1f}",
            f"{row.peer_state_bytes:.1f}",
        )
        for row in rows
    ]
    return text_table([head, *body])
