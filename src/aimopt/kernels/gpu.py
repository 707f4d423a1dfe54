"""The fused step on GPUs: a program printed as Triton source, and the tensors it runs on.

missing()                         why there is no such step here, or None
kernels(program, types, …)        the two kernels of `triton_source.py`, compiled
Plan(program, stochastic)         a parameter group's step: `run` takes the tensors that `tables.py` located

Two launches step all tensors of a group that are alike. Nothing waits for the device: a learning rate, step counts, a
GradScaler's numbers may all live there, and what the host has to say goes over in stream order.
"""

import importlib
import linecache
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aimopt.kernels.program import LR, SCALE, STEP, Numbers, Program
from aimopt.kernels.symbols import Node, Number
from aimopt.kernels.tables import FLOAT64, Located, Table, math_of
from aimopt.kernels.triton_source import ALIGNED, constants, handed_over, source

# The kind of device that has these kernels. The tests say "cpu": Triton's interpreter runs on tensors of the host.
DEVICE = "cuda"
LANES, BLOCK, CHUNK = 32, 1024, 8192  # tensors a warp; elements a block, and those a program works through


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Why there is no fused step on GPUs here, or None if there is one."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return (
            f"Triton could not be imported ({error}); it comes with torch's builds for CUDA, or by pip install triton"
        )
    return None


def _capturing() -> bool:
    """Whether what is launched now goes into a CUDA graph."""
    return DEVICE == "cuda" and torch.cuda.is_current_stream_capturing()


class Kernels(NamedTuple):
    """The kernels of a program."""

    prepare: Any
    step: Any


def kernels(program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool) -> Kernels:
    """The kernels of a program for streams and scalars of these types; Triton compiles them when they first run."""
    return _printed(source(program, types, scalar_types, stochastic))


@lru_cache(maxsize=1024)
def _printed(text: str) -> Kernels:
    # Triton reads a kernel's source again, through `inspect`, which finds here what is in no file.
    file = f"<aimopt kernel {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = dict(
        vars(importlib.import_module("aimopt.kernels.device_functions")), __name__="aimopt.kernels.printed"
    )
    exec(compile(text, file, "exec"), namespace)
    return Kernels(namespace["prepare"], namespace["step"])


class Plan:
    """The step of one parameter group."""

    def __init__(self, program: Program, stochastic: bool):
        self.program, self.stochastic = program, stochastic
        self._reach: Any = None
        self._launches: list[Launch] = []
        self._captured: list[Any] = []  # what CUDA graphs refer to by address

    def run(self, located: Located, numbers: Numbers) -> None:
        """Step what was located; step counts are on the device, where nobody looks at them."""
        if self._reach is not located.reach:
            self._reach = located.reach
            self._launches = [Launch(table, self.program, self.stochastic) for table in located.reach.tables]
        for launch in self._launches:
            used = launch.run(launch.table.of(located.grad_addresses), numbers)
            if _capturing():
                self._captured.append((located.params + located.state, used))
            torch.autograd.graph.increment_version(launch.table.of(located.params))


