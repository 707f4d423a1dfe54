"""The local engine: one worker process per core or device of this machine. Each worker trains many runs in turn.

A worker is started when a run waits and all others are busy.

    with LocalEngine(store, Resources(workers=4, threads=2)) as engine: …             four workers with two cores each
    with LocalEngine(store, Resources(devices=("cuda:0", "cuda:1"))) as engine: …     one worker per GPU

A worker that dies is replaced, and its run is resumed from its checkpoint.
"""

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

from aimopt.lab.execution.engines import MAX_ATTEMPTS, SAVE_SECONDS, EndedRun, job_arguments
from aimopt.lab.execution.engines.worker import STOP, send_line
from aimopt.lab.execution.process_output import last_line
from aimopt.lab.execution.resources import Resources
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store


class Worker:
    """A worker process, and the run that it trains."""

    def __init__(self, cores: set[int], device: str, threads: int):
        self.device, self.current_run = device, cast(RunConfig | None, None)
        self.stderr = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115, it is open as long as the process lives
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aimopt.lab.execution.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the parent alone, which then asks the worker to stop
        )
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)

    def send(self, line: bytes) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        send_line(self.process.stdin, line)

    def close(self) -> None:
        """Close its pipes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # closing flushes what a dead process did not read
            self.process.stdin.close()
        self.process.stdout.close()
        self.stderr.close()

    def exit_reason(self) -> str:
        """How the process ended, with the last line of its standard error."""
        code = self.process.wait()
        known = {number.value: number.name for number in signal.Signals}  # real-time signals have no names
        status = f"status {code}" if code >= 0 else known.get(-code, f"signal {-code}")
        self.stderr.seek(0)
        return f"its process ended with {status}: {last_line(self.stderr.read().decode(errors='replace'))}"


class LocalEngine:
    """One worker process per core or device."""

    def __init__(self, store: Store, resources: Resources):
        if resources.gpus:
            raise ValueError("gpus are per run of a cluster; on this machine name them: devices=('cuda:0', 'cuda:1')")
        self.store, self.resources = store, resources
        self.waiting: collections.deque[RunConfig] = collections.deque()
        self.attempts: collections.Counter[str] = collections.Counter()
        self.selector = selectors.DefaultSelector()
        self.slots = worker_slots(resources)
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self.workers:
            worker.send(STOP)
        deadline = time.monotonic() + SAVE_SECONDS
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

    def collect(self, timeout: float) -> list[EndedRun]:
        ended = []
        for key, _ in self.selector.select(timeout):
            worker: Worker = key.data
            assert worker.process.stdout is not None
            line = worker.process.stdout.readline()
            if line and worker.current_run is not None:
                outcome, reason = json.loads(line)
                ended.append(EndedRun(worker.current_run, outcome, reason))
                worker.current_run = None
            elif not line:
                ended += self._replace_worker(worker)
        self._assign()
        return ended

    def capacity(self) -> int:
        return len(self.slots)

    def _assign(self) -> None:
        while self.waiting and (worker := self._idle_worker()) is not None:
            worker.current_run = self.waiting.popleft()
            arguments = job_arguments(worker.current_run, self.store, self.resources, worker.device)
            worker.send(json.dumps(arguments).encode() + b"\n")

    def _idle_worker(self) -> Worker | None:
        """A worker without a run, which may be a new one; none if there are as many workers as slots."""
        for worker in self.workers:
            if worker.current_run is None:
                return worker
        if len(self.workers) == len(self.slots):
            return None
        self.workers.append(self._start_worker(*self.slots[len(self.workers)]))
        return self.workers[-1]

    def _start_worker(self, cores: set[int], device: str) -> Worker:
        worker = Worker(cores, device, self.resources.threads)
        assert worker.process.stdout is not None
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _replace_worker(self, worker: Worker) -> list[EndedRun]:
        """Replace a worker that died. Its run is tried again, up to `MAX_ATTEMPTS` times."""
        assert worker.process.stdout is not None
        self.selector.unregister(worker.process.stdout)
        reason, run = worker.exit_reason(), worker.current_run
        worker.close()
        slot = self.workers.index(worker)
        self.workers[slot] = self._start_worker(*self.slots[slot])
        if run is None:
            return []
        self.attempts[run.identity] += 1
        if self.attempts[run.identity] >= MAX_ATTEMPTS:
            return [EndedRun(run, "failed", f"{reason}, {MAX_ATTEMPTS} times")]
        self.waiting.appendleft(run)
        return []


def worker_slots(resources: Resources) -> list[tuple[set[int], str]]:
    """The cores and the device of every worker. The set of cores is empty if workers are not pinned."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores_per_run = max(1, resources.threads * resources.processes)
    if resources.devices:
        return [(set(), device) for device in resources.devices]
    count = resources.workers or max(1, len(cores) // cores_per_run)
    if count * cores_per_run > len(cores):
        return [(set(), "cpu")] * count
    return [(set(cores[i * cores_per_run : (i + 1) * cores_per_run]), "cpu") for i in range(count)]
