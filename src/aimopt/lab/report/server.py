"""Show a report to a browser on this machine, and make it anew while a sweep runs.

    with serve(Path("report"), again=lambda: write(...), every=5) as server:
        print(server.url)
        server.serve_forever()

Only this machine can ask, and only for files of the report. A page of another site cannot either: it would have to ask
under its own name, which is refused (DNS rebinding). Whoever connects and asks nothing, or reads nothing, is dropped.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from aimopt.clean_text import one_line

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".tex": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".png": "image/png",
    ".pdf": "application/pdf",
}
LOCAL = ("127.0.0.1", "localhost")
MAX_CONNECTIONS = 32  # at once; a browser opens about six
CLIENT_SECONDS = 10.0  # to ask, and then to read the answer


class ReportServer(ThreadingHTTPServer):
    """A server of one folder."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, folder: Path, again: Callable[[], object] | None, port: int, every: float):
        self.folder, self.again, self.every = folder.resolve(), again, every
        self.made, self.lock = -float("inf"), threading.Lock()
        self.connections: dict[Any, float] = {}  # when each has to have asked; never, once it has
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:  # it does not say which port
            raise ValueError(
                f"port {port} of this machine cannot be used: {error.strerror}; give another, or 0 for any that is free"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def files(self) -> dict[str, Path]:
        """What may be asked for, by name: no name is ever taken for a path."""
        listed = [*self.folder.glob("*"), *self.folder.glob("figures/*")]
        # `folder` is resolved: a path that does not lead to itself is a link, or lies behind one.
        shown = [p for p in listed if p.suffix in TYPES and p.name[0] != "." and p.is_file() and p.resolve() == p]
        return {path.relative_to(self.folder).as_posix(): path for path in shown}

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more connection."""
        if len(self.connections) >= MAX_CONNECTIONS:
            return False
        self.connections[request] = time.monotonic() + CLIENT_SECONDS
        return True

    def service_actions(self) -> None:
        """Drop who has not asked in time, however slowly it sends; called about twice a second."""
        for connection, deadline in list(self.connections.items()):
            if time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        """Forget a connection."""
        self.connections.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong in a line; who left or was dropped is not worth one."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"the report could not be shown: {type(error).__name__}: {error}", file=sys.stderr)

    def refresh(self) -> None:
        """Make the report anew, unless that was done a moment ago; who asks meanwhile waits and gets the same."""
        with self.lock:
            if self.again is not None and time.monotonic() - self.made >= self.every:
                self.again()
                self.made = time.monotonic()


def serve(
    folder: Path, again: Callable[[], object] | None = None, *, port: int = 0, every: float = 2.0
) -> ReportServer:
    """A server for a report, bound but not yet running; `again` makes the report, at most every so many seconds."""
    return ReportServer(folder, again, port, every)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = CLIENT_SECONDS  # of a read, and of writing the whole answer

    def parse_request(self) -> bool:
        understood = super().parse_request()
        self.server.connections[self.connection] = float("inf")
        return understood

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in LOCAL:
            self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
            return
        name = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        try:
            if name == "index.html":
                self.server.refresh()
        except (OSError, ValueError) as error:  # the store is gone, or the disk is full: the next try may succeed
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "no report", one_line(str(error)))
            return
        path = self.server.files().get(name)
        content = _content(path) if path is not None else None
        if path is None or content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[path.suffix])
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the command line has better things to show."""


def _content(path: Path) -> bytes | None:
    """The bytes of a file; none if it was replaced by a link since it was listed, or is gone."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read()
