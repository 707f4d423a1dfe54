"""The compiler's flags and the library's file. `setup.py` runs this file before the package can be imported.

FLAGS          of the library, and of the kernels that `compiled.py` compiles later
LIBRARY        libstep.so; Windows: libstep.dll
"""

import sys

LIBRARY = "libstep.dll" if sys.platform == "win32" else "libstep.so"  # beside this file

# No flag for this machine's processor: the instruction set is chosen when the library is loaded. No flag that lets the
# compiler round differently in different places.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
)
# The flags with which one kernel is compiled as the library's are by its pragmas, by instruction set.
ISA_FLAGS = {
    "avx2": ("-mavx2", "-mfma", "-DAIMOPT_FMA=1", "-DAIMOPT_LANES=8"),
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
        "-DAIMOPT_FMA=1",
        "-DAIMOPT_LANES=16",
    ),
    "neon": (),
}
