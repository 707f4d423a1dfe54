"""The reference at other lengths: the same run but for its length, found again, and told in steps."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from aimopt.lab.analysis.across_tasks import across_tasks
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.protocol.lengths import check_factors, companion_runs, lengths
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.report.tables import cost
from aimopt.lab.results.run import Run
from short_studies import SHORT, short_study

WORTH = {"AdamW": 1.0, "RADAR": 1.5, "Lion": 9.0}  # a run of n steps ends where AdamW ends after this many times n


def ended(config: RunConfig, status: str = "finished") -> Run:
    """A run whose loss follows a power law."""
    loss = 1 + 3 * (WORTH[config.optimizer] * config.steps) ** -0.5 + 0.01 * config.seed
    records = [{"step": step, "valid_loss": loss, "test_loss": loss} for step in (1, config.steps // 2, config.steps)]
    return Run(config=config, status="finished" if status == "finished" else "diverged", history=records)


def all_runs(*studies: Study, start: Mapping[str, Run] | None = None) -> dict[str, Run]:
    runs = dict(start or {})
    for study in studies:
        while todo := [cell.config for cell in study.cells(runs) if cell.config.identity not in runs]:
            runs |= {config.identity: ended(config) for config in todo}
    return runs


def test_only_the_length_differs() -> None:
    study = short_study("RADAR", "AdamW", "Lion")
    runs = all_runs(study)
    half, double = lengths(study, runs, (0.5, 1, 2, 2.0))
    reference = study.contender("AdamW")
    choice = study.choice(reference, runs)
    assert choice is not None
    (own, *_) = study.final_runs(reference, choice.point)
    for other, steps, warmup in ((half, 6, 1), (double, 24, 4)):
        assert [cell.role for cell in other.cells({})] == ["final"] * 2
        config = other.cells({})[0].config
        assert (config.steps, config.settings["steps"], config.settings["warmup_steps"]) == (steps, steps, warmup)
        back = {**config.settings, **{name: own.settings[name] for name in SHORT}}
        assert dataclasses.replace(config, settings=back, steps=own.steps).identity == own.identity
        assert not other.is_comparison
        other.check()
        assert Study.from_dict(other.to_dict()) == other
    assert lengths(study, runs, (2,), seeds=(7,))[0].seeds == (7,)


def test_a_study_with_looks_gives_the_seeds_that_every_contender_has() -> None:
    study = dataclasses.replace(short_study(seeds=tuple(range(5))), looks=(2, 5), margin=0.01)
    assert lengths(study, all_runs(study), (2,))[0].seeds == (0, 1)


def test_mistakes_are_explained() -> None:
    study = short_study()
    with pytest.raises(ValueError, match="learning rate of AdamW on digits, and its search has not ended"):
        lengths(study, {})
    with pytest.raises(ValueError, match=r"positive factors.*got \(0, 2\)"):
        lengths(study, all_runs(study), (0, 2))


ODD = """
from dataclasses import dataclass
import torch
from aimopt.lab import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Fours(Supervised):
    title = "Steps in fours"
    lr: float = 0.1
    steps: int = 12
    evaluate_every: int = 2

    def __post_init__(self):
        super().__post_init__()
        if self.steps % 4:
            raise ValueError(f"steps must be a multiple of 4, got {self.steps}")

    def data(self):
        raise NotImplementedError

    def model(self):
        return torch.nn.Linear(2, 2)
"""


def test_a_length_that_the_task_refuses_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fours.py").write_text(ODD)
    study = compare("fours.py:Fours", optimizers=["RADAR", "AdamW"], grid=(1.0,), seeds=(0, 1))
    check_factors(study, (1 / 3, 2))
    with pytest.raises(ValueError, match=r"cannot make schedules 0.5 times as long: steps must be a multiple of 4"):
        check_factors(study, (2, 0.5))


def test_companions_are_complete_schedules_of_the_same_run() -> None:
    study = short_study()
    runs = all_runs(study)
    runs = all_runs(*lengths(study, runs, (0.5, 2)), start=runs)
    config = next(c.config for c in study.cells(runs) if (c.contender, c.role) == ("AdamW", "final"))
    assert {n: [*by_seed] for n, by_seed in companion_runs(config, runs).items()} == {6: [0, 1], 12: [0, 1], 24: [0, 1]}
    others = [
        dataclasses.replace(config, lr=2 * config.lr),
        dataclasses.replace(config, options={**config.options, "weight_decay": 0.3}),
        dataclasses.replace(config, steps=6),  # the beginning of a schedule
        dataclasses.replace(config, settings={**config.settings, "steps": 48, "warmup_steps": 2}, steps=48),
        dataclasses.replace(config, settings={**config.settings, "batch_size": 32}),
    ]
    strange = {other.identity: ended(other) for other in others}
    assert companion_runs(config, {**runs, **strange}) == companion_runs(config, runs)


def test_differences_are_told_in_steps_where_the_reference_has_other_lengths() -> None:
    study = short_study("RADAR", "AdamW", "Lion")
    runs = all_runs(study)
    assert analyse_study(study, runs).standing("RADAR").equivalent is None
    runs = all_runs(*lengths(study, runs, (0.5, 1.4, 2)), start=runs)
    found = analyse_study(study, runs)
    radar, lion = (found.standing(label).equivalent for label in ("RADAR", "Lion"))
    assert radar is not None
    assert lion is not None
    assert radar.saved.value == pytest.approx(1 - 1 / 1.5, abs=0.01)
    assert lion.side == "above"
    assert found.reference.equivalent is None
    table = cost(found)
    assert table is not None
    column = table.columns.index("Fewer steps than AdamW")
    assert [row[column].text for row in table.rows] == ["33 %", "", "more than 50 %"]
    assert "schedules of 6 to 24 steps" in table.note


def test_a_study_of_lengths_is_not_a_task_across_tasks() -> None:
    study = short_study()
    runs = all_runs(study)
    other = lengths(study, runs, (2,))[0]
    runs = all_runs(other, start=runs)
    alone = [analyse_study(s, runs) for s in (study, other)]
    assert across_tasks(alone) is None
