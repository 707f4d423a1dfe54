"""`run` returns an object that scripts and notebooks use; it prints nothing unless asked."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.figure
import pandas
import pytest
from rich.console import Console

from aimopt.lab import Findings, Store, analyse, api, compare, run, run_all, sensitivity
from aimopt.lab.execution.resources import Resources
from aimopt.messages.reason import Reason
from file_server import serving
from short_studies import short_study

pytestmark = pytest.mark.xdist_group("findings")  # one process builds what these tests share


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    study, folder = short_study("RADAR", "AdamW"), tmp_path_factory.mktemp("store")
    return run(study, folder, resources=Resources(workers=1), costs=False)


def test_running_prints_nothing(tmp_path: Path) -> None:
    code = f"""
from aimopt.lab import Resources, compare, run
study = compare("digits", "demo", optimizers=["RADAR", "AdamW"], grid=(1.0,), seeds=(0,), untuned=False,
                settings={{"steps": 4, "evaluate_every": 2, "warmup_steps": 1}})
findings = run(study, {str(tmp_path / "store")!r}, resources=Resources(workers=1), costs=False)
assert findings.complete
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


DOWNLOADED = """
import os
from dataclasses import dataclass
from pathlib import Path
import torch
from aimopt.lab import Splits, Supervised
from aimopt.paper.data import fetching, sources
from aimopt.paper.data.dataset import Dataset, File, Form, read_unchanged

fetching.SECONDS_BETWEEN_LINES = -1.0
FORMS = tuple(Form((File(name, os.environ["SITE"] + name),), read_unchanged) for name in ("missing", "numbers"))
NUMBERS = Dataset(
    name="numbers", title="Numbers", megabytes=1, parts=(File("numbers"),), forms=FORMS, licence="", citation=""
)

@dataclass(frozen=True, kw_only=True)
class Numbers(Supervised):
    title = "Downloaded numbers"
    lr: float = 1e-2
    steps: int = 4
    evaluate_every: int = 2

    def prepare(self):
        with open("prepared.txt", "a") as file:
            file.write("once\\n")
        sources.prepare(NUMBERS)

    def data(self):
        x = torch.tensor(list((sources.prepare(NUMBERS) / "numbers").read_bytes()))[:, None] / 256
        return Splits(*[(x, (x[:, 0] > 0.5).long())] * 3)

    def model(self):
        return torch.nn.Linear(1, 2)
"""
RUN = """
from aimopt.lab import Resources, compare, run
study = compare("numbers_task.py:Numbers", optimizers=["RADAR", "AdamW"], grid=(1.0,), seeds=(0,), untuned=False)
findings = run(study, "store", resources=Resources(workers=1), costs=False, progress=PROGRESS)
assert findings.complete
"""


@pytest.fixture
def downloaded_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the current folder, a task with data that come from a server of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    Path("numbers_task.py").write_text(DOWNLOADED)
    with serving() as site:
        site.files["numbers"] = bytes(range(256))
        monkeypatch.setenv("SITE", site.url(""))
        yield


@pytest.mark.usefixtures("downloaded_task")
@pytest.mark.parametrize("progress", [False, True])
def test_a_download_is_shown_only_if_asked(progress: bool) -> None:
    code = RUN.replace("PROGRESS", str(progress))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if progress:
        assert_download_was_shown(done.stderr)
    else:
        assert (done.stdout, done.stderr) == ("", "")
    assert Path("cache/numbers/numbers").is_file()
    assert Path("prepared.txt").read_text() == "once\n"


