"""The lines of the logger `aimopt`, such as the progress of a download. Nothing shows them unless it is asked for.

with log_on_stderr():
    task.prepare()                  on standard error: "  120 of 170 MB"
"""

import contextlib
import logging
import sys
from collections.abc import Iterator

LOGGER = logging.getLogger("aimopt")


class _LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes the text of each record as a line."""


@contextlib.contextmanager
def log_on_stderr() -> Iterator[None]:
    """Write the lines of the logger to standard error; inside another such context this changes nothing."""
    if any(isinstance(handler, _LineHandler) for handler in LOGGER.handlers):
        yield
        return
    handler, level = _LineHandler(sys.stderr), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
