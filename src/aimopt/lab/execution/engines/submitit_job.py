"""A run as a job of submitit. When the job must end, the run writes a checkpoint and submitit queues the job again.

executor.submit(SubmititJob(job_arguments(config, store, resources, "cuda")))
"""

import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from aimopt.lab.execution.engines import SAVE_SECONDS, import_extra
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.execution.runner import Outcome


class SubmititJob:
    """A run as a job. It is trained in a thread, so that the main thread can handle signals at once."""

    def __init__(self, arguments: Mapping[str, Any]):
        self.arguments, self.stopping, self.results = arguments, False, list[tuple[Outcome, str]]()
        self.thread: threading.Thread | None = None

    def __call__(self) -> tuple[Outcome, str]:
        """Train the run until it ends or SIGTERM arrives."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._wait()
        return self.results[0]

    def checkpoint(self) -> Any:
        """The job that submitit queues again. submitit calls this in its signal handler, during the wait above."""
        self.stopping = True
        self._wait(SAVE_SECONDS)
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(SubmititJob(self.arguments))

    def _run(self) -> None:
        self.results.append(run_job(**self.arguments, should_stop=lambda: self.stopping))

    def _wait(self, seconds: float = float("inf")) -> None:
        deadline = time.monotonic() + seconds
        while self.thread is not None and self.thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)  # unlike Thread.join, holds no lock that the signal handler may need
