"""Who works on a run: of many processes, on one machine or several, one alone.

The claim with the highest number holds. A process that finds its holder dead or silent makes the next number, which the
file system gives to one process alone; so no file is ever taken from under another process.

A holder dates its claim anew every few seconds. Dates alone do not show that it is silent, because clocks jump. So a
claim that looks old, or is dated in the future, is watched for some seconds: a holder at work dates it in that time.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from aimopt.lab import json_files
from aimopt.lab.shapes import fields, text, whole

BEAT = 5.0  # seconds between two signs of life of a process at work
STALE = 60.0  # seconds without one after which another process may take over
AHEAD = 5.0  # seconds that a claim may be dated in the future: file servers round
WATCHED_BEATS = 2.5  # how long a claim with a doubtful date is watched
SIGN = fields({"token": text, "host": text, "pid": whole(1)})


class Claim:
    """The right to work in a folder."""

    def __init__(self, folder: Path, number: int, token: str):
        self.folder, self.number, self.token = folder, number, token
        self.ended = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()

    @classmethod
    def take(cls, folder: Path) -> Self | None:
        """Make the next claim, unless the present one is alive."""
        number, holder = _highest_claim(folder)
        if _lives(folder, number, holder) or (holder is not None and _stirs(folder, number, holder)):
            return None
        token = uuid.uuid4().hex
        sign = {"token": token, "host": _host(), "pid": os.getpid()}
        try:
            file = os.open(folder / f"claim.{number + 1}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return None
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(json.dumps(sign).encode())
        except OSError as error:  # that of a full disk does not say which file
            (folder / f"claim.{number + 1}").unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(folder / f"claim.{number + 1}")) from error
        claim = cls(folder, number + 1, token)
        replaced = _read_claim(folder, number)
        if not claim.holds() or (replaced is not None and replaced != holder):
            claim.release()
            return None
        return claim

    def holds(self) -> bool:
        """Whether no other process has taken over."""
        number, holder = _highest_claim(self.folder)
        return number == self.number and holder is not None and holder.get("token") == self.token

    def release(self) -> None:
        """Give the right up."""
        self.ended.set()
        self.beating.join()
        for number in range(1, self.number + 1):  # those that were taken over must not hold again
            (self.folder / f"claim.{number}").unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self.ended.wait(BEAT):
            try:
                os.utime(self.folder / f"claim.{self.number}")
            except FileNotFoundError:
                return  # taken over, or the folder is gone
            except OSError:
                continue  # a network file system may be away for a moment


def held(folder: Path) -> bool:
    """Whether some process has the right to work in a folder, and lives."""
    return _lives(folder, *_highest_claim(folder))


def _highest_claim(folder: Path) -> tuple[int, dict[str, Any] | None]:
    numbers = [int(path.suffix[1:]) for path in folder.glob("claim.*") if path.suffix[1:].isdecimal()]
    return (max(numbers), _read_claim(folder, max(numbers)) or {}) if numbers else (0, None)


def _read_claim(folder: Path, number: int) -> dict[str, Any] | None:
    """What a claim says; nothing if it is just being written, or damaged: then only its date tells."""

    def sign(kept: Any) -> dict[str, Any]:
        SIGN(kept, "a claim")
        return kept

    try:
        return json_files.read(folder / f"claim.{number}", sign)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}


def _lives(folder: Path, number: int, holder: Mapping[str, Any] | None) -> bool:
    """Whether a claim has a holder, neither dead nor long silent. The file system's clock decides, if it can."""
    if holder is None or _is_dead(holder):
        return False
    probe = folder / f".clock.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        try:
            silent = probe.stat().st_mtime - (folder / f"claim.{number}").stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
    except OSError:  # of a file system that is read-only, for one
        return True
    return -AHEAD <= silent <= STALE


def _stirs(folder: Path, number: int, holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a claim that looks abandoned gives a sign of life while it is watched."""
    if _is_dead(holder):
        return False
    path, deadline = folder / f"claim.{number}", time.monotonic() + WATCHED_BEATS * BEAT
    before = _date(path)
    while time.monotonic() < deadline and not _is_dead(holder):
        if _date(path) != before:
            return True
        time.sleep(BEAT / 20)
    return False


def _date(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None  # released: whoever released it was alive


def _is_dead(holder: Mapping[str, Any]) -> bool:
    return holder.get("host") == _host() and not _alive(holder["pid"])


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # there, asking is a signal: only silence tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _host() -> str:
    """This machine since it was started, and the space that process numbers are counted in: names are not unique."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {started} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
