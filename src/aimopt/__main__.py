"""The command `aimopt`, also as `python -m aimopt`: at any moment, Ctrl-C ends it with the one word "stopped".

Until the command line and what a command lists in its IMPORTS have been imported, and again after it has finished,
Ctrl-C ends the process immediately: an exception in the middle of an import may be caught there, or leave a
half-imported module behind.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

STOPPED = 130  # exit status


def main() -> int:
    """Import the command line and run it; returns the exit status."""
    _set_ctrl_c_handler(_stop)
    from aimopt.cli import main as command_line

    try:
        return command_line(before_run=lambda: _set_ctrl_c_handler(signal.default_int_handler))
    except KeyboardInterrupt:  # a second one, while the command line printed its message for the first
        _stop()
    finally:
        _set_ctrl_c_handler(_stop)


def _set_ctrl_c_handler(handler: Callable[..., Any]) -> None:
    """Set what Ctrl-C does, unless it is ignored: shells let background processes ignore it."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _stop):
        signal.signal(signal.SIGINT, handler)


def _stop(*_: object) -> NoReturn:
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
