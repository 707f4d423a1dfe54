"""A web server on this machine, with the faults that downloads must survive."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK = 1 << 16


@dataclass
class Site:
    """Files by path, and how the server sends them."""

    files: dict[str, bytes] = field(default_factory=dict)
    supports_ranges: bool = True
    sends_length: bool = True
    bytes_per_connection: int | None = None  # the connection closes after this many
    seconds_per_block: float = 0.0
    address: str = ""
    bytes_sent: int = 0  # rounded up to whole blocks
    requests: list[tuple[str, str]] = field(default_factory=list)  # path and range of each request
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, requested_range = self.path[1:], self.headers.get("Range", "")
            site.requests.append((path, requested_range))
            if path not in site.files:
                self.send_error(404)
                return
            content, start = site.files[path], 0
            if site.supports_ranges and (match := re.fullmatch(r"bytes=(\d+)-", requested_range)):
                start = int(match[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
            if site.sends_length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = len(content) if site.bytes_per_connection is None else start + site.bytes_per_connection
            with contextlib.suppress(ConnectionError):
                for i in range(start, min(end, len(content)), BLOCK):
                    self.wfile.write(content[i : min(i + BLOCK, end)])
                    site.bytes_sent += BLOCK
                    site.closing.wait(site.seconds_per_block)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            site.closing.set()
            server.shutdown()
            thread.join()
