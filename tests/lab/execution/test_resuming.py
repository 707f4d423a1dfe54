"""A run that was killed or stopped resumes to the bit."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aimopt.lab.execution import runner
from aimopt.lab.execution.distributed import World
from aimopt.lab.execution.runner import train_run
from aimopt.lab.results.store import Store
from short_studies import curves, short_run, stopped_half_way

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


@pytest.mark.parametrize("optimizer", ["RADAR", "NAdam", "torch.optim:NAdam"])  # NAdam keeps a number in its state
def test_a_stopped_run_is_resumed_where_it_was(optimizer: str, store: Store, tmp_path: Path) -> None:
    config, asked = short_run(optimizer=optimizer, settings={"log_every": 4}), iter([False] * 6 + [True])
    assert train_run(config, store, should_stop=lambda: next(asked)) == "stopped"
    assert train_run(config, store) == "finished"
    assert train_run(config, Store(tmp_path / "whole")) == "finished"
    stopped = store.run(config)
    assert stopped is not None
    assert [session["from_step"] for session in stopped.sessions] == [0, 6]
    assert curves(stopped) == curves(Store(tmp_path / "whole").run(config))


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


@pytest.mark.usefixtures("peculiar")
def test_a_file_that_has_changed_since_is_refused(store: Store) -> None:
    config = short_run(optimizer="peculiar.py:Counting")
    Path("peculiar.py").write_text(PECULIAR + "# changed\n")
    assert train_run(config, store) == "failed"
    found = store.run(config)
    assert found is not None
    assert found.reason.startswith("ValueError: peculiar.py has changed since the run was configured")
