"""A checkpoint that cannot be used is set aside, and the run starts again."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aimopt.lab.execution import runner
from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store
from short_studies import curves, short_run, stopped_half_way


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
