"""The fused step on GPUs: a program printed as Triton source, and its launch.

why_unavailable()                 why there is no such step here, or None
make_kernels(program, types, …)   the two kernels of `triton_source.py`, compiled
GpuStep(program, stochastic)      a parameter group's step: `run` takes the tensors that `addresses.py` located

Two or three launches step all tensors of one address table. Nothing waits for the device: a learning rate, step counts
and a GradScaler's numbers may all be there, and data from the host is copied in stream order.
"""

import importlib
import linecache
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aimopt.kernels.addresses import AddressTable, Coverage, LocatedTensors
from aimopt.kernels.gpu.triton_source import ALIGNMENT, constants, passed_uniforms, source
from aimopt.kernels.layout import FLOAT64, arithmetic_type
from aimopt.kernels.program import LR, SCALE, STEP, Program, StepNumbers
from aimopt.kernels.symbols import Node, Number
from aimopt.messages.reason import Reason

# The device type that has these kernels. The tests set "cpu": Triton's interpreter runs on tensors of the host.
DEVICE = "cuda"
LANES = 32  # tensors per warp of `prepare`
BLOCK = 1024  # elements per block of `step`
CHUNK = 8192  # elements per Triton program of `step`


@lru_cache(maxsize=1)
def why_unavailable() -> Reason | None:
    """Why there is no fused step on GPUs here, or None if there is one."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return Reason("torch finds no CUDA device")
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return Reason(f"Triton could not be imported ({error}); install a CUDA build of torch, or: pip install triton")
    return None


def _capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return DEVICE == "cuda" and torch.cuda.is_current_stream_capturing()


class Kernels(NamedTuple):
    """The kernels of a program."""

    prepare: Any
    step: Any


def make_kernels(program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool) -> Kernels:
    """The kernels of a program for streams and scalars of these types; Triton compiles them when they first run."""
    return _load_source(source(program, types, scalar_types, stochastic))


@lru_cache(maxsize=1024)
def _load_source(text: str) -> Kernels:
    # Triton reads a kernel's source again through `inspect`, which looks it up in this cache.
    file = f"<aimopt kernel {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = dict(
        vars(importlib.import_module("aimopt.kernels.gpu.device_functions")), __name__="aimopt.kernels.printed"
    )
    exec(compile(text, file, "exec"), namespace)
    return Kernels(namespace["prepare"], namespace["step"])


class GpuStep:
    """The fused step of one parameter group."""

    def __init__(self, program: Program, stochastic: bool):
        self.program, self.stochastic = program, stochastic
        self._coverage: Coverage | None = None
        self._launches: list[TableLaunch] = []
        self._captured: list[Any] = []  # tensors that CUDA graphs refer to by address: they must not be freed

    def run(self, located: LocatedTensors, numbers: StepNumbers) -> None:
        """Step the located tensors. Step counts are on the device, and are not checked."""
        if self._coverage is not located.coverage:
            self._coverage = located.coverage
            self._launches = [TableLaunch(table, self.program, self.stochastic) for table in located.coverage.tables]
        for launch in self._launches:
            used = launch.run(launch.table.select(located.grad_addresses), numbers)
            if _capturing():
                self._captured.append((located.params + located.state, used))
            torch.autograd.graph.increment_version(launch.table.select(located.params))


class TableLaunch:
    """The step of the tensors of one address table: the data on their device, and the kernels."""

    def __init__(self, table: AddressTable, program: Program, stochastic: bool):
        self.table, self.program, self.device = table, program, table.device
        n = len(table.members)
        layout = table.layout
        scalars = [list(column) for column in zip(*table.scalars, strict=True)]
        rows = torch.frombuffer(table.rows, dtype=torch.int64).view(n, -1)[:, : layout.gradient].clone()
        scalar_types = table.scalar_types
        self._host_scalars = scalars if table.scalar_device != self.device else None
        if self._host_scalars is not None:
            self._scalar_copies = torch.zeros(n, len(scalars), dtype=torch.float64, device=self.device)
            offsets = torch.arange(self._scalar_copies.numel()).view(n, -1) * self._scalar_copies.element_size()
            rows[:, layout.FIRST_SCALAR : layout.first_stream] = offsets + self._scalar_copies.data_ptr()
            scalar_types = (FLOAT64,) * len(scalars)
        self.kernels = make_kernels(program, table.types, scalar_types, stochastic)
        self._numels = rows[:, layout.NUMEL]
        self._streams_aligned = (rows[:, layout.first_stream :] % ALIGNMENT == 0).all(1)
        self._aligned: Tensor | None = None
        self._grad_addresses: list[int] = []
        self._sender = HostToDevice(self.device, n)
        self.rows = self._sender.send(rows)
        arithmetic = torch.float64 if arithmetic_type(table.types) == FLOAT64 else torch.float32
        self.uniforms = torch.empty(n, max(1, len(passed_uniforms(program))), dtype=arithmetic, device=self.device)
        self.keys = torch.empty(n, dtype=torch.int32, device=self.device)
        self._constants = self._sender.send(torch.tensor([*constants(program), 0.0], dtype=torch.float64))
        self._sent_numbers: dict[str, tuple[float, Tensor]] = {}

    def run(self, grad_addresses: list[int], numbers: StepNumbers) -> list[Any]:
        """Step, with gradients at these addresses; return everything that the device is going to read."""
        if grad_addresses != self._grad_addresses:
            self._send_addresses(grad_addresses)
        lr = self._on_device(LR, numbers.lr)
        scale = self._on_device(SCALE, 1.0 if numbers.scale is None else numbers.scale)
        found_inf = self._on_device("found_inf", 0.0 if numbers.found_inf is None else numbers.found_inf)
        if self._host_scalars is not None:
            self._count_on_host(self._host_scalars, numbers)
        n = len(grad_addresses)
        with torch.cuda.device_of(self.rows):
            self.kernels.prepare[(-(-n // LANES),)](
                self.rows, self.uniforms, self.keys, found_inf, lr, scale, self._constants, n,
                LANES=LANES, num_warps=1, **OPTIONS,
            )  # fmt: skip
            for whole, chunks in enumerate((self.ragged, self.whole)):
                if len(chunks):
                    self.kernels.step[(len(chunks),)](
                        self.rows, self.gradients, self.uniforms, self.keys, found_inf, chunks,
                        WHOLE=bool(whole), BLOCK=BLOCK, CHUNK=CHUNK, num_warps=4, **OPTIONS,
                    )  # fmt: skip
        return [self, self.gradients, self.ragged, self.whole, lr, scale, found_inf]

    def _send_addresses(self, grad_addresses: list[int]) -> None:
        """Send new addresses in new tensors: earlier launches may still read the old ones."""
        self._grad_addresses = grad_addresses
        addresses = torch.tensor(grad_addresses, dtype=torch.int64)
        self.gradients = self._sender.send(addresses)
        aligned = self._streams_aligned & (addresses % ALIGNMENT == 0)
        if self._aligned is None or not torch.equal(aligned, self._aligned):
            self._aligned = aligned
            whole, ragged = _chunks(self._numels, aligned)
            self.whole, self.ragged = self._sender.send(whole), self._sender.send(ragged)

    def _on_device(self, name: str, number: float | Tensor) -> Tensor:
        """A number of the step as a tensor that the kernels can read."""
        if isinstance(number, Tensor):
            if not number.is_cpu or self.device.type == "cpu":
                return number.detach().to(self.device, non_blocking=True)
            number = number.item()
        sent = self._sent_numbers.get(name)
        if sent is None or sent[0] != number:
            # A new tensor, since earlier launches may still read the old one; filling it needs no copy from the host.
            sent = self._sent_numbers[name] = number, torch.full((), number, dtype=torch.float64, device=self.device)
        return sent[1]

    def _count_on_host(self, scalars: list[list[Tensor]], numbers: StepNumbers) -> None:
        """Advance the scalars that are on the host, while `prepare` does the same with a copy of them."""
        if _capturing():
            raise RuntimeError("a step can be captured in a CUDA graph only with capturable=True")
        values = {name: _read(column) for name, column in zip(self.program.scalars, scalars, strict=True)}
        self._scalar_copies.copy_(self._sender.pinned(torch.stack([*values.values()], 1)), non_blocking=True)
        values[STEP] = values[STEP] + 1

        def value_of(name: str) -> Any:
            if name in values:
                return values[name]
            number = numbers.lr if name == LR else numbers.scale
            return number.item() if isinstance(number, Tensor) else number

        results = [(STEP, values[STEP]), *((name, evaluate(x, value_of)) for name, x in self.program.scalar_results)]
        for name, result in results:
            column = scalars[self.program.scalars.index(name)]
            values_per_tensor = result.expand(len(column))
            torch._foreach_copy_(column, [x.view_as(y) for x, y in zip(values_per_tensor, column, strict=True)])


# Products are fused with sums where the source says so and nowhere else, as on CPUs.
OPTIONS = {"enable_fp_fusion": False}


class HostToDevice:
    """Copies integers from the host to a device, without waiting for the device."""

    def __init__(self, device: torch.device, spare_size: int):
        """`spare_size`: how many numbers can be sent while a CUDA graph is captured, when memory cannot be pinned."""
        self._device, self._spare_size = device, spare_size
        self._spare: Tensor | None = None
        self._captured: list[Tensor] = []

    def pinned(self, host: Tensor) -> Tensor:
        """A copy in pinned memory, from which the device copies by itself."""
        if not _capturing():
            if self._spare is None:
                self._spare = _pin(torch.empty(self._spare_size, dtype=torch.int64))
            return _pin(host)
        if self._spare is None or self._spare.shape != host.shape:
            raise RuntimeError("the tensors of this group have changed: take a step before you capture one")
        self._captured.append(self._spare.copy_(host))  # the graph copies from it at every replay
        self._spare = None
        return self._captured[-1]

    def send(self, host: Tensor) -> Tensor:
        """A copy on the device."""
        return self.pinned(host).to(self._device, non_blocking=True)


def _pin(host: Tensor) -> Tensor:
    return host.pin_memory() if DEVICE == "cuda" else host


def _chunks(numels: Tensor, aligned: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (tensor, chunk of it): those of whole blocks in aligned memory, which need no mask, and the others."""
    counts = (numels + CHUNK - 1) // CHUNK
    tensor = torch.repeat_interleave(torch.arange(len(numels)), counts)
    chunk = torch.arange(len(tensor)) - (counts.cumsum(0) - counts)[tensor]
    size = (numels[tensor] - chunk * CHUNK).clamp(max=CHUNK)
    whole = aligned[tensor] & (size % BLOCK == 0)
    pairs = torch.stack((tensor, chunk), 1)
    return pairs[whole], pairs[~whole]


def _read(scalars: list[Tensor]) -> Tensor:
    return torch.tensor([x.item() for x in scalars], dtype=torch.float64)


def evaluate(number: Number, value_of: Callable[[str], Any]) -> Any:
    """The value of a number of a program, computed on the host; `value_of` gives its inputs."""
    if not isinstance(number, Node):
        return torch.tensor(number, dtype=torch.float64)
    if number.op == "number":
        return value_of(number.args[0])
    operands = [torch.as_tensor(evaluate(x, value_of), dtype=torch.float64) for x in number.args]
    if number.op == "select":
        return torch.where(operands[0] != 0, *operands[1:])
    return getattr(torch, number.op)(*operands).double()
