"""Jobs of a cluster make the same runs, whatever becomes of a job. submitit runs them as processes of this machine."""

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from aimopt.lab.execution import scheduler
from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.engines.slurm import SlurmEngine
from aimopt.lab.execution.engines.submitit_job import SubmititJob
from aimopt.lab.execution.resources import Resources
from aimopt.lab.results.store import Store
from engine_runs import Signals, comparable_result, stop_midway, stored_run, train_here, train_with, user_run, work_in

pytest.importorskip("submitit")
CARE = Resources(checkpoint_seconds=0.0, slurm={"cluster": "local"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def test_a_run_is_resumed_to_the_same_bits_however_its_job_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(scheduler, "BUSY_SECONDS", 0.1)
    slow, store = user_run(folder), Store("there")
    # By hand, or by who runs the cluster; preempted or out of time, as submitit tells it; a machine that fails.
    ways = Signals(slow, store.root, signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL)
    with open_engine("slurm", store, CARE) as engine:
        state = scheduler.execute([scheduler.SingleRun(slow)], store, engine, lambda _: ways())
    (run,) = state.ended_runs.values()
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True, True, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


@pytest.mark.nightly
def test_leaving_the_engine_saves_the_running_run(folder: Path) -> None:
    slow, store = user_run(folder), Store("there")
    with open_engine("slurm", store, Resources(slurm={"cluster": "local"})) as engine:
        stop_midway(engine, slow, folder)
    assert stored_run(slow, store.root).status == "running"
    run = train_here(slow, store.root)
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert comparable_result(run) == comparable_result(train_here(slow, folder / "here"))


def test_a_run_whose_job_always_dies_fails_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.execution.engines.slurm.MAX_ATTEMPTS", 1)
    with open_engine("slurm", Store("there"), CARE) as engine:
        ended = train_with(engine, user_run(folder, "Deadly"))
    assert ended.outcome == "failed"
    assert " ended as FINISHED: no output, 1 times" in ended.reason


def test_a_job_that_is_queued_again_trains_the_same_run() -> None:
    job = SubmititJob({"store": "there"})
    again = pickle.loads(pickle.dumps(job.checkpoint().function))
    assert (again.arguments, again.stopping, again.thread) == (job.arguments, False, None)
    assert job.stopping


def pretend_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, sbatch: str) -> None:
    """What submitit sees of a cluster, where there is none: a job that waits for ever."""
    commands = {"srun": ":", "sbatch": sbatch, "sacct": "printf 'JobID|State|NodeList\\n7|PENDING|\\n'"}
    commands["scancel"] = f"echo $@ >> {folder}/cancelled"
    (folder / "bin").mkdir()
    for name, command in commands.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin", prepend=os.pathsep)


def test_slurm_gets_the_requested_resources_and_its_jobs_are_cancelled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_slurm(folder, monkeypatch, "cp $1 submitted; echo Submitted batch job 7")
    asked = {"partition": "large", "time": 30, "gpus_per_node": 2}
    with open_engine("slurm", Store("there"), Resources(threads=2, processes=3, workers=1, slurm=asked)) as engine:
        engine.submit(user_run(folder))
        engine.submit(user_run(folder, "Deadly"))  # there is no room for it
        assert engine.collect(0.0) == []
    lines = (folder / "submitted").read_text().splitlines()
    for line in ("partition=large", "time=30", "gpus-per-node=2", "cpus-per-task=6", "job-name=aimopt"):
        assert f"#SBATCH --{line}" in lines
    assert "--cpus-per-task=6" in lines[-1]
    assert (folder / "cancelled").read_text() == "7\n"


def test_gpus_are_requested_and_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to ask for GPUs reserves them and lets the run use them; no way reserves any for a run on the CPU."""
    pretend_slurm(folder, monkeypatch, "cp $1 submitted; echo Submitted batch job 7")
    cases: list[tuple[Resources, str, str]] = [
        (Resources(gpus=1), "#SBATCH --gpus-per-node=1", "cuda"),
        (Resources(gpus=2, processes=2), "#SBATCH --gpus-per-node=2", "cuda"),
        (Resources(devices=("cuda",), processes=3), "#SBATCH --gpus-per-node=3", "cuda"),
        (Resources(gpus=1, slurm={"gpus_per_node": "a100:1"}), "#SBATCH --gpus-per-node=a100:1", "cuda"),
        (Resources(slurm={"gres": "gpu:1"}), "#SBATCH --gres=gpu:1", "cuda"),
        (Resources(), "", "cpu"),
    ]
    for resources, line, device in cases:
        with open_engine("slurm", Store("there"), resources) as engine:
            engine.submit(user_run(folder))
            (job,) = cast(SlurmEngine, engine).jobs
        lines = (folder / "submitted").read_text().splitlines()
        assert [found for found in lines if found.startswith(("#SBATCH --gpus", "#SBATCH --gres"))] == [line] * bool(
            line
        )
        assert cast(Any, job.submission().function).arguments["device"] == device


def test_slurm_shares_no_gpu(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    pretend_slurm(folder, monkeypatch, ":")
    with (
        pytest.raises(ValueError, match=r"Slurm reserves whole GPUs, got gpus=0\.5; use --engine ray"),
        open_engine("slurm", Store("there"), Resources(gpus=0.5)),
    ):
        pass


@pytest.mark.parametrize(
    ("slurm", "problem"),
    [
        ({"partition": "nosuch"}, "Slurm refuses the job: .*invalid partition"),
        ({"colour": "red"}, "submitit cannot submit jobs to slurm: .*colour"),
        ({"time": "4:00:00"}, "whole number of minutes, got '4:00:00'"),
    ],
)
def test_errors_of_slurm_are_reported(
    slurm: dict[str, str], problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_slurm(folder, monkeypatch, "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with (
        pytest.raises(ValueError, match=problem),
        open_engine("slurm", Store("there"), Resources(slurm=slurm)) as engine,
    ):
        engine.submit(user_run(folder))


def test_a_machine_without_slurm_gives_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ValueError, match='Could not detect "srun"'), open_engine("slurm", Store("there"), Resources()):
        pass


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'aimopt\[slurm\]'"):
        open_engine("slurm", Store("there"), CARE)
