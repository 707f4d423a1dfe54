"""The optimizer step alone: ours against torch's fused and foreach AdamW, published peers, and the memory bandwidth.

All optimizers of one comparison step the same parameters with the same gradients; only their states differ. Ours are
timed once per instruction set that the processor has: what an older processor would run is measured on a newer one.
`streaming` is a plain loop that reads and writes the same bytes as our step, almost without arithmetic.
"""

import importlib
import statistics
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aimopt
from aimopt.kernels.addresses import address_row
from aimopt.kernels.cpu.library import instruction_set, instruction_sets, library
from aimopt.measure import muon_benchmark
from aimopt.measure.model_shapes import MATRICES, MODELS, Shapes
from aimopt.measure.timing import Ratio, paired_ratio, state_bytes_per_parameter, time_in_turn
from aimopt.messages.reason import Reason
from aimopt.messages.text_table import text_table
from aimopt.step.quantization import scale_name

LARGE = ("gpt2", "resnet50")
STREAMING = "streaming"
NO_KERNEL = "unfused"  # in place of an instruction set
LR = 1e-6  # the same gradient in every step: with this, parameters hardly move


class TimedOptimizer(NamedTuple):
    """An optimizer of a comparison."""

    name: str
    build: Callable[[Sequence[Tensor]], torch.optim.Optimizer]


class Family(NamedTuple):
    """One of our optimizers, and the peers it is compared with."""

    ours: TimedOptimizer
    peers: tuple[TimedOptimizer, ...]
    dtype: torch.dtype = torch.float32  # of the parameters
    fused: bool = True  # whether our kernels make the step


class StepTiming(NamedTuple):
    """One of our optimizers and one peer on one model."""

    model: str
    parameters: int
    ours: str
    instruction_set: str  # of ours
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


@lru_cache(maxsize=1)
def _deepspeed_cpu_adam() -> Callable[[Sequence[Tensor]], torch.optim.Optimizer] | None:
    """DeepSpeed's AdamW for CPUs; None if it is not installed, or does not build: it is compiled when first used."""
    build = _peer("deepspeed.ops.adam", "DeepSpeedCPUAdam")
    try:
        if build is not None:
            build([torch.zeros(1).requires_grad_()])
    except Exception:  # ninja, a compiler or a header may be missing, and each is another error
        return None
    return build


def _installed(*candidates: tuple[str, Any]) -> tuple[TimedOptimizer, ...]:
    return tuple(TimedOptimizer(name, build) for name, build in candidates if build is not None)


