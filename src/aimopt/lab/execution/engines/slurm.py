"""The Slurm engine: one Slurm job per run, through submitit.

    Resources(gpus=1, workers=20, slurm={"partition": "gpu", "time": 240})           one GPU per run, 20 jobs at once
    Resources(slurm={"cluster": "local"})           processes of this machine instead of Slurm

The options are those of sbatch as submitit spells them; `time` is in minutes. GPUs that are requested by such an option
are used as well (`GPU_OPTIONS`). A job that is preempted or out of time writes a checkpoint and is queued again, so a
run may take longer than one job. When the engine is left, its jobs are cancelled; as after any `scancel`, a running job
has about half a minute to write a checkpoint. Jobs outlive an engine that is killed. Whether a job died without a
message is known from Slurm's accounting, `sacct`.
"""

import collections
import os
import signal
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self

from aimopt.lab.execution.engines import MAX_ATTEMPTS, EndedRun, import_extra, job_arguments
from aimopt.lab.execution.engines.submitit_job import SubmititJob
from aimopt.lab.execution.process_output import last_line
from aimopt.lab.execution.resources import Resources
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results.store import Store

DEFAULT_JOBS = 100  # jobs at the same time if `workers` is not set: clusters limit the queue of a user
POLL_SECONDS = 1.0  # between two checks of the job files; submitit itself asks Slurm less often
# The cluster `local` means processes of this machine.
DEFAULTS = {"cluster": "slurm", "job_name": "aimopt", "time": 240}
GPU_OPTIONS = ("gpus_per_node", "gpus_per_task", "gres")
TIMEOUTS = {"slurm_max_num_timeout": 1000, "local_max_num_timeout": 1000}  # jobs that may run out of time, per run


class SlurmEngine:
    """One Slurm job per run."""

    def __init__(self, store: Store, resources: Resources):
        self.submitit = import_extra("submitit", "slurm")
        self.store, self.resources = store, resources
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.attempts: collections.Counter[str] = collections.Counter()
        self.jobs: dict[Any, RunConfig] = {}
        self.last_poll = 0.0

    def __enter__(self) -> Self:
        options = {**DEFAULTS, **self.resources.slurm}
        self.cluster = options.pop("cluster")
        self.executor = _executor(self.submitit, self.cluster, self.store, self.resources, options)
        return self

    def __exit__(self, *raised: object) -> None:
        for job in self.jobs:
            if self.cluster != "local":
                job.cancel(check=False)
            elif not job.done():
                os.kill(int(job.job_id), signal.SIGTERM)  # job.cancel would kill it within a second
        while self.cluster == "local" and not all(job.done() for job in self.jobs):
            time.sleep(0.1)

    def submit(self, config: RunConfig) -> None:
        self.waiting.append(config)
        self._submit_waiting()

    def collect(self, timeout: float) -> list[EndedRun]:
        remaining = self.last_poll + POLL_SECONDS - time.monotonic()
        time.sleep(max(0.0, min(remaining, timeout)))
        if remaining > timeout:
            return []
        self.last_poll = time.monotonic()
        done = {job: self.jobs.pop(job) for job in list(self.jobs) if job.done()}
        ended = [ended_run for job, config in done.items() if (ended_run := self._ended_run(job, config)) is not None]
        if done:
            self._submit_waiting()
        return ended

    def capacity(self) -> int:
        return self.resources.workers or DEFAULT_JOBS

    def _submit_waiting(self) -> None:
        """Submit waiting runs while there is capacity. If Slurm refuses a job, wait until others have ended."""
        asks_for_gpus = any(name in self.resources.slurm for name in GPU_OPTIONS)
        device = "cuda" if asks_for_gpus else self.resources.cluster_device
        while self.waiting and len(self.jobs) < self.capacity():
            job = SubmititJob(job_arguments(self.waiting[0], self.store, self.resources, device))
            try:
                self.jobs[self.executor.submit(job)] = self.waiting.popleft()
            except self.submitit.core.utils.FailedJobError as error:
                if not self.jobs:
                    raise ValueError(f"Slurm refuses the job: {explain(error)}") from None
                return

    def _ended_run(self, job: Any, config: RunConfig) -> EndedRun | None:
        """The result of a job; None if it died and its run is tried again, up to `MAX_ATTEMPTS` times."""
        try:
            if job.paths.result_pickle.exists():
                return EndedRun(config, *job.result())
        except self.submitit.core.utils.UncompletedJobError:
            pass  # its log has the reason
        self.attempts[config.identity] += 1
        if self.attempts[config.identity] >= MAX_ATTEMPTS:
            reason = f"its job {job.job_id} ended as {job.state}: {last_line(job.stderr() or '')}, {MAX_ATTEMPTS} times"
            return EndedRun(config, "failed", reason)
        self.waiting.appendleft(config)
        return None


def _executor(submitit: Any, cluster: str, store: Store, resources: Resources, options: Mapping[str, Any]) -> Any:
    """The submitit executor. The logs of the jobs are written to the folder `jobs` of the store."""
    if not isinstance(options["time"], int):
        raise ValueError(f"the Slurm option time must be a whole number of minutes, got {options['time']!r}")
    if resources.gpus % 1:
        raise ValueError(f"Slurm reserves whole GPUs, got gpus={resources.gpus:g}; use --engine ray to share one")
    cores, gpus = resources.threads * resources.processes, int(resources.cluster_gpus)
    # srun does not take the number of cores from sbatch.
    core_options = {"cpus_per_task": cores, "srun_args": [f"--cpus-per-task={cores}"]}
    gpu_options = {"gpus_per_node": gpus} if gpus and not any(name in options for name in GPU_OPTIONS) else {}
    names = {f"slurm_{name}": value for name, value in {**core_options, **gpu_options, **options}.items()}
    try:
        # A folder name that nobody can predict: submitit unpickles results, and a store may come from someone else.
        folder = store.root.resolve() / "jobs" / uuid.uuid4().hex / "%j"
        executor = submitit.AutoExecutor(folder, cluster, **TIMEOUTS)
        executor.update_parameters(timeout_min=options["time"], **names)
    except (RuntimeError, NameError) as error:  # Slurm is not installed, or an option does not exist
        raise ValueError(f"submitit cannot submit jobs to {cluster}: {explain(error)}") from None
    return executor
