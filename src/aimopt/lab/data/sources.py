"""Where data come from: directories that the user names, the official source, a package registry, in this order.

    prepare(dataset)                 # the folder of its parts in the cache

`AIMOPT_DATA` names directories with a folder for each dataset, separated as in PATH; `AIMOPT_CACHE` names the cache,
by default ~/.cache/aimopt. A prepared dataset is a folder of plain files, put into place when it is whole, so that
no process ever sees half of one. Of processes that want the same, one works and the others wait.
"""

import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http.client import HTTPException
from lzma import LZMAError
from pathlib import Path
from typing import TypeVar

from aimopt.lab.data.dataset import Content, Dataset, File, Form, as_they_are, described
from aimopt.lab.data.fetching import fetch, say

T = TypeVar("T")

# What a source that is out of reach, damaged, or not what it should be may raise.
FAILURES = (
    *(OSError, ValueError, ImportError, EOFError, HTTPException),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError),
)


class UnavailableError(OSError):
    """No source gave the data; the message says what was tried, and what to put where."""


def cache_directory() -> Path:
    """Where prepared data are kept."""
    if named := os.environ.get("AIMOPT_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aimopt"


def local_directories() -> list[Path]:
    """The user's own directories of data."""
    return [Path(place).expanduser() for place in os.environ.get("AIMOPT_DATA", "").split(os.pathsep) if place]


def prepare(dataset: Dataset) -> Path:
    """The folder with the parts of a dataset; does nothing when it is there."""
    assert dataset.parts, f"{dataset.name} is used file by file"
    folder = cache_directory() / dataset.name
    if not _whole(dataset, folder):
        with one_at_a_time(dataset.name):
            if not _whole(dataset, folder):
                _first(dataset, dataset.forms, lambda form, files: _write(dataset, form.read(files), folder))
                shutil.rmtree(_downloads(dataset), ignore_errors=True)
    return folder


def obtain(dataset: Dataset, file: File) -> Path:
    """One file of a dataset as it comes, for data too large to prepare as a whole."""
    with one_at_a_time(dataset.name):
        return _first(dataset, [Form((file,), as_they_are)], lambda _, files: files[file.name])


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Processes that prepare the same thing wait for one another; a lock ends with the process that holds it.

    Where there are no locks, on Windows and on some network file systems, they may get into each other's way and
    fail, but what is in place is always whole.
    """
    folder = cache_directory() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _whole(dataset: Dataset, folder: Path) -> bool:
    paths = [(part, folder / part.name) for part in dataset.parts]
    return all(path.is_file() and part.size in (0, path.stat().st_size) for part, path in paths)


def _downloads(dataset: Dataset) -> Path:
    return cache_directory() / "downloads" / dataset.name


def _first(dataset: Dataset, forms: Iterable[Form], use: Callable[[Form, Mapping[str, Path]], T]) -> T:
    """What comes of the first source that gives files of use."""
    failures = [] if local_directories() else ["AIMOPT_DATA: not set"]
    for source, form, find in _sources(dataset, forms):
        try:
            return use(form, find())
        except FAILURES as error:
            failures.append(f"{source}: {error or type(error).__name__}")
    raise UnavailableError(_explanation(dataset, failures, forms))


def _sources(dataset: Dataset, forms: Iterable[Form]) -> Iterator[tuple[str, Form, Callable[[], dict[str, Path]]]]:
    for form in forms:
        for folder in (root / dataset.name for root in local_directories()):
            yield str(folder), form, partial(_look, form, folder)
    for form in forms:
        if form.fetchable:
            yield form.files[0].origin, form, partial(_fetch, form, _downloads(dataset), dataset.largest_file)


def _look(form: Form, folder: Path) -> dict[str, Path]:
    for file in form.files:
        if not (folder / file.name).is_file():
            raise FileNotFoundError(f"no {file.name}")
        file.check(folder / file.name)
    return {file.name: folder / file.name for file in form.files}


def _fetch(form: Form, folder: Path, largest: int) -> dict[str, Path]:
    try:
        return {file.name: fetch(file, folder, largest) for file in form.files}
    except FAILURES as error:
        say(f"  failed: {error}")
        raise


def _write(dataset: Dataset, contents: Mapping[str, Content], folder: Path) -> None:
    """Check the parts, and put them into place at once."""
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=f".{dataset.name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        for part in dataset.parts:
            content = contents[part.name]
            part.check(content)
            if isinstance(content, Path):
                shutil.copyfile(content, made / part.name)
            else:
                (made / part.name).write_bytes(content)
        if folder.exists():  # damaged, or made meanwhile where there are no locks
            os.replace(folder, Path(scratch, "replaced"))
        os.replace(made, folder)


def _explanation(dataset: Dataset, failures: list[str], forms: Iterable[Form]) -> str:
    place = (local_directories() or [Path("DIRECTORY")])[0] / dataset.name
    setting = "" if local_directories() else " and set AIMOPT_DATA=DIRECTORY"
    return "\n".join(
        [
            f"{dataset.name} could not be had. What was tried:",
            *(f"  {failure}" for failure in failures),
            f"Put the files of one of these into the folder {place}{setting}:",
            *(f"  {line}" for line in described(forms)),
        ]
    )