class Launch:
    """The step of the tensors of one table: what their device needs to know of them, and the kernels to run."""

    def __init__(self, table: Table, program: Program, stochastic: bool):
        self.table, self.program, self.device = table, program, table.device
        n = len(table.members)
        scalars = [list(column) for column in zip(*table.scalars, strict=True)]
        rows = torch.frombuffer(table.rows, dtype=torch.int64).view(n, -1)[:, :-1].clone()
        scalar_types = table.scalar_types
        self._host_scalars = scalars if table.scalars_on != self.device else None
        if self._host_scalars is not None:
            self._mirror = torch.zeros(n, len(scalars), dtype=torch.float64, device=self.device)
            places = torch.arange(self._mirror.numel()).view(n, -1) * self._mirror.element_size()
            rows[:, 2 : 2 + len(scalars)] = places + self._mirror.data_ptr()
            scalar_types = (FLOAT64,) * len(scalars)
        self.kernels = kernels(program, table.types, scalar_types, stochastic)
        self._numels = rows[:, 0]
        self._own_aligned = (rows[:, 2 + len(scalars) :] % ALIGNED == 0).all(1)
        self._aligned: Tensor | None = None
        self._grads_at: list[int] = []
        self._mail = Mail(self.device, n)
        self.rows = self._mail.send(rows)
        math = torch.float64 if math_of(table.types) == FLOAT64 else torch.float32
        self.uniforms = torch.empty(n, max(1, len(handed_over(program))), dtype=math, device=self.device)
        self.keys = torch.empty(n, dtype=torch.int32, device=self.device)
        self._known = self._mail.send(torch.tensor([*constants(program), 0.0], dtype=torch.float64))
        self._constants: dict[str, tuple[float, Tensor]] = {}

    def run(self, at: list[int], numbers: Numbers) -> list[Any]:
        """Step, given where the gradients are; return what the device is going to read."""
        if at != self._grads_at:
            self._point_to(at)
        lr = self._on_device(LR, numbers.lr)
        scale = self._on_device(SCALE, 1.0 if numbers.scale is None else numbers.scale)
        found_inf = self._on_device("found_inf", 0.0 if numbers.found_inf is None else numbers.found_inf)
        if self._host_scalars is not None:
            self._count_on_host(self._host_scalars, numbers)
        n = len(at)
        with torch.cuda.device_of(self.rows):
            self.kernels.prepare[(-(-n // LANES),)](
                self.rows, self.uniforms, self.keys, found_inf, lr, scale, self._known, n,
                LANES=LANES, num_warps=1, **OPTIONS,
            )  # fmt: skip
            for whole, chunks in enumerate((self.ragged, self.whole)):
                if len(chunks):
                    self.kernels.step[(len(chunks),)](
                        self.rows, self.gradients, self.uniforms, self.keys, found_inf, chunks,
                        WHOLE=bool(whole), BLOCK=BLOCK, CHUNK=CHUNK, num_warps=4, **OPTIONS,
                    )  # fmt: skip
        return [self, self.gradients, self.ragged, self.whole, lr, scale, found_inf]

    def _point_to(self, at: list[int]) -> None:
        """Tell the device where the gradients are; what it was told before is left to the launches that may read it."""
        self._grads_at = at
        addresses = torch.tensor(at, dtype=torch.int64)
        self.gradients = self._mail.send(addresses)
        aligned = self._own_aligned & (addresses % ALIGNED == 0)
        if self._aligned is None or not torch.equal(aligned, self._aligned):
            self._aligned = aligned
            whole, ragged = _chunks(self._numels, aligned)
            self.whole, self.ragged = self._mail.send(whole), self._mail.send(ragged)

    def _on_device(self, name: str, number: float | Tensor) -> Tensor:
        """A number of the step as a tensor that the kernels can read."""
        if isinstance(number, Tensor):
            if not number.is_cpu or self.device.type == "cpu":
                return number.detach().to(self.device, non_blocking=True)
            number = number.item()
        known = self._constants.get(name)
        if known is None or known[0] != number:
            # A new one, since the launches before may still read the old; filling it needs no copy from the host.
            known = self._constants[name] = number, torch.full((), number, dtype=torch.float64, device=self.device)
        return known[1]

    def _count_on_host(self, scalars: list[list[Tensor]], numbers: Numbers) -> None:
        """Advance scalars that live on the host there, while `prepare` does it with a copy of them."""
        if _capturing():
            raise RuntimeError("a step can be captured in a CUDA graph only with capturable=True")
        values = {name: _read(column) for name, column in zip(self.program.scalars, scalars, strict=True)}
        self._mirror.copy_(self._mail.pinned(torch.stack([*values.values()], 1)), non_blocking=True)
        values[STEP] = values[STEP] + 1

        def named(name: str) -> Any:
            if name in values:
                return values[name]
            number = numbers.lr if name == LR else numbers.scale
            return number.item() if isinstance(number, Tensor) else number

        results = [(STEP, values[STEP]), *((name, evaluate(x, named)) for name, x in self.program.scalar_results)]
        for name, after in results:
            column = scalars[self.program.scalars.index(name)]
            each = after.expand(len(column))
            torch._foreach_copy_(column, [x.view_as(home) for x, home in zip(each, column, strict=True)])


# Products are fused with sums where the source says so and nowhere else, as on CPUs.
OPTIONS = {"enable_fp_fusion": False}


class Mail:
    """Sends numbers from the host to a device, without waiting for it."""

    def __init__(self, device: torch.device, spare: int):
        """`spare`: how many numbers can be sent while a CUDA graph is captured, when no memory can be pinned."""
        self._device, self._size = device, spare
        self._spare: Tensor | None = None
        self._kept: list[Tensor] = []

    def pinned(self, host: Tensor) -> Tensor:
        """A copy that the device can fetch by itself."""
        if not _capturing():
            if self._spare is None:
                self._spare = _pin(torch.empty(self._size, dtype=torch.int64))
            return _pin(host)
        if self._spare is None or self._spare.shape != host.shape:
            raise RuntimeError("the tensors of this group have changed: take a step before you capture one")
        self._kept.append(self._spare.copy_(host))  # a graph fetches it anew at every replay
        self._spare = None
        return self._kept[-1]

    def send(self, host: Tensor) -> Tensor:
        """A copy on the device."""
        return self.pinned(host).to(self._device, non_blocking=True)


def _pin(host: Tensor) -> Tensor:
    return host.pin_memory() if DEVICE == "cuda" else host


def _chunks(numels: Tensor, aligned: Tensor) -> tuple[Tensor, Tensor]:
    """(tensor, chunk of it): those of whole blocks in aligned memory, which need no mask, and the others."""
    counts = (numels + CHUNK - 1) // CHUNK
    tensor = torch.repeat_interleave(torch.arange(len(numels)), counts)
    chunk = torch.arange(len(tensor)) - (counts.cumsum(0) - counts)[tensor]
    size = (numels[tensor] - chunk * CHUNK).clamp(max=CHUNK)
    whole = aligned[tensor] & (size % BLOCK == 0)
    pairs = torch.stack((tensor, chunk), 1)
    return pairs[whole], pairs[~whole]


def _read(scalars: list[Tensor]) -> Tensor:
    return torch.tensor([x.item() for x in scalars], dtype=torch.float64)


def evaluate(number: Number, named: Callable[[str], Any]) -> Any:
    """What a number of a program is, on the host, given those it is made of."""
    if not isinstance(number, Node):
        return torch.tensor(number, dtype=torch.float64)
    if number.op == "number":
        return named(number.args[0])
    operands = [torch.as_tensor(evaluate(x, named), dtype=torch.float64) for x in number.args]
    if number.op == "select":
        return torch.where(operands[0] != 0, *operands[1:])
    return getattr(torch, number.op)(*operands).double()