def families() -> list[Family]:
    """The comparisons for which peers are installed."""
    adamw = partial(torch.optim.AdamW, lr=LR)
    peers = {
        "RADAR": _installed(
            ("torch AdamW fused", partial(adamw, fused=True)),
            ("torch AdamW foreach", partial(adamw, foreach=True)),
            ("DeepSpeed CPUAdam", _deepspeed_cpu_adam()),
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
    narrow_states = [
        TimedOptimizer(f"RADAR, {dtype} state", partial(aimopt.RADAR, lr=LR, state_dtype=dtype))
        for dtype in ("bfloat16", "int8")
    ]
    return [
        *(Family(ours[name], installed) for name, installed in peers.items() if installed),
        *(
            Family(narrow, (ours["RADAR"], *_installed(("torch AdamW fused", partial(adamw, fused=True)))))
            for narrow in narrow_states
        ),
    ]


def matrix_families() -> list[Family]:
    """The comparisons on models that have matrices alone."""
    ours, peers = partial(aimopt.Muon, lr=LR), _installed(*muon_benchmark.torch_peers(LR))
    return [Family(TimedOptimizer(name, ours), peers, dtype, False) for name, dtype in muon_benchmark.DTYPES.items()]


def time_family(model: str, shapes: Shapes, family: Family, rounds: int) -> list[StepTiming]:
    """Time the optimizers of a family in turn."""
    params = [torch.zeros(shape).normal_(std=0.02).to(family.dtype).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    sets = timed_instruction_sets() if family.fused else [NO_KERNEL]
    ours = {isa: _made_for(isa, family.ours, params) for isa in sets}
    peers = {name: build(params) for name, build in family.peers}
    calls: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in (peers | ours).items()}
    first = next(iter(ours.values()))
    count = sum(p.numel() for p in params)
    streaming = streaming_over(params, first) if family.fused else None
    if streaming is not None and count > 1e6:  # below that, the time of the call dominates
        calls[STREAMING] = streaming
    times = time_in_turn(calls, rounds)
    sizes = {name: state_bytes_per_parameter(optimizer) for name, optimizer in peers.items()}
    own_size = state_bytes_per_parameter(first)
    return [
        StepTiming(
            model,
            count,
            family.ours.name,
            isa,
            peer,
            statistics.median(times[isa]) * 1e3,
            statistics.median(times[peer]) * 1e3,
            paired_ratio(times[isa], times[peer]),
            own_size,
            sizes.get(peer, own_size),
        )
        for peer in calls
        if peer not in ours
        for isa in ours
    ]


def timed_instruction_sets() -> list[str]:
    """The instruction sets that are worth timing here: all but the baseline of old processors, if there is a better."""
    return instruction_sets()[1:] or instruction_sets() or [NO_KERNEL]


def _made_for(isa: str, timed: TimedOptimizer, params: Sequence[Tensor]) -> torch.optim.Optimizer:
    """One of our optimizers after a first step, which decides the code that it runs."""
    optimizer = timed.build(params)
    with nullcontext() if isa == NO_KERNEL else instruction_set(isa):
        optimizer.step()
    return optimizer


def _buffers(state: dict[str, Tensor], p: Tensor) -> list[Tensor]:
    """The buffers in the shape of a parameter, without the scales of others."""
    scales = {*map(scale_name, state)}
    return [x for name, x in state.items() if x.ndim and x.shape == p.shape and name not in scales]


def streaming_over(params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """A plain loop over the memory that one step of `optimizer` reads and writes; None without the kernel's library."""
    lib = library()
    if isinstance(lib, Reason):
        return None
    own_buffers = [[torch.zeros_like(x) for x in _buffers(optimizer.state[p], p)] for p in params]
    streams = [(p, *buffers, p.grad) for p, buffers in zip(params, own_buffers, strict=True) if p.grad is not None]
    if any(x.dtype != torch.float32 for tensors in streams for x in tensors):
        return None
    rows = array("q", (number for tensors in streams for number in address_row(tensors)))

    def stream() -> None:
        lib.stream(rows.buffer_info()[0], len(streams), len(streams[0]), torch.get_num_threads())

    return stream


def run(models: Sequence[str], rounds: int, progress: Callable[[str], None] = print) -> list[StepTiming]:
    """All comparisons on the given models."""
    rows = []
    for model in models:
        if model in MATRICES and not muon_benchmark.has_bfloat16_products():
            progress(muon_benchmark.LEFT_OUT)
        for family in matrix_families() if model in MATRICES else families():
            progress(f"{model}: {family.ours.name} against {', '.join(peer.name for peer in family.peers)}")
            rows += time_family(model, MODELS[model](), family, _rounds(model, rounds))
    return rows


def _rounds(model: str, rounds: int) -> int:
    """A step takes milliseconds on small models, and seconds on matrices."""
    if model in MATRICES:
        return max(3, rounds // 3)
    return rounds * (1 if model in LARGE else 5)


def table(rows: Sequence[StepTiming]) -> str:
    """The rows as text."""
    head = (
        "model",
        "ours",
        "instructions",
        "peer",
        "ours ms",
        "peer ms",
        "ours / peer [quartiles]",
        "state bytes: ours",
        "peer",
    )
    body = [
        (
            row.model,
            row.ours,
            row.instruction_set,
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
