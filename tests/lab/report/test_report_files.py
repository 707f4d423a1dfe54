"""A report can be written at any time of a study, and its files say the same."""

import csv
import dataclasses
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.execution.console import CleanConsole
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.search import Search
from aimopt.lab.protocol.study import Study
from aimopt.lab.report import terminal_table, write
from aimopt.lab.report.sections import build_report
from aimopt.lab.results.run import Run, Status
from invented_runs import invented_runs
from odd_task import NAME
from short_studies import SHORT
from trained_findings import (
    ablated,
    comparison,
    findings,
    heat_map,
    odd_comparison,
    one_option,
    pairs,
    report_folder,
    runs_of,
    texts,
    unset,
)

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share


@pytest.fixture(scope="module")
def folder() -> Path:
    return report_folder()


def test_a_report_is_a_page_and_files_in_other_formats(tmp_path: Path) -> None:
    write(tmp_path, findings()[1:2])
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html", "report.md", "tables.tex", "results.csv", "figures",
    }  # fmt: skip
    stems = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert "compare-odd-task-accuracy-demo-differences" in stems
    for stem in stems:
        assert (tmp_path / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    assert stems == set(re.findall(r"figures/([\w-]+)\.png", (tmp_path / "report.md").read_text()))


HOSTILE = "=a\x1b]52;c;\x07b\rc\x00d\u202ee\u2028f\x9bg\ufffeh\udc80i\nj </script> [k](http://l) \\input{m} |"

OBEYED = set("\x1b\x07\r\x00\u202e\u2028\x9b\ufffe\udc80")


def test_control_characters_reach_no_format_of_the_report(tmp_path: Path) -> None:
    odd, runs = odd_comparison(), dict(runs_of(odd_comparison))
    renamed = [dataclasses.replace(c, label=HOSTILE) if c.label == NAME else c for c in odd.contenders]
    study = dataclasses.replace(odd, contenders=tuple(renamed), name=HOSTILE)
    failing = next(cell.config.identity for cell in study.cells(runs) if cell.contender == "AdamW")
    runs[failing] = dataclasses.replace(runs[failing], status="failed", reason=HOSTILE)
    found = dataclasses.replace(analyse_study(study, runs), title=HOSTILE)
    write(tmp_path, [found], title=HOSTILE, command=HOSTILE, refresh=1)
    page, text, tex, sheet = (
        (tmp_path / name).read_bytes().decode() for name in ("index.html", "report.md", "tables.tex", "results.csv")
    )
    for content in (page, text, tex, sheet):
        assert r"x1b]52;c;" in content.replace("{]}", "]").replace(r"\]", "]")
        assert not OBEYED & set(content)
    for data in re.findall(r'class="plot-data">(.*?)</script>', page):
        names = [line["label"] + line["short"] for panel in json.loads(data) for line in panel["lines"]]
        assert not OBEYED & set("".join(names))
    assert page.count("</script>") == page.count("<script")
    assert r"\[k\](http:\//l)" in text
    assert r"\input" not in tex
    rows = list(csv.DictReader(io.StringIO(sheet)))
    assert {row["contender"][:2] for row in rows} >= {"'="}
    assert {row["reason"][:2] for row in rows if row["status"] == "failed"} == {"'="}
    screen = io.StringIO()
    CleanConsole(file=screen, width=100).print(terminal_table(found))
    assert not OBEYED & set(screen.getvalue())


def test_the_same_findings_give_the_same_bytes(tmp_path: Path) -> None:
    for again in ("one", "two"):
        write(tmp_path / again, findings()[::2], refresh=1)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("count", [0, 1, 14])
def test_a_report_can_be_written_while_runs_are_missing(count: int, tmp_path: Path) -> None:
    parts = [
        analyse_study(make(), dict(list(runs_of(make).items())[:count]))
        for make in (comparison, odd_comparison, heat_map)
    ]
    page = write(tmp_path, parts, refresh=2.5).read_text()
    assert 'data-refresh="2.5"' in page
    assert f"{3 * count if count < 14 else 14 + 14 + 10} of" in page
    assert not (tmp_path / "figures").exists()
    for part in parts:
        Console(file=io.StringIO(), width=100).print(terminal_table(part))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("make", [one_option, texts, pairs, unset, ablated, heat_map])
def test_a_report_can_be_written_with_incomplete_runs(make: Callable[[], Study], share: float, tmp_path: Path) -> None:
    draw = random.Random(0)
    states: list[Status] = ["diverged", "failed", "running"]

    def damaged(run: Run) -> Run:
        length = draw.randrange(len(run.history))
        return dataclasses.replace(run, status=draw.choice(states), history=run.history[:length], facts={})

    runs = {identity: damaged(run) if draw.random() < share else run for identity, run in runs_of(make).items()}
    found = analyse_study(make(), runs)
    page = write(tmp_path, [found], refresh=1).read_text()
    drawn = "-sweep" in page if found.sweep else "-differences" in page
    assert drawn or share > 0
    Console(file=io.StringIO(), width=100).print(terminal_table(found))


def test_the_names_of_a_study_that_is_there_twice_do_not_clash(tmp_path: Path) -> None:
    found = analyse_study(heat_map(), runs_of(heat_map))
    page = write(tmp_path, [found, found], refresh=1).read_text()
    assert len(set(re.findall(r'class="study[^>]* id="([^"]+)"', page))) == 2


def test_a_report_can_be_written_without_studies(tmp_path: Path) -> None:
    assert "No comparison has a result yet" in write(tmp_path, []).read_text()


def test_comparisons_come_first(tmp_path: Path) -> None:
    ordinary, _, swept = findings()
    page = write(tmp_path, [swept, analyse_study(ablated(), {}), ordinary], refresh=1).read_text()
    names = re.findall(r'class="study[^>]* id="(\w+)-', page)
    assert names == ["compare", "ablation", "sensitivity"]


def test_a_comparison_counts_in_the_report_whatever_its_name_is(tmp_path: Path) -> None:
    usual = findings()[:2]
    named = [dataclasses.replace(a, study=dataclasses.replace(a.study, name="mine")) for a in usual]
    expected, report = (build_report(analyses, "Two tasks", "") for analyses in (usual, named))
    assert expected.headline
    assert report.headline == expected.headline
    assert report.ranks is not None
    assert report.ranks == expected.ranks
    (results,), (expected_results,) = report.results, expected.results
    assert [row[1:] for row in results.rows] == [row[1:] for row in expected_results.rows]
    assert results.rows[0][0].text == f"{usual[0].title}: mine"
    cards = [write(tmp_path / name, a, refresh=1).read_text() for name, a in (("usual", usual), ("named", named))]
    verdict = re.compile(r'<p><span class="pill \w+">[^<]*</span></p>')
    assert len(verdict.findall(cards[0])) == 2
    assert verdict.findall(cards[0]) == verdict.findall(cards[1])


def test_an_ablation_is_no_comparison() -> None:
    assert comparison().is_comparison
    assert not ablated().is_comparison
    assert not heat_map().is_comparison


def test_a_study_with_looks_and_tuned_options_is_reported(tmp_path: Path) -> None:
    """Contenders with different numbers of seeds, several tuning seeds, and every verdict that there is."""
    options: dict[str, Any] = dict(search=Search(points=3, seeds=(1001, 1002)), tune=("beta1",), untuned=False)
    looks: dict[str, Any] = dict(looks=(5, 10), seeds=tuple(range(10)), margin=0.01)
    names = ["RADAR", "AdamW", "NAdam", "Lion", "RAD"]
    study = compare("digits", "demo", optimizers=names, settings=SHORT, **options, **looks)
    gains = {"RADAR": 0.1, "NAdam": 0.0, "Lion": -0.1, "RAD": 0.012}
    found = analyse_study(study, invented_runs(study, gains, noise=0.002))
    verdicts = {s.label: s.difference.verdict for s in found.standings if s.difference}
    assert verdicts == {
        "RADAR": "better",
        "NAdam": "equal within ±1 %",
        "Lion": "worse",
        "RAD": "undecided with 10 seeds",
    }
    page = write(tmp_path, [found, dataclasses.replace(found, title="The same again")], refresh=1).read_text()
    for verdict in verdicts.values():
        assert f">{verdict}</span>" in page
    assert "Against AdamW, better: RADAR; worse: Lion; equal within ±1 %: NAdam; 10 seeds cannot tell: RAD." in page
    assert re.search(r"<small>beta1 0\.\d+</small>", page)
    assert "with looks after 5 and 10" in page
    assert 'title="equal">=</sup>' in page
    standing = found.standing("RADAR")
    assert len(standing.finals) == 5
    screen = io.StringIO()
    CleanConsole(file=screen, width=80).print(terminal_table(found))
    assert re.search(r"^ RADAR .* 5/5 ", screen.getvalue(), re.MULTILINE)
    assert re.search(r"^ RAD .* 10/10 ", screen.getvalue(), re.MULTILINE)
