"""Claims: of many processes, on one or several machines, only one works on a run.

    claim = Claim.take(folder)        None if another process holds the folder
    claim.holds()                     False if another process has taken over in the meantime
    claim.release()
    describe_holder(folder)           Holder("node7", 4711, here=False, alive=True, silent_seconds=2.1); changes nothing

A claim is a file `claim.<number>`; the one with the highest number is valid. A process that finds its holder dead or
silent creates the file with the next number. The file system lets only one process create it, so no process ever
deletes or overwrites the valid claim of another one.

A holder updates the modification time of its claim every few seconds. The time alone does not prove that a holder is
silent, because clocks jump. A claim that looks old, or has a time in the future, is therefore watched for some seconds:
a living holder updates it within that time.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from aimopt.lab.protocol.schema import fields, integer, text
from aimopt.lab.results import json_files

HEARTBEAT_SECONDS = 5.0  # between two updates of a claim
STALE_SECONDS = 60.0  # without an update, after which another process may take over
FUTURE_SECONDS = 5.0  # by which the time of a claim may lie in the future: file servers round
WATCHED_HEARTBEATS = 2.5  # how long a claim with a doubtful time is watched
CLAIM_SHAPE = fields({"token": text, "host": text, "pid": integer(1)})
CLAIM_NAME = re.compile(r"claim\.([1-9][0-9]{0,8})")
LAST_NUMBER = 10**9 - 1  # of a claim; a store from someone else may contain any file name


class Holder(NamedTuple):
    """What is known about the process that claimed a folder."""

    host: str  # empty if the claim is damaged
    pid: int | None
    here: bool  # whether it is a process of this machine: then it is known whether it exists
    alive: bool  # as far as this machine can tell
    silent_seconds: float  # since its last heartbeat, by the clock of this machine

    @property
    def may_exist(self) -> bool:
        """Whether nothing but silence says that it is dead: it may be suspended, or cut off from the file system."""
        return not self.alive and (not self.here or (self.pid is not None and _alive(self.pid)))

    def __str__(self) -> str:
        process = f"process {self.pid}" if self.pid is not None else "a process"
        where = "this machine" if self.here else self.host or "an unknown machine"
        return f"{process} of {where}"


class Claim:
    """The right to work in a folder. A thread sends heartbeats until it is released."""

    def __init__(self, folder: Path, number: int, token: str):
        self.folder, self.number, self.token = folder, number, token
        self.released = threading.Event()
        self.heartbeat = threading.Thread(target=self._send_heartbeats, daemon=True)
        self.heartbeat.start()

    @classmethod
    def take(cls, folder: Path) -> Self | None:
        """Create the next claim; None if the present holder is alive."""
        number, holder = _highest_claim(folder)
        if _seems_alive(folder, number, holder) or (holder is not None and _gives_heartbeat(folder, number, holder)):
            return None
        if number == LAST_NUMBER:
            raise json_files.DamagedFile(folder / f"claim.{number}", "no claim can follow it; delete it")
        token = uuid.uuid4().hex
        content = {"token": token, "host": _host(), "pid": os.getpid()}
        try:
            file = os.open(folder / f"claim.{number + 1}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return None
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(json.dumps(content).encode())
        except OSError as error:  # the error of a full disk does not name the file
            (folder / f"claim.{number + 1}").unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(folder / f"claim.{number + 1}")) from error
        claim = cls(folder, number + 1, token)
        replaced = _read_claim(folder, number)
        if not claim.holds() or (replaced is not None and replaced != holder):
            claim.release()
            return None
        return claim

    def holds(self) -> bool:
        """Whether this claim is still the valid one."""
        number, holder = _highest_claim(self.folder)
        return number == self.number and holder is not None and holder.get("token") == self.token

    def release(self) -> None:
        """Stop the heartbeats and delete the claim."""
        self.released.set()
        self.heartbeat.join()
        for number in _claim_numbers(self.folder):
            if number <= self.number:  # older claims must not become valid again
                with contextlib.suppress(IsADirectoryError, PermissionError):  # a folder of this name is no claim
                    (self.folder / f"claim.{number}").unlink(missing_ok=True)

    def _send_heartbeats(self) -> None:
        while not self.released.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self.folder / f"claim.{self.number}")
            except FileNotFoundError:
                return  # another process took over, or the folder was deleted
            except OSError:
                continue  # a network file system may be unreachable for a moment


def is_claimed(folder: Path) -> bool:
    """Whether a living process holds a claim on a folder."""
    return _seems_alive(folder, *_highest_claim(folder))


def describe_holder(folder: Path) -> Holder | None:
    """The process that claimed a folder, dead or alive; None if there is no claim. Nothing is written.

    Of another machine only the heartbeats are known. They are judged by the clock of this machine, so a clock that is
    wrong by more than a minute makes a living process look silent.
    """
    number, claimed = _highest_claim(folder)
    modified = _modified_ns(folder / f"claim.{number}") if claimed is not None else None
    if claimed is None or modified is None:
        return None
    host, silent = str(claimed.get("host", "")), time.time() - modified / 1e9
    here = host == _host()
    alive = silent <= STALE_SECONDS and not _is_dead(claimed)
    return Holder(host.partition(" ")[0], claimed.get("pid"), here, alive, max(0.0, silent))


def _claim_numbers(folder: Path) -> list[int]:
    names = (CLAIM_NAME.fullmatch(path.name) for path in folder.glob("claim.*"))
    return [int(name[1]) for name in names if name is not None]


def _highest_claim(folder: Path) -> tuple[int, dict[str, Any] | None]:
    numbers = _claim_numbers(folder)
    return (max(numbers), _read_claim(folder, max(numbers)) or {}) if numbers else (0, None)


def _read_claim(folder: Path, number: int) -> dict[str, Any] | None:
    """The content of a claim; empty if it is being written or damaged, then only its modification time counts."""

    def check(content: Any) -> dict[str, Any]:
        CLAIM_SHAPE(content, "a claim")
        return content

    try:
        return json_files.read(folder / f"claim.{number}", check)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}


def _seems_alive(folder: Path, number: int, holder: Mapping[str, Any] | None) -> bool:
    """Whether a claim has a holder that is neither dead nor silent for long, by the clock of the file system."""
    if holder is None or _is_dead(holder):
        return False
    probe = folder / f".clock.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        try:
            silent = probe.stat().st_mtime - (folder / f"claim.{number}").stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
    except OSError:  # for example on a read-only file system: assume that the holder is alive
        return True
    return -FUTURE_SECONDS <= silent <= STALE_SECONDS


def _gives_heartbeat(folder: Path, number: int, holder: Mapping[str, Any]) -> bool:
    """Watch a claim that looks abandoned: whether its holder updates it."""
    if _is_dead(holder):
        return False
    path, deadline = folder / f"claim.{number}", time.monotonic() + WATCHED_HEARTBEATS * HEARTBEAT_SECONDS
    before = _modified_ns(path)
    while time.monotonic() < deadline and not _is_dead(holder):
        if _modified_ns(path) != before:
            return True
        time.sleep(HEARTBEAT_SECONDS / 20)
    return False


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None  # released: its holder was alive


def _is_dead(holder: Mapping[str, Any]) -> bool:
    return holder.get("host") == _host() and not _alive(holder["pid"])


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end the process: only the heartbeat tells
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _host() -> str:
    """An identifier of this machine, its last start and its process namespace: host names are not unique."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
