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
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from aimopt.lab.analysis import analyse
from aimopt.lab.console import CleanConsole
from aimopt.lab.report import terminal_table, words, write
from aimopt.lab.report.figures import STYLES, VARIABLES, Drawn, draw_all, rendering, styles_of
from aimopt.lab.report.forms import latex, markdown
from aimopt.lab.report.forms.spreadsheet import spreadsheet
from aimopt.lab.report.sections import all_pictures, build
from aimopt.lab.runs import Run, Status
from aimopt.lab.study import Study
from odd import NAME
from trained import ablated, comparison, findings, heat_map, odd_comparison, one_option, pairs, runs_of, texts, unset

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


def test_a_report_is_a_page_and_the_same_in_other_forms(tmp_path: Path) -> None:
    write(tmp_path, findings()[1:2])
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html", "report.md", "tables.tex", "results.csv", "figures",
    }  # fmt: skip
    stems = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert "compare-odd-accuracy-demo-differences" in stems
    for stem in stems:
        assert (tmp_path / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    assert stems == set(re.findall(r"figures/([\w-]+)\.png", (tmp_path / "report.md").read_text()))


def test_pictures_that_processes_share_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 2)

    def drawn(per_process: int) -> dict[str, Drawn]:
        monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", per_process)
        report = build(findings()[1:2], "title", "command")
        return draw_all(all_pictures(report)[1:3], report.styles, ("png", "pdf"))

    alone, shared = drawn(per_process=2), drawn(per_process=1)
    assert [set(picture.files) for picture in alone.values()] == [{"png", "pdf"}] * 2
    assert alone == shared


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_forked_processes_share_the_work_and_what_one_fails_at_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 3)
    monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", 2)
    here = os.getpid()
    made = rendering.on_all_cores(lambda item: (item, os.getpid()), range(10))
    assert [item for item, _ in made] == list(range(10))
    assert len({process for _, process in made}) == 3
    assert [process == here for _, process in made[:4]] == [True, False, False, True]

    def fail(item: int) -> int:
        if item % 3 == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        if item % 3 == 2 and os.getpid() != here:
            raise KeyError(item)
        return os.getpid()

    assert rendering.on_all_cores(fail, range(10)) == [here] * 10
    with pytest.raises(ZeroDivisionError):
        rendering.on_all_cores(lambda item: 1 / (item - 4), range(10))
    assert not multiprocessing.active_children()


