"""A run is trained once, and what goes wrong with it is its result."""

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aimopt.lab.execution import runner
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.execution.runner import record_failure, train_run
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results import store as stores
from aimopt.lab.results.store import Store
from short_studies import short_run


def test_a_finished_run_is_not_trained_again(store: Store) -> None:
    config = short_run()
    assert train_run(config, store) == "finished"
    made = (store.folder(config) / "manifest.json").stat().st_mtime_ns
    assert train_run(config, store) == "finished"
    assert (store.folder(config) / "manifest.json").stat().st_mtime_ns == made


def test_all_optimizers_of_a_seed_start_from_the_same_weights(store: Store) -> None:
    configs = [short_run(optimizer=name, seed=seed) for name in ("RADAR", "Lion") for seed in (0, 1)]
    for config in configs:
        train_run(config, store)
    initial = [found.facts["initial"] for config in configs if (found := store.run(config))]
    assert initial[0] == initial[2]
    assert initial[1] == initial[3]
    assert initial[0] != initial[1]


def test_a_loss_that_turns_nan_is_a_result(store: Store) -> None:
    config = short_run(optimizer="SGDM", lr=1e30)
    assert train_run(config, store) == "diverged"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith("train_loss was ")
    assert found.final(config.make_task().measure) == float("inf")
    assert train_run(config, store) == "diverged"  # and is not tried again


FAULTY = """
import torch
class Raises(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no\\nsuch <luck>")
class Unmade(torch.optim.SGD):
    def __init__(self, params, lr, foreach=None):
        raise KeyError("unmade")
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Raises", "RuntimeError: no such <luck>"), ("Unmade", "KeyError: 'unmade'")],
)
def test_an_optimizer_that_raises_is_a_result(
    name: str, reason: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    config = short_run(optimizer=f"faulty.py:{name}", options={})
    assert train_run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith(reason)
    assert not found.settled


UNREADABLE = """
from dataclasses import dataclass
from aimopt.paper.tasks.digits import Digits
@dataclass(frozen=True, kw_only=True)
class Unreadable(Digits):
    def data(self):
        raise PermissionError(13, "Permission denied", "digits.csv")
"""


def run_of_user_task(task: str) -> RunConfig:
    settings = {name: value for name, value in short_run().settings.items() if name != "weight_decay"}
    return RunConfig.from_dict({**short_run().to_dict(), "settings": settings, "task": task})


def test_unreadable_data_is_a_result(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unreadable.py").write_text(UNREADABLE)
    config = run_of_user_task("unreadable.py:Unreadable")
    assert train_run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason == "PermissionError: [Errno 13] Permission denied: 'digits.csv'"


MEASURES = """
from dataclasses import dataclass
import torch
from aimopt.lab.protocol.supervised import SupervisedTraining
from aimopt.paper.tasks.digits import Digits

class Measured(SupervisedTraining):
    def evaluate(self):
        return {name: torch.tensor(value) for name, value in super().evaluate().items()}
    def test_without_parts(self):
        return {"a": [1.0, float("nan")], "b": [torch.tensor(2.0)]}

class Unmeasured(SupervisedTraining):
    def evaluate(self):
        return {"loss": torch.ones(2)}

@dataclass(frozen=True, kw_only=True)
class Tensors(Digits):
    def start(self, context):
        return Measured(self, context)

@dataclass(frozen=True, kw_only=True)
class NoNumbers(Digits):
    def start(self, context):
        return Unmeasured(self, context)
"""


@pytest.mark.parametrize(
    ("task", "status", "reason", "without_parts"),
    [
        ("Tensors", "finished", "", {"b": [2.0]}),
        (
            "NoNumbers",
            "failed",
            "TypeError: evaluate() must return a number per measure, got loss=tensor([1., 1.])",
            None,
        ),
    ],
)
def test_measures_may_be_tensors_of_one_number_and_what_is_not_finite_is_not_stored(
    task: str,
    status: str,
    reason: str,
    without_parts: Any,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("measures.py").write_text(MEASURES)
    config = run_of_user_task(f"measures.py:{task}")
    assert train_run(config, store) == status
    found = store.run(config)
    assert found is not None
    assert found.status == status
    assert found.reason.startswith(reason)
    assert found.facts.get("test_without_parts") == without_parts


def test_a_failure_after_the_run_was_taken_over_belongs_to_the_other_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short_run()

    def fail(*_: object) -> None:
        (store.folder(config) / "claim.2").write_text('{"token": "another", "host": "elsewhere", "pid": 1}')
        raise RuntimeError("out of luck")

    monkeypatch.setattr(runner, "start_training", fail)
    assert train_run(config, store) == "busy"


def test_a_failed_run_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = short_run()
    record_failure(config, store, "the network was down")
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert (found.status, found.reason) == ("finished", "")


def test_weights_are_saved_on_request(store: Store) -> None:
    config = short_run()
    train_run(config, store, keep_weights=True)
    weights = torch.load(store.folder(config) / "weights.pt", weights_only=True)
    found = store.run(config)
    assert found is not None
    assert runner.checksum(weights) == found.facts["final"]


def test_a_full_disk_is_reported(store: Store) -> None:
    """A limit on the size of files stands for it: the records do not fit, and neither does the result."""
    config, before = short_run(settings={"steps": 60, "log_every": 1}), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        outcome, reason = run_job(store.root, config.to_dict())
        assert outcome == "failed"
        assert reason == f"OSError: [Errno 27] File too large: '{store.folder(config) / 'metrics.jsonl'}'"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert run_job(store.root, config.to_dict()) == ("finished", "")


def test_a_process_that_lost_its_claim_writes_nothing(store: Store) -> None:
    config = short_run()
    writer = store.claim_run(config)
    assert writer is not None
    (store.folder(config) / "claim.2").write_text('{"token": "another", "host": "elsewhere", "pid": 1}')
    with pytest.raises(stores.ClaimLost):
        writer.write_metrics([])
    writer.release()


def test_evaluations_need_not_fall_on_logged_steps(store: Store) -> None:
    config = short_run(settings={"log_every": 5, "evaluate_every": 4})
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert [step for step, _ in found.curve("valid_loss")] == [4, 8, 12]
    assert [step for step, _ in found.curve("train_loss")] == [4, 5, 8, 10, 12]


RANDOM = """
from dataclasses import dataclass
import random, numpy, torch
from aimopt.lab import Splits, Supervised
@dataclass(frozen=True, kw_only=True)
class Random(Supervised):
    title = "Random data"
    lr: float = 1e-2
    def data(self):
        x = torch.randn(64, 2) + random.random() + numpy.random.rand()
        return Splits(*[(x, (x[:, 0] > 0).long())] * 3)
    def model(self):
        return torch.nn.Linear(2, 2)
"""


def test_random_data_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(RANDOM)
    code = "from aimopt.lab.protocol.tasks import find; print(find('drawn.py:Random').at_scale('mini').checksum())"
    command = [sys.executable, "-c", code]
    said = {subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(said) == 1
