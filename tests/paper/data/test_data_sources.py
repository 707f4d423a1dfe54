"""The sources of data, their order, and the message when no source has the data."""

import contextlib
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aimopt.paper.data.dataset import Dataset, File, Form, checksum, read_unchanged
from aimopt.paper.data.sources import UnavailableError, cache_directory, obtain_file, prepare
from file_server import Site, serving

CONTENT = b"words\n" * 100_000
OFFICIAL, OTHER = "words.txt", "other.txt"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def dataset(site: Site, cache: Path) -> Dataset:
    """A text that the official site has in upper case."""
    site.files = {OFFICIAL: CONTENT.upper(), OTHER: CONTENT}
    return Dataset(
        name="words",
        title="Words",
        megabytes=1,
        licence="none",
        citation="none",
        parts=(File("text", sha256=checksum(CONTENT), size=len(CONTENT)),),
        forms=(
            Form(
                (File(OFFICIAL, site.url(OFFICIAL), checksum(CONTENT.upper())),),
                lambda files: {"text": files[OFFICIAL].read_bytes().lower()},
            ),
            Form((File(OTHER, site.url(OTHER)),), lambda files: {"text": files[OTHER]}),
            Form((File("text"),), read_unchanged),
        ),
    )


def local(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("AIMOPT_DATA", os.pathsep.join(map(str, folders)))


def requested(site: Site) -> list[str]:
    return [name for name, _ in site.requests]


def test_a_dataset_is_prepared_once_and_its_download_is_deleted(dataset: Dataset, site: Site, cache: Path) -> None:
    for _ in range(2):
        assert (prepare(dataset) / "text").read_bytes() == CONTENT
    assert requested(site) == [OFFICIAL]
    assert sorted(p.name for p in cache.rglob("*") if p.is_file() and p.parent.name != "locks") == ["text"]


def test_a_damaged_part_is_prepared_again(dataset: Dataset, site: Site) -> None:
    folder = prepare(dataset)
    (folder / "text").write_bytes(b"wor")
    assert (prepare(dataset) / "text").read_bytes() == CONTENT
    assert requested(site) == [OFFICIAL] * 2


@pytest.mark.parametrize("name", [OFFICIAL, OTHER, "text"])
def test_local_data_come_first_in_every_form(
    dataset: Dataset, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "second" / "words").mkdir(parents=True)
    (tmp_path / "second" / "words" / name).write_bytes(CONTENT.upper() if name == OFFICIAL else CONTENT)
    local(monkeypatch, tmp_path / "first", tmp_path / "second")
    assert (prepare(dataset) / "text").read_bytes() == CONTENT
    assert requested(site) == []


def test_wrong_local_data_are_ignored(
    dataset: Dataset, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / OFFICIAL).write_bytes(b"no words")
    local(monkeypatch, tmp_path)
    assert (prepare(dataset) / "text").read_bytes() == CONTENT
    assert requested(site) == [OFFICIAL]


@pytest.mark.parametrize("official", [None, b"another text"])
def test_the_next_source_is_tried_when_one_fails(dataset: Dataset, site: Site, official: bytes | None) -> None:
    site.files = {OTHER: CONTENT} | ({OFFICIAL: official} if official else {})
    assert (prepare(dataset) / "text").read_bytes() == CONTENT
    assert requested(site) == [OFFICIAL, OTHER]


def test_parts_with_a_wrong_checksum_are_not_prepared(dataset: Dataset, site: Site, cache: Path) -> None:
    site.files = {OTHER: CONTENT[:-1] + b"!"}
    with pytest.raises(UnavailableError, match="text has sha256"):
        prepare(dataset)
    assert not (cache / "words").exists()


def test_the_error_lists_what_was_tried_and_which_files_to_put_where(
    dataset: Dataset, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files = {}
    with pytest.raises(UnavailableError) as without:
        prepare(dataset)
    local(monkeypatch, tmp_path)
    with pytest.raises(UnavailableError) as error:
        prepare(dataset)
    assert str(without.value).splitlines()[1] == "  AIMOPT_DATA: not set"
    assert "into the folder DIRECTORY/words and set AIMOPT_DATA=DIRECTORY:" in str(without.value)
    assert str(error.value).splitlines() == [
        "words is not available. Sources that were tried:",
        *(f"  {tmp_path / 'words'}: no {name}" for name in (OFFICIAL, OTHER, "text")),
        *(f"  {site.url(name)}: 404 Client Error: Not Found for url: {site.url(name)}" for name in (OFFICIAL, OTHER)),
        f"To provide it, put the files of one of these into the folder {tmp_path / 'words'}:",
        f"     {OFFICIAL}  sha256 {checksum(CONTENT.upper())}  {site.url(OFFICIAL)}",
        f"  or {OTHER}  {site.url(OTHER)}",
        "  or text",
    ]


def test_one_file_of_many_is_downloaded_once(dataset: Dataset, site: Site) -> None:
    file = dataset.forms[1].files[0]
    for _ in range(2):
        assert obtain_file(dataset, file).read_bytes() == CONTENT
    assert requested(site) == [OTHER]
    with pytest.raises(UnavailableError, match="missing: 404 Client Error"):
        obtain_file(dataset, replace(file, name="missing", origin=site.url("missing")))


def test_one_of_several_threads_prepares_and_the_others_wait(dataset: Dataset, site: Site) -> None:
    site.seconds_per_block = 0.02
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(prepare, [dataset] * 4))
    assert {(folder / "text").read_bytes() for folder in folders} == {CONTENT}
    assert requested(site) == [OFFICIAL]


def test_without_locks_a_thread_may_fail_but_only_complete_data_are_prepared(
    dataset: Dataset, site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    def attempt(_: int) -> bool:
        with contextlib.suppress(UnavailableError):
            return (prepare(dataset) / "text").read_bytes() == CONTENT
        return True

    monkeypatch.setattr(fcntl, "flock", no_locks)
    site.seconds_per_block = 0.02
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(attempt, range(4)))
    assert (prepare(dataset) / "text").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"AIMOPT_CACHE": "/one", "XDG_CACHE_HOME": "/two"}, "/one"),
        ({"XDG_CACHE_HOME": "/two"}, "/two/aimopt"),
        ({"HOME": "/three"}, "/three/.cache/aimopt"),
    ],
)
def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str) -> None:
    for name in ("AIMOPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(folder)
