"""A run as a job of a batch system, which signals it when it must go: it saves itself, and submitit queues it again."""

import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from aimopt.lab.engines import PATIENCE, installed
from aimopt.lab.engines.worker import work
from aimopt.lab.runner import Outcome


class Job:
    """A run as a job. It is made in a thread, so that signals find the process at leisure."""

    def __init__(self, asked: Mapping[str, Any]):
        self.asked, self.stopping, self.ended = asked, False, list[tuple[Outcome, str]]()
        self.running: threading.Thread | None = None

    def __call__(self) -> tuple[Outcome, str]:
        """Make the run, until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        self.running = threading.Thread(target=self._run, daemon=True)
        self.running.start()
        self._wait()
        return self.ended[0]

    def checkpoint(self) -> Any:
        """What submitit queues again when the job must go; it asks in the midst of the wait above."""
        self.stopping = True
        self._wait(PATIENCE)
        return installed("submitit", "slurm").helpers.DelayedSubmission(Job(self.asked))

    def _run(self) -> None:
        self.ended.append(work(**self.asked, should_stop=lambda: self.stopping))

    def _wait(self, seconds: float = float("inf")) -> None:
        deadline = time.monotonic() + seconds
        while self.running is not None and self.running.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)  # holds no lock that a signal could find taken
