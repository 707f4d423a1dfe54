"""A process that is started while Ctrl-C is held back never gets it; the one that started it does afterwards."""

import contextlib
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aimopt.measure import train_benchmark
from aimopt.measure.processes import ctrl_c_held_back

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be blocked on Windows")
INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"


def is_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_the_process_lives_on_and_afterwards_nothing_is_held_back() -> None:
    with ctrl_c_held_back():
        ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("alive\n", "", 0)
    with contextlib.suppress(KeyError), ctrl_c_held_back():
        assert is_blocked()
        raise KeyError
    assert not is_blocked()


class Pool:
    """Says whether Ctrl-C was held back when it was made."""

    def __init__(self, processes: int):
        self.blocked = is_blocked()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *raised: object) -> None:
        return None

    def apply(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, bool]:
        return self.blocked, is_blocked()


def test_the_process_that_measures_memory_does_not_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: type("Context", (), {"Pool": Pool}))
    assert train_benchmark.peak_memory("RADAR", {}) == (True, False)
