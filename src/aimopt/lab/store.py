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
      set-aside/             folders that could not be read

Every file is written whole under another name and then renamed, so a reader never sees half of one. Nothing depends on
file locks: results of two machines are merged by copying folders.
"""

import contextlib
import hashlib
import json
import os
import re
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from aimopt.lab.claims import Claim, held
from aimopt.lab.config import RunConfig
from aimopt.lab.overhead import Overhead
from aimopt.lab.runs import Run, Status
from aimopt.lab.study import Study


class StoreGone(OSError):
    """The store was deleted or moved while it was in use."""


class Store:
    """A folder of runs. One that `must_exist` is never made again when it is deleted under those who use it."""

    def __init__(self, root: str | Path, *, must_exist: bool = False):
        self.root, self.must_exist = Path(root), must_exist

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
        try:
            return _read(self.folder(config))
        except UNREADABLE:
            return None

    def runs(self) -> dict[str, Run]:
        """Every run that can be read, by identity."""
        found = {}
        for manifest in sorted(self.root.glob("*/*/manifest.json")):
            if manifest.parent.parent.name == "set-aside":
                continue
            try:
                run = _read(manifest.parent)
            except UNREADABLE:
                continue
            found[run.config.identity] = run
        return found

    def aside(self) -> dict[str, str]:
        """The folders that were set aside, and why."""
        reasons = sorted((self.root / "set-aside").glob("*/reason.txt"))
        return {path.parent.name: path.read_text("utf-8").strip() for path in reasons}

    def work(self, config: RunConfig) -> "Work | None":
        """The right to work on a run, unless another process has it; what cannot be read of it is set aside first."""
        folder = self.folder(config)
        self._make(folder)
        claim = Claim.take(folder)
        if claim is None:
            return None
        work = Work(folder, claim)
        reason = _damage(folder)
        if reason:
            work.set_aside(self.root / "set-aside", reason)
        return work

    def at_work(self, config: RunConfig) -> bool:
        """Whether some process works on a run now."""
        return held(self.folder(config))

    def spectate(self, config: RunConfig) -> "Work":
        """A run that another process of the same world writes."""
        return Work(self.folder(config), None)

    def save_study(self, study: Study) -> None:
        """Keep what was asked for."""
        write(self.study_file(study), _json(study.to_dict()))

    def studies(self) -> list[Study]:
        """What was asked for, and can be read."""
        return [study for study in self._studies().values() if isinstance(study, Study)]

    def unreadable_studies(self) -> dict[str, str]:
        """The files of studies that cannot be read, and why; a user's own task may have moved."""
        return {name: study for name, study in self._studies().items() if isinstance(study, str)}

    def save_overhead(self, study: Study, overhead: Overhead) -> None:
        """Keep what the contenders of a study cost."""
        write(self.study_file(study, ".overhead.json"), _json(overhead.to_dict()))

    def overhead(self, study: Study) -> Overhead | None:
        """What the contenders of a study cost, if that was measured."""
        path = self.study_file(study, ".overhead.json")
        return Overhead.from_dict(json.loads(path.read_bytes())) if path.exists() else None

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

    def _studies(self) -> dict[str, Study | str]:
        found: dict[str, Study | str] = {}
        for path in sorted((self.root / "studies").glob("*.json")):
            if not path.name.endswith(".overhead.json"):
                try:
                    found[path.name] = Study.from_dict(json.loads(path.read_bytes()))
                except UNREADABLE as error:
                    found[path.name] = f"{type(error).__name__}: {error}"
        return found


# What reading a file that is missing, half there or changed may raise.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class TakenOver(Exception):
    """Another process works on the run: this one was silent for so long that it was thought dead."""


class Work:
    """A run that this process alone works on, or follows without writing."""

    def __init__(self, folder: Path, claim: Claim | None):
        self._folder, self._claim, self._saved = folder, claim, False

    def begin(self, config: RunConfig) -> None:
        """Say what the run is; an earlier failure is over."""
        if not (self._folder / "manifest.json").exists():
            self._write("manifest.json", _json({"config": config.to_dict(), "sessions": []}))
        if self._claim is not None:
            (self._folder / "result.json").unlink(missing_ok=True)

    def join(self, session: Mapping[str, Any]) -> None:
        """Say who works on the run."""
        if self._claim is not None:
            manifest = json.loads((self._folder / "manifest.json").read_bytes())
            self._write("manifest.json", _json({**manifest, "sessions": [*manifest["sessions"], session]}))

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
            assert damaged is None
            content.seek(0)
            return torch.load(content, weights_only=True, map_location="cpu")
        except Exception:  # torch.load raises whatever the unpickler and the archive reader do
            self.discard_checkpoint()
            return None

    def discard_checkpoint(self) -> None:
        """Put a checkpoint that is of no use out of the way."""
        if self._claim is not None:
            path = self._folder / "checkpoint.pt"
            path.replace(path.with_suffix(".unreadable"))

    def sessions(self) -> list[Mapping[str, Any]]:
        """Who has worked on the run."""
        return json.loads((self._folder / "manifest.json").read_bytes())["sessions"]

    def set_aside(self, where: Path, reason: str) -> None:
        """Move all but the claim out of the way, with the reason; nothing is deleted."""
        target = where / f"{self._folder.parent.name}.{self._folder.name}.{uuid.uuid4().hex[:8]}"
        target.mkdir(parents=True)
        for path in self._folder.iterdir():
            if not path.name.startswith((".", "claim.")):
                path.rename(target / path.name)
        write(target / "reason.txt", f"{reason}\n".encode())

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
        self._write("result.json", _json(ended))
        if status != "failed" and self._claim is not None:
            (self._folder / "checkpoint.pt").unlink(missing_ok=True)

    def release(self) -> None:
        """Let others work on the run."""
        if self._claim is not None:
            self._claim.release()

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


def _read(folder: Path) -> Run:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    config = RunConfig.from_dict(manifest["config"])
    if not folder.name.endswith(config.identity[:12]):
        raise ValueError(f"the configuration is not that of {folder.name}")
    # The result first: it is written after the metrics, and taken away before they change.
    result, metrics = _content(folder / "result.json"), _content(folder / "metrics.jsonl")
    unended: dict[str, Any] = {"status": "running", "reason": "", "facts": {}}
    ended, lines = json.loads(result) if result is not None else unended, metrics or b""
    if "metrics" in ended and hashlib.sha256(lines).hexdigest() != ended["metrics"]:
        raise ValueError("metrics.jsonl is not the one that the result was made with")
    return Run(
        config=config,
        status=ended["status"],
        reason=ended["reason"],
        history=[json.loads(line) for line in lines.splitlines()],
        facts=ended["facts"],
        sessions=manifest["sessions"],
    )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _damage(folder: Path) -> str:
    """Why a run's folder cannot be read; empty when it can, or holds nothing."""
    if not any((folder / name).exists() for name in ("manifest.json", "metrics.jsonl", "result.json")):
        return ""
    try:
        _read(folder)
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return ""


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
