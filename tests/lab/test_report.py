"""Every form of the report says what the findings say, and what users named stays text."""

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from aimopt import palette
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.execution.console import CleanConsole
from aimopt.lab.protocol.study import Study
from aimopt.lab.report import phrasing, terminal_table, write
from aimopt.lab.report.figures import rendering
from aimopt.lab.report.figures.rendering import RenderedPicture, render_all
from aimopt.lab.report.figures.style import VARIABLES, styles_of
from aimopt.lab.report.formats import latex, markdown
from aimopt.lab.report.formats.csv_text import csv_text
from aimopt.lab.report.sections import all_pictures, build_report
from aimopt.lab.results.run import Run, Status
from odd_task import NAME
from trained_findings import (
    ablated,
    comparison,
    findings,
    heat_map,
    odd_comparison,
    one_option,
    pairs,
    runs_of,
    texts,
    unset,
)

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share

LABELS = ("RADAR", "AdamW", "Lion")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report, but for the files of figures, which take their time."""
    there = tmp_path_factory.mktemp("report")
    write(there, findings(), title=NAME, command="aimopt compare digits && echo '<b>'", refresh=1000)
    return there


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text()


def svgs(page: str) -> list[ElementTree.Element]:
    drawings = re.findall(r'<svg[^>]*class="plot".*?</svg>|<svg xmlns.*?</svg>', page, re.DOTALL)
    return [ElementTree.fromstring(drawing) for drawing in drawings]


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


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_pictures_rendered_in_two_processes_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 2)
    shares, forked = list[int](), rendering._forked

    def count_share(function: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        shares.append(len(items))
        return forked(function, items)

    monkeypatch.setattr(rendering, "_forked", count_share)

    def rendered(per_process: int) -> dict[str, RenderedPicture]:
        monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", per_process)
        report = build_report(findings()[1:2], "title", "command")
        return render_all(all_pictures(report)[1:3], report.styles, ("png", "pdf"))

    in_one = rendered(per_process=2)
    assert shares == []
    in_two = rendered(per_process=1)
    assert shares == [1]  # the second picture was given to a forked process
    assert [set(picture.files) for picture in in_one.values()] == [{"png", "pdf"}] * 2
    assert in_one == in_two


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_forked_processes_share_the_work_and_failed_shares_are_done_in_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 3)
    monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", 2)
    here = os.getpid()
    made = rendering.map_in_processes(lambda item: (item, os.getpid()), range(10))
    assert [item for item, _ in made] == list(range(10))
    assert len({process for _, process in made}) == 3
    assert [process == here for _, process in made[:4]] == [True, False, False, True]

    def fail(item: int) -> int:
        if item % 3 == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        if item % 3 == 2 and os.getpid() != here:
            raise KeyError(item)
        return os.getpid()

    assert rendering.map_in_processes(fail, range(10)) == [here] * 10
    with pytest.raises(ZeroDivisionError):
        rendering.map_in_processes(lambda item: 1 / (item - 4), range(10))
    assert not multiprocessing.active_children()


def test_the_page_needs_nothing_else(page: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {link for link in links if not link.startswith("#")} == {"data:,", "report.md", "tables.tex", "results.csv"}
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_only_the_script_of_the_package_may_run(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_names_stay_text_in_the_page(page: str, folder: Path) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x_1$ | 50%" in page
    assert "echo &#39;&lt;b&gt;&#39;" in page
    assert "<script>" not in (folder / "report.md").read_text()


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
        assert not OBEYED & set("".join(line["label"] for line in json.loads(data)["lines"]))
    assert page.count("</script>") == page.count("<script")
    assert r"\[k\](http:\//l)" in text
    assert r"\input" not in tex
    rows = list(csv.DictReader(io.StringIO(sheet)))
    assert {row["contender"][:2] for row in rows} >= {"'="}
    assert {row["reason"][:2] for row in rows if row["status"] == "failed"} == {"'="}
    screen = io.StringIO()
    CleanConsole(file=screen, width=100).print(terminal_table(found))
    assert not OBEYED & set(screen.getvalue())


def test_negative_numbers_stay_numbers_in_the_csv_file() -> None:
    found = findings()[0]
    cells = [(cell, dataclasses.replace(run, history=[{"step": 1, "x": -0.5}])) for cell, run in found.cells if run]
    rows = list(csv.DictReader(io.StringIO(csv_text([dataclasses.replace(found, cells=tuple(cells))]))))
    assert {row["last_x"] for row in rows} == {"-0.5"}


def test_every_anchor_of_the_page_exists_once(page: str) -> None:
    names = re.findall(r'\sid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert {link[1:] for link in re.findall(r'href="(#[^"]+)"', page)} <= set(names)


def test_figures_take_the_colours_of_the_page_and_carry_a_stamp(page: str) -> None:
    drawings = svgs(page)
    assert len(drawings) >= 15
    for drawing in drawings:
        styles = " ".join(element.get("style", "") for element in drawing.iter())
        assert not set(VARIABLES) & set(re.findall(r"#[0-9a-f]{6}", styles))
        assert any("scale demo" in (element.text or "") for element in drawing.iter())
        assert drawing.get("aria-label")


def test_a_dollar_sign_in_a_figure_is_no_formula(page: str) -> None:
    texts = [element.text for drawing in svgs(page) for element in drawing.iter() if element.text]
    assert NAME in texts
    assert not [text for text in texts if "mathdefault" in text]


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
    page = write(tmp_path, [found, found], refresh=1).read_text()  # the same twice: names must not clash
    assert len(set(re.findall(r'<section class="study" id="([^"]+)"', page))) == 2
    drawn = "-sweep" in page if found.sweep else "-differences" in page
    assert drawn or share > 0
    Console(file=io.StringIO(), width=100).print(terminal_table(found))


def test_comparisons_come_first(tmp_path: Path) -> None:
    ordinary, _, swept = findings()
    page = write(tmp_path, [swept, analyse_study(ablated(), {}), ordinary], refresh=1).read_text()
    names = re.findall(r'<section class="study" id="(\w+)-', page)
    assert names == ["compare", "ablation", "sensitivity"]


def test_a_report_can_be_written_without_studies(tmp_path: Path) -> None:
    assert "No comparison has a result yet" in write(tmp_path, []).read_text()


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


def test_the_headline_counts_verdicts() -> None:
    first, second, _ = findings()
    verdicts = [phrasing.verdict(f.standing("RADAR").difference) for f in (first, second)]
    better, worse = (verdicts.count(word) for word in ("better", "worse"))
    assert phrasing.headline([first, second], None) == (
        f"Against AdamW on 2 tasks, RADAR is better on {better}, worse on {worse}, "
        f"and cannot be distinguished from it on {2 - better - worse} "
        "(4 to 5 seeds, a verdict needs at least 5; among 6 contenders)."
    )
    result = {"better": "is better than", "worse": "is worse than"}.get(verdicts[0], "cannot be distinguished from")
    assert phrasing.headline([first], None) == (
        f"On Digits, MLP (1k), at scale demo, RADAR {result} AdamW (5 seeds; among RADAR, AdamW and Lion)."
    )
    assert phrasing.headline([findings()[2]], None) == ""


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
    assert len(re.findall(r"(?:RADAR|Lion) .* cannot tell *│\n.* 2 of 5 seeds", screen.getvalue())) == 2


def test_the_summary_names_diverged_contenders_and_missing_runs() -> None:
    study, runs = comparison(), dict(runs_of(comparison))
    assert phrasing.summary(analyse_study(study, {})) == ["So far: 0 of 39 runs are over.", "There is no result yet."]
    finals = {label: [c.config.identity for c in study.cells(runs) if c[:2] == (label, "final")] for label in LABELS}
    runs |= {identity: dataclasses.replace(runs[identity], status="diverged") for identity in finals["RADAR"]}
    reference = findings()[0].reference.spread
    assert reference is not None
    assert phrasing.summary(analyse_study(study, runs))[:3] == [
        f"AdamW has the best mean test loss ({reference.mean:.4f}); RADAR is 3rd of 3 (diverged).",
        "Against AdamW, worse: RADAR and Lion.",
        "RADAR diverged on 5 of 5 seeds.",
    ]
    others = [*finals["AdamW"], *finals["Lion"]]
    runs |= {identity: dataclasses.replace(runs[identity], status="diverged") for identity in others}
    assert phrasing.summary(analyse_study(study, runs))[0] == "Every contender diverged."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (phrasing.number(-1.25, 1), "−1.2"),
        (phrasing.number(float("inf"), 1), "diverged"),
        (phrasing.number(None, 1), "–"),
        (phrasing.signed(0.5, 2), "+0.50"),
        (phrasing.signed(-float("inf"), 2), "−∞"),
        (phrasing.interval(-1, 2, 1), "[−1.0, 2.0]"),
        (phrasing.interval(float("nan"), 2, 1), ""),
        (phrasing.probability(0.0001), "<0.001"),
        (phrasing.probability(0.0312), "0.031"),
        (phrasing.general(1e-5), "1e−5"),
        (phrasing.amount(3 << 20, "B"), "3 MiB"),
        (phrasing.amount(0.011, "s"), "11 ms"),
        (phrasing.amount(240, "s"), "4 min"),
        (phrasing.ordinal(11), "11th"),
        (phrasing.ordinal(22), "22nd"),
        (phrasing.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_are_formatted_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected


# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


def oklab(colour: str, vision: Any) -> Any:
    """Where a colour lies for some eyes, by Ottosson (2020)."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ seen)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_two_colours_are_distinguishable(theme: str, vision: str) -> None:
    places = [oklab(getattr(colour, theme), VISIONS[vision]) for colour in palette.SERIES]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) > 0.1


