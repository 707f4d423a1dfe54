"""The analysis agrees with the records of the runs, at any time of a sweep."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from aimopt.lab.analysis.across_tasks import across_tasks
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.results.run import Run
from odd_task import Small
from trained_findings import OVERHEAD, comparison, findings, heat_map, odd_comparison, runs_of, texts

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share


def last(label: str, found: StudyAnalysis) -> list[float]:
    """The last test loss of each seed, straight from the records."""
    runs = [run for cell, run in found.cells if (cell.contender, cell.role) == (label, "final")]
    return [run.history[-1][found.measure.key] for run in runs if run]


def test_a_spread_is_that_of_the_last_records() -> None:
    found = findings()[0]
    for standing in found.standings:
        values = last(standing.label, found)
        low, high = scipy_stats.t.interval(0.95, 4, np.mean(values), scipy_stats.sem(values))
        assert standing.spread is not None
        assert standing.spread[:4] == pytest.approx((np.mean(values), np.std(values, ddof=1), low, high))
        assert [outcome.value for outcome in standing.finals] == values
        assert [outcome.seed for outcome in standing.finals] == [0, 1, 2, 3, 4]


def test_contenders_are_compared_seed_by_seed() -> None:
    found = findings()[0]
    for label in ("RADAR", "Lion"):
        difference = found.standing(label).difference
        assert difference is not None
        expected = scipy_stats.ttest_rel(last("AdamW", found), last(label, found))
        assert difference.t_p == pytest.approx(expected.pvalue)
        assert difference.mean == pytest.approx(np.mean(last("AdamW", found)) - np.mean(last(label, found)))
    assert found.reference.difference is None


def test_the_chosen_rate_has_the_best_mean_of_three_and_its_edge_is_reported() -> None:
    found = findings()[0]
    for standing in found.standings:
        scores = {}
        for cell, run in found.cells:
            if run and (cell.contender, cell.role) == (standing.label, "search"):
                scores[cell.config.lr] = np.mean([r["valid_loss"] for r in run.history if "valid_loss" in r][-3:])
        assert {trial.lr: trial.value for trial in standing.trials} == pytest.approx(scores)
        assert standing.lr == min(scores, key=lambda rate: scores[rate])
        assert standing.edge == {min(scores): "lowest", max(scores): "highest"}.get(standing.lr)


def test_ranks_are_those_of_the_means() -> None:
    for found in findings():
        means = [s.spread.mean if s.spread else math.nan for s in found.standings]
        way = 1 if found.measure.better == "lower" else -1
        assert [s.rank for s in found.standings] == scipy_stats.rankdata(way * np.array(means), "min").tolist()


@pytest.mark.parametrize("make", [comparison, odd_comparison, heat_map])
def test_a_study_can_be_analysed_after_any_number_of_runs(make: Any) -> None:
    study, runs = make(), runs_of(make)
    for count in range(0, len(runs) + 1, 7):
        found = analyse_study(study, dict(list(runs.items())[:count]))
        assert found.progress.settled == count
        assert found.progress.total >= count
        assert found.progress.complete == (count == len(runs))
        assert any(remark.level != "ok" for remark in found.audit) or found.progress.complete
    assert analyse_study(study, runs).progress == (len(runs), 0, 0, len(runs))


def test_a_contender_without_results_counts_in_the_correction() -> None:
    study, runs = comparison(), runs_of(comparison)
    lion = {c.config.identity for c in study.cells(runs) if c.contender == "Lion"}
    found = analyse_study(study, {identity: run for identity, run in runs.items() if identity not in lion})
    difference = found.standing("RADAR").difference
    assert difference is not None
    assert difference.holm_t_p == pytest.approx(2 * difference.t_p)
    assert found.standing("Lion").difference is None


def test_a_diverged_seed_makes_a_contender_the_worst_and_ends_its_curve() -> None:
    found = findings()[1]
    explodes = found.standing("Explodes")
    assert explodes.diverged == 1
    assert explodes.spread is not None
    assert explodes.spread.mean == -math.inf
    assert explodes.rank == len(found.standings)
    diverged = next(outcome.seed for outcome in explodes.finals if outcome.status == "diverged")
    by_key = {curves.measure.key: curves.by_contender for curves in found.curves}
    assert diverged not in by_key["train_loss"]["Explodes"].by_seed
    assert by_key["train_loss"]["Explodes"].band == ()
    assert explodes.to_target is not None
    assert explodes.to_target.steps is None


def test_the_band_is_the_mean_the_lowest_and_the_highest_seed() -> None:
    found = findings()[0]
    curves = next(curves for curves in found.curves if curves.measure.key == "valid_loss")
    curve = curves.by_contender["RADAR"]
    values = np.array([[value for _, value in points] for points in curve.by_seed.values()])
    assert [point.step for point in curve.band] == list(range(5, 41, 5))
    expected = np.array([values.mean(0), values.min(0), values.max(0)])
    assert np.array(curve.band)[:, 1:] == pytest.approx(expected.T)


def test_a_long_curve_is_shown_by_the_means_of_its_parts() -> None:
    study, runs = comparison(), dict(runs_of(comparison))
    long = [{"step": float(i), "train_loss": float(i)} for i in range(1, 1001)]
    for cell in study.cells(runs):
        if cell.role == "final":
            runs[cell.config.identity] = dataclasses.replace(runs[cell.config.identity], history=long)
    band = analyse_study(study, runs).curves[0].by_contender["RADAR"].band
    assert len(band) == 200
    assert band[0] == (3.0, 3.0, 3.0, 3.0)
    assert np.mean([point.mean for point in band]) == pytest.approx(500.5)


def test_the_target_is_where_the_mean_of_the_reference_ends() -> None:
    found = findings()[0]
    assert found.target is not None
    band = next(c for c in found.curves if c.measure.key == "valid_loss").by_contender
    assert found.target.value == band["AdamW"].band[-1].mean
    radar, lion = found.standing("RADAR").to_target, found.standing("Lion").to_target
    means = [point.mean for point in band["RADAR"].band]
    assert means[-1] < found.target.value  # so it is reached between two evaluations
    first = next(i for i, mean in enumerate(means) if mean <= found.target.value)
    steps = np.interp(found.target.value, [means[first], means[first - 1]], [5 * first + 5, 5 * first])
    assert radar is not None
    assert radar[:4] == pytest.approx((steps, steps / 40, steps * 0.011, steps / 40 * 1.1))
    assert lion == (None, None, None, None, None, None)
    assert found.reference.to_target == (40, 1, 40 * 0.01, 1, (1, 1, 1), (1, 1, 1))
    assert found.overhead is OVERHEAD


def test_times_to_the_target_come_from_one_ratio_of_step_times() -> None:
    """The seconds of a contender are not read: they were measured at another time than those of the reference."""
    slow = [dataclasses.replace(c, step_seconds=7.0) if c.label == "RADAR" else c for c in OVERHEAD.costs]
    found = analyse_study(comparison(), runs_of(comparison), dataclasses.replace(OVERHEAD, costs=slow))
    radar, reference = found.standing("RADAR").to_target, found.reference.to_target
    assert radar is not None
    assert reference is not None
    assert radar == findings()[0].standing("RADAR").to_target
    assert radar.seconds is not None
    assert reference.seconds is not None
    assert radar.seconds / reference.seconds == pytest.approx(radar.seconds_ratio)


def test_the_intervals_of_ratios_combine_seeds_and_step_times() -> None:
    radar = findings()[0].standing("RADAR").to_target
    assert radar is not None
    assert radar.ratio_interval is not None
    assert radar.seconds_interval is not None
    assert radar.ratio_interval.low < radar.ratio_interval.value < radar.ratio_interval.high
    widths = [math.log(known.high / known.low) for known in (radar.ratio_interval, radar.seconds_interval)]
    assert widths[0] < widths[1]
    assert analyse_study(comparison(), runs_of(comparison)).standing("RADAR").to_target == (
        *radar[:2], None, None, radar.ratio_interval, None,
    )  # fmt: skip


def test_returns_are_interquartile_means_and_probabilities() -> None:
    found = findings()[1]
    radar = found.standing("RADAR").returns
    assert radar is not None
    assert radar.last_improvement is not None
    ours, theirs = last("RADAR", found), last("AdamW", found)
    assert radar.last.value == pytest.approx(scipy_stats.trim_mean(ours, 0.25))
    chances = [(x > y) + (x == y) / 2 for x in ours for y in theirs]
    assert radar.last_improvement.value == pytest.approx(np.mean(chances))
    assert radar.best.value >= radar.last.value
    assert findings()[0].standing("RADAR").returns is None


def test_only_unchanged_optimizers_have_published_results() -> None:
    found = findings()[1]
    published = {s.label: s.published for s in found.standings if s.published}
    assert published == {"RADAR": (0.9, 0.01, 1), "AdamW": (0.8, 0.02, 2)}
    assert not found.at_published_setting
    assert analyse_study(odd_comparison("full"), {}).at_published_setting


def test_a_sweep_is_a_grid_with_the_defaults_on_it() -> None:
    swept = findings()[2].sweep
    assert swept is not None
    assert swept.values == ((0.01, 0.1), (0.1, 0.2))
    assert swept.labels[0.1, 0.2] == "ell_ratio=0.1, gamma=0.2"
    assert swept.default == (0.01, 0.1)


def test_a_sweep_over_what_has_no_order_keeps_the_order_of_the_study() -> None:
    swept = analyse_study(texts(), runs_of(texts)).sweep
    assert swept is not None
    assert swept.values == (("exact", False),)
    assert swept.default == (True,)


def test_tasks_are_combined_by_the_ranks_of_contenders_with_results_on_all() -> None:
    first, second, _ = findings()
    over = across_tasks([first, second])
    assert over is not None
    ranks = [{s.label: s.spread.mean for s in f.standings if s.spread} for f in (first, second)]
    assert over.ranks == {"RADAR": 1.0, "AdamW": 2.0}
    assert all(means["RADAR"] != means["AdamW"] for means in ranks)
    assert over.left_out == ("Lion", *(s.label for s in second.standings[2:]))
    assert over.profile["RADAR"][0] == np.mean([a < b for a, b in _pairs(first)] + [a > b for a, b in _pairs(second)])
    assert across_tasks([first]) is None
    assert over.rank_intervals["RADAR"].low <= 1.0 <= over.rank_intervals["RADAR"].high
    assert over.profile["RADAR"] == tuple(over.profile_bands["RADAR"].shares)


def test_the_pooled_test_has_all_pairs_of_task_and_seed_that_two_contenders_share() -> None:
    first, second, _ = findings()
    over = across_tasks([first, second])
    assert over is not None
    assert set(over.pooled) == {"AdamW", "RADAR"}  # the reference, and the subject
    wins = [a < b for a, b in _pairs(first)] + [a > b for a, b in _pairs(second)]
    both = over.pooled["AdamW"]["RADAR"]
    assert (both.ahead, both.pairs, both.tasks) == (sum(wins), len(wins), over.tasks)
    assert over.pooled["RADAR"]["AdamW"].p == both.p
    lion = over.pooled["AdamW"]["Lion"]
    assert (lion.tasks, lion.left_out) == (over.tasks[:1], over.tasks[1:])
    assert lion.pairs == len(last("Lion", first))


def test_only_seeds_that_do_not_depend_on_results_are_pooled() -> None:
    first, second, _ = findings()
    looks = dataclasses.replace(first, study=dataclasses.replace(first.study, looks=(2, 5), margin=0.01))
    over = across_tasks([looks, second])
    assert over is not None
    assert over.pooled["AdamW"]["RADAR"].pairs == 2 + len(_pairs(second))


def test_a_task_counts_once_however_many_studies_it_has() -> None:
    """As against AdamW and against RADAR: the runs are the same, and would be counted twice."""
    first, second, _ = findings()
    other = dataclasses.replace(first, study=dataclasses.replace(first.study, reference="RADAR"))
    over, again = across_tasks([first, second]), across_tasks([first, second, other])
    assert over is not None
    assert again is not None
    assert again.tasks == over.tasks
    assert again.ranks == over.ranks
    assert again.profile == over.profile
    assert again.pooled["AdamW"]["RADAR"] == over.pooled["AdamW"]["RADAR"]


def test_a_task_with_few_of_the_contenders_is_left_out_of_the_ranks() -> None:
    first, second, _ = findings()
    same = [dataclasses.replace(first, title=title) for title in ("Again", "Still")]
    over = across_tasks([first, second, *same])
    assert over is not None
    assert over.tasks == tuple(f"{a.title}, {a.study.scale}" for a in (first, *same))
    assert over.left_out_tasks == (f"{second.title}, {second.study.scale}",)
    assert set(over.ranks) == {s.label for s in first.standings}
    assert over.pooled["AdamW"]["RADAR"].pairs == 3 * len(_pairs(first)) + len(_pairs(second))


def test_a_study_of_one_contender_is_no_comparison_across_tasks() -> None:
    first, second, _ = findings()
    alone = dataclasses.replace(first, title="Alone", standings=(first.reference,))
    assert across_tasks([first, alone]) is None
    over = across_tasks([first, second, alone])
    assert over is not None
    assert "Alone" not in " ".join((*over.tasks, *over.left_out_tasks))


def _pairs(found: StudyAnalysis) -> list[tuple[float, float]]:
    return list(zip(last("RADAR", found), last("AdamW", found), strict=True))


def _changed(runs: Mapping[str, Run], identity: str, **fields: Any) -> dict[str, Run]:
    return {**runs, identity: dataclasses.replace(runs[identity], **fields)}


def _facts(run: Run) -> dict[str, Any]:
    return {"facts": {**run.facts, "initial": "other"}}


def _session(**fields: Any) -> Any:
    return lambda run: {"sessions": [{**run.sessions[0], **fields}]}


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (lambda run: {"status": "failed", "reason": "out of luck"}, "problem", "1 run failed and is left out: Lion"),
        (lambda run: {"status": "running"}, "warning", "1 run is not finished: Lion final seed 2."),
        (
            lambda run: {"status": "diverged", "reason": "nan"},
            "warning",
            "counts as the worst value: Lion final seed 2 (nan)",
        ),
        (_facts, "problem", "Seed 2 started from different weights"),
        (lambda run: {"facts": {}}, "warning", "1 run did not record the initial weights"),
        (_session(data="other"), "problem", "The runs used different data"),
        (_session(commit="abc"), "warning", "differ in commit"),
        (_session(commit=40 * "d" + "+"), "warning", "dddddddddd+ (1)"),
        (_session(commit="abc+"), "warning", "source files that were changed since their commit"),
        (_session(versions={"torch": "1.0"}), "warning", "differ in versions: torch"),
        (_session(machine={"threads": "64"}), "warning", "differ in machine: threads"),
    ],
)
def test_the_audit_reports_a_problem_of_a_run(change: Any, level: str, words: str) -> None:
    study, runs = comparison(), runs_of(comparison)
    cell = next(c for c in study.cells(runs) if (c.contender, c.role, c.config.seed) == ("Lion", "final", 2))
    identity = cell.config.identity
    before = analyse_study(study, runs).audit
    after = analyse_study(study, _changed(runs, identity, **change(runs[identity]))).audit
    remarks = [remark for remark in after if words in remark.text]
    assert [remark.level for remark in remarks] == [level]
    if not words.startswith("source"):  # the package's own files may be changed while it is worked on
        assert not any(words in remark.text for remark in before)


@pytest.mark.parametrize(
    ("share", "level", "words"),
    [
        (
            0.2,
            "ok",
            "The test set is large enough: with other examples a difference would change by 0.2 of its",
        ),
        (0.9, "warning", "The test set is small: with other examples a difference would change by 0.9 of its standard"),
        (0.9, "warning", "8 times as many would bring this below a third"),
    ],
)
def test_the_audit_says_whether_the_test_set_is_large_enough(share: float, level: str, words: str) -> None:
    """On every seed the loss of one contender varies over two parts of the test set, and that of the other does not."""
    study, runs = comparison(), runs_of(comparison)
    two = (study.contender("Lion"), study.contender(study.reference))
    study = dataclasses.replace(study, contenders=two, subject="Lion")
    values: dict[str, dict[int, float]] = {label: {} for label in ("Lion", study.reference)}
    finals = {(c.contender, c.config.seed): c.config.identity for c in study.cells(runs) if c.role == "final"}
    for (label, seed), identity in finals.items():
        values[label][seed] = runs[identity].final(study.facts.measure)
    logs = {label: np.log([by_seed[seed] for seed in sorted(by_seed)]) for label, by_seed in values.items()}
    error = share * float((logs[study.reference] - logs["Lion"]).std(ddof=1))
    for (label, seed), identity in finals.items():
        spread = error if label == "Lion" else 0.0  # the jackknife of two values is half of their distance
        parts = [values[label][seed] * math.exp(sign * spread) for sign in (-1, 1)]
        facts = {**runs[identity].facts, "test_without_parts": {"test_loss": parts}}
        runs = _changed(runs, identity, facts=facts)
    (remark,) = (r for r in analyse_study(study, runs).audit if "The test set is" in r.text)
    assert remark.level == level
    assert words in remark.text


@pytest.mark.parametrize("recorded", [{}, {"test_without_parts": {}}, {"test_without_parts": "none"}])
def test_the_audit_says_nothing_about_a_test_set_whose_noise_is_not_known(recorded: dict[str, Any]) -> None:
    study, runs = comparison(), runs_of(comparison)
    for identity, run in runs.items():
        others = {name: value for name, value in run.facts.items() if name != "test_without_parts"}
        runs = _changed(runs, identity, facts={**others, **recorded})
    assert not any("The test set is" in remark.text for remark in analyse_study(study, runs).audit)


def test_the_audit_reports_a_search_with_a_missing_run() -> None:
    study, runs = comparison(), runs_of(comparison)
    cell = next(c for c in study.cells(runs) if (c.contender, c.role) == ("Lion", "search"))
    found = analyse_study(study, _changed(runs, cell.config.identity, status="failed"))
    assert any(r.level == "problem" and "unequal budgets" in r.text for r in found.audit)


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (0, "ok", "All 39 runs have a result"),
        (0, "ok", "Every contender had the same search: 3 learning rates, 20 steps each."),
        (0, "ok", "The search used validation loss with seed 5, which is not reported."),
        (0, "ok", "all contenders started from the same weights"),
        (0, "ok", "All runs used the same data"),
        (0, "warning", "The search chose a rate at the edge of their grids"),
        (1, "warning", "Only 4 seeds: a verdict needs at least 5."),
        (1, "ok", "No learning rate was searched"),
        (2, "warning", "Only the learning rate of RADAR was searched"),
    ],
)
def test_the_audit_reports_how_the_study_was_made(found: int, level: str, words: str) -> None:
    assert [r.level for r in findings()[found].audit if words in r.text] == [level]


def test_a_search_on_test_data_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "score", Small.measure)
    found = analyse_study(comparison(), runs_of(comparison))
    assert [r.level for r in found.audit if "which is test data" in r.text] == ["problem"]


def test_a_seed_that_tuned_and_is_reported_is_a_problem() -> None:
    study = comparison()
    object.__setattr__(study, "seeds", (5, 0))  # which a study itself refuses
    found = analyse_study(study, runs_of(comparison))
    assert [r.text for r in found.audit if "is reported too" in r.text] == [
        "Seed 5 was used to choose the learning rates and is reported too."
    ]


def test_a_contender_that_diverges_at_every_rate_is_a_problem() -> None:
    study, runs = comparison(), dict(runs_of(comparison))
    for config in study.search_runs(study.contender("Lion"), {}):
        runs[config.identity] = dataclasses.replace(runs[config.identity], status="diverged")
    found = analyse_study(study, runs)
    assert any(r.level == "problem" and "Every learning rate tried diverged for Lion" in r.text for r in found.audit)
    assert found.standing("Lion").lr == min(trial.lr for trial in found.standing("Lion").trials)


def test_the_audit_reports_changed_settings() -> None:
    study = dataclasses.replace(comparison(), settings={"steps": 30})
    assert "The task's settings are not those of the scale demo: steps=30." in {
        r.text for r in analyse_study(study, {}).audit
    }


def test_the_audit_reports_notes_of_a_run() -> None:
    runs = dict(runs_of(comparison))
    identity = next(cell.config.identity for cell in comparison().cells(runs) if cell.role == "final")
    runs[identity] = dataclasses.replace(runs[identity], notes=("It was begun again.",))
    remarks = [remark for remark in analyse_study(comparison(), runs).audit if "begun again" in remark.text]
    assert [(r.level, r.text) for r in remarks] == [
        ("warning", "1 run has notes: RADAR final seed 0 (It was begun again.).")
    ]
