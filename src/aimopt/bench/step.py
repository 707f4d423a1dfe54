"""The optimizer step alone: ours against torch's fused and foreach AdamW, published peers, and the machine itself.

All optimizers of one comparison step the same parameters with the same gradients, so that only their states differ.
`streaming` is a plain loop that reads and writes the bytes that our step does: what its arithmetic is measured against.
"""

import ctypes
import importlib
import statistics
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aimopt
from aimopt.bench.shapes import MODELS, Shapes
from aimopt.bench.timing import Ratio, aligned, in_turn, ratio, state_bytes
from aimopt.kernels.library import library

LARGE = ("gpt2", "resnet50")  # the others take milliseconds, and are timed more often
LR = 1e-6  # many steps on the same gradient: they should not lead anywhere


class Contender(NamedTuple):
    """An optimizer of a comparison."""

    name: str
    build: Callable[[Sequence[Tensor]], torch.optim.Optimizer]


class Family(NamedTuple):
    """One of ours, and what it is compared with."""

    ours: Contender
    peers: tuple[Contender, ...]


class Row(NamedTuple):
    """One of ours beside one peer on one model."""

    model: str
    parameters: int
    ours: str
    peer: str
    ours_ms: float
    peer_ms: float
    ratio: Ratio  # our time for each unit of the peer's
    ours_state_bytes: float  # a parameter
    peer_state_bytes: float


def _peer(module: str, name: str, **options: Any) -> Callable[[Sequence[Tensor]], torch.optim.Optimizer] | None:
    """A published optimizer, if it is installed."""
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return partial(found, lr=LR, **options)


def _installed(*candidates: tuple[str, Any]) -> tuple[Contender, ...]:
    return tuple(Contender(name, build) for name, build in candidates if build is not None)


def families() -> list[Family]:
    """The comparisons that can be made with what is installed."""
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
    ours = {name: Contender(name, partial(getattr(aimopt, name), lr=LR)) for name in peers}
    return [Family(ours[name], found) for name, found in peers.items() if found]


def compare(model: str, shapes: Shapes, family: Family, rounds: int) -> list[Row]:
    """Step the optimizers of a family in turn."""
    params = [torch.zeros(shape).normal_(std=0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizers = {name: build(params) for name, build in (family.ours, *family.peers)}
    calls: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in optimizers.items()}
    ours = family.ours.name
    optimizers[ours].step()
    count = sum(p.numel() for p in params)
    streaming = streaming_over(params, optimizers[ours])
    if streaming is not None and count > 1e6:  # below that, calling it is all it takes
        calls["streaming"] = streaming
    times = in_turn(calls, rounds)
    sizes = {name: state_bytes(optimizer) for name, optimizer in optimizers.items()}
    return [
        Row(
            model,
            count,
            ours,
            peer,
            statistics.median(times[ours]) * 1e3,
            statistics.median(times[peer]) * 1e3,
            ratio(times[ours], times[peer]),
            sizes[ours],
            sizes.get(peer, sizes[ours]),
        )
        for peer in calls
        if peer != ours
    ]


def streaming_over(params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """The plain loop over the memory that a step of `optimizer` passes over; None without the kernel's library."""
    lib = library()
    if isinstance(lib, str):
        return None
    spare = [[torch.zeros_like(x) for x in optimizer.state[p].values() if x.ndim] for p in params]
    rows = array("q")
    for p, buffers in zip(params, spare, strict=True):
        assert p.grad is not None
        rows.extend([p.numel(), p.grad.data_ptr(), p.data_ptr(), *(x.data_ptr() for x in buffers)])
    written = 1 + len(spare[0])

    def stream() -> None:
        assert spare  # keeps the memory
        arguments = ctypes.c_void_p(rows.buffer_info()[0]), ctypes.c_int64(len(params)), written
        lib.stream(*arguments, torch.get_num_threads())

    return stream


def run(models: Sequence[str], rounds: int, progress: Callable[[str], None] = print) -> list[Row]:
    """All comparisons on the given models."""
    rows = []
    for model in models:
        for family in families():
            progress(f"{model}: {family.ours.name} beside {', '.join(peer.name for peer in family.peers)}")
            rows += compare(model, MODELS[model](), family, rounds * (1 if model in LARGE else 5))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    head = ("model", "ours", "beside", "ours ms", "its ms", "ours / its [quartiles]", "state bytes: ours", "its")
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
    return aligned([head, *body])