def test_the_page_needs_nothing_else(page: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {link for link in links if not link.startswith("#")} == {"data:,", "report.md", "tables.tex", "results.csv"}
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_only_the_own_script_may_run(page: str) -> None:
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


def test_control_characters_reach_no_form_of_the_report(tmp_path: Path) -> None:
    odd, runs = odd_comparison(), dict(runs_of(odd_comparison))
    renamed = [dataclasses.replace(c, label=HOSTILE) if c.label == NAME else c for c in odd.contenders]
    study = dataclasses.replace(odd, contenders=tuple(renamed), name=HOSTILE)
    failing = next(cell.config.identity for cell in study.cells(runs) if cell.contender == "AdamW")
    runs[failing] = dataclasses.replace(runs[failing], status="failed", reason=HOSTILE)
    found = dataclasses.replace(analyse(study, runs), title=HOSTILE)
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


def test_numbers_below_zero_stay_numbers_in_the_spreadsheet() -> None:
    found = findings()[0]
    cells = [(cell, dataclasses.replace(run, history=[{"step": 1, "x": -0.5}])) for cell, run in found.cells if run]
    rows = list(csv.DictReader(io.StringIO(spreadsheet([dataclasses.replace(found, cells=tuple(cells))]))))
    assert {row["last_x"] for row in rows} == {"-0.5"}


def test_every_anchor_of_the_page_is_there_once(page: str) -> None:
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


def test_a_dollar_in_a_figure_is_a_dollar(page: str) -> None:
    texts = [element.text for drawing in svgs(page) for element in drawing.iter() if element.text]
    assert NAME in texts
    assert not [text for text in texts if "mathdefault" in text]


def test_the_same_findings_give_the_same_bytes(tmp_path: Path) -> None:
    for again in ("one", "two"):
        write(tmp_path / again, findings()[::2], refresh=1)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("count", [0, 1, 14])
def test_a_report_can_be_had_while_the_runs_are_made(count: int, tmp_path: Path) -> None:
    parts = [
        analyse(make(), dict(list(runs_of(make).items())[:count])) for make in (comparison, odd_comparison, heat_map)
    ]
    page = write(tmp_path, parts, refresh=2.5).read_text()
    assert 'data-refresh="2.5"' in page
    assert f"{3 * count if count < 14 else 14 + 14 + 10} of" in page
    assert not (tmp_path / "figures").exists()
    for part in parts:
        Console(file=io.StringIO(), width=100).print(terminal_table(part))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("make", [one_option, texts, pairs, unset, ablated, heat_map])
def test_a_report_of_damaged_runs_can_be_had(make: Callable[[], Study], share: float, tmp_path: Path) -> None:
    draw = random.Random(0)
    states: list[Status] = ["diverged", "failed", "running"]

    def damaged(run: Run) -> Run:
        length = draw.randrange(len(run.history))
        return dataclasses.replace(run, status=draw.choice(states), history=run.history[:length], facts={})

    runs = {identity: damaged(run) if draw.random() < share else run for identity, run in runs_of(make).items()}
    found = analyse(make(), runs)
    page = write(tmp_path, [found, found], refresh=1).read_text()  # the same twice: names must not clash
    assert len(set(re.findall(r'<section class="study" id="([^"]+)"', page))) == 2
    drawn = "-sweep" in page if found.sweep else "-differences" in page
    assert drawn or share > 0
    Console(file=io.StringIO(), width=100).print(terminal_table(found))


def test_comparisons_come_first(tmp_path: Path) -> None:
    ordinary, _, swept = findings()
    page = write(tmp_path, [swept, analyse(ablated(), {}), ordinary], refresh=1).read_text()
    names = re.findall(r'<section class="study" id="(\w+)-', page)
    assert names == ["compare", "ablation", "sensitivity"]


def test_a_report_of_nothing_can_be_had(tmp_path: Path) -> None:
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
        assert by_name[standing.label] == f"{text}{marks.get(words.verdict(standing.difference), '')} ± {std}"


def test_the_paper_gives_its_ranking_at_another_scale_and_its_numbers_at_its_own(tmp_path: Path, folder: Path) -> None:
    assert "the paper's ranking at its own scale | rank | 1st | 2nd" in (folder / "report.md").read_text()
    paper = odd_comparison("paper")
    demo = {(cell.contender, cell.config.seed): run for cell, run in findings()[1].cells if cell.role == "final"}
    runs = {
        c.config.identity: demo[c.contender, c.config.seed] for c in paper.cells({})
    }  # the scales are the same here
    write(tmp_path, [analyse(paper, {identity: run for identity, run in runs.items() if run})], refresh=1)
    assert r"| the paper's |  | 0.9000 ± 0.0100 | 0.8000 ± 0.0200 |" in (tmp_path / "report.md").read_text()


def test_the_spreadsheet_has_every_run_and_no_formulas(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    assert len(rows) == sum(len(found.cells) for found in findings())
    for row, (cell, run) in zip(rows, findings()[0].cells, strict=False):
        assert run is not None
        assert (row["contender"], row["role"], int(row["seed"])) == (cell.contender, cell.role, cell.config.seed)
        assert float(row["last_test_loss"]) == run.history[-1]["test_loss"]
        assert row["identity"] == cell.config.identity
    assert {row["contender"] for row in rows} >= {"'=1+2", NAME}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "+", "@")]


def test_the_tables_for_latex_are_whole(folder: Path) -> None:
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
def test_what_is_special_in_a_form_is_escaped(escape: Callable[[str], str], text: str, expected: str) -> None:
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
    verdicts = [words.verdict(f.standing("RADAR").difference) for f in (first, second)]
    better, worse = (verdicts.count(word) for word in ("better", "worse"))
    assert words.headline([first, second], None) == (
        f"Against AdamW on 2 tasks, RADAR is better on {better}, worse on {worse}, "
        f"and cannot be told from it on {2 - better - worse} "
        "(4 to 5 seeds, a verdict needs at least 5; among 6 contenders)."
    )
    told = {"better": "is better than", "worse": "is worse than"}.get(verdicts[0], "cannot be told from")
    assert words.headline([first], None) == (
        f"On Digits, MLP (1k), at scale demo, RADAR {told} AdamW (5 seeds; among RADAR, AdamW and Lion)."
    )
    assert words.headline([findings()[2]], None) == ""


TWO_SEEDS = "cannot tell: too few seeds (2 of at least 5)"


