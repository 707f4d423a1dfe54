"""Builds the CPU kernel where there is a C++17 compiler; everything else is in pyproject.toml."""

import runpy
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = "aimopt.kernels.cpu.libstep"
SOURCES = "src/aimopt/kernels/cpu"
FLAGS = runpy.run_path(f"{SOURCES}/flags.py")["FLAGS"]


class BuildKernel(build_ext):
    """A plain shared library: it needs neither Python nor torch, so that one build works with every version of both."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/std:c++17", "/O2", "/EHsc"]
        else:
            ext.extra_compile_args = list(FLAGS)
            ext.extra_link_args = ["-pthread"]
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + (sysconfig.get_config_var("SHLIB_SUFFIX") or ".dll")


setup(
    ext_modules=[
        Extension(
            KERNEL,
            sources=[f"{SOURCES}/{name}.cpp" for name in ("step", "stream", "memory")],
            depends=glob(f"{SOURCES}/*.h") + glob(f"{SOURCES}/*.inc"),
            language="c++",
            optional=True,  # without a compiler the package still installs, and steps are not fused
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
