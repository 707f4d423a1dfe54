"""Jobs of a cluster make the same runs, whatever becomes of a job. submitit runs them as processes of this machine."""

import os
import pickle
import signal
import sys
from pathlib import Path

import pytest

from aimopt.lab import execution
from aimopt.lab.engines import Resources, open_engine
from aimopt.lab.engines.job import Job
from aimopt.lab.store import Store
from running import Signals, essence, known, made, made_here, moved_to, own_run, stop_midway

pytest.importorskip("submitit")
CARE = Resources(checkpoint_seconds=0.0, slurm={"cluster": "local"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return moved_to(tmp_path, monkeypatch)


def test_a_run_goes_on_to_the_same_bits_after_each_way_to_end_a_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "TICK", 0.02)
    monkeypatch.setattr(execution, "BUSY_SECONDS", 0.1)
    slow, store = own_run(folder), Store("there")
    # By hand, or by who runs the cluster; preempted or out of time, as submitit tells it; a machine that fails.
    ways = Signals(slow, store.root, signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL)
    with open_engine("slurm", store, CARE) as engine:
        situation = execution.execute([execution.OneRun(slow)], store, engine, lambda _: ways())
    (run,) = situation.ended.values()
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True, True, True]
    assert essence(run) == essence(made_here(slow, folder / "here"))


def test_leaving_the_engine_saves_the_run_at_work(folder: Path) -> None:
    slow, store = own_run(folder), Store("there")
    with open_engine("slurm", store, Resources(slurm={"cluster": "local"})) as engine:
        stop_midway(engine, slow, folder)
    assert known(slow, store.root).status == "running"
    run = made_here(slow, store.root)
    assert [session["from_step"] > 0 for session in run.sessions] == [False, True]
    assert essence(run) == essence(made_here(slow, folder / "here"))


def test_a_run_whose_job_always_dies_fails_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.engines.slurm.ATTEMPTS", 1)
    with open_engine("slurm", Store("there"), CARE) as engine:
        ended = made(engine, own_run(folder, "Deadly"))
    assert ended.outcome == "failed"
    assert " ended as FINISHED: it said nothing, 1 times" in ended.reason


def test_what_is_queued_again_is_the_same_run_anew() -> None:
    job = Job({"store": "there"})
    again = pickle.loads(pickle.dumps(job.checkpoint().function))
    assert (again.asked, again.stopping, again.running) == (job.asked, False, None)
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


def test_slurm_is_told_what_was_asked_and_its_jobs_are_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_slurm(folder, monkeypatch, "cp $1 submitted; echo Submitted batch job 7")
    asked = {"partition": "large", "time": 30, "gpus_per_node": 2}
    with open_engine("slurm", Store("there"), Resources(threads=2, processes=3, workers=1, slurm=asked)) as engine:
        engine.submit(own_run(folder))
        engine.submit(own_run(folder, "Deadly"))  # there is no room for it
        assert engine.finished(0.0) == []
    lines = (folder / "submitted").read_text().splitlines()
    for line in ("partition=large", "time=30", "gpus-per-node=2", "cpus-per-task=6", "job-name=aimopt"):
        assert f"#SBATCH --{line}" in lines
    assert "--cpus-per-task=6" in lines[-1]
    assert (folder / "cancelled").read_text() == "7\n"


@pytest.mark.parametrize(
    ("slurm", "problem"),
    [
        ({"partition": "nosuch"}, "Slurm does not take the job: .*invalid partition"),
        ({"colour": "red"}, "submitit cannot hand jobs to slurm: .*colour"),
        ({"time": "4:00:00"}, "whole number of minutes, got '4:00:00'"),
    ],
)
def test_what_slurm_cannot_do_is_said(
    slurm: dict[str, str], problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_slurm(folder, monkeypatch, "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with (
        pytest.raises(ValueError, match=problem),
        open_engine("slurm", Store("there"), Resources(slurm=slurm)) as engine,
    ):
        engine.submit(own_run(folder))


def test_a_machine_without_slurm_is_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ValueError, match='Could not detect "srun"'), open_engine("slurm", Store("there"), Resources()):
        pass


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'aimopt\[slurm\]'"):
        open_engine("slurm", Store("there"), CARE)
