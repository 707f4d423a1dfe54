"""Show a report to a browser on this machine, and make it anew while a sweep runs.

    with serve(Path("report"), again=lambda: write(...), every=5) as server:
        print(server.url)
        server.serve_forever()

Only this machine can ask, and only for files of the report. A page of another site cannot either: it would have to ask
under its own name, which is refused (DNS rebinding).
"""

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".tex": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".png": "image/png",
    ".pdf": "application/pdf",
}
LOCAL = ("127.0.0.1", "localhost")


class ReportServer(ThreadingHTTPServer):
    """A server of one folder."""

    daemon_threads = True

    def __init__(self, folder: Path, again: Callable[[], object] | None, port: int, every: float):
        self.folder, self.again, self.every = folder.resolve(), again, every
        self.made, self.lock = -float("inf"), threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def files(self) -> dict[str, Path]:
        """What may be asked for, by name: no name is ever taken for a path."""
        listed = [*self.folder.glob("*"), *self.folder.glob("figures/*")]
        shown = [p for p in listed if p.suffix in TYPES and p.name[0] != "." and p.is_file() and not p.is_symlink()]
        return {path.relative_to(self.folder).as_posix(): path for path in shown}

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

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in LOCAL:
            self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
            return
        name = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        if name == "index.html":
            self.server.refresh()
        path = self.server.files().get(name)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = path.read_bytes()
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
