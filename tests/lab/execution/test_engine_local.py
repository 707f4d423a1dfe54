"""Processes of this machine: what dies is tried again, what is stopped goes on where it was, nothing is made twice."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aimopt.lab.execution import scheduler
from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.engines.local import LocalEngine, Worker, worker_slots
from aimopt.lab.execution.engines.worker import ORPHAN_SECONDS
from aimopt.lab.execution.resources import Resources
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store
from engine_runs import Signals, comparable_result, stop_midway, stored_run, train_here, train_with, user_run, work_in
from short_studies import curves, short_study

on_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes as Linux lists them")
ONE = Resources(workers=1, checkpoint_seconds=0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they did."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(process for child in children for process in descendants(child))]


def test_a_killed_worker_is_replaced_and_its_run_is_resumed_to_the_same_bits(folder: Path) -> None:
    slow = user_run(folder)
    with open_engine("local", Store("there"), ONE) as engine:
        assert train_with(engine, slow, Signals(slow, folder / "there", signal.SIGKILL)) == (slow, "finished", "")
    run = stored_run(slow, folder / "there")
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


def test_a_run_whose_process_always_dies_fails_with_the_reason_and_the_other_runs_continue(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aimopt.lab.execution.engines.local.MAX_ATTEMPTS", 2)
    deadly, harmless, store = user_run(folder, "Deadly"), user_run(folder), Store("there")
    with open_engine("local", store, ONE) as engine:
        state = scheduler.execute([scheduler.SingleRun(deadly), scheduler.SingleRun(harmless)], store, engine)
    (failed,) = state.failed
    assert (failed.config, failed.reason) == (deadly, "its process ended with status 3: no output, 2 times")
    assert stored_run(deadly, store.root).reason == failed.reason
    assert state.ended_runs[harmless.identity].status == "finished"


def test_the_death_of_a_worker_is_seen_while_a_process_that_it_forked_lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aimopt.lab.execution.engines.local.MAX_ATTEMPTS", 1)
    began = time.monotonic()
    with open_engine("local", Store("there"), ONE) as engine:
        ended = train_with(engine, user_run(folder, "Forking"))
        assert time.monotonic() - began < 50
    assert ended.reason == "its process ended with SIGKILL: no output, 1 times"


def test_a_signal_without_a_name_ends_a_run_like_one_with_a_name(folder: Path) -> None:
    worker = Worker(set(), "cpu", 1)
    worker.process.send_signal(signal.SIGRTMIN + 6)
    assert worker.exit_reason() == f"its process ended with signal {signal.SIGRTMIN + 6}: no output"
    worker.close()


def test_a_worker_trains_many_runs_in_the_same_process_and_no_other_is_started(folder: Path) -> None:
    first, second = user_run(folder, steps=2), user_run(folder, steps=4)
    with LocalEngine(Store("there"), Resources(workers=2)) as engine:
        engine.store.create()
        assert train_with(engine, first).outcome == "finished"
        (worker,) = engine.workers
        assert train_with(engine, second).outcome == "finished"
        assert engine.workers == [worker]
        assert worker.process.poll() is None


def test_a_worker_that_died_before_it_read_its_job_raises_no_error(folder: Path) -> None:
    with LocalEngine(Store("there"), ONE) as engine:
        engine.store.create()
        assert train_with(engine, user_run(folder, steps=2)).outcome == "finished"
        engine.workers[0].process.kill()
        engine.workers[0].process.wait()
        engine.submit(user_run(folder))


def test_leaving_the_engine_saves_the_run_and_another_engine_resumes_it(folder: Path) -> None:
    slow, store = user_run(folder), Store("there")
    with LocalEngine(store, Resources(workers=1)) as first:
        store.create()
        stop_midway(first, slow, folder)
    assert [worker.process.returncode for worker in first.workers] == [0]
    assert stored_run(slow, store.root).status == "running"
    with open_engine("local", store, ONE) as engine:
        assert train_with(engine, slow) == (slow, "finished", "")
    run = stored_run(slow, store.root)
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


@on_linux
def test_several_processes_resume_train_and_save_a_run_like_one_process(folder: Path) -> None:
    slow, store = user_run(folder, micro_batches=2), Store("there")
    train_here(slow, store.root, until=3)
    with LocalEngine(store, Resources(workers=1, processes=2)) as engine:
        stop_midway(engine, slow, folder)
        for pid in descendants(engine.workers[0].process.pid):
            for number in (signal.SIGTERM, signal.SIGUSR2):  # as Slurm does; the worker alone decides what to do
                os.kill(pid, number)
    run = train_here(slow, store.root)
    first, second, third = (session["from_step"] for session in run.sessions)
    assert (first, second) == (0, 3) < (second, third)
    for several, one in zip(curves(run), curves(train_here(slow, folder / "here")), strict=True):
        assert several == pytest.approx(one, rel=1e-5)


def test_engines_that_share_a_store_never_train_a_run_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "BUSY_SECONDS", 0.1)
    study = short_study(grid=(1.0,), seeds=(0, 1, 2))

    def make() -> list[str]:
        store = Store("there")
        with open_engine("local", store, ONE) as engine:
            return [run.status for run in scheduler.execute([study], store, engine).ended_runs.values()]

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(make) for _ in range(2)]
    assert [engine.result() for engine in both] == [["finished"] * 6] * 2
    assert [len(run.sessions) for run in Store("there").runs().values()] == [1] * 6


def driver_of(by_one: RunConfig, by_two: RunConfig) -> "subprocess.Popen[bytes]":
    """Another process, with two engines: one makes a run by one process, the other by two."""
    code = f"""
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.resources import Resources
from aimopt.lab.results.store import Store
def opened(processes):
    return open_engine("local", Store("there"), Resources(workers=1, processes=processes))
