"""Numbers and results as sentences."""

import dataclasses

import pytest

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.protocol.study import Study
from aimopt.lab.report import phrasing, tables
from aimopt.lab.report.verdicts import verdict_kind
from aimopt.lab.stats.paired import Difference
from odd_task import NAME
from trained_findings import (
    comparison,
    findings,
    runs_of,
)

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share

LABELS = ("RADAR", "AdamW", "Lion")


def test_the_headline_counts_verdicts() -> None:
    first, second, _ = findings()
    verdicts = [phrasing.verdict(f.standing("RADAR").difference) for f in (first, second)]
    better, worse = (verdicts.count(word) for word in ("better", "worse"))
    assert phrasing.headline([first, second], None) == (
        f"Against AdamW on 2 tasks at scale demo, RADAR is better on {better}, worse on {worse}, "
        f"and cannot be distinguished from it on {2 - better - worse} "
        "(4 to 5 seeds, a verdict needs at least 5; among 6 contenders)."
    )
    result = {"better": "is better than", "worse": "is worse than"}.get(verdicts[0], "cannot be distinguished from")
    assert phrasing.headline([first], None) == (
        f"On Digits, MLP (1k), at scale demo, RADAR {result} AdamW (5 seeds; among RADAR, AdamW and Lion)."
    )
    assert phrasing.headline([findings()[2]], None) == ""


def test_the_title_names_what_was_compared() -> None:
    first, second, heat_map = findings()
    assert phrasing.title([first, heat_map]) == "RADAR and Lion against AdamW"
    assert phrasing.title([heat_map]) == "Variants of RADAR"
    assert phrasing.title([first, second]) == f"RADAR, Lion, Explodes, {NAME} and =1+2 against AdamW"
    by_others = dataclasses.replace(first, study=dataclasses.replace(first.study, reference="RADAR"))
    assert phrasing.title([first, by_others]) == "RADAR and Lion against AdamW"
    long = dataclasses.replace(second, study=odd_comparison_with_long_names())
    assert phrasing.title([first, long]) == "RADAR and 4 others against AdamW"


def odd_comparison_with_long_names() -> Study:
    study = findings()[1].study
    renamed = [dataclasses.replace(c, label=c.label * 9) if c.label in (NAME, "=1+2") else c for c in study.contenders]
    return dataclasses.replace(study, contenders=tuple(renamed))


@pytest.mark.parametrize(
    ("verdict", "kind", "short", "headline"),
    [
        ("better", "better", "better", "is better than AdamW"),
        ("worse", "worse", "worse", "is worse than AdamW"),
        ("equal within ±0.5 %", "equal", "equal within ±0.5 %", "is equal to AdamW within ±0.5 %"),
        ("identical", "identical", "identical", "is identical to AdamW"),
        ("undecided with 40 seeds", "unsure", "undecided", "cannot be distinguished from AdamW"),
        ("cannot tell with 5 seeds", "unsure", "cannot tell", "cannot be distinguished from AdamW"),
    ],
)
def test_every_verdict_is_shown_by_its_kind(
    verdict: str, kind: str, short: str, headline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Difference, "verdict", property(lambda _: verdict))
    first = findings()[0]
    assert verdict_kind(verdict) == kind
    assert phrasing.short_verdict(first.standing("RADAR").difference) == short
    assert f"RADAR {headline} (5 seeds" in phrasing.headline([first], None)
    assert f"{verdict}: RADAR and Lion" in phrasing.summary(first)[1] or kind == "unsure"
    table = tables.verdicts(first)
    assert table is not None
    assert table.rows[0][-1].text == verdict


def test_the_headline_names_others_that_are_better_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Difference, "verdict", property(lambda _: "better"))
    first = findings()[0]
    assert phrasing.headline([first], None).endswith(" Also better than AdamW: Lion.")
    assert phrasing.headline([first, first], None).endswith(" Also better than AdamW: Lion on 2.")


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
