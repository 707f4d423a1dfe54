"""Every format of the report says what the findings say, and escapes what users named."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.execution.console import CleanConsole
from aimopt.lab.report import phrasing, terminal_table, write
from aimopt.lab.report.formats import latex, markdown
from aimopt.lab.report.formats.csv_text import csv_text
from aimopt.lab.stats.paired import Difference
from odd_task import NAME
from trained_findings import (
    comparison,
    findings,
    odd_comparison,
    report_folder,
    runs_of,
)

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share


@pytest.fixture(scope="module")
def folder() -> Path:
    return report_folder()


LABELS = ("RADAR", "AdamW", "Lion")


def table(text: str) -> list[list[str]]:
    """The cells of the first table of some Markdown."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(rows[0])]


def test_the_results_have_the_means_and_the_best_is_bold(folder: Path) -> None:
    head, _, row, *_ = table((folder / "report.md").read_text())
    found = findings()[0]
    by_name = dict(zip(head, row, strict=True))
    for standing in found.standings:
        assert standing.spread is not None
        mean, std = (f"{number:.4f}" for number in standing.spread[:2])
        marks = {"better": "▲", "worse": "▼"}
        text = {1: f"**{mean}**", 2: f"<u>{mean}</u>", 3: mean}[standing.rank or 0]
        assert by_name[standing.label] == f"{text}{marks.get(phrasing.verdict(standing.difference), '')} ± {std}"


def test_a_source_gives_its_ranking_at_another_scale_and_its_numbers_at_its_own(tmp_path: Path, folder: Path) -> None:
    assert "the manual's ranking at its own scale | rank | 1st | 2nd" in (folder / "report.md").read_text()
    published = odd_comparison("full")
    demo = {(cell.contender, cell.config.seed): run for cell, run in findings()[1].cells if cell.role == "final"}
    # The settings of both scales are the same.
    runs = {c.config.identity: demo[c.contender, c.config.seed] for c in published.cells({})}
    write(tmp_path, [analyse_study(published, {identity: run for identity, run in runs.items() if run})], refresh=1)
    assert r"| the manual's |  | 0.9000 ± 0.0100 | 0.8000 ± 0.0200 |" in (tmp_path / "report.md").read_text()


def test_the_csv_file_has_every_run_and_no_formulas(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    assert len(rows) == sum(len(found.cells) for found in findings())
    for row, (cell, run) in zip(rows, findings()[0].cells, strict=False):
        assert run is not None
        assert (row["contender"], row["role"], int(row["seed"])) == (cell.contender, cell.role, cell.config.seed)
        assert float(row["last_test_loss"]) == run.history[-1]["test_loss"]
        assert row["identity"] == cell.config.identity
    assert {row["contender"] for row in rows} >= {"'=1+2", NAME}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "+", "@")]


def test_negative_numbers_stay_numbers_in_the_csv_file() -> None:
    found = findings()[0]
    cells = [(cell, dataclasses.replace(run, history=[{"step": 1, "x": -0.5}])) for cell, run in found.cells if run]
    rows = list(csv.DictReader(io.StringIO(csv_text([dataclasses.replace(found, cells=tuple(cells))]))))
    assert {row["last_x"] for row in rows} == {"-0.5"}


def test_the_latex_tables_are_complete(folder: Path) -> None:
    text = (folder / "tables.tex").read_text()
    for body in re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") >= 3
    assert re.search(r"\\textbf\{0\.\d{4}\}", text)
    assert text.isascii()


