"""Builds the CPU kernel where there is a C++17 compiler, and the index page from README; see also pyproject.toml."""

import re
import runpy
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "aimopt/kernels/cpu"
SOURCES = f"src/{FOLDER}"
CONSTANTS = runpy.run_path(f"{SOURCES}/flags.py")


class BuildKernel(build_ext):
    """A plain shared library: it needs neither Python nor torch, so that one build works with every version of both."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/std:c++17", "/O2", "/EHsc"]
        else:
            ext.extra_compile_args = list(CONSTANTS["FLAGS"])
            ext.extra_link_args = ["-pthread"]
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def get_ext_filename(self, fullname: str) -> str:
        return "/".join([*fullname.split(".")[:-1], CONSTANTS["LIBRARY"]])  # setuptools may ask without the packages


class BuildWheel(bdist_wheel):
    """One wheel per platform for every Python; a wheel without the kernel is for any platform.

    Without a tag of its own, a wheel that was built without a compiler would look like one with the kernel: in pip's
    cache, and on an index.
    """

    def get_tag(self) -> tuple[str, str, str]:
        has_kernel = Path(self.bdist_dir, FOLDER, CONSTANTS["LIBRARY"]).exists()
        return "py3", "none", super().get_tag()[2] if has_kernel else "any"


def index_page() -> str:
    """README as it can be read outside of the repository.

    Relative links lead into the repository, at the tag of this version. As long as pyproject.toml names no repository,
    only their text is left, and the pictures are left out.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.*)"', Path("src/aimopt/__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    repository = project["urls"].get("Repository")

    def replace(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if re.match(r"https?:|#", target):
            return link[0]
        if repository is None:
            return "" if picture else text
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/v{version[1]}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", replace, Path("README.md").read_text(encoding="utf-8"))


setup(
    long_description=index_page(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "aimopt.kernels.cpu.libstep",
            sources=[f"{SOURCES}/{name}.cpp" for name in ("step", "stream", "memory")],
            depends=glob(f"{SOURCES}/*.h") + glob(f"{SOURCES}/*.inc"),
            language="c++",
            optional=True,  # without a compiler the package still installs, and steps are not fused
        )
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": BuildWheel},
)
