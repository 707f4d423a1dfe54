"""Processes that Ctrl-C does not reach. A terminal sends it to all processes of a command; each prints a traceback.

    with ctrl_c_held_back():
        process.start()

The process that started them gets Ctrl-C when the block is left, and ends them.
"""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Hold SIGINT back from this thread, and from processes that are started in the block as long as they live."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
