"""The published runs can be made again, continued and packed by one command."""

import tarfile
from pathlib import Path

import pytest

import evidence
from aimopt.lab import Exploration, compare
from aimopt.lab.execution.runner import train_run
from aimopt.lab.results.store import Store

SHORT = {"steps": 8, "evaluate_every": 4, "warmup_steps": 0}


def test_every_published_study_is_stated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    packed = {}
    for name in evidence.ARCHIVES:
        with tarfile.open(evidence.RESULTS / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
            packed[name] = {path for path in archive.getnames() if path.startswith(("studies/", "explorations/"))}
        assert packed[name]
    runs = store.runs()
    for name, study in evidence.all_evidence(lambda: runs):
        packed[name].discard(_file_of(study, store))
    assert not any(packed.values())


def _file_of(study: evidence.Evidence, store: Store) -> str:
    if isinstance(study, Exploration):
        return f"explorations/{study.study.task}.json"
    return store.study_file(study).relative_to(store.root).as_posix()


def test_trained_packed_and_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study, the same at other lengths, and an exploration: another store takes them over and trains nothing."""
    optimizers = ["RADAR", "AdamW"]
    short = compare("digits", "demo", optimizers=optimizers, seeds=(0,), grid=(1.0,), settings=SHORT, untuned=False)
    exploration = Exploration.of("digits", "demo", optimizers=optimizers, rates=(1.0,), rungs=(1,), settings=SHORT)
    monkeypatch.setattr(evidence, "ARCHIVES", {"short": lambda: [short, exploration]})
    monkeypatch.setattr(evidence, "WITH_OTHER_LENGTHS", ("digits",))
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)

    store = Store(tmp_path / "store")
    evidence.train(store)
    evidence.pack(store)
    packed = (tmp_path / "short.tar.xz").read_bytes()
    assert "short: packed compare of digits" in capsys.readouterr().out
    assert {run.config.steps for run in store.runs().values()} == {4, 8, 16}

    other = Store(tmp_path / "other")
    evidence.status(other)
    assert "missing" in capsys.readouterr().out
    evidence.train(other)
    runs, trained = other.runs(), store.runs()
    assert {identity: run.sessions for identity, run in runs.items()} == {i: run.sessions for i, run in trained.items()}
    assert capsys.readouterr().out.count("complete") == 4
    evidence.status(other)
    said = capsys.readouterr().out
    assert said.count("complete") == 4
    assert "missing" not in said
    evidence.pack(other)
    assert (tmp_path / "short.tar.xz").read_bytes() == packed
    assert not (tmp_path / "unfinished.tar.xz").exists()


def test_runs_of_unfinished_studies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a study is trained: no page may use it, and another machine goes on with it."""
    both = compare("digits", "demo", optimizers=["RADAR", "AdamW"], seeds=(0,), grid=(1.0,), settings=SHORT)
    store = Store(tmp_path / "store")
    first = next(cell.config for cell in both.cells({}) if cell.contender == "RADAR")
    assert train_run(first, store) == "finished"
    monkeypatch.setattr(evidence, "ARCHIVES", {"short": lambda: [both]})
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    evidence.pack(store)
    assert not (tmp_path / "short.tar.xz").exists()

    other = Store(tmp_path / "other")
    monkeypatch.setattr(evidence, "run", lambda *_, **__: None)
    evidence.train(other)
    assert other.runs().keys() == {first.identity}