def test_a_contender_has_one_colour_and_radar_always_the_same() -> None:
    styles = styles_of(findings())
    assert styles["RADAR"].slot == 0
    for found in findings()[:2]:
        slots = [styles[standing.label].slot for standing in found.standings]
        assert len(set(slots)) == len(slots)


def test_a_comparison_counts_in_the_report_whatever_its_name_is(tmp_path: Path) -> None:
    usual = findings()[:2]
    named = [dataclasses.replace(a, study=dataclasses.replace(a.study, name="mine")) for a in usual]
    expected, report = (build_report(analyses, "Two tasks", "") for analyses in (usual, named))
    assert expected.headline
    assert report.headline == expected.headline
    assert report.ranks is not None
    assert report.ranks == expected.ranks
    assert report.results is not None
    assert [row[1:] for row in report.results.rows] == [row[1:] for row in expected.results.rows]  # type: ignore[union-attr]
    assert report.results.rows[0][0].text == f"{usual[0].title}: mine"
    cards = [write(tmp_path / name, a, refresh=1).read_text() for name, a in (("usual", usual), ("named", named))]
    verdict = re.compile(r'<p><span class="pill \w+">[^<]*</span></p>')
    assert len(verdict.findall(cards[0])) == 2
    assert verdict.findall(cards[0]) == verdict.findall(cards[1])


def test_an_ablation_is_no_comparison() -> None:
    assert comparison().is_comparison
    assert not ablated().is_comparison
    assert not heat_map().is_comparison
