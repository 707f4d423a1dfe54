"""The native library: built when the package was installed, loaded here.

library()              the library, or the reason why there is none
instruction_sets()     what AIMOPT_ISA may be on this processor
torch_functions()      the functions of torch's stable C interface that describe a tensor, or None
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aimopt.kernels.cpu.flags import LIBRARY
from aimopt.kernels.cpu.header import fingerprint
from aimopt.kernels.cpu.trust import why_untrusted
from aimopt.kernels.layout import FUNCTIONS, INSTRUCTION_SETS, TORCH_FUNCTIONS
from aimopt.messages.reason import Reason

# Otherwise pip leaves a package of the same version as it is, takes a wheel without the kernel from its cache, and
# downloads torch again.
REINSTALL = "reinstall aimopt with pip's options --no-cache-dir --force-reinstall --no-deps"
ISA_VARIABLE = "AIMOPT_ISA"  # the environment variable that chooses the instruction set


class Library(NamedTuple):
    """The loaded library."""

    step: Any
    stream: Any
    find_kernel: Any
    memory_record: Any
    memory_sort: Any
    memory_compare: Any
    best_isa: int  # the best instruction set of this processor: a position in `INSTRUCTION_SETS`
    isa: int  # the one in use
    shares_threads: bool


def library() -> Library | Reason:
    """The library, or the reason why there is none."""
    loaded, forced = load_library(), _forced.get()
    if not forced or isinstance(loaded, Reason):
        return loaded
    return loaded._replace(isa=_position_of(forced, loaded.best_isa, "the instruction set"))


def instruction_sets() -> list[str]:
    """The instruction sets that this processor can run, the narrowest first; none without the library."""
    loaded = load_library()
    return _usable(loaded.best_isa) if isinstance(loaded, Library) else []


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """Let steps that are made within use this instruction set: benchmarks and tests compare them in one process."""
    token = _forced.set(name)
    try:
        library()  # refuses a name that this processor cannot run
        yield
    finally:
        _forced.reset(token)


_forced: ContextVar[str] = ContextVar("instruction_set", default="")


@lru_cache(maxsize=1)
def load_library() -> Library | Reason:
    """Load the library, or return the reason why it must not or cannot be loaded."""
    path = Path(__file__).with_name(LIBRARY)
    if not path.exists():
        return Reason(f"no C++ compiler was found when aimopt was installed; install one, then {REINSTALL}")
    if (reason := why_untrusted(path)) is not None:
        return reason
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return Reason(f"{path.name} could not be loaded ({error}); {REINSTALL}")
    if _layout_of(loaded) != fingerprint():
        return Reason(f"{path.name} was built from another version of aimopt; {REINSTALL}")
    return Library(
        _function(loaded, "step"),
        _function(loaded, "stream"),
        _function(loaded, "find_kernel"),
        _function(loaded, "memory_record"),
        _function(loaded, "memory_sort"),
        _function(loaded, "memory_compare"),
        best := _function(loaded, "best_isa")(),
        _chosen_isa(best),
        bool(_function(loaded, "shares_torch_threads")()),
    )


def _chosen_isa(best: int) -> int:
    """The position of the instruction set that AIMOPT_ISA names, else of the best one of this processor."""
    return _position_of(os.environ.get(ISA_VARIABLE) or list(INSTRUCTION_SETS)[best], best, ISA_VARIABLE)


def _position_of(name: str, best: int, what: str) -> int:
    if name not in _usable(best):
        raise ValueError(f"{what} must be one of {', '.join(_usable(best))} on this processor, got {name!r}")
    return list(INSTRUCTION_SETS).index(name)


def _usable(best: int) -> list[str]:
    names = list(INSTRUCTION_SETS)
    return [names[best]] if names[best] == "neon" else names[: best + 1]


def _layout_of(loaded: ctypes.CDLL) -> str | None:
    """The fingerprint of the contracts that the library was built from; None in a library without one."""
    return _function(loaded, "layout")().decode() if hasattr(loaded, "aimopt_layout") else None


_CTYPES = {
    "void": None,
    "const char *": ctypes.c_char_p,
    "const void *": ctypes.c_void_p,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}


def _function(loaded: ctypes.CDLL, name: str) -> Any:
    """A function of the library, with the types of its arguments and result."""
    function, contract = getattr(loaded, f"aimopt_{name}"), FUNCTIONS[name]
    function.restype = _CTYPES[contract.result]
    function.argtypes = [_CTYPES.get(kind, ctypes.c_void_p) for kind, _ in contract.arguments]
    return function


@lru_cache(maxsize=1)
def torch_functions() -> Any:
    """The addresses of torch's C functions, in the copy of torch that Python has loaded; None if it has none."""
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
    path = next((folder / name for name in names if (folder / name).exists()), None)
    try:
        loaded = ctypes.CDLL(str(path)) if path is not None else None
        functions = [getattr(loaded, f"aoti_torch_get_{name}") for name in TORCH_FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return (ctypes.c_void_p * len(functions))(*(ctypes.cast(f, ctypes.c_void_p).value for f in functions))
