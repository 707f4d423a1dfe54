"""Straight-line kernels for programs that the library has none for, such as those of a user's own parts.

    kernels = CompiledKernels(folder, isa)
    kernels.find(structure)           the address of its kernel, or None: then the program is interpreted
    kernels.request(structure)        compile it in the background, if there is a compiler

A compiled kernel is stored in the user's cache folder, under the hash of its source, and found there by later
processes. Only files that nobody else can write are loaded (`trust.py`). The interpreter and a kernel compute the same
bits, so it does not matter when one takes over from the other.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from aimopt.atomic_files import write_atomically
from aimopt.kernels.cpu.cpp_source import function, instance, is_vectorizable
from aimopt.kernels.cpu.encode import Structure
from aimopt.kernels.cpu.flags import FLAGS, ISA_FLAGS
from aimopt.kernels.cpu.trust import why_untrusted
from aimopt.kernels.layout import KERNEL_ARGUMENTS
from aimopt.messages.reason import Reason

INCLUDED = ("elements.h", "elements.inc")  # what the source of a kernel includes
SECONDS = 120  # a compiler that takes longer is stopped
SWITCH = "AIMOPT_COMPILE"  # 0: neither compile kernels nor use those that were compiled earlier


class CompiledKernels:
    """The compiled kernels of one instruction set in one folder."""

    def __init__(self, folder: Path, isa: str):
        self.folder, self.isa = folder, isa
        self.failures: dict[int, Reason] = {}  # by digest: why a kernel could not be compiled or loaded
        self._addresses: dict[int, int] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._loaded: list[ctypes.CDLL] = []  # a library is never unloaded: a step may be running its code

    def find(self, structure: Structure) -> int | None:
        """The address of the kernel of a structure, if it is loaded or can be loaded now."""
        digest = structure.digest
        if digest not in self._addresses and digest not in self.failures and digest not in self._threads:
            path = self._path(structure)
            if path is not None and path.exists():
                self._load(digest, path)
        return self._addresses.get(digest)

    def request(self, structure: Structure) -> None:
        """Begin to compile the kernel of a structure, unless that was tried before."""
        digest = structure.digest
        if digest in self._addresses or digest in self.failures or digest in self._threads:
            return
        path = self._path(structure)
        compiler = find_compiler()
        if path is None or isinstance(compiler, Reason):
            no_form = Reason("it has no straight-line form for this processor")
            self.failures[digest] = compiler if isinstance(compiler, Reason) else no_form
            return
        # A daemon: a program that ends does not wait for a kernel.
        thread = threading.Thread(target=self._compile, args=(structure, path, compiler), daemon=True)
        self._threads[digest] = thread
        thread.start()

    def wait(self) -> None:
        """Wait for the kernels that are being compiled."""
        for thread in list(self._threads.values()):
            thread.join()

    def _path(self, structure: Structure) -> Path | None:
        """Where the kernel of a structure is stored; None if it cannot be compiled."""
        if self.isa not in ISA_FLAGS or not is_vectorizable(structure) or os.environ.get(SWITCH) == "0":
            return None
        texts = [source(structure), *FLAGS, *ISA_FLAGS[self.isa], *(_package_file(name) for name in INCLUDED)]
        return self.folder / f"{sha256(chr(0).join(texts).encode()).hexdigest()[:32]}.so"

    def _compile(self, structure: Structure, path: Path, compiler: str) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="aimopt-") as temporary:
                code, compiled = Path(temporary) / "kernel.cpp", Path(temporary) / "kernel.so"
                code.write_text(source(structure), encoding="utf-8")
                flags = [*FLAGS, *ISA_FLAGS[self.isa], "-fPIC", "-shared", f"-I{Path(__file__).parent}"]
                command = [compiler, *flags, str(code), "-o", str(compiled)]
                subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
                write_atomically(path, compiled.read_bytes())
            os.chmod(path, 0o700)
            self._load(structure.digest, path)
        except (OSError, subprocess.SubprocessError) as error:
            self.failures[structure.digest] = Reason(f"{compiler} could not compile it: {error}")

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


def source(structure: Structure) -> str:
    """The C++ file of one kernel."""
    return "\n".join([
        '#include "elements.h"',
        "namespace aimopt {",
        '#include "elements.inc"',
        function(structure),
        f'extern "C" __attribute__((visibility("default"))) void aimopt_kernel({KERNEL_ARGUMENTS}) {{',
        f"    {instance(structure)}(streams, numbers, key, begin, end);",
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
    own = os.environ.get("AIMOPT_CACHE")
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else user_cache / "aimopt") / "kernels"


@lru_cache(maxsize=1)
def compiled_kernels(isa: str) -> CompiledKernels:
    """The compiled kernels of this process."""
    return CompiledKernels(cache_folder(), isa)


@lru_cache
def _package_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
