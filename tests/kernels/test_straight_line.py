"""Straight-line kernels compute the same bits as the interpreter, and are really used."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, EMA
from aimopt.kernels import addresses
from aimopt.kernels.cpu import compiled, launch
from aimopt.kernels.cpu.compiled import CompiledKernels, find_compiler
from aimopt.kernels.cpu.library import Library, instruction_set, instruction_sets, library
from aimopt.kernels.layout import INSTRUCTION_SETS
from aimopt.optimizers import precompiled
from aimopt.parts.component import Geometry, State, StepCount
from aimopt.step.shards import Span
from optimizer_driver import NEEDS_WHOLE_TENSORS

SIZES = ((1000,), (1,), (7, 19), (0,), (128,), (3,))
LARGE_SIZES = ((5000,), (1, 4096), (60, 71), (33, 128))  # of state in 8 bits, with and without a part of a block
ISAS = instruction_sets()


def parameters(dtype: torch.dtype, sizes: Sequence[tuple[int, ...]] = SIZES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]


def end_of_run(
    make: Any, dtype: torch.dtype, steps: int = 4, sizes: Sequence[tuple[int, ...]] = SIZES
) -> tuple[list[Tensor], AIM]:
    params = parameters(dtype, sizes)
    optimizer = make(params)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        optimizer.step()
    tensors = [*params, *(x for p in params for x in optimizer.state[p].values())]
    return [x.detach().clone() for x in tensors], optimizer


def kernels_in_use(optimizer: AIM) -> list[bool]:
    """Per program that was run: whether its last step was made by a straight-line kernel."""
    steps = [group._step for group in optimizer._kernels.fused_groups.values()]
    return [bool(e.program.kernel) for step in steps for e in step._encoded.values()]  # type: ignore[union-attr]


def interpret_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = library()
    assert isinstance(lib, Library)
    monkeypatch.setattr(launch, "library", lambda: lib._replace(find_kernel=lambda digest, isa: None))


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of baseline.*, got 'sse9'"), instruction_set("sse9"):
        pass


NAMES = [name for name in aimopt.available() if name not in NEEDS_WHOLE_TENSORS]
KINDS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.float64, {}),
    (torch.bfloat16, {}),
    (torch.float16, {}),
    (torch.float32, {"state_dtype": "bfloat16"}),
    (torch.bfloat16, {"state_dtype": "bfloat16"}),
    (torch.float32, {"state_dtype": "int8"}),
    (torch.bfloat16, {"state_dtype": "int8"}),
]


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "baseline"])
@pytest.mark.parametrize(("dtype", "options"), KINDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_computes_the_bits_of_the_interpreter(
    name: str, dtype: torch.dtype, options: dict[str, Any], isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = LARGE_SIZES if options.get("state_dtype") == "int8" else SIZES
    for decay in (0.0, 0.1):

        def make(params: list[Tensor], decay: float = decay) -> AIM:
            return aimopt.create(name, params, lr=0.01, weight_decay=decay, fused=True, **options)

        with instruction_set(isa):
            ours, optimizer = end_of_run(make, dtype, sizes=sizes)
            assert kernels_in_use(optimizer) == [True]
            with monkeypatch.context() as context:
                interpret_everything(context)
                interpreted, optimizer = end_of_run(make, dtype, sizes=sizes)
                assert kernels_in_use(optimizer) == [False]
        assert all(map(torch.equal, ours, interpreted))


@pytest.mark.parametrize("state_dtype", [None, "int8"])
@pytest.mark.parametrize("interpreted", [False, True])
def test_the_result_does_not_depend_on_the_number_of_threads(
    state_dtype: Any, interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interpreted:
        interpret_everything(monkeypatch)
    threads, ends = torch.get_num_threads(), []
    big = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        params = [x.to(torch.bfloat16).requires_grad_() for x in (big, big[:5001])]
        optimizer = aimopt.RADAR(params, lr=0.01, fused=True, state_dtype=state_dtype)
        for p in params:
            p.grad = p.detach() * 0.5
        optimizer.step()
        assert kernels_in_use(optimizer) == [not interpreted]
        ends.append([*params, *(x for p in params for x in optimizer.state[p].values())])
    torch.set_num_threads(threads)
    assert all(map(torch.equal, ends[0], ends[1]))
    assert all(map(torch.equal, ends[0], ends[2]))


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_part_is_rounded_as_the_whole_wherever_its_runs_begin(
    interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interpreted:
        interpret_everything(monkeypatch)
    span, elements = Span(77, 50, 13), torch.arange(1000)
    positions = span.offset + elements + elements // span.run * span.gap
    generator = torch.Generator().manual_seed(0)
    whole, *grads = torch.randn(4, 2000, generator=generator).to(torch.bfloat16)
    ends = []
    for part, its_span in ((torch.arange(2000), Span(0, 1, 0)), (positions, span)):
        monkeypatch.setattr(addresses, "_span", lambda written, place, its_span=its_span: its_span)
        p = whole[part].clone().requires_grad_()
        optimizer = aimopt.RADAR([p], lr=1e-3, fused=True, state_dtype="bfloat16")
        for grad in grads:
            p.grad = grad[part].clone()
            optimizer.step()
        assert kernels_in_use(optimizer) == [not interpreted]
        ends.append([p, *(x for x in optimizer.state[p].values() if x.ndim)])
    assert all(torch.equal(x[positions], y) for x, y in zip(*ends, strict=True))


def test_the_generated_file_is_that_of_the_optimizers() -> None:
    assert precompiled.FILE.read_text(encoding="utf-8") == precompiled.text(), (
        "run: python -m aimopt.optimizers.precompiled, and rebuild with python setup.py build_ext --inplace"
    )


def test_the_library_has_every_generated_kernel_for_every_instruction_set() -> None:
    lib = library()
    assert isinstance(lib, Library)
    structures = precompiled.structures()
    assert len(structures) > 100
    for isa in ISAS:
        found = [lib.find_kernel(structure.digest, [*INSTRUCTION_SETS].index(isa)) for structure in structures]
        assert all(found) == (isa != "baseline"), isa
    assert lib.find_kernel(12345, lib.isa) is None


@dataclass(frozen=True)
class Quartic(Geometry):
    """A geometry that the package does not have."""

    floor: float = 0.1
    linear = True

    def buffers(self) -> dict[str, Any]:
        return {"fourth": torch.zeros_like}

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        return state["fourth"].mul_(0.9).addcmul_(g * g, g * g, value=0.1)

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / (metric.sqrt().sqrt() + self.floor)


def own(params: list[Tensor]) -> AIM:
    return AIM(params, 0.01, filter=EMA(), geometry=Quartic(), weight_decay=0.1, fused=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of compiled kernels; a program is compiled at its second step."""
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    monkeypatch.delenv("AIMOPT_COMPILE", raising=False)
    monkeypatch.setattr(launch, "HOT", 2 * sum(torch.Size(size).numel() for size in SIZES))
    compiled.compiled_kernels.cache_clear()
    find_compiler.cache_clear()
    yield tmp_path / "kernels"
    compiled.compiled_kernels.cache_clear()
    find_compiler.cache_clear()


