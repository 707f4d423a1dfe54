"""The Ray engine: one Ray task per run.

    with RayEngine(store, Resources(threads=2)) as engine: …
    RAY_ADDRESS=auto aimopt compare my_task.py:Images --engine ray --gpus 0.5        two runs share a GPU

It uses the cluster of RAY_ADDRESS or of this machine; if there is none, it starts one. If a worker or a machine dies,
Ray starts the task again and the run is resumed from its checkpoint. All machines must see the store and the current
folder under the same path. When the engine is left, the tasks are cancelled: Ray interrupts running tasks, which then
write a checkpoint and stop. If this process is killed, Ray ends the tasks at once.
"""

import collections
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Self

from aimopt.lab.execution.engines import MAX_ATTEMPTS, SAVE_SECONDS, EndedRun, import_extra, job_arguments
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.execution.resources import Resources
from aimopt.lab.execution.runner import Outcome
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results.store import Store


class RayEngine:
    """One Ray task per run."""

    def __init__(self, store: Store, resources: Resources):
        self.ray = import_extra("ray", "ray")
        self.store, self.resources = store, resources
        self.needs = {"CPU": resources.threads * resources.processes, "GPU": resources.cluster_gpus}
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.submitted: dict[Any, RunConfig] = {}
        self.connected = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self._connect()
        if not self.capacity() and "RAY_ADDRESS" not in os.environ:  # a cluster may grow, a machine does not
            self.__exit__()
            raise ValueError(
                f"a run needs {self.needs}, but Ray has {self._cluster_resources()}; lower threads, processes or gpus"
            )
        path = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        self.task = self.ray.remote(_train).options(
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs["GPU"],
            max_retries=MAX_ATTEMPTS,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path)}} if path else None,
        )
        return self

    def __exit__(self, *raised: object) -> None:
        for task in self.submitted:
            self.ray.cancel(task)
        if self.submitted:
            self.ray.wait(list(self.submitted), num_returns=len(self.submitted), timeout=SAVE_SECONDS)
        if self.connected:
            self.ray.shutdown()  # ends a cluster that was started here; any other one stays

    def submit(self, config: RunConfig) -> None:
        self.waiting.append(config)
        self._submit_waiting()

    def collect(self, timeout: float) -> list[EndedRun]:
        if not self.submitted:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(self.submitted), timeout=timeout)
        ended = [EndedRun(self.submitted.pop(task), *self._result(task)) for task in ready]
        self._submit_waiting()
        return ended

    def capacity(self) -> int:
        available = self._cluster_resources()
        capacity = min(int(available[kind] / needed) for kind, needed in self.needs.items() if needed)
        return min(capacity, self.resources.workers or capacity)

    def _connect(self) -> None:
        try:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ValueError(
                f"no Ray cluster answers at RAY_ADDRESS; start it, or unset RAY_ADDRESS: {explain(error)}"
            ) from None
        self.connected = True

    def _cluster_resources(self) -> dict[str, float]:
        available = self.ray.cluster_resources()
        return {kind: available.get(kind, 0.0) for kind in self.needs}

    def _submit_waiting(self) -> None:
        """Submit all waiting runs, or as many as `workers` allows. Ray queues them; clusters grow with the queue."""
        while self.waiting and len(self.submitted) < (self.resources.workers or math.inf):
            config = self.waiting.popleft()
            task = self.task.remote(
                job_arguments(config, self.store, self.resources, self.resources.cluster_device), os.getcwd()
            )
            self.submitted[task] = config

    def _result(self, task: Any) -> tuple[Outcome, str]:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return "failed", explain(error)


def _train(arguments: Mapping[str, Any], folder: str) -> tuple[Outcome, str]:
    """The Ray task. It changes to the user's folder, because task and optimizer files may be relative paths."""
    os.chdir(folder)
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        return run_job(**arguments, should_stop=lambda: bool(interrupts))
    finally:
        signal.signal(signal.SIGINT, before)
