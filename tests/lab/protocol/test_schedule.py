"""Which runs a study of our protocol has: its search, its looks, and what its file holds."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab import Contender, Study, compare, sensitivity
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.protocol import schedule, study_files
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.search import Search
from aimopt.lab.report import phrasing
from aimopt.lab.results.run import Run, Status
from aimopt.paper.protocols import PROTOCOL
from short_studies import SHORT

Loss = Callable[[RunConfig], float]
SEQUENTIAL = PROTOCOL.sequential()


def sequential_study(*optimizers: str, **fields: Any) -> Study:
    names = optimizers or ("RADAR", "AdamW")
    return compare("digits", "demo", optimizers=names, protocol=SEQUENTIAL, settings=SHORT, **fields)


def bowl(config: RunConfig) -> float:
    """Best at the usual rate; the seeds differ by a little."""
    return 1 + math.log2(config.lr / 1e-2) ** 2 / 50 + 0.001 * math.sin(config.seed)


def train(study: Study, loss: Loss = bowl, rounds: int = 99, status: Status = "finished") -> dict[str, Run]:
    """Give every run that the study asks for its result, until it asks for no more."""
    runs: dict[str, Run] = {}
    for _ in range(rounds):
        new = [cell.config for cell in study.cells(runs) if cell.config.identity not in runs]
        if not new:
            break
        for config in new:
            value = loss(config)
            history = [{"step": step, "valid_loss": value, "test_loss": value} for step in (2, 4, 6)]
            runs[config.identity] = Run(config=config, status=status, history=history)
    return runs


def counts(study: Study, runs: dict[str, Run]) -> dict[tuple[str, str], int]:
    return dict(Counter((cell.contender, cell.role) for cell in study.cells(runs)))


def better_by(gain: float, noise: float = 0.0) -> Loss:
    """RADAR's losses are smaller by this share; its noise is its own."""

    def loss(config: RunConfig) -> float:
        own = config.optimizer == "RADAR" and config.seed < 1000
        return bowl(config) * (1 - gain * own) * (1 + noise * own * math.sin(7 * config.seed))

    return loss


def test_the_search_goes_on_in_rounds() -> None:
    study = sequential_study()
    assert counts(study, {}) == {("RADAR", "search"): 7, ("AdamW", "search"): 7}
    assert {cell.config.seed for cell in study.cells({})} == {1001}
    assert {cell.config.steps for cell in study.cells({})} == {SHORT["steps"]}  # whole schedules
    assert study.count_unknown_runs({}) == 10
    first = train(study, rounds=1)
    assert counts(study, first) == {("RADAR", "search"): 13, ("AdamW", "search"): 13}
    third = train(study, rounds=3)
    assert counts(study, third)["RADAR", "search"] == 19
    choice = study.choice(study.contenders[0], third)
    assert choice is not None
    assert choice.point.rate == 1e-2
    assert counts(study, third)["RADAR", "final"] == 5
    assert study.count_unknown_runs(third) == 0


@pytest.mark.parametrize(("gain", "noise", "seeds"), [(0.5, 0.01, 5), (0.03, 0.02, 10), (0.01, 0.02, 40)])
def test_seeds_are_added_until_a_contender_is_decided(gain: float, noise: float, seeds: int) -> None:
    study = sequential_study(margin=0.01)
    runs = train(study, better_by(gain, noise))
    finals = counts(study, runs)
    assert finals["RADAR", "final"] == finals["AdamW", "final"] == seeds
    outcome = schedule.decisions(study, runs)["RADAR"].outcome
    assert outcome == ("undecided" if seeds == 40 else "better")
    assert len(runs) == len(study.cells(runs)) <= study.max_run_count()


def test_only_undecided_contenders_go_on_and_the_reference_with_them() -> None:
    study = sequential_study("RADAR", "AdamW", "RAD", "NAdam", margin=0.01)
    runs = train(study, better_by(0.01, 0.02))  # RAD and NAdam have the losses of AdamW
    finals = {label: number for (label, role), number in counts(study, runs).items() if role == "final"}
    assert finals == {"RADAR": 40, "AdamW": 40, "RAD": 5, "NAdam": 5}
    analysis = analyse_study(study, runs)
    verdicts = {s.label: s.difference.verdict for s in analysis.standings if s.difference}
    assert verdicts == {"RADAR": "undecided with 40 seeds", "RAD": "identical", "NAdam": "identical"}
    assert analysis.progress.complete
    assert analysis.standing("RADAR").ahead_in_search == (0, 3)


