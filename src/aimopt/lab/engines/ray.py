"""Runs as tasks of a Ray cluster: the one of RAY_ADDRESS or of this machine, else one that is started here.

Ray tries again the run of a worker or a machine that died, and the run goes on from its checkpoint. All machines see
the store and the current folder under the same path. Leaving the engine cancels the tasks: Ray interrupts those at
work, which take that as the request to save their run and stop. When this process is killed, Ray ends them at once.
"""

import collections
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Self

from aimopt.lab.config import RunConfig
from aimopt.lab.engines import ATTEMPTS, PATIENCE, Ended, Resources, installed, order
from aimopt.lab.engines.worker import work
from aimopt.lab.runner import Outcome, explain
from aimopt.lab.store import Store


class RayEngine:
    """One task a run."""

    def __init__(self, store: Store, resources: Resources):
        self.ray = installed("ray", "ray")
        self.store, self.resources = store, resources
        self.device = "cuda" if resources.gpu_share else next(iter(resources.devices), "cpu")
        self.needs = {"CPU": resources.threads * resources.processes, "GPU": resources.gpu_share}
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.handed: dict[Any, RunConfig] = {}
        self.connected = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self._connect()
        if not self.room() and "RAY_ADDRESS" not in os.environ:  # clusters grow, machines do not
            self.__exit__()
            raise ValueError(f"a run asks for {self.needs} and Ray has {self._there()}; ask for less")
        path = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        self.task = self.ray.remote(_make).options(
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs["GPU"],
            max_retries=ATTEMPTS,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path)}} if path else None,
        )
        return self

    def __exit__(self, *raised: object) -> None:
        for task in self.handed:
            self.ray.cancel(task)
        if self.handed:
            self.ray.wait(list(self.handed), num_returns=len(self.handed), timeout=PATIENCE)
        if self.connected:
            self.ray.shutdown()  # ends a cluster that was started here, and leaves any other

    def submit(self, config: RunConfig) -> None:
        self.waiting.append(config)
        self._hand_out()

    def finished(self, timeout: float) -> list[Ended]:
        if not self.handed:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(self.handed), timeout=timeout)
        ended = [Ended(self.handed.pop(task), *self._result(task)) for task in ready]
        self._hand_out()
        return ended

    def room(self) -> int:
        there = self._there()
        room = min(int(there[kind] / needed) for kind, needed in self.needs.items() if needed)
        return min(room, self.resources.workers or room)

    def _connect(self) -> None:
        try:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster answers; start it, or unset RAY_ADDRESS: {explain(error)}") from None
        self.connected = True

    def _there(self) -> dict[str, float]:
        there = self.ray.cluster_resources()
        return {kind: there.get(kind, 0.0) for kind in self.needs}

    def _hand_out(self) -> None:
        """Ray queues what there is no room for, and clusters grow with their queues."""
        while self.waiting and len(self.handed) < (self.resources.workers or math.inf):
            config = self.waiting.popleft()
            task = self.task.remote(order(config, self.store, self.resources, self.device), os.getcwd())
            self.handed[task] = config

    def _result(self, task: Any) -> tuple[Outcome, str]:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return "failed", explain(error)


def _make(asked: Mapping[str, Any], folder: str) -> tuple[Outcome, str]:
    """What a worker of the cluster does; files that users name are found from the folder they are in."""
    os.chdir(folder)
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        return work(**asked, should_stop=lambda: bool(interrupts))
    finally:
        signal.signal(signal.SIGINT, before)
