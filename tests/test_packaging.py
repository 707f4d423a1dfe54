"""The wheel says for which platform it is, and README can be read on an index page."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aimopt.kernels.cpu.compiled import INCLUDED

setuptools = pytest.importorskip("setuptools")
ROOT = Path(__file__).parent.parent
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src")


def copy_sources(folder: Path) -> Path:
    """What a clone has: no library, and nothing that another build left behind."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def build_wheel(folder: Path, **environment: str) -> Path:
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", "dist"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").iterdir()
    return wheel


def libraries(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".dll"))]


def test_a_wheel_without_the_kernel_is_for_any_platform(tmp_path: Path) -> None:
    wheel = build_wheel(copy_sources(tmp_path), CC="false", CXX="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert libraries(wheel) == []


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_wheel_with_the_kernel_is_for_every_python_of_one_platform(tmp_path: Path) -> None:
    wheel = build_wheel(copy_sources(tmp_path))
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", wheel.name)
    assert len(libraries(wheel)) == 1
    assert libraries(wheel)[0].startswith("aimopt/kernels/cpu/libstep.")


@pytest.fixture
def build_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py gives to setuptools, with all that it defines."""
    given: dict[str, Any] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", given.update)
    return {**runpy.run_path("setup.py"), **given}


def relative_links(text: str) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:|#", target)]


def test_the_package_has_all_that_a_kernel_includes_which_is_compiled_later() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert sorted(settings["package-data"]["aimopt.kernels.cpu"]) == sorted(INCLUDED)


def test_no_link_of_the_index_page_is_relative(build_arguments: dict[str, Any]) -> None:
    assert relative_links((ROOT / "README.md").read_text())
    assert relative_links(build_arguments["long_description"]) == []
    assert "the guide" in build_arguments["long_description"]


def test_with_a_repository_the_links_lead_into_it(
    build_arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_sources(tmp_path)
    project, repository = tmp_path / "pyproject.toml", "https://example.org/aimopt"
    text, count = re.subn(r"# (Repository = ).*", rf'\1"{repository}"', project.read_text())
    assert count == 1
    project.write_text(text)
    monkeypatch.chdir(tmp_path)
    page = build_arguments["index_page"]()
    assert relative_links(page) == []
    for link in (f"[the reproduction]({repository}/blob/v", f"]({repository}/raw/v"):
        assert link in page


def test_the_tests_that_workflows_name_exist() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    named = {name for path in workflows for name in re.findall(r"tests/[\w/.]+", path.read_text(encoding="utf-8"))}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
