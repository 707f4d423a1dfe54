"""Runs in processes of this machine, each on cores of its own."""

import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import BinaryIO, Self, cast

from aimopt.lab.config import RunConfig
from aimopt.lab.engines import ATTEMPTS, PATIENCE, Ended, Resources, order
from aimopt.lab.engines.worker import STOP, ask
from aimopt.lab.store import Store


class Worker:
    """A process, and the run it is at."""

    def __init__(self, cores: set[int], device: str, threads: int):
        self.device, self.at = device, cast(RunConfig | None, None)
        self.said = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115, it lives as long as the process
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aimopt.lab.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the process that started it, which asks it to stop
        )
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)

    def ask(self, line: bytes) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        ask(self.process.stdin, line)

    def close(self) -> None:
        """Let go of what is left of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # closing writes what it did not live to read
            self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()

    def last_words(self) -> str:
        """How it ended, with the last line it wrote."""
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with {how}" + (f": {lines[-1]}" if lines else "")


class LocalEngine:
    """One process a core, or a device."""

    def __init__(self, store: Store, resources: Resources):
        self.store, self.resources = store, resources
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.attempts: collections.Counter[str] = collections.Counter()
        self.selector = selectors.DefaultSelector()
        self.places = places(resources)
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        for cores, device in self.places:
            self._start(cores, device)
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self.workers:
            worker.ask(STOP)
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                worker.process.kill()
                worker.process.wait()
            worker.close()
        self.selector.close()

    def submit(self, config: RunConfig) -> None:
        self.waiting.append(config)
        self._assign()

    def finished(self, timeout: float) -> list[Ended]:
        ended = []
        for key, _ in self.selector.select(timeout):
            worker: Worker = key.data
            assert worker.process.stdout is not None
            line = worker.process.stdout.readline()
            if line and worker.at is not None:
                outcome, reason = json.loads(line)
                ended.append(Ended(worker.at, outcome, reason))
                worker.at = None
            elif not line:
                ended += self._replace(worker)
        self._assign()
        return ended

    def room(self) -> int:
        return len(self.places)

    def _assign(self) -> None:
        for worker in self.workers:
            if worker.at is None and self.waiting:
                worker.at = self.waiting.popleft()
                asked = order(worker.at, self.store, self.resources, worker.device)
                worker.ask(json.dumps(asked).encode() + b"\n")

    def _start(self, cores: set[int], device: str) -> None:
        worker = Worker(cores, device, self.resources.threads)
        self.workers.append(worker)
        assert worker.process.stdout is not None
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def _replace(self, worker: Worker) -> list[Ended]:
        """Put another process in the place of one that died; its run is tried again, but not for ever."""
        assert worker.process.stdout is not None
        self.selector.unregister(worker.process.stdout)
        reason, run = worker.last_words(), worker.at
        place = self.workers.index(worker)
        self.workers.pop(place)
        worker.close()
        self._start(*self.places[place])
        self.workers.insert(place, self.workers.pop())
        if run is None:
            return []
        self.attempts[run.identity] += 1
        if self.attempts[run.identity] >= ATTEMPTS:
            return [Ended(run, "failed", f"{reason}, {ATTEMPTS} times")]
        self.waiting.appendleft(run)
        return []


def places(resources: Resources) -> list[tuple[set[int], str]]:
    """The cores and the device of each worker."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    each = max(1, resources.threads * resources.processes)
    if resources.devices:
        return [(set(), device) for device in resources.devices]
    count = resources.workers or max(1, len(cores) // each)
    shares = [set(cores[i * each : (i + 1) * each]) for i in range(count)]
    fits = count * each <= len(cores)
    return [(share if fits else set(), "cpu") for share in shares]