@pytest.mark.parametrize(
    ("escape", "text", "expected"),
    [
        (latex.escape, r"a_b & 50% $x$ #1 {y}", r"a\_b \& 50\% \$x\$ \#1 \{y\}"),
        (latex.escape, "~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        (latex.escape, "[a]*", "{[}a{]}{*}"),
        (latex.escape, "γ = ℓ\n|<", r"$\gamma$ = $\ell$ $|$$<$"),
        (markdown.escape, "WWW.a.b https://c &lt; $d$", r"WWW\.a.b https:\//c \&lt; \$d\$"),
        (markdown.escape, "@name a@b.c #12 #a", r"@&#8203;name a@&#8203;b.c \#&#8203;12 \#a"),
        (markdown.escape, "a|b *c* _d_ <e> `f`\n# [g](h)", r"a\|b \*c\* \_d\_ \<e\> \`f\` \# \[g\](h)"),
    ],
)  # fmt: skip
def test_special_characters_of_a_format_are_escaped(escape: Callable[[str], str], text: str, expected: str) -> None:
    assert escape(text) == expected


def test_the_terminal_gets_a_hundred_columns_and_no_markup() -> None:
    screen = io.StringIO()
    for found in findings():
        Console(file=screen, width=100).print(terminal_table(found))
    assert max(map(len, screen.getvalue().splitlines())) <= 100
    assert "<script>alert(1)</script> & $x_1$" in screen.getvalue()
    for standing in findings()[0].standings:
        assert standing.spread is not None
        assert f"{standing.spread.mean:.4f} ± {standing.spread.std:.4f}" in screen.getvalue()
    assert "0.05 edge" in screen.getvalue()
    assert "diverged 1 of 4" in screen.getvalue()


TWO_SEEDS = "cannot tell: too few seeds (2 of at least 5)"


def test_two_seeds_give_no_verdict_in_any_format(tmp_path: Path) -> None:
    """However sure the t-test is: RADAR is made better than AdamW by 1 on each of two seeds."""
    study, runs = comparison(), dict(runs_of(comparison))
    by_seed = {(c.contender, c.config.seed): c.config.identity for c in study.cells(runs) if c.role == "final"}
    few = dataclasses.replace(study, seeds=study.seeds[:2])
    for seed in few.seeds:
        run = runs[by_seed["RADAR", seed]]
        of_adamw = runs[by_seed["AdamW", seed]].history[-1]["test_loss"]
        better = [*run.history[:-1], {**run.history[-1], "test_loss": of_adamw - 1 + seed / 1e3}]
        runs[by_seed["RADAR", seed]] = dataclasses.replace(run, history=better)
    found = analyse_study(few, runs)
    difference = found.standing("RADAR").difference
    assert difference is not None
    assert difference.holm_t_p < 0.01
    assert difference.verdict == TWO_SEEDS
    assert phrasing.headline([found], None) == (
        "On Digits, MLP (1k), at scale demo, RADAR cannot be distinguished from AdamW "
        "(2 seeds, a verdict needs at least 5; among RADAR, AdamW and Lion)."
    )
    assert (
        "With 2 seeds, no contender can be distinguished from AdamW: a verdict needs at least 5."
        in phrasing.summary(found)
    )
    write(tmp_path, [found], refresh=1)
    forms = {name: (tmp_path / name).read_text() for name in ("index.html", "report.md", "tables.tex", "results.csv")}
    for name in ("index.html", "report.md", "tables.tex"):
        assert forms[name].count(TWO_SEEDS) >= 2, name  # RADAR and Lion
        assert phrasing.headline([found], None) in forms[name] or name == "tables.tex"
    for name, text in forms.items():
        assert not re.search(r"[▲▼](?! (better|worse))|\$\^\{[+-]\}\$(?! (better|worse))|better than", text), name
    screen = io.StringIO()
    Console(file=screen, width=80).print(terminal_table(found))
    assert len(re.findall(r"(?:RADAR|Lion) .* cannot tell *\n.* 2 of 5 seeds", screen.getvalue())) == 2


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_table_cuts_no_number_and_no_name(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Difference, "verdict", property(lambda _: "equal within ±0.5 %"))
    first = findings()[0]
    name = "RADAR(gamma=0.05, ell_ratio=0.02, bias_correction='exact', weight_decay=0.01)"
    standings = tuple(dataclasses.replace(s, label=name) if s.label == "RADAR" else s for s in first.standings)
    measure = dataclasses.replace(first.measure, label="a measure with a long name")
    screen = io.StringIO()
    found = dataclasses.replace(first, standings=standings, measure=measure, audit=())
    CleanConsole(file=screen, width=width).print(terminal_table(found))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in screen.getvalue()
    begin, end = (
        next(i for i, line in enumerate(lines) if line.startswith(f" {word}")) for word in ("RADAR(", "AdamW")
    )
    first_column = [re.split(r"\s{2,}", line.strip())[0] for line in lines[begin:end]]
    assert "".join(first_column).replace(" ", "") == name.replace(" ", "")
    for standing in found.standings:
        assert standing.spread is not None
        assert f"{standing.spread.mean:.4f} ± {standing.spread.std:.4f}" in screen.getvalue()


@pytest.mark.parametrize("width", [20, 60, 79])
def test_a_narrow_terminal_gets_every_name_number_and_verdict(width: int) -> None:
    screen = io.StringIO()
    found = findings()[0]
    CleanConsole(file=screen, width=width).print(terminal_table(found))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "  " not in screen.getvalue().partition("\n\n")[0]
    text = re.sub(r"\s", "", screen.getvalue())
    for standing in found.standings:
        assert standing.spread is not None
        verdict = phrasing.short_verdict(standing.difference) if standing.label != "AdamW" else "reference"
        row = re.search(rf"{standing.label}:lr[^;]*;testloss↓([^;]*);seeds5/5;(?:gainonAdamW[^;]*;)?(\w+)", text)
        assert row is not None, standing.label
        assert row[1] == f"{standing.spread.mean:.4f}±{standing.spread.std:.4f}"
        assert row[2].startswith(verdict.replace(" ", ""))


@pytest.mark.parametrize("width", [60, 100])
def test_a_name_cannot_look_like_another_line_of_the_terminal(width: int) -> None:
    screen, found = io.StringIO(), findings()[0]
    name = "Lion\nAgainst AdamW, better: Lion."
    standings = tuple(dataclasses.replace(s, label=name) if s.label == "Lion" else s for s in found.standings)
    spoofed = dataclasses.replace(found, standings=standings, title="Digits\nAgainst AdamW, better: Lion.")
    CleanConsole(file=screen, width=width).print(terminal_table(spoofed))
    assert not any(line.strip().startswith("Against AdamW, better: Lion.") for line in screen.getvalue().splitlines())
