"""A run: it resumes to the bit, and what goes wrong with it is its result."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from aimopt.lab import runner
from aimopt.lab import store as stores
from aimopt.lab.engines.worker import work
from aimopt.lab.runner import record_failure, run
from aimopt.lab.store import Store
from short import curves, short_run

LONG = {"steps": 200, "evaluate_every": 40, "log_every": 5}
MAKE = """
import json, sys
from aimopt.lab.config import RunConfig
from aimopt.lab.runner import run
from aimopt.lab.store import Store
import torch
torch.set_num_threads(1)
config = RunConfig.from_dict(json.loads(sys.argv[1]))
run(config, Store(sys.argv[2]), checkpoint_seconds=0.1)
"""


@pytest.mark.parametrize("optimizer", ["RADAR", "torch.optim:NAdam"])
def test_a_killed_run_resumes_to_the_bit(optimizer: str, store: Store, tmp_path: Path) -> None:
    """Killed for good, in a process of its own, somewhere after its first checkpoint; twice."""
    config = short_run(optimizer=optimizer, settings=LONG)
    command = [sys.executable, "-c", MAKE, json.dumps(config.to_dict()), str(store.root)]
    checkpoint = store.folder(config) / "checkpoint.pt"
    for _ in range(2):
        seen = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen(command)
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns <= seen):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run(config, store) == "finished"
    untouched = Store(tmp_path / "untouched")
    assert run(config, untouched) == "finished"
    killed, whole = store.run(config), untouched.run(config)
    assert killed is not None
    assert whole is not None
    assert curves(killed) == curves(whole)
    assert killed.facts["final"] == whole.facts["final"]
    assert killed.facts["initial"] == whole.facts["initial"] != whole.facts["final"]
    assert [session["from_step"] > 0 for session in killed.sessions] == [False, True, True]


def test_a_run_that_is_asked_to_stop_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    config, asked = short_run(settings={"log_every": 4}), iter([False] * 6 + [True])
    assert run(config, store, should_stop=lambda: next(asked)) == "stopped"
    assert run(config, store) == "finished"
    assert run(config, Store(tmp_path / "whole")) == "finished"
    stopped = store.run(config)
    assert stopped is not None
    assert [session["from_step"] for session in stopped.sessions] == [0, 6]
    assert curves(stopped) == curves(Store(tmp_path / "whole").run(config))


def test_a_finished_run_is_not_made_again(store: Store) -> None:
    config = short_run()
    assert run(config, store) == "finished"
    made = (store.folder(config) / "manifest.json").stat().st_mtime_ns
    assert run(config, store) == "finished"
    assert (store.folder(config) / "manifest.json").stat().st_mtime_ns == made


def test_all_optimizers_of_a_seed_begin_alike(store: Store) -> None:
    configs = [short_run(optimizer=name, seed=seed) for name in ("RADAR", "Lion") for seed in (0, 1)]
    for config in configs:
        run(config, store)
    initial = [found.facts["initial"] for config in configs if (found := store.run(config))]
    assert initial[0] == initial[2]
    assert initial[1] == initial[3]
    assert initial[0] != initial[1]


def test_a_loss_that_turns_nan_is_a_result(store: Store) -> None:
    config = short_run(optimizer="SGDM", lr=1e30)
    assert run(config, store) == "diverged"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith("train_loss was ")
    assert found.final(config.make_task().measure) == float("inf")
    assert run(config, store) == "diverged"  # and is not tried again


FAULTY = """
import torch
class Raises(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no\\nsuch <luck>")
class NoOptimizer:
    def __init__(self, params, lr): pass
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Raises", "RuntimeError: no such <luck>"), ("NoOptimizer", "ValueError: faulty.py:NoOptimizer makes a")],
)
def test_an_optimizer_that_raises_is_a_result(
    name: str, reason: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    config = short_run(optimizer=f"faulty.py:{name}", options={})
    assert run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith(reason)
    assert not found.settled


UNREADABLE = """
from dataclasses import dataclass
from aimopt.lab.tasks.digits import Digits
@dataclass(frozen=True, kw_only=True)
class Unreadable(Digits):
    def data(self):
        raise PermissionError(13, "Permission denied", "digits.csv")
"""


def test_unreadable_data_is_a_result(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unreadable.py").write_text(UNREADABLE)
    fields = {**short_run().to_dict(), "task": "unreadable.py:Unreadable"}
    config = type(short_run()).from_dict(fields)
    assert run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason == "PermissionError: [Errno 13] Permission denied: 'digits.csv'"


def test_a_failed_run_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = short_run()
    record_failure(config, store, "the network was down")
    assert run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert (found.status, found.reason) == ("finished", "")


def test_a_checkpoint_that_cannot_be_read_is_put_out_of_the_way(store: Store, tmp_path: Path) -> None:
    config, asked = short_run(), iter([False] * 6 + [True])
    run(config, store, should_stop=lambda: next(asked))
    (store.folder(config) / "checkpoint.pt").write_bytes(b"half of it")
    assert run(config, store) == "finished"
    assert (store.folder(config) / "checkpoint.unreadable").read_bytes() == b"half of it"
    run(config, Store(tmp_path / "whole"))
    assert curves(store.run(config)) == curves(Store(tmp_path / "whole").run(config))


def test_a_checkpoint_holds_no_code(store: Store) -> None:
    config, asked = short_run(optimizer="Adan"), iter([False] * 6 + [True])
    run(config, store, should_stop=lambda: next(asked))
    state: dict[str, Any] = torch.load(store.folder(config) / "checkpoint.pt", weights_only=True)
    assert state["step"] == 6


def test_weights_are_kept_when_asked(store: Store) -> None:
    config = short_run()
    run(config, store, keep_weights=True)
    weights = torch.load(store.folder(config) / "weights.pt", weights_only=True)
    found = store.run(config)
    assert found is not None
    assert runner.checksum(weights) == found.facts["final"]


def test_a_full_disk_is_told(store: Store) -> None:
    """A limit on the size of files stands for it: the records do not fit, and neither does the result."""
    config, before = short_run(settings={"steps": 60, "log_every": 1}), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert work(store.root, config.to_dict()) == ("failed", "OSError: [Errno 27] File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert work(store.root, config.to_dict()) == ("finished", "")


def test_a_process_that_was_thought_dead_writes_nothing_more(store: Store) -> None:
    config = short_run()
    claimed = store.work(config)
    assert claimed is not None
    (store.folder(config) / "claim.2").write_text('{"token": "another", "host": "elsewhere", "pid": 1}')
    with pytest.raises(stores.TakenOver):
        claimed.metrics([])
    claimed.release()
