"""What a study consists of, as results come in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab import files, optimizers
from aimopt.lab.config import RunConfig
from aimopt.lab.runs import Run, Status
from aimopt.lab.study import HEAT_MAP, Contender, Study, ablation, compare, sensitivity
from short import SHORT, short_study


def result(config: RunConfig, loss: float, status: Status = "finished") -> Run:
    history = [{"step": step, "valid_loss": loss, "test_loss": loss} for step in (2, 4, 6)]
    return Run(config=config, status=status, history=history)


def searched(study: Study, losses: Mapping[float, float], status: Status = "finished") -> dict[str, Run]:
    """The search of every contender, with these scores in units of its usual rate."""
    runs = {}
    for contender in study.contenders:
        for factor, config in zip(study.grid, study.search(contender), strict=True):
            runs[config.identity] = result(config, losses[factor], status)
    return runs


def test_the_papers_protocol() -> None:
    study = compare("digits", "demo")
    assert [contender.label for contender in study.contenders] == list(optimizers.PAPER)
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
    assert study.unnamed({}) == 4
    runs = searched(study, {0.5: 0.1, 1.0: 0.2})
    finals = [cell.config for cell in study.cells(runs) if cell.role == "final"]
    assert [(config.optimizer, config.lr, config.seed, config.steps) for config in finals] == [
        (name, 5e-3, seed, SHORT["steps"]) for name in ("RADAR", "AdamW") for seed in (0, 1)
    ]
    assert {cell.config.steps for cell in study.cells(runs) if cell.role == "search"} == {SHORT["search_steps"]}
    assert study.unnamed(runs) == 0
    assert len(study.cells(runs)) == study.count()


def test_a_diverged_rate_loses_and_a_failed_one_does_not_count() -> None:
    study = short_study(untuned=False)
    contender = study.contenders[0]
    first, second = study.search(contender)
    worst = {first.identity: result(first, 0.1, "diverged"), second.identity: result(second, 9.0)}
    choice = study.choice(contender, worst)
    assert choice is not None
    assert choice.rate == second.lr
    failed = {first.identity: result(first, 0.1, "failed"), second.identity: result(second, 9.0)}
    choice = study.choice(contender, failed)
    assert choice is not None
    assert choice.rate == second.lr
    assert study.choice(contender, searched(study, {0.5: 1, 1.0: 1}, "failed")) is None
    assert study.choice(contender, {first.identity: result(first, 0.1)}) is None


def test_the_score_is_the_mean_of_the_last_three_measurements() -> None:
    config = short_study().search(short_study().contenders[0])[0]
    history = [{"step": step, "valid_loss": loss} for step, loss in enumerate([9.0, 1.0, 2.0, 6.0])]
    run = Run(config=config, status="finished", history=history)
    assert run.score(config.make_task().score) == 3.0


def test_tuned_and_untuned_runs_may_coincide() -> None:
    study = short_study()
    cells = study.cells(searched(study, {0.5: 0.2, 1.0: 0.1}))
    assert len(cells) == study.count() == 12
    assert len({cell.config.identity for cell in cells}) == 8


def test_one_rate_needs_no_search() -> None:
    study = short_study(grid=(1.0,), untuned=False)
    assert {cell.role for cell in study.cells({})} == {"final"}
    assert len(study.cells({})) == study.count() == 4


def test_ablation_takes_the_rate_of_the_whole() -> None:
    study = ablation("digits", "demo")
    assert len([cell for cell in study.cells({}) if cell.role == "search"]) == 5
    assert [dict(c.options) for c in study.contenders][1:] == [
        {"gamma": 0.0},
        {"ell_ratio": 0.0},
        {"gamma": 0.0, "ell_ratio": 0.0},
    ]
    contender = study.contenders[0]
    runs = {c.identity: result(c, x) for c, x in zip(study.search(contender), [5, 4, 1, 3, 2], strict=True)}
    assert {cell.config.lr for cell in study.cells(runs) if cell.role == "final"} == {1e-2}


def test_the_heat_map_shares_its_default_with_the_comparison() -> None:
    study = sensitivity("digits", "demo", HEAT_MAP)
    assert len(study.contenders) == 26
    same = study.contender("ell_ratio=0.01, gamma=0.1")
    assert study.finals(same, 1e-3) == compare("digits", "demo").finals(Contender.named("RADAR"), 1e-3)


@pytest.mark.parametrize("ending", files.ENDINGS)
def test_a_study_survives_a_file(ending: str, tmp_path: Path) -> None:
    for study in (short_study("RADAR(gamma=0.05)", "torch.optim:AdamW"), sensitivity("digits", "demo")):
        files.save(tmp_path / f"study{ending}", study.to_dict())
        assert Study.from_dict(files.read(tmp_path / f"study{ending}")) == study


def test_a_contender_is_written_as_people_write_it() -> None:
    contender = Contender.named("radar(gamma=0.05, betas=(0.9, 0.99))")
    assert contender.label == "RADAR(gamma=0.05, betas=(0.9, 0.99))"
    assert contender.options == {"gamma": 0.05, "betas": (0.9, 0.99)}
    assert Contender.named("torch.optim:AdamW").optimizer == "torch.optim:AdamW"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": ["RADAR", "radar"]}, "two contenders are called 'RADAR'"),
        ({"reference": "Lion"}, "'Lion' is not among the contenders RADAR, AdamW"),
        ({"seeds": (4, 5)}, "seed 5 tunes the learning rate"),
        ({"seeds": (1, 1)}, "seeds must be different numbers"),
        ({"grid": ()}, "grid must be different numbers"),
        ({"grid": (1.0, -1.0)}, "grid must be positive"),
        ({"optimizers": ["RADAR(0.1)"]}, "cannot read the optimizer"),
        ({"optimizers": ["RADAR(gamma=open('x'))"]}, "cannot read the optimizer"),
    ],
)
def test_a_mistake_is_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare("digits", "demo", **{"optimizers": ["RADAR", "AdamW"], **changes})


def test_a_study_with_a_field_too_few_or_many_is_refused() -> None:
    fields = short_study().to_dict()
    with pytest.raises(ValueError, match="has no 'colour'"):
        Study.from_dict({**fields, "colour": 1})
    del fields["reference"]
    with pytest.raises(ValueError, match="lacks 'reference'"):
        Study.from_dict(fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_every": 5}, "evaluates every 5, 2 times, but scored by the mean of 3"),
        ({"steps": "many"}, "steps must be such as 140, got 'many'"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"steps": 4}, "search_steps=6 must be at most steps=4"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        short_study(settings=settings)


@pytest.mark.parametrize("name", ["RADAR(gama=1)", "RADAR(lr=1)", "RADAR(gamma={1})"])
def test_options_that_cannot_be_are_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(ValueError, match=r"no option 'gama'|leave them out|cannot be kept"):
        short_study(name, "AdamW")


def test_a_whole_number_is_the_same_rate_or_option() -> None:
    study = short_study("RADAR(gamma=0)", "AdamW")
    whole, real = study.contenders[0], Contender.named("RADAR(gamma=0.0)")
    assert study.finals(whole, 1)[0].identity == short_study("AdamW", "RADAR(gamma=0.0)").finals(real, 1.0)[0].identity


def test_the_protocol_of_a_task_is_not_part_of_its_runs() -> None:
    studies = [short_study(settings={"search_steps": steps, "grid": (1.0,)}) for steps in (6, 8)]
    identities = {study.finals(study.contenders[0], 1e-3)[0].identity for study in studies}
    assert len(identities) == 1


def test_an_interrupted_search_still_has_its_final_runs_before_it() -> None:
    study = short_study(untuned=False)
    assert study.unnamed(searched(study, {0.5: 1, 1.0: 1}, "running")) == 4
    assert study.unnamed(searched(study, {0.5: 1, 1.0: 1}, "failed")) == 0