with opened(processes=1) as one, opened(processes=2) as two:
    one.submit(RunConfig.from_dict({by_one.to_dict()!r}))
    two.submit(RunConfig.from_dict({by_two.to_dict()!r}))
    while True:
        assert one.collect(0.5) == two.collect(0.5) == []
"""
    return subprocess.Popen([sys.executable, "-c", code])


def gone(pid: int) -> bool:
    """Whether a process is no more; the system may take a moment to forget it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@on_linux
def test_no_worker_outlives_its_parent_and_the_run_can_be_resumed(folder: Path) -> None:
    slow, stuck = user_run(folder, steps=100_000), user_run(folder, "Stuck", micro_batches=2)
    driver = driver_of(slow, stuck)
    while not ((folder / "stepping").exists() and (folder / "stuck").exists()):
        assert driver.poll() is None
        time.sleep(0.02)
    workers = descendants(driver.pid)
    assert len(workers) >= 4  # one, and another that started torchrun, which started two
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS + 5
    while not all(map(gone, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    writer = Store("there").claim_run(slow)
    assert writer is not None
    state = writer.read_checkpoint()
    assert state is not None
    assert state["step"] > 0
    writer.release()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are given out on Linux alone")
def test_a_worker_is_pinned_to_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    worker = Worker({core}, "cpu", threads=1)
    try:
        assert os.sched_getaffinity(worker.process.pid) == {core}
    finally:
        worker.process.kill()
        worker.exit_reason()
        worker.close()


def test_workers_get_separate_cores_and_are_not_pinned_if_there_are_too_few() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert worker_slots(Resources()) == [({core}, "cpu") for core in cores]
    assert worker_slots(Resources(threads=len(cores))) == [(set(cores), "cpu")]
    assert worker_slots(Resources(workers=len(cores) + 1)) == [(set(), "cpu")] * (len(cores) + 1)
    assert worker_slots(Resources(devices=("cuda:0", "cuda:1"))) == [(set(), "cuda:0"), (set(), "cuda:1")]


def test_processes_of_a_run_cannot_share_a_gpu() -> None:
    with pytest.raises(ValueError, match="4 processes of a run cannot share cuda:0; use the device cuda"):
        Resources(devices=("cuda:0", "cuda:1"), processes=4)
    assert Resources(devices=("cuda",), processes=4).devices == ("cuda",)


def test_gpus_of_a_cluster_are_refused_here() -> None:
    with pytest.raises(ValueError, match=r"gpus are per run of a cluster; on this machine name them: devices="):
        open_engine("local", Store("there"), Resources(gpus=1))


def test_processes_of_a_run_need_one_gpu_each() -> None:
    with pytest.raises(ValueError, match="4 processes of a run need one GPU each, got gpus=1; use gpus=4"):
        Resources(gpus=1, processes=4)
