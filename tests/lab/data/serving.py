"""A web server of this machine, with the habits that downloads have to live with."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """Some files, and how the server treats who asks for them."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # whether it can go on in the middle
    says_length: bool = True  # whether it says how many bytes will come
    bytes_a_connection: int | None = None  # it breaks off after so many
    seconds_a_block: float = 0.0
    address: str = ""
    sent: int = 0  # bytes, about
    asked: list[tuple[str, str]] = field(default_factory=list)  # name and range of each request
    slept: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path[1:], self.headers.get("Range", "")
            site.asked.append((name, wanted))
            if name not in site.files:
                self.send_error(404)
                return
            content, start = site.files[name], 0
            if site.ranges and (match := re.fullmatch(r"bytes=(\d+)-", wanted)):
                start = int(match[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if site.says_length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = len(content) if site.bytes_a_connection is None else start + site.bytes_a_connection
            with contextlib.suppress(ConnectionError):
                for i in range(start, min(end, len(content)), 1 << 16):
                    self.wfile.write(content[i : min(i + (1 << 16), end)])
                    site.sent += 1 << 16
                    site.slept.wait(site.seconds_a_block)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            site.slept.set()
            server.shutdown()
            thread.join()
