"""Runs as jobs of a Slurm cluster, through submitit.

    Resources(slurm={"partition": "gpu", "time": 240, "gpus_per_node": 1}, devices=("cuda",), workers=20)

The names are sbatch's as submitit spells them; `time` is in minutes. A job that is preempted or out of time saves its
run and is queued again, so a run may take longer than a job. Leaving the engine cancels its jobs; one at work, as under
any `scancel`, has the half minute that Slurm usually leaves it to save its run. Jobs outlive an engine that is killed.
That a job died without a word is known from Slurm's accounting, `sacct`.
"""

import collections
import os
import signal
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self

from aimopt.lab.config import RunConfig
from aimopt.lab.engines import ATTEMPTS, Ended, Resources, installed, order
from aimopt.lab.engines.job import Job
from aimopt.lab.engines.worker import last_line
from aimopt.lab.runner import explain
from aimopt.lab.store import Store

AT_ONCE = 100  # jobs, unless said: clusters limit how many one may queue
LOOK_SECONDS = 1.0  # between two looks at the files of the jobs; submitit asks Slurm itself less often
USUAL = {"cluster": "slurm", "job_name": "aimopt", "time": 240}  # cluster `local`: processes of this machine
TIMEOUTS = {"slurm_max_num_timeout": 1000, "local_max_num_timeout": 1000}  # of the jobs of a run


class SlurmEngine:
    """One job a run."""

    def __init__(self, store: Store, resources: Resources):
        self.submitit = installed("submitit", "slurm")
        self.store, self.resources = store, resources
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.attempts: collections.Counter[str] = collections.Counter()
        self.jobs: dict[Any, RunConfig] = {}
        self.looked = 0.0

    def __enter__(self) -> Self:
        options = {**USUAL, **self.resources.slurm}
        self.cluster = options.pop("cluster")
        self.executor = _executor(self.submitit, self.cluster, self.store, self.resources, options)
        return self

    def __exit__(self, *raised: object) -> None:
        for job in self.jobs:
            if self.cluster != "local":
                job.cancel(check=False)
            elif not job.done():
                os.kill(int(job.job_id), signal.SIGTERM)  # to cancel would kill within a second
        while self.cluster == "local" and not all(job.done() for job in self.jobs):
            time.sleep(0.1)

    def submit(self, config: RunConfig) -> None:
        self.waiting.append(config)
        self._hand_out()

    def finished(self, timeout: float) -> list[Ended]:
        early = self.looked + LOOK_SECONDS - time.monotonic()
        time.sleep(max(0.0, min(early, timeout)))
        if early > timeout:
            return []
        self.looked = time.monotonic()
        done = {job: self.jobs.pop(job) for job in list(self.jobs) if job.done()}
        ended = [end for job, config in done.items() if (end := self._end(job, config)) is not None]
        if done:
            self._hand_out()
        return ended

    def room(self) -> int:
        return self.resources.workers or AT_ONCE

    def _hand_out(self) -> None:
        """Submit what there is room for; where Slurm will not have more, the rest waits for jobs to end."""
        device = next(iter(self.resources.devices), "cpu")
        while self.waiting and len(self.jobs) < self.room():
            job = Job(order(self.waiting[0], self.store, self.resources, device))
            try:
                self.jobs[self.executor.submit(job)] = self.waiting.popleft()
            except self.submitit.core.utils.FailedJobError as error:
                if not self.jobs:
                    raise ValueError(f"Slurm does not take the job: {explain(error)}") from None
                return

    def _end(self, job: Any, config: RunConfig) -> Ended | None:
        """What came of a job; one that died is followed by another, but not for ever."""
        try:
            if job.paths.result_pickle.exists():
                return Ended(config, *job.result())
        except self.submitit.core.utils.UncompletedJobError:
            pass  # its log says more
        self.attempts[config.identity] += 1
        if self.attempts[config.identity] >= ATTEMPTS:
            words = f"its job {job.job_id} ended as {job.state}: {last_line(job.stderr() or '')}, {ATTEMPTS} times"
            return Ended(config, "failed", words)
        self.waiting.appendleft(config)
        return None


def _executor(submitit: Any, cluster: str, store: Store, resources: Resources, options: Mapping[str, Any]) -> Any:
    """What hands jobs to a cluster; their logs are kept with the store."""
    if not isinstance(options["time"], int):
        raise ValueError(f"the time of a job is a whole number of minutes, got {options['time']!r}")
    cores = resources.threads * resources.processes
    usual = {"cpus_per_task": cores, "srun_args": [f"--cpus-per-task={cores}"]}  # srun asks for itself
    names = {f"slurm_{name}": value for name, value in {**usual, **options}.items()}
    try:
        # Under a name that nobody can foresee: submitit loads answers by pickle, and a store may come from elsewhere.
        folder = store.root.resolve() / "jobs" / uuid.uuid4().hex / "%j"
        executor = submitit.AutoExecutor(folder, cluster, **TIMEOUTS)
        executor.update_parameters(timeout_min=options["time"], **names)
    except (RuntimeError, NameError) as error:  # there is no Slurm here, or no such option
        raise ValueError(f"submitit cannot hand jobs to {cluster}: {explain(error)}") from None
    return executor
