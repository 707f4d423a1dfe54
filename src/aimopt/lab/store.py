"""Results on disk: one folder a run, and only this module touches it.

    results/
      digits-demo/
        RADAR-seed0-5c0e1f22a9d4/
          manifest.json      the configuration, and every process that worked on the run
          metrics.jsonl      one record a logged step
          checkpoint.pt      where to resume; gone once the run is finished
          result.json        what came of it: its presence says that the run is over
          claim.1            the process at work
      studies/               what was asked for
      jobs/                  what jobs of Slurm were told and said
      set-aside/             what could not be read

Every file is written whole under another name and then renamed, so a reader never sees half of one. Nothing depends on
file locks: results of two machines are merged by copying folders.

A store is data: reading it runs no code that came with it or that it names. A reader passes over a file that is damaged
and says so in `unreadable`; whoever makes a run anew first puts what is in its way into `set-aside`.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import uuid
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from aimopt.lab import json_files
from aimopt.lab import study as studies
from aimopt.lab.claims import Claim, held
from aimopt.lab.config import RunConfig
from aimopt.lab.json_files import Damaged, sealed
from aimopt.lab.overhead import Overhead
from aimopt.lab.run_files import read_manifest, read_run
from aimopt.lab.runs import Run, Status
from aimopt.lab.study import Study

PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}")  # the names of files that are not yet in place
NOT_RUNS = ("set-aside", "studies", "jobs", "report")
T = TypeVar("T")
P = ParamSpec("P")


class StoreGone(OSError):
    """The store was deleted or moved while it was in use."""


class Store:
    """A folder of runs. One that `must_exist` is never made again when it is deleted under those who use it."""

    def __init__(self, root: str | Path, *, must_exist: bool = False):
        self.root, self.must_exist = Path(root), must_exist
        self.unreadable: dict[str, str] = {}  # the files that reading passed over so far, and what is wrong with them

    def create(self) -> None:
        """Make the folder unless it is there, and see whether it can be written to; from now on it must exist."""
        probe = self.root / f".probe.{uuid.uuid4().hex[:8]}"
        try:
            write(probe, b"a full disk takes empty files")
            probe.unlink()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.root)) from error
        self.must_exist = True

    def check_exists(self) -> None:
        """Raise `StoreGone` if the folder should be there and is not."""
        if self.must_exist and not self.root.is_dir():
            raise StoreGone(
                f"the store {self.root} is gone: it was deleted or moved while it was in use; "
                "put it back, or give the command again to begin anew"
            )

    def folder(self, config: RunConfig) -> Path:
        """Where a run is kept."""
        name = f"{_slug(config.optimizer)}-seed{int(config.seed)}-{config.identity[:12]}"
        return self.root / f"{_slug(config.task)}-{_slug(config.scale)}" / name

    def run(self, config: RunConfig) -> Run | None:
        """A run, as far as it has come; one that cannot be read counts as never begun."""
        return self._read(read_run, self.folder(config))

    def runs(self, in_full: Container[str] | None = None) -> dict[str, Run]:
        """Every run that can be read, by identity.

        With `in_full`, only these identities are read with their curves, facts and sessions; of the others, what is
        asked, the status and the reason, which takes a tenth of the memory.
        """
        by_identity = {}
        for folder in self._folders():
            run = self._read(read_run, folder, in_full)
            if run is not None:
                by_identity[run.config.identity] = run
        return by_identity

    def aside(self) -> dict[str, str]:
        """What was set aside, and why."""
        reasons = sorted((self.root / "set-aside").glob("*/reason.txt"))
        read = {path.parent.name: self._read(json_files.read_bytes, path) for path in reasons}
        return {name: (reason or b"").decode(errors="replace").strip() for name, reason in read.items()}

    def work(self, config: RunConfig) -> "Work | None":
        """The right to work on a run, unless another process has it; what cannot be read of it is set aside first."""
        folder = self.folder(config)
        self._make(folder)
        claim = Claim.take(folder)
        if claim is None:
            return None
        work = Work(folder, claim)
        work.remove_partial_files()
        reason = _damage(folder)
        if reason:
            work.set_aside(self.root, reason)
        return work

    def at_work(self, config: RunConfig) -> bool:
        """Whether some process works on a run now."""
        return held(self.folder(config))

    def spectate(self, config: RunConfig) -> "Work":
        """A run that another process of the same world writes."""
        return Work(self.folder(config), None)

    def save_study(self, study: Study) -> None:
        """Keep what was asked for, with what it takes from code."""
        path = self.study_file(study)
        self._make_way(path, lambda kept: studies.SHAPE(kept, "a study"))
        write(path, sealed(study.to_record()))

    def studies(self, *, trust: bool = False) -> list[Study]:
        """What was asked for, and can be read; `trust` loads the code that studies of older versions name."""
        paths = sorted((self.root / "studies").glob("*.json"))
        paths = [path for path in paths if not path.name.endswith(".overhead.json")]
        make = functools.partial(Study.from_record, trust=trust)
        read = [self._read(json_files.read, path, make) for path in paths]
        return [study for study in read if study is not None]

    def save_overhead(self, study: Study, overhead: Overhead) -> None:
        """Keep what the contenders of a study cost."""
        path = self.study_file(study, ".overhead.json")
        self._make_way(path, functools.partial(_overhead_of, study))
        write(path, sealed(overhead.to_dict()))

    def overhead(self, study: Study) -> Overhead | None:
        """What the contenders of a study cost, if that was measured and can be read."""
        return self._read(
            json_files.read, self.study_file(study, ".overhead.json"), functools.partial(_overhead_of, study)
        )

    def study_file(self, study: Study, ending: str = ".json") -> Path:
        """Where what was asked for is kept: another question, another file."""
        digest = hashlib.sha256(_json(study.to_dict())).hexdigest()[:8]
        name = f"{_slug(study.name)}-{_slug(study.task)}-{_slug(study.scale)}-{digest}{ending}"
        return self.root / "studies" / name

    def _make(self, folder: Path) -> None:
        """Make the folder of a run, and that of its task."""
        if not self.must_exist:
            self.root.mkdir(parents=True, exist_ok=True)
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            self.check_exists()
            raise

    def _read(self, read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """What `read` gives; None where there is no file, or a damaged one, which is noted."""
        try:
            return read(*arguments, **named)
        except FileNotFoundError:
            return None
        except Damaged as error:
            self.unreadable[error.path.relative_to(self.root).as_posix()] = error.reason
            return None

    def _make_way(self, path: Path, make: Callable[[Any], object]) -> None:
        """Set a damaged file aside before another takes its place."""
        try:
            json_files.read(path, make)
        except FileNotFoundError:
            return
        except Damaged as error:
            _set_aside(self.root, f"{path.parent.name}.{path.stem}", [path], f"{path.name}: {error.reason}")

    def _folders(self) -> Iterator[Path]:
        """The folders that may be runs."""
        for group in _subfolders(self.root):
            if group.name not in NOT_RUNS:
                yield from _subfolders(group)


class TakenOver(Exception):
    """Another process works on the run: this one was silent for so long that it was thought dead."""


class Work:
    """A run that this process alone works on, or follows without writing."""

    def __init__(self, folder: Path, claim: Claim | None):
        self._folder, self._claim, self._saved = folder, claim, False

    def begin(self, config: RunConfig) -> None:
        """Say what the run is; an earlier failure is over."""
        if not (self._folder / "manifest.json").exists():
            self._write("manifest.json", sealed({"config": config.to_dict(), "sessions": []}))
        if self._claim is not None:
            (self._folder / "result.json").unlink(missing_ok=True)

    def join(self, session: Mapping[str, Any]) -> None:
        """Say who works on the run."""
        manifest = self._manifest()
        self._write("manifest.json", sealed({**manifest, "sessions": [*manifest["sessions"], session]}))

    def note(self, words: str) -> None:
        """Say what happened that a reader of the result should know."""
        manifest = self._manifest()
        self._write("manifest.json", sealed({**manifest, "notes": [*manifest.get("notes", []), words]}))

    def notes(self) -> list[str]:
        """What was noted so far."""
        return self._manifest().get("notes", [])

    def metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Show how the run goes."""
        self._write("metrics.jsonl", _lines(history), lasting=False)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where to resume; the first time, see whether it could be."""
        content = _packed(state)
        if not self._saved:
            torch.load(BytesIO(content), weights_only=True, map_location="cpu")
            self._saved = True
        self._write("checkpoint.pt", content)

    def resume(self) -> dict[str, Any] | None:
        """The last checkpoint; one that cannot be read is put out of the way, and the run begins anew."""
        path = self._folder / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            content = BytesIO(path.read_bytes())
            damaged = zipfile.ZipFile(content).testzip()  # torch.load does not check the sums it finds
            if damaged is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
            content.seek(0)
            return torch.load(content, weights_only=True, map_location="cpu")
        except Exception as error:  # torch.load raises whatever the unpickler and the archive reader do
            self.discard_checkpoint(error)
            return None

    def discard_checkpoint(self, error: Exception) -> None:
        """Put a checkpoint that cannot be resumed out of the way, with a note of the reason."""
        if self._claim is not None:
            path = self._folder / "checkpoint.pt"
            path.replace(path.with_suffix(".unreadable"))
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self.note(f"Its checkpoint could not be resumed ({reason}), and it was begun again.")

    def sessions(self) -> list[Mapping[str, Any]]:
        """Who has worked on the run."""
        return self._manifest()["sessions"]

    def set_aside(self, root: Path, reason: str) -> None:
        """Move all but the claim out of the way, with the reason; nothing is deleted."""
        paths = [path for path in self._folder.iterdir() if not path.name.startswith((".", "claim."))]
        _set_aside(root, f"{self._folder.parent.name}.{self._folder.name}", paths, reason)

    def remove_partial_files(self) -> None:
        """Remove what `write` was at when a process was killed: only this process may write here now."""
        for path in self._folder.iterdir():
            if PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep what was learned."""
        self._write("weights.pt", _packed(dict(weights)))

    def result(
        self, status: Status, reason: str, history: Sequence[Mapping[str, float]], facts: Mapping[str, Any]
    ) -> None:
        """End the run. One that failed keeps its checkpoint: it may be tried again."""
        lines = _lines(history)
        self._write("metrics.jsonl", lines)
        ended = {"status": status, "reason": reason, "facts": facts, "metrics": hashlib.sha256(lines).hexdigest()}
        self._write("result.json", sealed(ended))
        if status != "failed" and self._claim is not None:
            (self._folder / "checkpoint.pt").unlink(missing_ok=True)

    def release(self) -> None:
        """Let others work on the run."""
        if self._claim is not None:
            self._claim.release()

    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self._folder)

    def _write(self, name: str, content: bytes | memoryview, *, lasting: bool = True) -> None:
        if self._claim is None:
            return
        if not self._claim.holds():
            raise TakenOver(f"another process works in {self._folder}")
        write(self._folder / name, content, lasting=lasting)