def test_two_seeds_give_no_verdict_in_any_form(tmp_path: Path) -> None:
    """However sure the t-test is: RADAR is made better than AdamW by 1 on each of two seeds."""
    study, runs = comparison(), dict(runs_of(comparison))
    by_seed = {(c.contender, c.config.seed): c.config.identity for c in study.cells(runs) if c.role == "final"}
    few = dataclasses.replace(study, seeds=study.seeds[:2])
    for seed in few.seeds:
        run = runs[by_seed["RADAR", seed]]
        of_adamw = runs[by_seed["AdamW", seed]].history[-1]["test_loss"]
        better = [*run.history[:-1], {**run.history[-1], "test_loss": of_adamw - 1 + seed / 1e3}]
        runs[by_seed["RADAR", seed]] = dataclasses.replace(run, history=better)
    found = analyse(few, runs)
    difference = found.standing("RADAR").difference
    assert difference is not None
    assert difference.holm_t_p < 0.01
    assert difference.verdict == TWO_SEEDS
    assert words.headline([found], None) == (
        "On Digits, MLP (1k), at scale demo, RADAR cannot be told from AdamW "
        "(2 seeds, a verdict needs at least 5; among RADAR, AdamW and Lion)."
    )
    assert "With 2 seeds, no contender can be told from AdamW: a verdict needs at least 5." in words.summary(found)
    write(tmp_path, [found], refresh=1)
    forms = {name: (tmp_path / name).read_text() for name in ("index.html", "report.md", "tables.tex", "results.csv")}
    for name in ("index.html", "report.md", "tables.tex"):
        assert forms[name].count(TWO_SEEDS) >= 2, name  # RADAR and Lion
        assert words.headline([found], None) in forms[name] or name == "tables.tex"
    for name, text in forms.items():
        assert not re.search(r"[▲▼](?! (better|worse))|\$\^\{[+-]\}\$(?! (better|worse))|better than", text), name
    screen = io.StringIO()
    Console(file=screen, width=80).print(terminal_table(found))
    assert len(re.findall(r"(?:RADAR|Lion) .* cannot tell *│\n.* 2 of 5 seeds", screen.getvalue())) == 2


def test_the_summary_flatters_nobody() -> None:
    study, runs = comparison(), dict(runs_of(comparison))
    assert words.summary(analyse(study, {})) == ["So far: 0 of 39 runs are over.", "There is no result yet."]
    finals = {label: [c.config.identity for c in study.cells(runs) if c[:2] == (label, "final")] for label in LABELS}
    runs |= {identity: dataclasses.replace(runs[identity], status="diverged") for identity in finals["RADAR"]}
    reference = findings()[0].reference.spread
    assert reference is not None
    assert words.summary(analyse(study, runs))[:3] == [
        f"AdamW has the best mean test loss ({reference.mean:.4f}); RADAR is 3rd of 3 (diverged).",
        "Against AdamW, worse: RADAR and Lion.",
        "RADAR diverged on 5 of 5 seeds.",
    ]
    others = [*finals["AdamW"], *finals["Lion"]]
    runs |= {identity: dataclasses.replace(runs[identity], status="diverged") for identity in others}
    assert words.summary(analyse(study, runs))[0] == "Every contender diverged."


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (words.number(-1.25, 1), "−1.2"),
        (words.number(float("inf"), 1), "diverged"),
        (words.number(None, 1), "–"),
        (words.signed(0.5, 2), "+0.50"),
        (words.signed(-float("inf"), 2), "−∞"),
        (words.interval(-1, 2, 1), "[−1.0, 2.0]"),
        (words.interval(float("nan"), 2, 1), ""),
        (words.probability(0.0001), "<0.001"),
        (words.probability(0.0312), "0.031"),
        (words.general(1e-5), "1e−5"),
        (words.amount(3 << 20, "B"), "3 MiB"),
        (words.amount(0.011, "s"), "11 ms"),
        (words.amount(240, "s"), "4 min"),
        (words.ordinal(11), "11th"),
        (words.ordinal(22), "22nd"),
        (words.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_read_as_people_write_them(told: str, expected: str) -> None:
    assert told == expected


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
def test_any_two_colours_can_be_told_apart(theme: str, vision: str) -> None:
    places = [oklab(getattr(style, theme), VISIONS[vision]) for style in STYLES]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) > 0.1


def test_a_contender_has_one_colour_and_radar_always_the_same() -> None:
    styles = styles_of(findings())
    assert styles["RADAR"].slot == 0
    for found in findings()[:2]:
        slots = [styles[standing.label].slot for standing in found.standings]
        assert len(set(slots)) == len(slots)
