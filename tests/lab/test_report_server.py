"""A report is shown to this machine alone, and nothing beside it."""

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from aimopt.lab.report import serve
from aimopt.lab.report.server import ReportServer


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
    made: list[int] = []

    def again() -> None:
        made.append(1)
        (inside / "index.html").write_text(f"made {len(made)} times")

    with serve(inside, again, every=1000) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_the_page_is_made_when_asked_for_but_not_too_often(server: ReportServer) -> None:
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
        ("/.hidden.csv", "localhost", 404),
        ("/notes.txt", "localhost", 404),
        ("/figures", "localhost", 404),
        ("//etc/passwd", "localhost", 404),
        ("/%00", "localhost", 404),
    ],
)
def test_only_this_machine_is_served_and_only_the_report(
    server: ReportServer, path: str, host: str, status: int
) -> None:
    answered, content = ask(server.server_port, path, host)
    assert answered == status
    assert b"secret" not in content
