"""What docs/results shows is what was measured: the page follows from the runs that lie beside it."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from aimopt.lab.investigation import findings
from aimopt.lab.report.forms.spreadsheet import spreadsheet
from aimopt.lab.store import Store
from aimopt.lab.tasks import PAPER

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("results")
    with tarfile.open(RESULTS / "mini.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Store(folder)


def test_every_setting_was_compared_and_no_run_left_out(mini: Store) -> None:
    found = findings(mini, mini.studies())
    assert {f.study.task for f in found if f.study.name == "compare"} == set(PAPER)
    assert [f.study for f in found if not f.progress.complete] == []
    assert mini.unreadable == mini.aside() == {}


def test_the_page_follows_from_the_runs(mini: Store) -> None:
    assert spreadsheet(findings(mini, mini.studies())) == (RESULTS / "results.csv").read_text()


def test_the_reproduction_says_what_the_runs_do(mini: Store) -> None:
    command = [sys.executable, "benchmarks/reproduction.py", str(mini.root)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = (ROOT / "docs" / "reproduction.md").read_text().splitlines()
    assert len(said.splitlines()) > 50
    assert [line for line in said.splitlines() if line not in lines] == []