def kernels_of_process() -> CompiledKernels:
    lib = library()
    assert isinstance(lib, Library)
    return compiled.compiled_kernels([*INSTRUCTION_SETS][lib.isa])


needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_users_program_is_interpreted_then_compiled_with_the_same_bits(folder: Path, dtype: torch.dtype) -> None:
    _, optimizer = end_of_run(own, dtype, steps=1)
    assert kernels_in_use(optimizer) == [False]
    first, _ = end_of_run(own, dtype)
    kernels = kernels_of_process()
    kernels.wait()
    assert kernels.failures == {}
    (file,) = folder.glob("*.so")
    assert stat.S_IMODE(file.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    second, optimizer = end_of_run(own, dtype)
    assert kernels_in_use(optimizer) == [True]
    assert all(map(torch.equal, first, second))


@needs_compiler
def test_another_process_finds_the_compiled_kernel(folder: Path) -> None:
    end_of_run(own, torch.float32)
    kernels_of_process().wait()
    compiled.compiled_kernels.cache_clear()  # as a new process
    _, optimizer = end_of_run(own, torch.float32, steps=1)
    assert kernels_in_use(optimizer) == [True]


@needs_compiler
def test_a_kernel_that_others_can_write_is_not_loaded(folder: Path) -> None:
    end_of_run(own, torch.float32)
    kernels_of_process().wait()
    (file,) = folder.glob("*.so")
    file.chmod(0o707)
    compiled.compiled_kernels.cache_clear()
    _, optimizer = end_of_run(own, torch.float32, steps=1)
    assert kernels_in_use(optimizer) == [False]
    (reason,) = kernels_of_process().failures.values()
    assert "can be written by everybody" in str(reason)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "not a library": lambda content: b"not a library",
    "cut off": lambda content: content[: len(content) // 2],  # to load it would end the process
    "a changed bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_not_loaded_but_compiled_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    first, _ = end_of_run(own, torch.float32)
    kernels_of_process().wait()
    (file,) = folder.glob("*.so")
    content = file.read_bytes()
    file.unlink()  # another file: this process has loaded the old one
    file.write_bytes(damage(content))
    compiled.compiled_kernels.cache_clear()  # as a new process
    second, optimizer = end_of_run(own, torch.float32)
    assert kernels_in_use(optimizer) == [False]
    kernels_of_process().wait()
    assert kernels_of_process().failures == {}
    assert file.read_bytes() == content
    _, optimizer = end_of_run(own, torch.float32, steps=1)
    assert kernels_in_use(optimizer) == [True]
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("AIMOPT_COMPILE", "0", "turns it off"), ("CXX", "no-such-compiler", "no C++ compiler (no-such-compiler)")],
)
def test_without_a_compiler_the_program_is_interpreted(
    folder: Path, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    _, optimizer = end_of_run(own, torch.float32)
    assert kernels_in_use(optimizer) == [False]
    (reason,) = kernels_of_process().failures.values()
    assert message in str(reason)
    assert not folder.exists()


@needs_compiler
def test_a_compiler_that_fails_leaves_the_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    end_of_run(own, torch.float32)
    kernels_of_process().wait()
    _, optimizer = end_of_run(own, torch.float32)
    assert kernels_in_use(optimizer) == [False]
    (reason,) = kernels_of_process().failures.values()
    assert "could not be compiled" in str(reason)
    assert [*folder.glob("*")] == []


def test_the_disk_is_asked_once_and_not_at_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "HOT", 1 << 60)
    with patch.object(CompiledKernels, "_path", autospec=True, side_effect=CompiledKernels._path) as find_path:
        end_of_run(own, torch.float32, steps=6)
    assert find_path.call_count == 1