def test_a_failed_final_run_is_waited_for() -> None:
    study = sequential_study()
    runs = train(study, rounds=4)
    failed = next(cell.config for cell in study.cells(runs) if (cell.contender, cell.role) == ("RADAR", "final"))
    runs[failed.identity] = Run(config=failed, status="failed", reason="no memory")
    assert schedule.decisions(study, runs)["RADAR"].outcome == "open"
    assert counts(study, runs)["RADAR", "final"] == 5


def results_by_optimizer(study: Study, values: dict[str, float]) -> dict[str, Run]:
    """Every run of an optimizer ends with one value; it diverged if that is infinite."""
    runs = train(study, lambda config: values[config.optimizer])
    diverged = {name for name, value in values.items() if math.isinf(value)}
    return {
        identity: dataclasses.replace(run, status="diverged", history=()) if run.config.optimizer in diverged else run
        for identity, run in runs.items()
    }


def test_two_contenders_that_always_diverge_are_not_called_identical() -> None:
    study = sequential_study("RADAR", "Lion", "AdamW")
    runs = results_by_optimizer(study, {"RADAR": math.inf, "Lion": 1.0, "AdamW": math.inf})
    decisions = schedule.decisions(study, runs)
    assert {label: decision.verdict for label, decision in decisions.items()} == {
        "RADAR": "undecided with 5 seeds",
        "Lion": "better",
    }
    assert (decisions["RADAR"].low, decisions["RADAR"].high) == (-math.inf, math.inf)
    assert counts(study, runs)["RADAR", "final"] == 5
    said = phrasing.summary(analyse_study(study, runs))
    assert "Against AdamW, better: Lion; 5 seeds cannot tell: RADAR." in said


def test_seeds_on_which_both_diverge_do_not_make_two_contenders_equal() -> None:
    """Of such a seed there is no number: zeros would be a difference that is known to be small."""
    study = sequential_study(seeds=tuple(range(5)), margin=0.02)
    runs = train(study, better_by(0.001))
    for identity, run in runs.items():
        if run.config.seed < 4:
            runs[identity] = dataclasses.replace(run, status="diverged", history=())
    analysis = analyse_study(study, runs)
    difference = analysis.standing("RADAR").difference
    assert difference is not None
    assert difference.verdict == "undecided with 5 seeds"
    said = phrasing.summary(analysis)
    assert "Every contender diverged on at least one seed." in said
    assert "With 5 seeds, no contender can be distinguished from AdamW." in said


@pytest.mark.parametrize(
    ("diverged", "sentence"),
    [
        (("RADAR",), "at gamma=0.2; the defaults diverged."),
        (("gamma=0.2", "gamma=0.3"), "Every setting of the grid diverged; the defaults give 1.000."),
    ],
)
def test_a_sweep_in_which_one_side_diverges(diverged: tuple[str, ...], sentence: str) -> None:
    study = sensitivity("digits", "demo", {"gamma": (0.2, 0.3)}, grid=(1.0,), settings=SHORT)
    runs = train(study, lambda _: 1.0)
    for cell in study.cells(runs):
        if cell.contender in diverged:
            identity = cell.config.identity
            runs[identity] = dataclasses.replace(runs[identity], status="diverged", history=())
    assert phrasing.summary(analyse_study(study, runs))[0].endswith(sentence)


@pytest.mark.parametrize(("value", "verdict"), [(0.001, "worse"), (0.0, "identical"), (-0.001, "better")])
def test_nothing_is_equal_to_a_reference_of_zero_but_zero(value: float, verdict: str) -> None:
    """A share of zero is zero, however large the margin is."""
    study = sequential_study(margin=0.5)
    runs = results_by_optimizer(study, {"RADAR": value, "AdamW": 0.0})
    assert schedule.decisions(study, runs)["RADAR"].verdict == verdict


def test_a_verdict_of_an_early_look_is_shown_as_such() -> None:
    study = sequential_study(looks=(3, 6), seeds=tuple(range(6)), margin=0.02)
    analysis = analyse_study(study, train(study, better_by(0.9, 0.001)))
    difference = analysis.standing("RADAR").difference
    assert difference is not None
    assert (len(difference.differences), difference.verdict, difference.too_few_seeds) == (3, "better", False)
    assert "Against AdamW, better: RADAR." in phrasing.summary(analysis)
    assert phrasing.headline([analysis], None).endswith("RADAR is better than AdamW (3 seeds; among RADAR and AdamW).")


