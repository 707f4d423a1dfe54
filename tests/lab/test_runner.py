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

from aimopt.lab.execution import runner
from aimopt.lab.execution.distributed import World
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.execution.runner import record_failure, train_run
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results import store as stores
from aimopt.lab.results.store import Store
from short_studies import curves, short_run

LONG = {"steps": 200, "evaluate_every": 40, "log_every": 5}
MAKE = """
import json, sys
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.execution.distributed import World
from aimopt.lab.execution.runner import train_run
from aimopt.lab.results.store import Store
import torch
torch.set_num_threads(1)
config = RunConfig.from_dict(json.loads(sys.argv[1]))
train_run(config, Store(sys.argv[2]), checkpoint_seconds=0.1)
"""


@pytest.mark.parametrize("optimizer", ["RADAR", pytest.param("torch.optim:NAdam", marks=pytest.mark.nightly)])
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
    assert train_run(config, store) == "finished"
    untouched = Store(tmp_path / "untouched")
    assert train_run(config, untouched) == "finished"
    killed, whole = store.run(config), untouched.run(config)
    assert killed is not None
    assert whole is not None
    assert curves(killed) == curves(whole)
    assert killed.facts["final"] == whole.facts["final"]
    assert killed.facts["initial"] == whole.facts["initial"] != whole.facts["final"]
    assert [session["from_step"] > 0 for session in killed.sessions] == [False, True, True]


def test_a_stopped_run_is_resumed_where_it_was(store: Store, tmp_path: Path) -> None:
    config, asked = short_run(settings={"log_every": 4}), iter([False] * 6 + [True])
    assert train_run(config, store, should_stop=lambda: next(asked)) == "stopped"
    assert train_run(config, store) == "finished"
    assert train_run(config, Store(tmp_path / "whole")) == "finished"
    stopped = store.run(config)
    assert stopped is not None
    assert [session["from_step"] for session in stopped.sessions] == [0, 6]
    assert curves(stopped) == curves(Store(tmp_path / "whole").run(config))


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


def test_unreadable_data_is_a_result(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unreadable.py").write_text(UNREADABLE)
    settings = {name: value for name, value in short_run().settings.items() if name != "weight_decay"}
    fields = {**short_run().to_dict(), "settings": settings, "task": "unreadable.py:Unreadable"}
    config = type(short_run()).from_dict(fields)
    assert train_run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason == "PermissionError: [Errno 13] Permission denied: 'digits.csv'"


def test_a_failed_run_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = short_run()
    record_failure(config, store, "the network was down")
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert (found.status, found.reason) == ("finished", "")


def test_a_checkpoint_that_cannot_be_read_is_renamed(store: Store, tmp_path: Path) -> None:
    config, asked = short_run(), iter([False] * 6 + [True])
    train_run(config, store, should_stop=lambda: next(asked))
    (store.folder(config) / "checkpoint.pt").write_bytes(b"half of it")
    assert train_run(config, store) == "finished"
    assert (store.folder(config) / "checkpoint.unreadable").read_bytes() == b"half of it"
    train_run(config, Store(tmp_path / "whole"))
    assert curves(store.run(config)) == curves(Store(tmp_path / "whole").run(config))


def test_a_checkpoint_contains_no_code(store: Store) -> None:
    config, asked = short_run(optimizer="Adan"), iter([False] * 6 + [True])
    train_run(config, store, should_stop=lambda: next(asked))
    state: dict[str, Any] = torch.load(store.folder(config) / "checkpoint.pt", weights_only=True)
    assert state["step"] == 6


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


def stopped_half_way(store: Store, **changes: Any) -> RunConfig:
    config, asked = short_run(**changes), iter([False] * 6 + [True])
    assert train_run(config, store, should_stop=lambda: next(asked)) == "stopped"
    return config


def test_a_flipped_bit_in_a_checkpoint_is_noticed(store: Store, tmp_path: Path) -> None:
    config = stopped_half_way(store)
    path = store.folder(config) / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert train_run(config, store) == "finished"
    train_run(config, Store(tmp_path / "whole"))
    assert curves(store.run(config)) == curves(Store(tmp_path / "whole").run(config))


def test_a_checkpoint_of_another_kind_is_renamed(store: Store, tmp_path: Path) -> None:
    config = stopped_half_way(store)
    torch.save({"of": "another version"}, store.folder(config) / "checkpoint.pt")
    assert train_run(config, store) == "finished"
    train_run(config, Store(tmp_path / "whole"))
    assert curves(store.run(config)) == curves(Store(tmp_path / "whole").run(config))


def change_checkpoint(store: Store, config: RunConfig, **changes: Any) -> None:
    path = store.folder(config) / "checkpoint.pt"
    torch.save({**torch.load(path, weights_only=True), **changes}, path)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "six"},
        {"step": 13},
        {"history": "none"},
        {"losses": 3},
        {"training": []},
    ],
)
def test_a_checkpoint_with_a_wrong_value_restarts_the_run(changes: dict[str, Any], store: Store) -> None:
    config = stopped_half_way(store)
    change_checkpoint(store, config, **changes)
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert [note.split(" (")[0] for note in found.notes] == ["Its checkpoint could not be resumed"]
    assert [session["from_step"] for session in found.sessions] == [0, 0]
    assert [record["step"] for record in found.history] == [2, 4, 6, 8, 10, 12]