def test_two_instruction_sets_keep_their_kernels(folder: Path) -> None:
    first, second = compiled.compiled_kernels("avx2"), compiled.compiled_kernels("avx512")
    assert compiled.compiled_kernels("avx2") is first is not second


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def no_access(self: Path) -> bool:
    raise PermissionError(13, "Permission denied", str(self))


def no_thread(self: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("failure", ["no home", "no access", "no thread", "no sources"])
def test_whatever_keeps_a_kernel_from_being_compiled_the_step_is_made(
    folder: Path, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = end_of_run(own, torch.float32)
    kernels_of_process().wait()
    compiled.compiled_kernels.cache_clear()
    if failure == "no home":
        monkeypatch.delenv("AIMOPT_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    elif failure == "no access":
        monkeypatch.setattr(Path, "exists", no_access)
    elif failure == "no thread":
        monkeypatch.setenv("AIMOPT_CACHE", str(folder.parent / "other"))
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    else:
        monkeypatch.setattr(compiled, "INCLUDED", ("no-such-file.h",))
    got, optimizer = end_of_run(own, torch.float32)
    assert kernels_in_use(optimizer) == [False]
    assert all(map(torch.equal, got, expected))
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("baseline", "on: baseline"), ("", "on: "), ("sse9", "AIMOPT_ISA must be one of baseline")],
)
def test_the_environment_chooses_the_instruction_set(value: str, expected: str) -> None:
    code = "import aimopt.kernels; print(aimopt.kernels.status()['fused, CPU'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "AIMOPT_ISA": value},
    )
    assert expected in done.stdout + done.stderr
