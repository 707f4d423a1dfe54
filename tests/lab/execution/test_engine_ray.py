"""A Ray cluster makes the same runs, and a worker that dies costs nothing but time."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.engines.ray import RayEngine
from aimopt.lab.execution.resources import Resources
from aimopt.lab.execution.scheduler import execute
from aimopt.lab.results.store import Store
from engine_runs import Signals, comparable_result, stop_midway, stored_run, train_here, train_with, user_run, work_in
from short_studies import short_study

ray = pytest.importorskip("ray")
CARE = Resources(checkpoint_seconds=0.0)
pytestmark = pytest.mark.xdist_group("ray")  # one process starts the cluster


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One that an engine started, and that ends with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # at Ray's 15 its workers wait for all other tests
        with open_engine("ray", Store("nowhere"), CARE):
            yield
    assert not ray.is_initialized()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def test_a_study_gives_the_same_results_as_in_one_process(folder: Path) -> None:
    study, store = short_study("RADAR", "Lion", grid=(1.0,), seeds=(0,)), Store("there")
    with open_engine("ray", store, CARE) as engine:
        runs = execute([study], store, engine).ended_runs.values()
    assert len(runs) == 2
    for run in runs:
        assert comparable_result(run) == comparable_result(train_here(run.config, folder / "here"))


def test_the_run_of_a_killed_worker_is_resumed_to_the_same_bits(folder: Path) -> None:
    slow = user_run(folder)
    with open_engine("ray", Store("there"), CARE) as engine:
        assert train_with(engine, slow, Signals(slow, folder / "there", signal.SIGKILL)) == (slow, "finished", "")
    run = stored_run(slow, folder / "there")
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


@pytest.mark.nightly
def test_leaving_the_engine_saves_the_running_run_and_keeps_a_cluster_that_existed_before(folder: Path) -> None:
    slow, waiting, store = user_run(folder), user_run(folder, batch_size=8), Store("there")
    with open_engine("ray", store, Resources(workers=1)) as engine:
        stop_midway(engine, slow, folder)
        engine.submit(waiting)
    assert ray.is_initialized()
    assert stored_run(slow, store.root).status == "running"
    assert store.run(waiting) is None
    run = train_here(slow, store.root)
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


def test_a_run_whose_worker_always_dies_fails_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.execution.engines.ray.MAX_ATTEMPTS", 0)
    with open_engine("ray", Store("there"), CARE) as engine:
        ended = train_with(engine, user_run(folder, "Deadly"))
    assert ended.outcome == "failed"
    assert ended.reason.startswith("WorkerCrashedError: ")


def test_the_capacity_follows_the_resources_and_too_many_are_refused() -> None:
    cores = int(ray.cluster_resources()["CPU"])
    with open_engine("ray", Store("there"), Resources(threads=cores)) as engine:
        assert engine.capacity() == 1
    asked = Resources(threads=cores, processes=2)
    with pytest.raises(ValueError, match="lower threads, processes or gpus"), open_engine("ray", Store("there"), asked):
        pass
    assert ray.is_initialized()


def test_gpus_are_requested_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: the engine is asked what it would request, as on a cluster that may still grow."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    for resources, gpus, device in (
        (Resources(gpus=0.5), 0.5, "cuda"),
        (Resources(gpus=4, processes=4), 4, "cuda"),
        (Resources(devices=("cuda",), processes=2), 2, "cuda"),
        (Resources(), 0, "cpu"),
    ):
        with open_engine("ray", Store("there"), resources) as engine:
            assert cast(RayEngine, engine).needs["GPU"] == gpus
            assert (engine.capacity() == 0) == bool(gpus)
        assert resources.cluster_device == device


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'aimopt\[ray\]'"):
        open_engine("ray", Store("there"), CARE)