@pytest.mark.usefixtures("downloaded_task")
def test_the_command_line_shows_downloads() -> None:
    command = [sys.executable, "-m", "aimopt", "prepare", "numbers_task.py:Numbers"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert_download_was_shown(done.stderr)
    assert done.stdout.startswith("numbers_task.py:Numbers: ready")


def assert_download_was_shown(stderr: str) -> None:
    lines = stderr.splitlines()
    assert [line.split(" from ")[0] for line in lines if line.startswith("Downloading")] == [
        "Downloading file 'missing'",
        "Downloading file 'numbers'",
    ]
    assert any(line.startswith("  failed: 404") for line in lines)
    assert any(line.endswith(" MB") for line in lines)


def test_the_table_has_one_row_per_contender(findings: Findings) -> None:
    table = findings.table()
    assert [row["contender"] for row in table.rows] == ["RADAR", "AdamW"]
    radar = findings.analysis.standing("RADAR")
    assert radar.spread is not None
    assert table.rows[0]["mean"] == radar.spread.mean
    assert table.rows[1]["verdict"] == "reference"
    assert str(table).count("\n") == 3
    page = findings._repr_html_()
    assert page.startswith("<table>")
    assert "<td>RADAR</td>" in page
    assert str(findings).startswith(str(table))


def test_names_are_escaped_in_a_notebook(findings: Findings) -> None:
    table = findings.table()
    hostile = {**table.rows[0], "contender": "<script>alert(1)</script>\x1b[2J"}
    page = type(table)("<b>title</b>", table.columns, (hostile,))._repr_html_()
    assert "<script>" not in page
    assert "<b>title" not in page
    assert "\x1b" not in page


def test_verdicts(findings: Findings) -> None:
    assert findings.verdict("RADAR").startswith("cannot tell: too few seeds (2 of at least 5)")
    assert findings.verdict("AdamW") == "reference"
    with pytest.raises(ValueError, match="no contender is called 'RADR'; did you mean 'RADAR'"):
        findings.verdict("RADR")


def test_runs_are_a_frame_where_pandas_is_there_and_else_rows(
    findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    rows = findings.runs
    assert {row["role"] for row in rows} == {"search", "final", "untuned"}
    assert all(row["status"] == "finished" for row in rows)
    monkeypatch.undo()
    assert isinstance(findings.runs, pandas.DataFrame)
    assert findings.runs["identity"].tolist() == [row["identity"] for row in rows]


def test_figures_by_name(findings: Findings) -> None:
    assert "differences" in findings.figures
    for name in findings.figures:
        assert isinstance(findings.figure(name), matplotlib.figure.Figure)
    with pytest.raises(ValueError, match="this study has no figure 'difference'; did you mean 'differences'"):
        findings.figure("difference")


def test_the_report_goes_to_the_store_or_elsewhere(findings: Findings, tmp_path: Path) -> None:
    assert findings.report(tmp_path / "mine") == tmp_path / "mine" / "index.html"
    assert "RADAR" in (tmp_path / "mine" / "index.html").read_text()
    assert findings.report().parent == findings.store.root / "report"


def test_analysing_trains_nothing_and_agrees(findings: Findings, tmp_path: Path) -> None:
    again = analyse(findings.study, findings.store.root)
    assert again.table() == findings.table()
    empty = analyse(findings.study, tmp_path)
    assert not empty.complete
    assert empty.verdict("RADAR") == "no result yet"
    assert repr(empty).startswith("<Findings of compare on digits: 0 of ")
    assert list(tmp_path.iterdir()) == []


def test_several_studies_share_runs_and_failures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = "    def step(self, closure=None):\n        raise RuntimeError('no')\n"
    Path("bad.py").write_text(f"import torch\nclass Bad(torch.optim.SGD):\n{step}")
    quick = {"grid": (1.0,), "seeds": (0,), "untuned": False}
    first = short_study("RADAR", "bad.py:Bad", reference="RADAR", **quick)
    second = sensitivity(
        "digits", "demo", {"gamma": (0.1, 0.2)}, settings=first.settings, grid=(1.0,), seeds=(0,), search_steps=6
    )
    screen = io.StringIO()
    batch = run_all(
        [first, second],
        tmp_path / "store",
        resources=Resources(workers=1),
        costs=False,
        progress=Console(file=screen, width=100),
    )
    assert (batch.runs, batch.reused_runs) == (3, 0)  # RADAR, of both studies; Bad; and gamma=0.2
    assert [failed.reason for failed in batch.failed] == ["RuntimeError: no"]
    assert batch.findings[0].failed == batch.failed
    assert screen.getvalue()
    assert len(Store(tmp_path / "store").studies()) == 2


def test_a_study_without_contenders_or_axes_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("from aimopt.paper.tasks.digits import Digits as Own\n")
    with pytest.raises(ValueError, match=r"name the optimizers to compare on own.py:Own: its protocol has none"):
        compare("own.py:Own", "demo")
    with pytest.raises(ValueError, match="name the optimizer to vary on digits and the values of its options"):
        sensitivity("digits", "demo")
    with pytest.raises(ValueError, match="none of AdamW, Lion has the option 'gama'"):
        compare("digits", "demo", optimizers=["AdamW", "Lion"], options={"gama": 1})


def test_an_option_for_all_reaches_those_that_have_it() -> None:
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"], options={"gamma": 0.3, "weight_decay": 0.2})
    chosen = {c.label: json.loads(json.dumps(dict(c.options))) for c in study.contenders}
    assert chosen == {"RADAR": {"gamma": 0.3, "weight_decay": 0.2}, "AdamW": {"weight_decay": 0.2}}


def test_what_cannot_be_prepared_or_measured_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no\nnetwork")

    monkeypatch.setattr("aimopt.lab.protocol.tasks.prepare", fail)
    monkeypatch.setattr(api, "measure_costs", fail)
    study = short_study("RADAR", "AdamW", grid=(1.0,), seeds=(0,), untuned=False)
    batch = run_all([study], tmp_path, resources=Resources(workers=1))
    assert batch.problems == [
        Reason("cannot prepare digits: OSError: no network"),
        Reason("cannot measure the costs on digits: OSError: no network"),
    ]
