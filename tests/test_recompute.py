"""The docs' tables follow from the archived runs, by arithmetic that shares no code with the lab."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import recompute
from aimopt.lab.protocol.search import Search
from aimopt.lab.stats import sequential
from aimopt.lab.stats.equivalent_steps import equivalent_steps
from aimopt.lab.stats.pooled import pooled_differences
from aimopt.lab.stats.sequential import decide
from aimopt.lab.stats.values import Better
from recomputation.archive import Archive, searched_momenta
from recomputation.pages import Page, disagreements, says
from recomputation.steps import fewer_steps
from recomputation.verdicts import decisions, holm, relative_gains, together, verdicts

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("recompute")  # one process reads the archives


def test_all_tables_follow_from_the_archives_without_aimopt() -> None:
    without_aimopt = "import sys; sys.modules['aimopt'] = None; import recompute; sys.exit(recompute.main())"
    answer = subprocess.run(
        [sys.executable, "-c", without_aimopt],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "the archived runs give every table" in answer.stdout


# Per page: a text of it, what it is changed to, and what is said about that.
CHANGES = {
    "reproduction-mini-1.md": [
        (
            "| 1.66460 ± 0.01347 |",
            "| 1.66450 ± 0.01347 |",
            "the page says '1.66450 ± 0.01347', recomputed is '1.664595",
        ),
        ("| 1.66460 ± 0.01347 |", "| 1.66460 ± 0.01348 |", "the page says '1.66460 ± 0.01348'"),
        ("| delta=0.8 | 217.09 ± 9.26 | better |", "| delta=0.8 | 217.09 ± 9.26 | worse |", "recomputed is 'better'"),
        ("| ℓ/η = 0.1 | 1.6723 |", "| ℓ/η = 0.1 | 1.6724 |", "the page says '1.6724'"),
        ("| delta=0.8 | 217.09 ± 9.26 | better |\n", "", "the page has 5 rows, and there are 6"),
        ("without RADAR -0.40.", "without RADAR +0.40.", "the page does not say"),
        ("NAdam 3.3, AdaBelief", "NAdam 3.4, AdaBelief", "the page does not say '(2"),
        ("758 runs", "757 runs", "the page does not say 'there are 758 runs"),
        ("## Limits of", "## A table\n\n| a |\n|---|\n| 1 |\n\n## Limits of", "this table is not recomputed"),
        ("## In short", "## In brief", "no table has the marker 'In short'"),
    ],
    "reproduction.md": [
        (
            "| 1.65825 ± 0.00753 | 40 |",
            "| 1.65825 ± 0.00753 | 20 |",
            "the page says '20', recomputed is '40'",
        ),
        ("| 0.6503 | 13.0243", "| 0.65 | 13.0343", "the page says '13.0343 ± 0.0186'"),
        ("equal within ±0.3 %", "better", "recomputed is 'equal within ±0.3 %"),
        ("| 1.64520 | 21 % [19, 23] |", "| 1.64520 | 20 % [19, 23] |", "the page says '20 % [19, 23]'"),
        ("| Lion | 0.0032 | 39.342 ±", "| Lion | 0.0032 | 39.352 ±", "the page says '39.352"),
        ("There are ", "There are 1", "hours of training'"),
        ("| 27 of 35 | <0.001 | ahead |", "| 28 of 35 | <0.001 | ahead |", "the page says '28 of 35'"),
        ("| 24 of 35 | 0.06 | cannot tell |", "| 24 of 35 | 0.02 | ahead |", "recomputed is 'cannot tell'"),
    ],
    "conditions.md": [
        ("better: +3.13 % [+1.78, +4.47]", "better: +3.23 % [+1.78, +4.47]", "the page says 'better: +3.23"),
        ("There are ", "There are 1", "hours of training'"),
    ],
    "exploration.md": [
        ("| SOAP | 0.016 | 3.1986 |", "| SOAP | 0.016 | 3.1976 |", "the page says '3.1976'"),
        ("| RADAR | 0.016 | 3.2192 | 3.2174 |  |", "| RADAR | 0.016 | 3.2192 | 3.2174 | 3.2 |", "the page says '3.2'"),
        ("| SOAP | 0.0453 | 24.932 ±", "| SOAP | 0.0453 | 24.832 ±", "the page says '24.832"),
        ("There are ", "There are 1", "hours of training'"),
    ],
    "table1.md": [
        ("| 40.81 ± 0.52 | +0.7 % [+0.1, +1.4] |", "| 40.81 ± 0.52 | +0.7 % [+0.2, +1.4] |", "says '+0.7 % [+0.2"),
        ("by 16.7 % on text", "by 17.7 % on text", "the page does not say 'by 16."),
        ("| spectral | 0.0453 | 0.032 |", "| spectral | 0.0453 | 0.0453 |", "recomputed is '0.032'"),
    ],
    "README.md": [
        ("AdamW's by 16.7 % on text", "AdamW's by 16.5 % on text", "the page does not say 'by 16."),
        ("| spectral | **+0.7 %** |", "| spectral | +0.7 % |", "recomputed is '**0.7"),
        ("| **+0.8 %** [0.6, 1.0] |", "| +0.8 % [0.6, 1.0] |", "recomputed is '**0.79"),
        ("| +2.0 % [0.1, 3.9] |", "| **+2.0 %** [0.1, 3.9] |", "recomputed is '2.03"),
        ("| 21 % [19, 23] |", "| 21 % [19, 24] |", "the page says '21 % [19, 24]'"),
        ("by 4.3 % and 3.1 %", "by 4.3 % and 3.3 %", "the page does not say 'by 4.3"),
        ("by 1.5 % and 1.3 %", "by 1.5 % and 1.4 %", "the page does not say 'by 1.5"),
        ("and 4.0 % on Qwen", "and 4.1 % on Qwen", "the page does not say 'SOAP by 10."),
        ("| **+5.0 %** [3.4, 6.6] |", "| **+5.1 %** [3.4, 6.6] |", "recomputed is '**4.98"),
        ("| -3.0 % [-7.3, 1.2] |", "| **-3.0 %** [-7.3, 1.2] |", "recomputed is '-3.03"),
        ("ahead on 27 of 35 pairs", "ahead on 28 of 35 pairs", "the page does not say 'RADAR is ahead on 27"),
        ("and of NAdam on 14", "and of NAdam on 15", "and of NAdam on 14"),
        ("by 6.3 % on GPT-2", "by 6.4 % on GPT-2", "the page does not say 'default by 6.3"),
    ],
}


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"), [(name, *change) for name, changes in CHANGES.items() for change in changes]
)
def test_a_changed_page_is_refused(tmp_path: Path, name: str, old: str, new: str, complaint: str) -> None:
    (page,) = (path for path in recompute.PAGES if Path(path).name == name)
    text = (ROOT / page).read_text()
    assert old in text
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "results").symlink_to(ROOT / "docs" / "results")
    (tmp_path / name).write_text(text.replace(old, new, 1))
    said = [*disagreements(Page(tmp_path / name), recompute.PAGES[page])]
    assert any(complaint in sentence for sentence in said), said


def test_numbers_agree_at_the_printed_precision() -> None:
    assert says("1.665 ± 0.013", [1.6646, " ± ", 0.01347], whole=True)
    assert not says("1.664 ± 0.013", [1.6646, " ± ", 0.01347], whole=True)
    assert says("at −0.5, edge", [-0.46, ", edge"])
    assert says("1.25e-06", [1.2499e-6], whole=True)
    assert not says("1.25e-06", [1.24e-6], whole=True)
    assert not says("0.0", [], whole=True)


def test_holm_and_verdicts_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    losses = {seed: 1 + 0.1 * seed for seed in range(5)}
    lower = {seed: loss - 0.2 - 0.01 * seed**2 for seed, loss in losses.items()}
    said = verdicts({"A": losses, "B": lower, "C": dict(losses)}, "A", "lower")
    assert said == {"B": "better", "C": "identical"}
    assert verdicts({"A": losses, "B": lower}, "A", "higher") == {"B": "worse"}
    assert verdicts({"A": losses, "B": {0: 0.5, 1: 0.7}}, "A", "lower") == {"B": "cannot tell"}


@pytest.mark.parametrize("case", range(20))
def test_decisions_in_looks_agree_with_the_lab(case: int) -> None:
    """Two statements of one rule, on random gains: clear, small and no differences, and an identical contender."""
    draw = np.random.default_rng(case)
    looks, margin = [(5, 10, 20, 40), (5, 10)][case % 2], 0.005
    shifts = {"a": 0.03, "b": -0.03, "c": 0.006, "d": 0.0}
    gains = {label: shift + 0.01 * draw.standard_t(4, size=looks[-1]) for label, shift in shifts.items()}
    gains["same"] = np.zeros(looks[-1])
    for label, found in decisions(gains, looks, margin).items():
        known = decide(gains, looks, margin)[label]
        assert (found.verdict, found.seeds) == (known.verdict, known.seeds)
        assert (found.low, found.high) == pytest.approx((known.low, known.high))


def test_points_of_a_search_agree_with_the_lab() -> None:
    options = {"betas": [0.9, 0.999]}
    known = Search().points_of(usual_rate=1e-3, options=options, tuned=("beta1",))
    assert searched_momenta(7) == [dict(point.options)["beta1"] for point in known]


def test_relative_gains_agree_with_the_lab() -> None:
    draw = np.random.default_rng(0)
    own, reference = ({seed: float(value) for seed, value in enumerate(draw.uniform(1, 2, 7))} for _ in range(2))
    better: Better
    for better in ("lower", "higher"):
        known = sequential.relative_gains([*own.values()], [*reference.values()], better)
        assert relative_gains(own, reference, better) == pytest.approx(known)


@pytest.mark.parametrize("case", range(6))
def test_pooled_tests_agree_with_the_lab(case: int) -> None:
    """Two statements of one test, on random values of tasks with different units and numbers of seeds."""
    draw = np.random.default_rng(case)
    better: dict[str, Better] = {"a": "lower", "b": "lower", "c": "higher"}
    values, gains = {}, []
    for (task, direction), seeds in zip(better.items(), (3, 5, 8), strict=True):
        reference = {seed: float(10 ** draw.uniform(0, 2)) for seed in range(seeds)}
        own = {seed: value * (1 + draw.normal(0.01 * (case - 3), 0.02)) for seed, value in reference.items()}
        values[task] = {"Mine": own, "Other": reference}
        gains.append(relative_gains(own, reference, direction))
    known, found = pooled_differences(values, "Other", better)["Mine"], together(gains)
    assert (found.tasks, found.pairs, found.ahead) == (len(known.tasks), known.pairs, known.ahead)
    assert found.mean == pytest.approx(known.mean)
    assert found.p == pytest.approx(known.p)  # with 16 pairs both try all flips


@pytest.mark.parametrize("case", range(12))
def test_steps_saved_agree_with_the_lab(case: int) -> None:
    """Two statements of one interpolation, on random values: inside the lengths of the reference, and beyond them."""
    draw = np.random.default_rng(case)
    better: Better = "lower" if case % 2 else "higher"
    level = {250: 1.4, 500: 1.0, 1000: 0.8}
    values = {n: {seed: mean + 0.05 * draw.normal() for seed in range(5)} for n, mean in level.items()}
    if better == "higher":
        values = {n: {seed: 3 - value for seed, value in by_seed.items()} for n, by_seed in values.items()}
    center = draw.uniform(0.6, 1.6) if better == "lower" else draw.uniform(1.4, 2.4)
    contender = {seed: center + 0.02 * draw.normal() for seed in range(10)}
    known = equivalent_steps(values, contender, 500, better)
    assert known is not None
    side, saved, _, before_low, low, _, before_high, high, _ = fewer_steps(values, contender, 500, better)
    assert {"": "", "above": "more than ", "below": "less than "}[known.side] == side
    assert [saved, low, high] == pytest.approx([100 * share for share in known.saved], abs=0.05)
    assert (before_low == "< ") == (known.steps.low <= known.shortest)
    assert (before_high == "> ") == (known.steps.high >= known.longest)


def test_an_archive_with_facts_needs_no_guess(tmp_path: Path) -> None:
    """The rate, the options and the measures of a study that stores them are taken from there."""
    draw = np.random.default_rng(0)
    contender = {"label": "Mine", "optimizer": "Mine", "options": {"beta": 0.5}}
    facts = {
        "score": {"key": "valid_score", "better": "higher"},
        "measure": {"key": "test_score", "better": "higher"},
        "contenders": {"Mine": {"usual_rate": 0.1, "options": {"beta": 0.5, "gamma": 2}}},
    }
    study = {
        "name": "compare", "task": "t", "scale": "s", "contenders": [contender], "seeds": [0, 1], "grid": [1, 2, 4],
        "tuning_seed": 9, "facts": facts,
    }  # fmt: skip
    runs = [
        run(lr, seed, options, float(draw.normal()) + lr)
        for lr in (0.1, 0.2, 0.4)
        for seed in (0, 1, 9)
        for options in ({"beta": 0.5, "gamma": 2}, {"beta": 0.9, "gamma": 2})
    ]
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as files:
        add(files, "./studies/compare.json", json.dumps(study))
        add(files, "./studies/compare.overhead.json", "{}")
        for number, texts in enumerate(runs):
            for name, text in texts.items():
                add(files, f"./t-s/{number}/{name}", text)
    archive = Archive.read([tmp_path / "a.tar.xz"])
    assert archive.usual_rate("Mine", study) == 0.1
    own = [r for r in archive.runs if r.config["options"]["beta"] == 0.5]
    scores = {
        r.config["lr"]: stats.tmean([h["valid_score"] for h in r.history][-3:]) for r in own if r.config["seed"] == 9
    }
    choice = archive.chosen("Mine", study)
    assert choice.rate == max(scores, key=scores.__getitem__)
    finals = archive.finals("Mine", study)
    assert finals == {
        r.config["seed"]: r.history[-1]["test_score"]
        for r in own
        if r.config["lr"] == choice.rate and r.config["seed"] != 9
    }


def run(lr: float, seed: int, options: dict[str, Any], value: float) -> dict[str, str]:
    config = {
        "task": "t", "scale": "s", "optimizer": "Mine", "options": options, "lr": lr, "seed": seed, "steps": 4,
        "settings": {"steps": 4},
    }  # fmt: skip
    records = [{"step": step, "valid_score": value + step, "test_score": value - step} for step in range(1, 5)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    result = {"status": "finished", "facts": {"seconds": 1.0}, "metrics": checksum}
    return {
        "manifest.json": json.dumps({"config": config}),
        "metrics.jsonl": lines,
        "result.json": json.dumps(result),
    }


def add(files: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    files.addfile(member, io.BytesIO(text.encode()))
