"""Work without downloads: for a forecast, which must answer soon and must not fetch anything.

    with without_downloads():
        training = task.start(context)          WouldDownload: … is not on this machine

A task that fetches data asks `downloads_allowed` and raises `WouldDownload` instead. For tasks that do not ask, Python
refuses every connection of this process.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_refused = False
_hooked = False


class WouldDownload(OSError):
    """Data are not on this machine, and downloads are not allowed now. The message says what would be downloaded."""


def downloads_allowed() -> bool:
    """Whether data may be downloaded now."""
    return not _refused


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Refuse downloads in this process."""
    global _refused, _hooked
    if not _hooked:  # a hook cannot be removed
        sys.addaudithook(_refuse_connections)
        _hooked = True
    before, _refused = _refused, True
    try:
        yield
    finally:
        _refused = before


def _refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    if _refused and event in ("socket.connect", "socket.getaddrinfo"):
        raise WouldDownload("its data are not on this machine: it asked for a connection")
