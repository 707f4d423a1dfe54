"""A Ray cluster makes the same runs, and a worker that dies costs nothing but time."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimopt.lab.engines import Resources, open_engine
from aimopt.lab.execution import execute
from aimopt.lab.store import Store
from running import Signals, essence, known, made, made_here, moved_to, own_run, stop_midway
from short import short_study

ray = pytest.importorskip("ray")
CARE = Resources(checkpoint_seconds=0.0)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One that an engine started, and that ends with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with open_engine("ray", Store("nowhere"), CARE):
            yield
    assert not ray.is_initialized()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return moved_to(tmp_path, monkeypatch)


def test_a_study_comes_out_as_in_one_process(folder: Path) -> None:
    study, store = short_study("RADAR", "Lion", grid=(1.0,), seeds=(0,)), Store("there")
    with open_engine("ray", store, CARE) as engine:
        runs = execute([study], store, engine).ended.values()
    assert len(runs) == 2
    for run in runs:
        assert essence(run) == essence(made_here(run.config, folder / "here"))


def test_the_run_of_a_killed_worker_goes_on_to_the_same_bits(folder: Path) -> None:
    slow = own_run(folder)
    with open_engine("ray", Store("there"), CARE) as engine:
        assert made(engine, slow, Signals(slow, folder / "there", signal.SIGKILL)) == (slow, "finished", "")
    run = known(slow, folder / "there")
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert essence(run) == essence(made_here(slow, folder / "here"))


def test_leaving_the_engine_saves_the_run_at_work_and_spares_a_cluster_that_was_there(folder: Path) -> None:
    slow, waiting, store = own_run(folder), own_run(folder, batch_size=8), Store("there")
    with open_engine("ray", store, Resources(workers=1)) as engine:
        stop_midway(engine, slow, folder)
        engine.submit(waiting)
    assert ray.is_initialized()
    assert known(slow, store.root).status == "running"
    assert store.run(waiting) is None
    run = made_here(slow, store.root)
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert essence(run) == essence(made_here(slow, folder / "here"))


def test_a_run_whose_worker_always_dies_fails_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.engines.ray.ATTEMPTS", 0)
    with open_engine("ray", Store("there"), CARE) as engine:
        ended = made(engine, own_run(folder, "Deadly"))
    assert ended.outcome == "failed"
    assert ended.reason.startswith("WorkerCrashedError: ")


def test_there_is_room_for_what_was_asked_and_more_than_there_is_is_refused() -> None:
    cores = int(ray.cluster_resources()["CPU"])
    with open_engine("ray", Store("there"), Resources(threads=cores)) as engine:
        assert engine.room() == 1
    asked = Resources(threads=cores, processes=2)
    with pytest.raises(ValueError, match="ask for less"), open_engine("ray", Store("there"), asked):
        pass
    assert ray.is_initialized()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'aimopt\[ray\]'"):
        open_engine("ray", Store("there"), CARE)