def test_a_search_that_only_fails_chooses_nothing() -> None:
    study = sequential_study()
    runs = train(study, status="failed")
    assert {cell.role for cell in study.cells(runs)} == {"search"}
    assert study.count_unknown_runs(runs) == 0
    assert study.choice(study.contenders[0], runs) is None


def test_a_contender_may_tune_more_than_its_rate() -> None:
    study = sequential_study("AdamW(tune='beta1')", "AdamW", "Muon(tune=('beta1', 'weight_decay'))")
    tuned, plain, muon = study.contenders
    assert (tuned.label, tuned.tune, plain.tune, muon.tune) == (
        "AdamW(tune='beta1')",
        ("beta1",),
        (),
        ("beta1", "weight_decay"),
    )
    configs = study.search_runs(tuned, {})
    assert [config.lr for config in configs] == [config.lr for config in study.search_runs(plain, {})]
    betas = [config.options["betas"] for config in configs]
    assert len({first for first, _ in betas}) == 7
    assert all(0.5 <= first < 0.98 and second == 0.999 for first, second in betas)
    assert len({config.options["momentum"] for config in study.search_runs(muon, {})}) == 7
    usual = study.facts.contenders[muon.label].options["weight_decay"]
    assert all(usual / 8 <= config.options["weight_decay"] < 8 * usual for config in study.search_runs(muon, {}))
    runs = train(study, lambda config: bowl(config) + abs(config.options.get("betas", [0.9])[0] - 0.75))
    assert analyse_study(study, runs).standing(tuned.label).tuned == {"beta1": pytest.approx(0.7555, abs=1e-3)}


def test_tune_for_all_contenders_is_taken_by_those_that_can() -> None:
    study = sequential_study("AdamW", "SGDM(weight_decay=0)", "RADAR(tune='beta1')", tune=("weight_decay",))
    assert [contender.tune for contender in study.contenders] == [("weight_decay",), (), ("beta1",)]


def test_a_study_survives_a_file(tmp_path: Path) -> None:
    study = sequential_study("AdamW(tune='beta1')", "RADAR", margin=0.02)
    study_files.save(tmp_path / "study.toml", study.to_dict())
    read = Study.from_dict(study_files.read(tmp_path / "study.toml"))
    assert read == study
    assert (read.search, read.looks, read.margin) == (Search(), (5, 10, 20, 40), 0.02)
    assert read.cells({}) == study.cells({})


def test_a_study_of_the_papers_protocol_is_written_as_before() -> None:
    definition = compare("digits", "demo", protocol=PROTOCOL).to_dict()
    assert not {"search", "looks", "margin"} & definition.keys()
    assert all("tune" not in contender for contender in definition["contenders"])


def test_given_seeds_and_a_given_grid_replace_looks_and_search() -> None:
    assert sequential_study(seeds=tuple(range(10))).looks == (5, 10)
    assert sequential_study(seeds=(0, 1, 2)).looks == ()
    assert sequential_study(grid=(0.5, 1.0)).search is None
    sweep = sensitivity("digits", "demo", {"gamma": (0.0, 0.1)}, protocol=SEQUENTIAL, settings=SHORT)
    assert (sweep.search, sweep.looks, len(sweep.seeds)) == (Search(), (), 5)
    runs = train(sweep)
    assert {cell.config.lr for cell in sweep.cells(runs) if cell.role == "final"} == {1e-2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"looks": (5, 4), "seeds": (0, 1, 2, 3)}, "looks must grow from at least 2 to the number of seeds, 4"),
        ({"margin": 0.0}, "margin must be a relative difference between 0 and 1, such as 0.01, got 0.0"),
        ({"seeds": tuple(range(1000, 1005))}, "seed 1001 tunes the learning rate and cannot be a final seed too"),
        ({"search": None}, r"AdamW\(tune='beta1'\) tunes options, which the search on a grid cannot"),
    ],
)
def test_mistakes_in_a_study(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequential_study("AdamW(tune='beta1')", "RADAR", **fields)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AdamW(tune='eps')", "cannot tune 'eps'; its learning rate and beta1 and weight_decay can be tuned"),
        ("RADAR(weight_decay=0, tune='weight_decay')", "cannot tune weight_decay: it has no weight decay here"),
        ("torch.optim:Adagrad(tune='beta1')", "cannot tune beta1: it has no momentum"),
    ],
)
def test_mistakes_in_what_is_tuned(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequential_study(name, "AdamW")
    assert Contender.named(name).tune


def test_a_search_without_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="a search needs at least one point and different tuning seeds"):
        Search(seeds=())
