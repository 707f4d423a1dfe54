"""The native library: built when the package was installed, found and loaded here.

library()              the library, or why there is none
torch_functions()      the functions of torch's stable C interface that tell what a tensor is, or None
"""

import ctypes
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aimopt.kernels.program import MAX_REGISTERS
from aimopt.kernels.trust import why_untrusted


class Library(NamedTuple):
    """The library as loaded."""

    step: Any
    stream: Any
    memory_record: Any
    memory_holds: Any
    element_ops: dict[str, int]
    uniform_ops: dict[str, int]
    isa: int
    shares_threads: bool


@lru_cache(maxsize=1)
def library() -> Library | str:
    """The library, or why there is none."""
    path = Path(__file__).with_name(f"libstep{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}")
    if not path.exists():
        return "no C++ compiler was found when aimopt was installed; install one, then reinstall aimopt"
    if (reason := why_untrusted(path)) is not None:
        return reason
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} could not be loaded ({error}); reinstall aimopt"
    if not hasattr(loaded, "aimopt_memory_record") or loaded.aimopt_max_registers() != MAX_REGISTERS:
        return f"{path.name} is of another version; reinstall aimopt"
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    loaded.aimopt_step.restype = count
    loaded.aimopt_memory_record.restype = count
    loaded.aimopt_memory_record.argtypes = [pointer, pointer, count, pointer, count]
    loaded.aimopt_memory_holds.argtypes = [pointer, pointer, count, count, *[pointer] * 4, count, pointer]
    return Library(
        loaded.aimopt_step,
        loaded.aimopt_stream,
        loaded.aimopt_memory_record,
        loaded.aimopt_memory_holds,
        _codes(loaded.aimopt_element_ops),
        _codes(loaded.aimopt_uniform_ops),
        loaded.aimopt_best_isa(),
        bool(loaded.aimopt_shares_torch_threads()),
    )


def _codes(names: Any) -> dict[str, int]:
    """The code of each operation, from the function of the library that gives their names."""
    names.restype = ctypes.c_char_p
    return {name: code for code, name in enumerate(names().decode().split())}


# The members of `Torch` in `memory.cpp`.
_TORCH_FUNCTIONS = (
    "data_ptr",
    "storage_offset",
    "storage_size",
    "dim",
    "dtype",
    "device_type",
    "device_index",
    "sizes",
    "strides",
)


@lru_cache(maxsize=1)
def torch_functions() -> Any:
    """The addresses of torch's C functions, in the copy of torch that Python has loaded; None where they are not."""
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
    path = next((folder / name for name in names if (folder / name).exists()), None)
    try:
        loaded = ctypes.CDLL(str(path)) if path is not None else None
        functions = [getattr(loaded, f"aoti_torch_get_{name}") for name in _TORCH_FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return (ctypes.c_void_p * len(functions))(*(ctypes.cast(f, ctypes.c_void_p).value for f in functions))
