"""A report is shown to this machine alone, and nothing beside it."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from aimopt.cli import main
from aimopt.lab.report import serve
from aimopt.lab.report.server import MAX_CONNECTIONS, ReportServer, _content
from aimopt.lab.results.store import Store


def ask(port: int, path: str, host: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    (tmp_path / "secret.csv").write_text("secret")
    inside = tmp_path / "report"
    inside.mkdir()
    (inside / ".hidden.csv").write_text("secret")
    (inside / "notes.txt").write_text("secret")
    (inside / "link.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.csv").write_text("secret")
    (inside / "figures").symlink_to(tmp_path / "elsewhere")
    made: list[int] = []

    def regenerate() -> None:
        made.append(1)
        (inside / "index.html").write_text(f"made {len(made)} times")

    with serve(inside, regenerate, min_seconds=1000) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_port_in_use_is_an_error_before_the_report_is_written(
    server: ReportServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path / "store").create()
    assert main(["report", str(tmp_path / "store"), "--watch", f"--port={server.server_port}"]) == 2
    said = f"aimopt report: port {server.server_port} of this machine cannot be used: Address already in use; choose "
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "store" / "report").exists()


def test_the_page_is_regenerated_on_request_but_not_too_often(server: ReportServer) -> None:
    host = f"127.0.0.1:{server.server_port}"
    assert [ask(server.server_port, path, host) for path in ("/", "/index.html")] == [(200, b"made 1 times")] * 2
    assert server.url == f"http://{host}/"
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "localhost:80", 200),
        ("/", "localhost", 200),
        ("/", "evil.example", 403),
        ("/", "127.0.0.1.evil.example:80", 403),
        ("/", "", 403),
        ("/../secret.csv", "localhost", 404),
        ("/%2e%2e/secret.csv", "localhost", 404),
        ("/..%2fsecret.csv", "localhost", 404),
        ("/link.csv", "localhost", 404),
        ("/figures/secret.csv", "localhost", 404),
        ("/.hidden.csv", "localhost", 404),
        ("/notes.txt", "localhost", 404),
        ("/figures", "localhost", 404),
        ("//etc/passwd", "localhost", 404),
        ("/%00", "localhost", 404),
        ("http://[", "localhost", 400),
    ],
)
def test_only_this_machine_is_served_and_only_the_report(
    server: ReportServer, path: str, host: str, status: int
) -> None:
    answered, content = ask(server.server_port, path, host)
    assert answered == status
    assert b"secret" not in content


def test_a_link_that_replaces_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "page.csv").symlink_to(tmp_path / "secret")
    assert _content(tmp_path / "page.csv") is None


def closed(connection: socket.socket) -> bool:
    """Whether the server hangs up, within seconds."""
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_client_that_sends_no_request_is_dropped(server: ReportServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.report.server.CLIENT_SECONDS", 0.5)
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", server.server_port)) as silent,
        socket.create_connection(("127.0.0.1", server.server_port)) as slow,
    ):
        with contextlib.suppress(ConnectionError):
            for letter in b"GET /" * 20:
                slow.send(bytes([letter]))
                time.sleep(0.02)
        assert closed(silent)
        assert closed(slow)
    assert time.monotonic() - began < 8
    assert ask(server.server_port, "/", "localhost")[0] == 200


def test_the_number_of_open_connections_is_limited(server: ReportServer, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as opened:
        address = ("127.0.0.1", server.server_port)
        idle = [opened.enter_context(socket.create_connection(address)) for _ in range(MAX_CONNECTIONS + 5)]
        for refused in idle[MAX_CONNECTIONS:]:
            assert closed(refused)
        assert len(server.connections) == MAX_CONNECTIONS
    while server.connections:
        time.sleep(0.01)
    assert ask(server.server_port, "/", "localhost")[0] == 200
    assert capsys.readouterr().err == ""


def test_an_error_while_regenerating_goes_to_the_client_only(
    server: ReportServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError("the store <results>\r\nX: y is gone")

    server.regenerate = fail
    status, content = ask(server.server_port, "/", "localhost")
    assert status == 503
    assert b"the store &lt;results&gt; X: y is gone" in content
    assert capsys.readouterr().err == ""
