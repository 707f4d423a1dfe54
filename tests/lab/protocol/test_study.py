"""The runs of a study, which depend on the results so far."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab.protocol import study_files
from aimopt.lab.protocol.protocol import Protocol, same_options
from aimopt.lab.protocol.recipes import compare, sensitivity
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Contender, Study
from aimopt.lab.report import phrasing
from aimopt.lab.results.run import Run, Status
from aimopt.lab.stats.tuning import Point
from aimopt.paper.presets import HEAT_MAP, ablation
from aimopt.paper.protocols import OPTIMIZERS, PROTOCOL
from short_studies import SEARCH_STEPS, SHORT, short_study

PAPER = replace(PROTOCOL, options=same_options(weight_decay=5e-5))


def result(config: RunConfig, loss: float, status: Status = "finished") -> Run:
    history = [{"step": step, "valid_loss": loss, "test_loss": loss} for step in (2, 4, 6)]
    return Run(config=config, status=status, history=history)


def search_runs(study: Study, losses: Mapping[float, float], status: Status = "finished") -> dict[str, Run]:
    """The search of every contender, with these scores in units of its usual rate."""
    runs = {}
    for contender in study.contenders:
        for factor, config in zip(study.grid, study.search_runs(contender, {}), strict=True):
            runs[config.identity] = result(config, losses[factor], status)
    return runs


def test_the_papers_protocol() -> None:
    study = compare("digits", "demo", protocol=PROTOCOL)
    assert [contender.label for contender in study.contenders] == list(OPTIMIZERS)
    assert study.grid == (0.1, 0.5, 1.0, 5.0, 10.0)
    assert (study.tuning_seed, study.seeds, study.reference) == (5, (0, 1, 2, 3, 4), "AdamW")
    cells = study.cells({})
    assert {cell.config.seed for cell in cells if cell.role == "search"} == {5}
    rates = {c.contender: sorted(x.config.lr for x in cells if x[:2] == (c.contender, "search")) for c in cells}
    assert rates["RADAR"] == rates["AdamW"] == [1e-3, 5e-3, 1e-2, 5e-2, 0.1]
    assert rates["Adan"] == [2.5e-3, 1.25e-2, 2.5e-2, 0.125, 0.25]
    assert rates["Lion"] == [1e-4, 5e-4, 1e-3, 5e-3, 1e-2]


def test_the_final_runs_take_the_rate_that_the_search_chose() -> None:
    study = short_study(untuned=False)
    assert {cell.role for cell in study.cells({})} == {"search"}
    assert study.count_unknown_runs({}) == 4
    runs = search_runs(study, {0.5: 0.1, 1.0: 0.2})
    finals = [cell.config for cell in study.cells(runs) if cell.role == "final"]
    assert [(config.optimizer, config.lr, config.seed, config.steps) for config in finals] == [
        (name, 5e-3, seed, SHORT["steps"]) for name in ("RADAR", "AdamW") for seed in (0, 1)
    ]
    assert {cell.config.steps for cell in study.cells(runs) if cell.role == "search"} == {SEARCH_STEPS}
    assert study.count_unknown_runs(runs) == 0
    assert len(study.cells(runs)) == study.max_run_count()


def test_a_diverged_rate_loses_and_a_failed_one_does_not_count() -> None:
    study = short_study(untuned=False)
    contender = study.contenders[0]
    first, second = study.search_runs(contender, {})
    worst = {first.identity: result(first, 0.1, "diverged"), second.identity: result(second, 9.0)}
    choice = study.choice(contender, worst)
    assert choice is not None
    assert choice.point.rate == second.lr
    failed = {first.identity: result(first, 0.1, "failed"), second.identity: result(second, 9.0)}
    choice = study.choice(contender, failed)
    assert choice is not None
    assert choice.point.rate == second.lr
    assert study.choice(contender, search_runs(study, {0.5: 1, 1.0: 1}, "failed")) is None
    assert study.choice(contender, {first.identity: result(first, 0.1)}) is None


def test_the_score_is_the_mean_of_the_last_three_measurements() -> None:
    config = short_study().search_runs(short_study().contenders[0], {})[0]
    history = [{"step": step, "valid_loss": loss} for step, loss in enumerate([9.0, 1.0, 2.0, 6.0])]
    run = Run(config=config, status="finished", history=history)
    assert run.score(config.make_task().score) == 3.0


def test_tuned_and_untuned_runs_may_coincide() -> None:
    study = short_study()
    cells = study.cells(search_runs(study, {0.5: 0.2, 1.0: 0.1}))
    assert len(cells) == study.max_run_count() == 12
    assert len({cell.config.identity for cell in cells}) == 8


def test_one_rate_needs_no_search() -> None:
    study = short_study(grid=(1.0,), untuned=False)
    assert {cell.role for cell in study.cells({})} == {"final"}
    assert len(study.cells({})) == study.max_run_count() == 4


def test_ablation_takes_the_rate_of_the_complete_optimizer() -> None:
    study = ablation("digits", "demo", protocol=PAPER)
    assert len([cell for cell in study.cells({}) if cell.role == "search"]) == 5
    assert [dict(c.options) for c in study.contenders][1:] == [
        {"weight_decay": 5e-5, "gamma": 0.0},
        {"weight_decay": 5e-5, "ell_ratio": 0.0},
        {"weight_decay": 5e-5, "gamma": 0.0, "ell_ratio": 0.0},
    ]
    contender = study.contenders[0]
    runs = {c.identity: result(c, x) for c, x in zip(study.search_runs(contender, {}), [5, 4, 1, 3, 2], strict=True)}
    assert {cell.config.lr for cell in study.cells(runs) if cell.role == "final"} == {1e-2}


def test_the_heat_map_shares_its_default_with_the_comparison() -> None:
    study = sensitivity("digits", "demo", HEAT_MAP, protocol=PAPER)
    assert len(study.contenders) == 26
    same = study.contender("ell_ratio=0.01, gamma=0.1")
    default = compare("digits", "demo", protocol=PAPER).final_runs(Contender.named("RADAR"), Point(1e-3))
    assert study.final_runs(same, Point(1e-3)) == default


def test_values_that_are_close_to_each_other_have_labels_of_their_own() -> None:
    labels = [c.label for c in sensitivity("digits", "demo", {"gamma": (0.1234567, 0.1234568, 1e-16)}).contenders]
    assert labels == ["RADAR", "gamma=0.1234567", "gamma=0.1234568", "gamma=1e-16"]


def test_a_study_survives_a_file(tmp_path: Path) -> None:
    for study in (short_study("RADAR(gamma=0.05)", "torch.optim:AdamW"), sensitivity("digits", "demo", HEAT_MAP)):
        study_files.save(tmp_path / "study.toml", study.to_dict())
        (tmp_path / "study.json").write_text(json.dumps(study.to_dict()))
        assert Study.from_dict(study_files.read(tmp_path / "study.toml")) == study
        assert Study.from_dict(study_files.read(tmp_path / "study.json")) == study


def test_a_contender_is_parsed_from_a_text() -> None:
    contender = Contender.named("radar(gamma=0.05, betas=(0.9, 0.99))")
    assert contender.label == "RADAR(gamma=0.05, betas=(0.9, 0.99))"
    assert contender.options == {"gamma": 0.05, "betas": (0.9, 0.99)}
    assert Contender.named("torch.optim:AdamW").optimizer == "torch.optim:AdamW"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": ["RADAR", "radar"]}, "two contenders are called 'RADAR'; name each once"),
        ({"reference": "Lion"}, "'Lion' is not among the contenders RADAR, AdamW"),
        ({"seeds": (4, 5)}, "seed 5 tunes the learning rate"),
        ({"seeds": (1, 1)}, "seeds must be one or more different numbers"),
        ({"seeds": (-1,)}, r"seeds must be whole numbers from 0, got \(-1,\)"),
        ({"seeds": (1.5,)}, r"seeds must be whole numbers from 0, got \(1.5,\)"),
        ({"grid": ()}, "grid must be one or more different numbers"),
        ({"grid": (1.0, -1.0)}, "grid must be positive"),
        ({"optimizers": ["RADAR(0.1)"]}, "cannot read the optimizer"),
        ({"optimizers": ["RADAR(gamma=open('x'))"]}, "cannot read the optimizer"),
    ],
)
def test_a_mistake_is_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare("digits", "demo", **{"optimizers": ["RADAR", "AdamW"], "protocol": PAPER, **changes})


def test_a_study_with_a_missing_or_unknown_field_is_refused() -> None:
    fields = short_study().to_dict()
    with pytest.raises(ValueError, match="has no 'colour'"):
        Study.from_dict({**fields, "colour": 1})
    del fields["reference"]
    with pytest.raises(ValueError, match="lacks 'reference'"):
        Study.from_dict(fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_every": 5}, "evaluates every 5 steps, 2 times, but is scored by the mean of 3"),
        ({"steps": "many"}, "steps must be a value like 140, got 'many'"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"steps": 4}, "search_steps=6 must be a whole number from 1 to steps=4"),
        ({"search_steps": 4}, "search_steps is not a setting of Digits: it belongs to the comparison"),
    ],
)
def test_invalid_settings_are_refused_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        short_study(settings=settings)


@pytest.mark.parametrize("name", ["RADAR(gama=1)", "RADAR(lr=1)", "RADAR(gamma={1})"])
def test_invalid_options_are_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(ValueError, match=r"no option 'gama'|leave them out|cannot be stored"):
        short_study(name, "AdamW")


def test_an_integer_is_the_same_rate_or_option_as_the_float() -> None:
    study = short_study("RADAR(gamma=0)", "AdamW")
    integer, real = study.contenders[0], Contender.named("RADAR(gamma=0.0)")
    assert (
        study.final_runs(integer, Point(1))[0].identity
        == short_study("AdamW", "RADAR(gamma=0.0)").final_runs(real, Point(1.0))[0].identity
    )


def test_the_protocol_of_a_task_is_not_part_of_its_runs() -> None:
    studies = [short_study(search_steps=steps, grid=grid) for steps, grid in ((6, (1.0, 2.0)), (8, (1.0, 3.0)))]
    identities = {study.final_runs(study.contenders[0], Point(1e-3))[0].identity for study in studies}
    assert len(identities) == 1


def test_the_final_runs_of_an_interrupted_search_are_counted() -> None:
    study = short_study(untuned=False)
    assert study.count_unknown_runs(search_runs(study, {0.5: 1, 1.0: 1}, "running")) == 4
    assert study.count_unknown_runs(search_runs(study, {0.5: 1, 1.0: 1}, "failed")) == 0


@pytest.mark.parametrize("make", [Protocol, short_study])
def test_published_results_need_a_source(make: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="published must be a PublishedTable"):
        make(published={"RADAR": (0.5, 0.1)})


def test_a_study_names_its_axes_as_its_protocol_does() -> None:
    protocol = Protocol(subject="torch.optim:SGD", symbols={"momentum": "μ", "dampening": "d"})
    study = sensitivity("digits", "demo", {"momentum": (0.0, 0.9)}, protocol=protocol)
    assert study.symbols == {"momentum": "μ"}
    assert phrasing.axis_name(study, "momentum") == "μ"
    assert phrasing.axis_name(study, "weight_decay") == "weight decay"
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study


@pytest.mark.parametrize(
    "value", [None, "null", r"\null", r"\\null", "nullable", r"\n", "", ["null", None], {"null": "null"}]
)
def test_a_text_that_looks_like_null_stays_a_text(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    study_files.save(file, {"options": {"reduction": value}})
    assert study_files.read(file) == {"options": {"reduction": value}}


def test_null_in_a_file_of_an_older_version_is_none(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('rate_of = "null"\n')
    assert study_files.read(file) == {"rate_of": None}
