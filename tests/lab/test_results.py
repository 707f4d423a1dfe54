"""What docs/results holds is what was measured: the tables follow from the runs in the archive beside them."""

import subprocess
import sys
import tarfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

import reproduction
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.api import analyse_all
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.report.formats.csv_text import csv_text
from aimopt.lab.report.formats.latex import latex
from aimopt.lab.report.sections import build_report
from aimopt.lab.results.store import Store
from aimopt.paper.entries import TASKS
from aimopt.paper.presets import CORRECTIONS, GEOMETRIES, ablation

# Of the CSV with one row per run, as it was published with the runs.
CSV_SHA256 = "8b0d225f74f3545c8b27b442d01a4fcb1cdd8b3e494b29a0e6f3f2ec0f0d90e8"
pytestmark = pytest.mark.xdist_group("archive")  # one process builds what these tests share

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def mini_1(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The paper's protocol on the first miniatures."""
    return unpacked("mini-1.tar.xz", tmp_path_factory)


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Seeds until decided."""
    return unpacked("mini.tar.xz", tmp_path_factory)


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Successive halving."""
    return unpacked("explored.tar.xz", tmp_path_factory)


@pytest.fixture(scope="module")
def table1(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Every cell of the paper's first table."""
    return unpacked("table1.tar.xz", tmp_path_factory)


def unpacked(name: str, folders: pytest.TempPathFactory) -> Store:
    folder = folders.mktemp("results")
    with tarfile.open(RESULTS / name) as archive:
        archive.extractall(folder, filter="data")
    return Store(folder)


@cache
def findings(store: Store) -> list[StudyAnalysis]:
    return [one.analysis for one in analyse_all(store.studies(), store)]


def test_every_setting_was_compared_and_no_run_left_out(mini_1: Store) -> None:
    found = findings(mini_1)
    assert {f.study.task for f in found if f.study.is_comparison} == set(TASKS)
    assert [f.study for f in found if not f.progress.complete] == []
    assert mini_1.unreadable == mini_1.set_aside_reasons() == {}


def test_the_tables_follow_from_the_runs(mini_1: Store) -> None:
    assert (
        latex(build_report(findings(mini_1), "A comparison of optimizers", "")) == (RESULTS / "mini-1.tex").read_text()
    )


def test_the_values_of_all_runs_are_those_that_were_measured(mini_1: Store) -> None:
    text = csv_text(findings(mini_1))
    assert len(text.splitlines()) == 1093
    assert sha256(text.encode()).hexdigest() == CSV_SHA256


@pytest.mark.parametrize(
    ("archive", "page"),
    [
        ("mini_1", "reproduction-mini-1.md"),
        ("mini", "reproduction.md"),
        ("table1", "table1.md"),
        ("explored", "exploration.md"),
    ],
)
def test_the_reproduction_says_what_the_runs_do(archive: str, page: str, request: pytest.FixtureRequest) -> None:
    said = "\n".join(reproduction.tables(request.getfixturevalue(archive))).splitlines()
    lines = (ROOT / "docs" / page).read_text().splitlines()
    assert len(said) > 20
    assert [line for line in said if line not in lines] == []


def test_the_reproduction_is_a_script(explored: Store) -> None:
    command = [sys.executable, "benchmarks/reproduction.py", str(explored.root)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == "\n".join(reproduction.tables(explored)) + "\n"


def test_all_studies_with_seeds_until_decided_are_complete(mini: Store) -> None:
    found = findings(mini)
    assert {f.study.reference for f in found if f.study.is_comparison} == {"AdamW", "AdamW(tune='beta1')", "RADAR"}
    assert [f.study for f in found if not f.progress.complete] == []
    assert mini.unreadable == mini.set_aside_reasons() == {}


def test_every_cell_of_table_1_has_its_seeds(table1: Store) -> None:
    found = findings(table1)
    assert {f.study.task for f in found} == {"wikitext103-gpt2", "cifar10-vit"}
    for analysis in found:
        cells = {f"{row} + {column}" for row in GEOMETRIES for column in CORRECTIONS}
        assert {s.label: len(s.finals) for s in analysis.standings} == dict.fromkeys(cells, 10)


def test_a_comparison_of_today_finds_the_runs_of_the_archive(mini_1: Store) -> None:
    runs = mini_1.runs()
    for task in TASKS:
        study = compare(task, "mini-1")
        cells = study.cells(runs)
        assert study.count_unknown_runs(runs) == 0
        assert [cell.config for cell in cells if cell.config.identity not in runs] == []
        stored = [one for one in mini_1.studies() if one == study]
        assert len(stored) == 1
        assert mini_1.study_file(stored[0]).is_file()
        assert mini_1.overhead(stored[0]) is not None


def test_a_study_keeps_its_file_when_it_is_asked_for_again(mini_1: Store) -> None:
    files = set(mini_1.root.joinpath("studies").iterdir())
    for study in (compare("cifar10-vit", "mini-1"), ablation("wikitext2-finetune", "mini-1")):
        assert mini_1.save_study(study).stored_as is not None
    assert set(mini_1.root.joinpath("studies").iterdir()) == files
