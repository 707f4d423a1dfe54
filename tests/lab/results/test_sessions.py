"""A run records the versions of what may change its result: those of the lab and of the packages of its task."""

from importlib import metadata
from pathlib import Path

import pytest
import torch

from aimopt.lab import Store, Task
from aimopt.lab.analysis.provenance import differing, provenance
from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol import tasks
from aimopt.lab.results.sessions import versions
from aimopt.messages.reason import Reason
from aimopt.paper.tasks.digits import Digits
from aimopt.paper.tasks.language import Language
from aimopt.paper.tasks.sac import SoftActorCritic
from short_studies import short_run


def recorded_versions(store: Store) -> dict[str, str]:
    config = short_run(steps=2)
    assert train_run(config, store) == "finished"
    run = store.run(config)
    assert run is not None
    return run.sessions[-1]["versions"]


def test_a_run_records_the_packages_of_its_task(tmp_path: Path) -> None:
    recorded = recorded_versions(Store(tmp_path))
    assert set(recorded) == {"aimopt", "python", "torch", "numpy", "scikit-learn"}
    assert recorded["torch"] == torch.__version__
    assert recorded["scikit-learn"] == metadata.version("scikit-learn")


def test_a_run_records_what_changes_the_last_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways to carry out a step, threads, and torch's arithmetic; a table that mixes them says so."""
    store, configs = Store(tmp_path), [short_run(steps=2, seed=seed) for seed in (0, 1)]
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        assert train_run(configs[0], store) == "finished"
        torch.set_num_threads(threads + 1)
        torch.set_float32_matmul_precision("medium")
        monkeypatch.setattr("aimopt.kernels.library", lambda: Reason("it was not built"))
        assert train_run(configs[1], store) == "finished"
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    runs = [run for config in configs if (run := store.run(config)) is not None]
    assert differing(provenance(runs), "machine").keys() == {
        "machine.threads",
        "machine.float32 matrix products",
        "machine.path: fused, CPU",
    }


def test_packages_are_no_part_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = short_run().identity
    monkeypatch.setattr(Digits, "packages", ("pytest", "not-installed-anywhere"))
    assert short_run().identity == identity
    recorded = recorded_versions(Store(tmp_path))
    assert recorded["pytest"] == pytest.__version__
    assert {"scikit-learn", "not-installed-anywhere"}.isdisjoint(recorded)


@pytest.mark.parametrize("task", [Digits, Language, SoftActorCritic])
def test_the_packages_of_the_papers_tasks_are_installed_under_these_names(task: type[Task]) -> None:
    assert set(task.packages) <= set(versions(task.packages))


def test_packages_must_be_a_tuple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digits, "packages", "scikit-learn")
    with pytest.raises(ValueError, match="give the class a packages of type tuple"):
        tasks.find("digits")
