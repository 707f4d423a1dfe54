"""Studies carried out by processes of this machine."""

from pathlib import Path

import pytest

from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.resources import Resources
from aimopt.lab.execution.runner import train_run
from aimopt.lab.execution.scheduler import ExecutionState, execute
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.store import Store
from aimopt.paper.presets import ablation
from short_studies import SHORT, curves, short_study


def carry_out(store: Store, *studies: Study) -> ExecutionState:
    with open_engine("local", store, Resources(workers=1)) as engine:
        return execute(studies, store, engine)


def test_a_study_is_carried_out_once_and_shares_runs_with_another(store: Store, tmp_path: Path) -> None:
    study = short_study()
    first = carry_out(store, study)
    assert not first.failed
    assert not first.pending
    assert first.total == len(first.ended_runs) == len({cell.config.identity for cell in study.cells(store.runs())})
    again = carry_out(store, study)
    assert again.reused == again.total == first.total
    other = carry_out(
        store,
        ablation("digits", "demo", grid=study.grid, seeds=study.seeds, search_steps=study.search_steps, settings=SHORT),
    )
    assert other.reused == 4  # RADAR's search and its final runs
    here = Store(tmp_path / "here")
    config = study.search_runs(study.contenders[0], {})[0]
    train_run(config, here)
    assert curves(here.run(config)) == curves(store.run(config))


FAULTY = """
import torch
class Raises(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("out of luck")
"""


def test_a_contender_that_fails_does_not_stop_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    study = short_study("AdamW", "faulty.py:Raises", untuned=False)
    done = carry_out(store, study)
    assert [run.reason for run in done.failed] == ["RuntimeError: out of luck"] * 2
    assert {run.config.optimizer for run in done.ended_runs.values() if run.settled} == {"AdamW"}
    assert len(done.ended_runs) == done.total == 6
    assert carry_out(store, study).reused == 4  # what failed is tried again
