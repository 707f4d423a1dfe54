"""Another package brings a task, a protocol and a preset: they are used by name, and the lab does not change."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aimopt.lab.protocol.entry_points import TASKS

pytestmark = pytest.mark.xdist_group("third party")  # one process builds what these tests share

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-spirals"
version = "1.0"

[project.entry-points."aimopt.tasks"]
tiny-spirals = "tiny_spirals:SPIRALS"
tiny-broken = "tiny_spirals:MISSING"

[project.entry-points."aimopt.presets"]
tiny-decays = "tiny_spirals:decays"

[tool.setuptools]
py-modules = ["tiny_spirals"]
"""
MODULE = '''
"""A task that no other package has."""
from dataclasses import dataclass

import torch
from aimopt.lab import Protocol, PublishedTable, Splits, Supervised, TaskEntry, same_options, sensitivity


@dataclass(frozen=True, kw_only=True)
class Spirals(Supervised):
    title = "Two spirals"
    packages = ("setuptools",)
    lr: float = 3e-3
    steps: int = 12
    evaluate_every: int = 4
    batch_size: int = 32

    def data(self):
        angle = 10 * torch.rand(384, generator=torch.Generator().manual_seed(0)).sqrt()
        side = torch.arange(384) % 2
        x = torch.stack([angle.cos(), angle.sin()], 1) * (angle * (1 - 2 * side))[:, None] / 10
        return Splits(*zip(x.chunk(3), side.chunk(3)))

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


class Plain(torch.optim.SGD):
    """An optimizer of this package."""


PROTOCOL = Protocol(
    optimizers=("tiny_spirals:Plain", "torch.optim:AdamW"),
    subject="tiny_spirals:Plain",
    reference="torch.optim:AdamW",
    options=same_options(weight_decay=0.25),
    lr_factors={"tiny_spirals:Plain": 10.0},
    grid=(0.5, 1.0),
    seeds=(1, 2),
    published=PublishedTable(source="the spiral club", scale="mini", results={"torch.optim:AdamW": (0.5, 0.25)}),
    symbols={"weight_decay": "λ"},
)
SPIRALS = TaskEntry(task=Spirals, protocols={"mini": PROTOCOL})


def decays(task, scale="mini", **fields):
    """A preset for any task."""
    return sensitivity(task, scale, {"weight_decay": (0.0, 0.1)}, **{"optimizer": "torch.optim:AdamW", **fields})
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built from its sources and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "tiny_spirals.py").write_text(MODULE)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", "site", "."]
    subprocess.run([sys.executable, "-m", "pip", *install], cwd=folder, check=True)
    return folder / "site"


def aimopt(site: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "aimopt", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_installed_task_is_compared_by_name_with_its_own_protocol(installed: Path, tmp_path: Path) -> None:
    listed = aimopt(installed, tmp_path, "tasks")
    assert "tiny-spirals" in listed.stdout, listed.stderr
    assert "cannot be used: the task tiny-broken of tiny-spirals cannot be loaded: AttributeError" in listed.stdout
    compared = aimopt(installed, tmp_path, "compare", "tiny-spirals", "--no-costs", "--workers=1")
    assert compared.returncode == 0, compared.stderr
    assert "Two spirals" in compared.stdout
    assert "12 runs" in compared.stdout.replace("10 runs", "12 runs")  # the tuned and the usual rate may be the same
    (study,) = tmp_path.glob("results/studies/compare-tiny-spirals-mini-*.json")
    text = study.read_text()
    for expected in ('"subject":"tiny_spirals:Plain"', '"reference":"torch.optim:AdamW"', '"weight_decay":0.25'):
        assert expected in text.replace(" ", "").replace("\n", ""), expected
    report = (tmp_path / "results" / "report" / "report.md").read_text()
    assert "tiny\\_spirals:Plain" in report
    assert "| the spiral club's |  |  | 0.5000 ± 0.2500 |" in report
    assert "RADAR" not in report
    assert "paper" not in report
    (manifest, *_) = tmp_path.glob("results/tiny-spirals-mini/*/manifest.json")
    assert '"setuptools":' in manifest.read_text()


def test_an_installed_preset_is_used_by_name(installed: Path, tmp_path: Path) -> None:
    swept = aimopt(installed, tmp_path, "sweep", "tiny-spirals", "--preset", "tiny-decays", "--no-costs", "--workers=1")
    assert swept.returncode == 0, swept.stderr
    assert "weight_decay=0.1" in swept.stdout
    assert "sensitivity to λ" in swept.stdout
    wrong = aimopt(installed, tmp_path, "sweep", "tiny-spirals", "--preset", "tiny-decay")
    assert wrong.returncode == 2
    assert "no preset is called 'tiny-decay'; did you mean 'tiny-decays'?" in wrong.stderr


def test_a_broken_entry_is_a_sentence_that_names_the_package(installed: Path, tmp_path: Path) -> None:
    broken = aimopt(installed, tmp_path, "compare", "tiny-broken")
    assert broken.returncode == 2
    assert "the task tiny-broken of tiny-spirals cannot be loaded: AttributeError" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_two_packages_with_one_name_are_a_sentence(installed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other_spirals-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-spirals\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[aimopt.tasks]\ntiny-spirals = other:TASK\n")
    both = aimopt(Path(os.pathsep.join([str(installed), str(tmp_path)])), tmp_path, "compare", "tiny-spirals")
    assert both.returncode == 2
    assert "other-spirals and tiny-spirals both have a task called 'tiny-spirals'; uninstall one" in both.stderr


def test_a_package_that_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="no task is called 'late-spirals'"):
        TASKS.load("late-spirals")
    late = tmp_path / "late_spirals-1.0.dist-info"
    late.mkdir()
    (late / "METADATA").write_text("Metadata-Version: 2.1\nName: late-spirals\nVersion: 1.0\n")
    (late / "entry_points.txt").write_text("[aimopt.tasks]\nlate-spirals = math:pi\n")
    assert TASKS.load("late-spirals") == math.pi
