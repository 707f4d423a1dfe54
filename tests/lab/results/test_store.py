"""Results on disk: whole or absent, read back as written, set aside when damaged."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.costs import Cost, Overhead
from aimopt.lab.results.store import Store
from aimopt.measure.timing import Ratio
from short_studies import short_run

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from aimopt.atomic_files import write_atomically
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), b"half")
"""
Damage = Callable[[Path], object]


def finished(store: Store) -> tuple[RunConfig, Path]:
    config = short_run()
    assert train_run(config, store) == "finished"
    return config, store.folder(config)


def test_a_run_reads_back(store: Store) -> None:
    config, folder = finished(store)
    kept = store.run(config)
    assert kept is not None
    assert kept.config == config
    assert [record["step"] for record in kept.history] == [2, 4, 6, 8, 10, 12]
    assert store.runs() == {config.identity: kept}
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "metrics.jsonl", "result.json"]


def test_half_written_files_of_a_killed_process_are_deleted_when_the_run_is_claimed(store: Store) -> None:
    folder = store.folder(short_run())
    folder.mkdir(parents=True)
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(folder / "checkpoint.pt")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name[:15] for path in folder.iterdir()] == [".checkpoint.pt."]
    finished(store)
    assert not [path.name for path in folder.iterdir() if path.name[0] == "."]


def test_two_stores_are_merged_by_moving_folders(store: Store, tmp_path: Path) -> None:
    config, folder = finished(store)
    other = Store(tmp_path / "other")
    target = other.folder(config)
    target.parent.mkdir(parents=True)
    folder.rename(target)
    assert other.runs().keys() == {config.identity}


def truncate(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def change_config(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["lr"] = 7.0
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        truncate("manifest.json"),
        truncate("metrics.jsonl"),
        truncate("result.json"),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "metrics.jsonl").unlink(),
        lambda folder: (folder / "result.json").write_bytes(b"\x00\xff"),
        change_config,
    ],
)
def test_a_damaged_run_is_set_aside_and_trained_again(damage: Damage, store: Store) -> None:
    config, folder = finished(store)
    before = (folder / "metrics.jsonl").read_text().splitlines()
    damage(folder)
    assert train_run(config, store) == "finished"
    after = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(a)["valid_loss"] for a in after] == [json.loads(b)["valid_loss"] for b in before]
    assert len(store.set_aside_reasons()) == 1
    assert len(store.runs()) == 1


def test_an_older_copy_of_a_folder_does_not_hide_a_result(store: Store) -> None:
    config = short_run()
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)
    shutil.copytree(store.root / "digits-demo", store.root / "digits-demo-saved")
    writer.write_result("finished", "", [], {})
    writer.release()
    (run,) = store.runs().values()
    assert run.status == "finished"


def test_reading_all_runs_skips_damaged_ones(store: Store) -> None:
    _, folder = finished(store)
    truncate("result.json")(folder)
    assert store.runs() == {}
    assert folder.exists()


@pytest.mark.parametrize("name", ["../../escape.py:Task", "a/b c:d", "<b>", "ü" * 300, "a" * 300, ".."])
def test_names_from_users_stay_inside_the_store(name: str, store: Store) -> None:
    config = RunConfig.from_dict({**short_run().to_dict(), "task": name, "optimizer": name})
    folder = store.folder(config)
    assert folder.parent.parent == store.root
    assert all(len(os.fsencode(path.name)) < 256 for path in (folder, folder.parent))


def test_studies_and_costs_read_back(store: Store) -> None:
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"])
    store.save_study(study)
    assert store.studies() == [study]
    assert store.overhead(study) is None
    cost = Cost(label="RADAR", step_seconds=0.1, ratio=Ratio(1.0, 0.9, 1.1), peak_bytes=10**8, state_bytes=8.0)
    overhead = Overhead(reference="AdamW", costs=[cost], machine={"processor": "x"})
    store.save_overhead(study, overhead)
    assert store.overhead(study) == overhead
    assert store.studies() == [study]


def test_a_reader_never_takes_a_run_away_from_its_writer(store: Store) -> None:
    """Read while a run ends and fails over and over: it may look unfinished, but stays where it is."""
    config = short_run()
    folder = store.folder(config)
    ended = threading.Event()

    def write_often() -> None:
        for attempt in range(60):
            writer = store.claim_run(config)
            assert writer is not None
            writer.begin(config)
            writer.write_metrics([{"step": attempt}])
            writer.write_result("failed", "again", [{"step": attempt, "train_loss": 1.0}], {})
            writer.release()
        ended.set()

    writer = threading.Thread(target=write_often)
    writer.start()
    while not ended.is_set():
        store.run(config)
        store.runs()
    writer.join()
    assert folder.exists()
    assert store.set_aside_reasons() == {}


def test_different_studies_have_different_files(store: Store) -> None:
    studies = [compare("digits", "demo", optimizers=["AdamW", name]) for name in ("RADAR", "Lion")]
    for study in studies:
        store.save_study(study)
    assert store.study_file(studies[0]) != store.study_file(studies[1])
    assert len(store.studies()) == 2


def test_a_study_that_cannot_be_read_does_not_hide_the_others(store: Store) -> None:
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"])
    store.save_study(study)
    (store.root / "studies" / "half.json").write_text('{"name"')
    gone = {**study.to_dict(), "task": "gone.py:Task"}
    (store.root / "studies" / "gone.json").write_text(json.dumps(gone))
    assert store.studies() == [study]
    assert sorted(store.unreadable) == ["studies/gone.json", "studies/half.json"]


def test_a_study_with_long_names_has_a_file(store: Store) -> None:
    study = dataclasses.replace(compare("digits", "demo", optimizers=["RADAR", "AdamW"]), name="a" * 300)
    stored = store.save_study(study)
    assert store.studies() == [stored]


def test_a_seed_that_is_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match="seed of a run must be a whole number"):
        RunConfig.from_dict({**short_run().to_dict(), "seed": "x/../../y"})