def write(path: Path, content: bytes | memoryview, *, lasting: bool = True) -> None:
    """Write a file whole or not at all; `lasting` waits until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):  # that of a full disk does not say which file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _overhead_of(study: Study, kept: Any) -> Overhead:
    overhead = Overhead.from_dict(kept)
    others = {cost.label for cost in overhead.costs} - {contender.label for contender in study.contenders}
    if others or overhead.reference != study.reference:
        raise ValueError(f"it was measured for another study: {', '.join(sorted(others)) or overhead.reference}")
    return overhead


def _damage(folder: Path) -> str:
    """Why a run's folder cannot be read; empty when it can, or holds nothing."""
    try:
        read_run(folder)
    except Damaged as error:
        return f"{error.path.name}: {error.reason}"
    return ""


def _set_aside(root: Path, name: str, paths: Sequence[Path], reason: str) -> None:
    target = root / "set-aside" / f"{name}.{uuid.uuid4().hex[:8]}"
    target.mkdir(parents=True)
    for path in paths:
        path.rename(target / path.name)
    write(target / "reason.txt", f"{reason}\n".encode())


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / name for name in sorted(e.name for e in entries if e.is_dir() and e.name[0] != ".")]
    except OSError:
        return []


def _slug(text: str) -> str:
    """A name for a folder: the text itself where it is harmless."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")
    if plain == text:
        return text
    return f"{plain[:40]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _packed(state: Mapping[str, Any]) -> memoryview:
    content = BytesIO()
    torch.save(state, content)
    return content.getbuffer()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _lines(history: Sequence[Mapping[str, float]]) -> bytes:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in history).encode()
