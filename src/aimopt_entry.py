"""The command `aimopt`: a Ctrl-C at any moment ends it with one word, also while it is still being loaded.

It stands beside the package because loading anything of the package loads torch, which takes seconds. Until the command
line takes over, and again once it is done, Ctrl-C ends the process at once: an exception in the midst of an import may
be caught there, or leave something half loaded.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

STOPPED = 130  # exit status


def main() -> int:
    """Load the command line and run it; the result is the exit status."""
    _on_ctrl_c(_stop)
    from aimopt.cli import main as command_line

    try:
        _on_ctrl_c(signal.default_int_handler)
        return command_line()
    except KeyboardInterrupt:  # while the one before was being told of
        _stop()
    finally:
        _on_ctrl_c(_stop)


def _on_ctrl_c(handler: Callable[..., Any]) -> None:
    """Say what Ctrl-C does, unless it is ignored: a shell does so for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _stop):
        signal.signal(signal.SIGINT, handler)


def _stop(*_: object) -> NoReturn:
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
