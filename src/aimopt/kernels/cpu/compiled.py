"""Straight-line kernels for programs that the library has none for, such as those of a user's own parts.

    kernels = compiled_kernels("avx2")
    kernels.find(structure)           the address of its kernel, or None: then the program is interpreted
    kernels.request(structure)        compile it in the background, if there is a compiler

A compiled kernel is stored in the user's cache folder, under the hash of its source, and found there by later
processes. Only files that nobody else can write are loaded (`trust.py`), and only if they are as they were written: a
file that a power failure cut off would crash the process, so it is compiled again. The interpreter and a kernel compute
the same bits, so it does not matter when one takes over from the other.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

from aimopt.atomic_files import atomic_replacement, write_atomically
from aimopt.kernels.cpu.cpp_source import is_vectorizable, kernel, step
from aimopt.kernels.cpu.encode import Structure
from aimopt.kernels.cpu.flags import FLAGS, ISA_FLAGS
from aimopt.kernels.cpu.trust import why_untrusted
from aimopt.kernels.layout import KERNEL_ARGUMENTS
from aimopt.messages.reason import Reason

INCLUDED = ("codes.h", "elements.h", "elements.inc", "vectors.inc", "codes.inc")  # what the source of a kernel includes
SECONDS = 120  # a compiler that takes longer is stopped
FORMAT = "with a checksum"  # of a stored kernel; another one must not find these files
SWITCH = "AIMOPT_COMPILE"  # 0: neither compile kernels nor use those that were compiled earlier


class CompiledKernels:
    """The compiled kernels of one instruction set. Whatever goes wrong here is a failure of a kernel, not of a step."""

    def __init__(self, isa: str):
        self.isa = isa
        self.failures: dict[int, Reason] = {}  # by digest: why a kernel could not be compiled or loaded
        self._addresses: dict[int, int] = {}
        self._sought: set[int] = set()  # what was looked for in the cache folder: steps must not wait for the disk
        self._threads: dict[int, threading.Thread] = {}
        self._loaded: list[ctypes.CDLL] = []  # a library is never unloaded: a step may be running its code

    def find(self, structure: Structure) -> int | None:
        """The address of the kernel of a structure, if it is loaded by now."""
        if structure.digest not in self._sought:
            self._sought.add(structure.digest)
            with self._noting_failures(structure):
                path = self._path(structure)
                if path is not None and path.exists() and _is_whole(path):
                    self._load(structure.digest, path)
        return self._addresses.get(structure.digest)

    def request(self, structure: Structure) -> None:
        """Begin to compile the kernel of a structure, unless that was tried before."""
        digest = structure.digest
        if digest in self._addresses or digest in self.failures or digest in self._threads:
            return
        with self._noting_failures(structure):
            path, compiler = self._path(structure), find_compiler()
            if isinstance(compiler, Reason):
                self.failures[digest] = compiler
            elif path is None:
                self.failures[digest] = Reason("it has no straight-line form for this processor")
            else:
                # A daemon: a program that ends does not wait for a kernel.
                thread = threading.Thread(target=self._compile, args=(structure, path, compiler), daemon=True)
                thread.start()
                self._threads[digest] = thread

    def wait(self) -> None:
        """Wait for the kernels that are being compiled."""
        for thread in list(self._threads.values()):
            thread.join()

    @contextmanager
    def _noting_failures(self, structure: Structure) -> Iterator[None]:
        try:
            yield
        except (
            OSError,
            RuntimeError,
            subprocess.SubprocessError,
        ) as error:  # no home, access, thread, space, …
            self.failures[structure.digest] = Reason(f"its kernel could not be compiled or loaded: {error}")

    def _path(self, structure: Structure) -> Path | None:
        """Where the kernel of a structure is stored; None if it cannot be compiled."""
        if self.isa not in ISA_FLAGS or not is_vectorizable(structure) or os.environ.get(SWITCH) == "0":
            return None
        texts = [FORMAT, source(structure), *FLAGS, *ISA_FLAGS[self.isa], *(_package_file(name) for name in INCLUDED)]
        return cache_folder() / f"{sha256(chr(0).join(texts).encode()).hexdigest()[:32]}.so"

    def _compile(self, structure: Structure, path: Path, compiler: str) -> None:
        with self._noting_failures(structure), tempfile.TemporaryDirectory(prefix="aimopt-") as temporary:
            code, compiled = Path(temporary) / "kernel.cpp", Path(temporary) / "kernel.so"
            code.write_text(source(structure), encoding="utf-8")
            flags = [*FLAGS, *ISA_FLAGS[self.isa], "-fPIC", "-shared", f"-I{Path(__file__).parent}"]
            command = [compiler, *flags, str(code), "-o", str(compiled)]
            subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = compiled.read_bytes()
            write_atomically(_checksum_file(path), sha256(content).hexdigest(), durable=False)  # before the kernel
            with atomic_replacement(path) as temporary_path:
                temporary_path.write_bytes(content)
                temporary_path.chmod(0o700)  # before it has its name, since others load it as soon as it has
            self._load(structure.digest, path)

    def _load(self, digest: int, path: Path) -> None:
        reason = why_untrusted(path)
        if reason is None:
            try:
                loaded = ctypes.CDLL(str(path))
                self._loaded.append(loaded)
                address = ctypes.cast(loaded.aimopt_kernel, ctypes.c_void_p).value
                assert address is not None
                self._addresses[digest] = address
                return
            except (OSError, AttributeError) as error:
                reason = Reason(f"{path} cannot be loaded ({error}); delete it")
        self.failures[digest] = reason


def _checksum_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    """Whether a stored kernel is as it was written."""
    try:
        return _checksum_file(path).read_bytes() == sha256(path.read_bytes()).hexdigest().encode()
    except FileNotFoundError:
        return False


def source(structure: Structure) -> str:
    """The C++ file of one kernel."""
    return "\n".join([
        '#include "elements.h"',
        "namespace aimopt {",
        '#include "elements.inc"',
        '#include "vectors.inc"',
        '#include "codes.inc"',
        step(structure),
        f'extern "C" __attribute__((visibility("default"))) void aimopt_kernel({KERNEL_ARGUMENTS}) {{',
        f"    {kernel(structure)}(streams, numbers, key, begin, end);",
        "}",
        "}  // namespace aimopt",
        "",
    ])  # fmt: skip


@lru_cache(maxsize=1)
def find_compiler() -> str | Reason:
    """The C++ compiler: that of the environment variable CXX, or a usual one."""
    if os.environ.get(SWITCH) == "0":
        return Reason(f"{SWITCH}=0 turns it off")
    if sys.platform == "win32":
        return Reason("kernels are compiled only on Linux and macOS")
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or Reason(f"there is no C++ compiler ({', '.join(names)})")


def cache_folder() -> Path:
    """The folder of compiled kernels: AIMOPT_CACHE, or the user's cache."""
    if own := os.environ.get("AIMOPT_CACHE"):
        return Path(own).expanduser() / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aimopt" / "kernels"


@cache
def compiled_kernels(isa: str) -> CompiledKernels:
    """The compiled kernels of this process, for one instruction set."""
    return CompiledKernels(isa)


@lru_cache
def _package_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
