"""Serve a report to a browser on this machine, and regenerate it while a sweep runs.

    with serve(Path("report"), regenerate=lambda: write(…), min_seconds=5) as server:
        print(server.url)
        server.serve_forever()

Only this machine can connect, and only the files of the report are served. A page of another site cannot read them:
its requests carry its own host name, which is refused (DNS rebinding). A client that sends or reads nothing is dropped.
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

from aimopt.lab.protocol.user_code import explain
from aimopt.messages.clean_text import one_line

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
CLIENT_SECONDS = 10.0  # for a client to send its request, and then to read the answer


class ReportServer(ThreadingHTTPServer):
    """A server of one folder."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, folder: Path, regenerate: Callable[[], object] | None, port: int, min_seconds: float):
        self.folder, self.regenerate, self.min_seconds = folder.resolve(), regenerate, min_seconds
        self.last_made, self.lock = -float("inf"), threading.Lock()
        self.connections: dict[Any, float] = {}  # connection -> deadline of its request; infinity after the request
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:  # it does not name the port
            raise ValueError(
                f"port {port} of this machine cannot be used: {error.strerror}; choose another, or 0 for any free one"
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"

    def files(self) -> dict[str, Path]:
        """The files that may be requested, by name. A name is looked up here and never used as a path."""
        listed = [*self.folder.glob("*"), *self.folder.glob("figures/*")]
        # `folder` is resolved: a path that does not resolve to itself is a link, or lies behind one.
        shown = [p for p in listed if p.suffix in TYPES and p.name[0] != "." and p.is_file() and p.resolve() == p]
        return {path.relative_to(self.folder).as_posix(): path for path in shown}

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether one more connection is allowed."""
        if len(self.connections) >= MAX_CONNECTIONS:
            return False
        self.connections[request] = time.monotonic() + CLIENT_SECONDS
        return True

    def service_actions(self) -> None:
        """Drop clients that did not send their request in time. Called about twice per second."""
        for connection, deadline in list(self.connections.items()):
            if time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        self.connections.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in one line; not for clients that left or were dropped."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            print(f"the report could not be shown: {explain(error)}", file=sys.stderr)

    def refresh(self) -> None:
        """Regenerate the report, at most every `min_seconds`. Requests that arrive meanwhile wait for it."""
        with self.lock:
            if self.regenerate is not None and time.monotonic() - self.last_made >= self.min_seconds:
                self.regenerate()
                self.last_made = time.monotonic()


def serve(
    folder: Path, regenerate: Callable[[], object] | None = None, *, port: int = 0, min_seconds: float = 2.0
) -> ReportServer:
    """A server for a report, bound but not yet running. `regenerate` is called at most every `min_seconds`."""
    return ReportServer(folder, regenerate, port, min_seconds)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = CLIENT_SECONDS  # for a read, and for writing the whole answer

    def parse_request(self) -> bool:
        is_valid = super().parse_request()
        self.server.connections[self.connection] = float("inf")
        return is_valid

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in LOCAL:
            self.send_error(HTTPStatus.FORBIDDEN, "use 127.0.0.1 or localhost")
            return
        try:
            name = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST, "the address cannot be read")
            return
        try:
            if name == "index.html":
                self.server.refresh()
        except (OSError, ValueError) as error:  # the store is gone, or the disk is full: a later request may succeed
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
        """Log nothing."""


def _content(path: Path) -> bytes | None:
    """The content of a file; None if it is gone, or was replaced by a link after it was listed."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read()
