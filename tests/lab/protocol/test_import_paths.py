"""Files of users: they import others from their folder, and the sources of a run name all of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimopt.lab import Resources, compare, run
from aimopt.lab.protocol import import_paths
from aimopt.lab.protocol.run_config import RunConfig

TASK = """
from dataclasses import dataclass
import torch
import points
from aimopt.lab import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Line(Supervised):
    title = "A line"
    lr: float = 0.1
    steps: int = 4
    evaluate_every: int = 1
    batch_size: int = 4

    def data(self):
        from shapes.line import sides
        x = points.points(40)
        return Splits(train=(x[:20], sides(x[:20])), valid=(x[20:30], sides(x[20:30])), test=(x[30:], sides(x[30:])))

    def model(self):
        return torch.nn.Linear(2, 2)
"""
POINTS = "import torch\ndef points(count):\n    return torch.linspace(-1, 1, 2 * count).reshape(-1, 2)\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder `mine` with a task that imports a module when it is loaded, and one of a package when it trains."""
    path = [*sys.path]
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    (folder / "shapes").mkdir(parents=True)
    (folder / "task.py").write_text(TASK)
    (folder / "points.py").write_text(POINTS)
    (folder / "shapes" / "__init__.py").write_text("")
    (folder / "shapes" / "line.py").write_text("from .plane import side\ndef sides(x):\n    return side(x)\n")
    (folder / "shapes" / "plane.py").write_text("def side(x):\n    return (x[:, 0] > 0).long()\n")
    (folder / "unused.py").write_text("raise RuntimeError\n")
    yield folder
    sys.path[:] = path
    import_paths._FOLDERS.clear()
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def identity() -> str:
    return RunConfig.create("mine/task.py:Line", optimizer="AdamW").identity


def test_the_files_that_a_task_imports_are_sources_of_its_runs(mine: Path) -> None:
    files = ["points.py", "shapes/__init__.py", "shapes/line.py", "shapes/plane.py"]
    sources = RunConfig.create("mine/task.py:Line", optimizer="AdamW").sources
    assert [*sources] == ["mine/task.py:Line", *(f"mine/{file}" for file in files)]
    before = identity()
    (mine / "unused.py").write_text("")
    assert identity() == before
    (mine / "shapes" / "plane.py").write_text("def side(x):\n    return (x[:, 1] > 0).long()\n")
    assert identity() != before
    with pytest.raises(ValueError, match=r"mine/shapes/plane\.py has changed since the run was configured"):
        import_paths.check_sources(sources)


def test_a_task_that_imports_from_its_folder_is_trained_in_another_process(mine: Path) -> None:
    study = compare("mine/task.py:Line", optimizers=["AdamW"], seeds=(0,), grid=(1.0,), untuned=False)
    findings = run(study, store="results", resources=Resources(workers=1), costs=False)
    assert [run["status"] for run in findings.runs.to_dict("records")] == ["finished"]


def test_an_edited_module_is_imported_again(mine: Path) -> None:
    def load() -> float:
        return float(import_paths.load("mine/task.py:points").points(2)[0, 0])

    assert load() == -1
    first = import_paths.load("mine/task.py:Line")
    assert import_paths.load("mine/task.py:Line") is first
    (mine / "points.py").write_text(POINTS.replace("-1, 1", "-3, 1"))
    assert load() == -3


def test_two_folders_may_have_modules_of_one_name(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "task.py").write_text("import points\nclass Mine: where = points.__file__\n")
    (other / "points.py").write_text("")
    (mine / "second.py").write_text("import points\nclass Mine: where = points.__file__\n")
    for folder, file in ((other, "other/task.py"), (mine, "mine/second.py"), (other, "other/task.py")):
        assert Path(import_paths.load(f"{file}:Mine").where).parent == folder


def test_an_installed_module_comes_first(mine: Path) -> None:
    (mine / "json.py").write_text("raise RuntimeError\n")
    (mine / "torch.py").write_text("raise RuntimeError\n")
    (mine / "points.py").write_text("import json\n" + POINTS)
    assert import_paths.load("mine/task.py:Line").title == "A line"
    assert not {"mine/json.py", "mine/torch.py"} & import_paths.source("mine/task.py:Line").keys()


def test_a_file_that_imports_nothing_of_its_folder_has_one_source(mine: Path) -> None:
    (mine / "alone.py").write_text("import torch\nclass Mine(torch.optim.SGD):\n    pass\n")
    assert [*import_paths.source("mine/alone.py:Mine")] == ["mine/alone.py:Mine"]