FRAGILE = """
import torch
class Fragile(torch.optim.SGD):
    def step(self, closure=None):
        group = self.param_groups[0]
        group["steps"] = group.get("steps", 0) + 1
        assert group["steps"] < {last}, "its state does not fit"
        super().step()
"""


def fragile_state(store: Store, config: RunConfig) -> None:
    """Change a checkpoint such that it can be loaded, but not trained on."""
    path = store.folder(config) / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    state["training"]["optimizer"]["param_groups"][0]["steps"] = 1000
    torch.save(state, path)


def test_a_checkpoint_that_loads_but_cannot_be_trained_on_restarts_the_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fragile.py").write_text(FRAGILE.format(last=1000))
    config = stopped_half_way(store, optimizer="fragile.py:Fragile", lr=0.1)
    fragile_state(store, config)
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert "(AssertionError: its state does not fit), so it was started again" in found.notes[0]
    assert [session["from_step"] for session in found.sessions] == [0, 6, 0]
    train_run(config, Store(tmp_path / "whole"))
    assert curves(found) == curves(Store(tmp_path / "whole").run(config))


def test_an_optimizer_that_always_fails_is_restarted_only_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fragile.py").write_text(FRAGILE.format(last=8))
    config = stopped_half_way(store, optimizer="fragile.py:Fragile", lr=0.1)
    for _ in range(3):
        assert train_run(config, store, checkpoint_seconds=0.0) == "failed"
        found = store.run(config)
        assert found is not None
        assert found.reason == "AssertionError: its state does not fit"
    assert found is not None
    assert len(found.notes) == 1
    begun = [session["from_step"] for session in found.sessions]
    assert begun[:3] == [0, 6, 0]
    assert [step > 0 for step in begun[3:]] == [True, True]  # which steps were saved depends on the speed of the disk


def test_a_full_disk_is_not_blamed_on_the_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = stopped_half_way(store)

    def full(*_: Any) -> torch.Tensor:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(runner.TrainingLoop, "_train_until_logged", full)
        assert train_run(config, store) == "failed"
    assert (store.folder(config) / "checkpoint.pt").exists()
    assert train_run(config, store) == "finished"
    found = store.run(config)
    assert found is not None
    assert found.notes == ()
    assert [session["from_step"] for session in found.sessions] == [0, 6, 6]


PECULIAR = """
import numpy, torch
class Precise(torch.optim.SGD):
    '''Its momentum is of float64, which torch rounds when it loads a state.'''
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("sum", torch.zeros_like(p, dtype=torch.float64)).mul_(0.9).add_(p.grad / 3)
                p.data -= (group["lr"] * state["sum"]).float()
class Counting(torch.optim.SGD):
    '''It keeps something that belongs to no parameter.'''
    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        super().step()
class Unsafe(torch.optim.SGD):
    '''Its state could not be loaded without running code.'''
    def step(self, closure=None):
        self.param_groups[0]["kept"] = numpy.random.default_rng(0)
        super().step()
"""


@pytest.fixture
def peculiar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("peculiar.py").write_text(PECULIAR)


@pytest.mark.usefixtures("peculiar")
def test_state_finer_than_the_parameters_is_resumed_to_the_bit(store: Store, tmp_path: Path) -> None:
    config = stopped_half_way(store, optimizer="peculiar.py:Precise", lr=0.1)
    assert train_run(config, store) == "finished"
    train_run(config, Store(tmp_path / "whole"))
    assert curves(store.run(config)) == curves(Store(tmp_path / "whole").run(config))


@pytest.mark.usefixtures("peculiar")
def test_state_without_a_parameter_is_allowed(store: Store) -> None:
    assert train_run(short_run(optimizer="peculiar.py:Counting"), store) == "finished"


@pytest.mark.usefixtures("peculiar")
def test_a_checkpoint_that_could_not_be_loaded_is_refused_at_once(store: Store) -> None:
    config, asked = short_run(optimizer="peculiar.py:Unsafe"), iter([False] * 6 + [True])
    assert train_run(config, store, should_stop=lambda: next(asked)) == "failed"
    found = store.run(config)
    assert found is not None
    assert "weights_only" in found.reason.lower() or "Weights only" in found.reason


@pytest.mark.usefixtures("peculiar")
def test_a_file_that_has_changed_since_is_refused(store: Store) -> None:
    config = short_run(optimizer="peculiar.py:Counting")
    Path("peculiar.py").write_text(PECULIAR + "# changed\n")
    assert train_run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith("ValueError: peculiar.py has changed since the run was configured")


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


def test_a_slow_checkpoint_does_not_lengthen_the_interval_for_ever(store: Store) -> None:
    config = short_run()
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)
    loop = runner.TrainingLoop(config, writer, World(), torch.device("cpu"), 30.0, lambda: False)
    loop.last_checkpoint -= 1000
    loop.checkpoint_interval = 999.0  # as after a stall of the network
    loop._save_if_due()
    assert loop.checkpoint_interval == 30.0
    writer.release()
