"""Results on disk. All other modules of the lab read and write runs and studies through `Store`.

    store = Store("results")
    store.runs()                            every run by identity
    writer = store.claim_run(config)        a `RunWriter`; None while another process works on the run
    store.unreadable                        files that were skipped, with the reason

    results/
      images-small/
        Mine-seed0-5c0e1f22a9d4/
          manifest.json      the config, and one entry per process that worked on the run
          metrics.jsonl      one record per logged step
          checkpoint.pt      from where to resume; deleted when the run has its result
          result.json        the result; if it exists, the run has ended
          claim.1            the process that works on the run
      studies/               the studies, and the costs of their contenders
      jobs/                  inputs and logs of Slurm jobs, written by submitit
      set-aside/             files that could not be read
      report/                the report, written by `lab.report`

Every file is written under another name and then renamed, so a reader never sees half a file. No file locks are used:
the results of two machines are merged by copying folders. The files themselves are read by `run_files` and
`json_files`; `claims` handles the claims.

A store is data: reading it runs no code that it contains or names. A damaged file is skipped when reading, and listed
in `unreadable`. Before a run is trained again, its damaged files are moved to `set-aside`; nothing is deleted.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import uuid
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from aimopt.atomic_files import is_temporary, write_atomically
from aimopt.lab.protocol import study as studies
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results import json_files
from aimopt.lab.results.claims import Claim, Holder, describe_holder, is_claimed
from aimopt.lab.results.costs import Overhead
from aimopt.lab.results.json_files import DamagedFile, with_checksum
from aimopt.lab.results.run import Run, Status
from aimopt.lab.results.run_files import read_manifest, read_run
from aimopt.messages.reason import Reason

NOT_RUNS = ("set-aside", "studies", "jobs", "report")
LONGEST_NAME = 64  # characters of a name that a file has unchanged: a file name may have three of them
T = TypeVar("T")
P = ParamSpec("P")


class StoreGone(OSError):
    """The store was deleted or moved while it was in use."""


class Store:
    """A folder of runs. With `must_exist` it is not created again if it is deleted while it is in use."""

    def __init__(self, root: str | Path, *, must_exist: bool = False):
        self.root, self.must_exist = Path(root), must_exist
        self.unreadable: dict[str, str] = {}  # files skipped so far, with the reason

    def create(self) -> None:
        """Create the folder if needed and check that it is writable. From now on it must exist."""
        probe = self.root / f".probe.{uuid.uuid4().hex[:8]}"
        try:
            write_atomically(probe, b"a full disk takes empty files")
            probe.unlink()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.root)) from error
        self.must_exist = True

    def check_exists(self) -> None:
        """Raise `StoreGone` if the folder must exist and does not."""
        if self.must_exist and not self.root.is_dir():
            raise StoreGone(
                f"the store {self.root} is gone: it was deleted or moved while it was in use; "
                "restore it, or run the command again to start a new one"
            )

    def folder(self, config: RunConfig) -> Path:
        """The folder of a run."""
        name = f"{_safe_name(config.optimizer)}-seed{int(config.seed)}-{config.identity[:12]}"
        return self.root / f"{_safe_name(config.task)}-{_safe_name(config.scale)}" / name

    def run(self, config: RunConfig) -> Run | None:
        """A run in its present state; None if it was never started or cannot be read."""
        return self._read(read_run, self.folder(config))

    def runs(self, in_full: Container[str] | None = None) -> dict[str, Run]:
        """Every readable run, by identity.

        With `in_full`, only runs with these identities have their history, facts and sessions. The others have config,
        status and reason only, which takes a tenth of the memory.
        """
        by_identity: dict[str, Run] = {}
        for folder in self._run_folders():
            run = self._read(read_run, folder, in_full)
            known = by_identity.get(run.config.identity) if run is not None else None
            if run is not None and (known is None or run.settled or not known.settled):  # a folder may be copied
                by_identity[run.config.identity] = run
        return by_identity

    def set_aside_reasons(self) -> dict[str, str]:
        """Per entry of the folder `set-aside`, the reason why it was moved there."""
        paths = sorted((self.root / "set-aside").glob("*/reason.txt"))
        reasons = {path.parent.name: self._read(json_files.read_bytes, path) for path in paths}
        return {name: (reason or b"").decode(errors="replace").strip() for name, reason in reasons.items()}

    def claim_run(self, config: RunConfig) -> "RunWriter | None":
        """Claim a run; None while another process works on it. Damaged files of the run are set aside first."""
        folder = self.folder(config)
        for part in (folder.parent, folder):
            _unlinked(part)
        self._make_folder(folder)
        claim = Claim.take(folder)
        if claim is None:
            return None
        writer = RunWriter(folder, claim)
        writer.remove_partial_files()
        damage = _damage_reason(folder)
        if damage is not None:
            writer.set_aside(self.root, damage)
        return writer

    def is_claimed(self, config: RunConfig) -> bool:
        """Whether a process works on a run now."""
        return is_claimed(self.folder(config))

    def holder(self, config: RunConfig) -> Holder | None:
        """The process that claimed a run, dead or alive; None if no process did."""
        return describe_holder(self.folder(config))

    def follow_run(self, config: RunConfig) -> "RunWriter":
        """A writer that writes nothing, for a process that trains a run together with the one that claimed it."""
        return RunWriter(self.folder(config), None)

    def save_study(self, study: Study) -> Study:
        """Save a study together with the facts that it takes from code. The result has the name of its file.

        A study that is equal to a stored one, possibly of an older version, keeps the file of that one.
        """
        equal = (stored for stored in self.studies() if stored == study)
        study = dataclasses.replace(study, stored_as=next((stored.stored_as for stored in equal), None))
        path = self.study_file(study)
        self._set_damaged_file_aside(path, lambda content: studies.SHAPE(content, "a study"))
        write_atomically(path, with_checksum(study.to_record()))
        return dataclasses.replace(study, stored_as=path.stem)

    def studies(self, *, trust: bool = False) -> list[Study]:
        """Every readable study. Studies of older versions name code instead of facts; `trust` allows to load it."""
        paths = sorted((self.root / "studies").glob("*.json"))
        paths = [path for path in paths if not path.name.endswith(".overhead.json")]
        studies_or_none = [
            self._read(json_files.read, path, functools.partial(Study.from_record, trust=trust, stored_as=path.stem))
            for path in paths
        ]
        return [study for study in studies_or_none if study is not None]

    def save_overhead(self, study: Study, overhead: Overhead) -> None:
        """Save the measured costs of a study's contenders."""
        path = self.study_file(study, ".overhead.json")
        self._set_damaged_file_aside(path, functools.partial(_parse_overhead, study))
        write_atomically(path, with_checksum(overhead.to_dict()))

    def overhead(self, study: Study) -> Overhead | None:
        """The costs of a study's contenders; None if they were not measured or cannot be read."""
        return self._read(
            json_files.read, self.study_file(study, ".overhead.json"), functools.partial(_parse_overhead, study)
        )

    def study_file(self, study: Study, ending: str = ".json") -> Path:
        """The file of a study. Two different studies have different files."""
        if study.stored_as is not None:
            return self.root / "studies" / f"{study.stored_as}{ending}"
        digest = hashlib.sha256(_json(study.to_dict())).hexdigest()[:8]
        name = f"{_safe_name(study.name)}-{_safe_name(study.task)}-{_safe_name(study.scale)}-{digest}{ending}"
        return self.root / "studies" / name

    def _make_folder(self, folder: Path) -> None:
        """Create the folder of a run and its parent."""
        if not self.must_exist:
            self.root.mkdir(parents=True, exist_ok=True)
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            self.check_exists()
            raise

    def _read(self, read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """The result of `read`; None if the file is missing or damaged. Damage is noted in `unreadable`."""
        try:
            return read(*arguments, **named)
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            self.unreadable[error.path.relative_to(self.root).as_posix()] = error.reason
            return None

    def _set_damaged_file_aside(self, path: Path, parse: Callable[[Any], object]) -> None:
        """Set a damaged file aside before it is overwritten."""
        try:
            json_files.read(path, parse)
        except FileNotFoundError:
            return
        except DamagedFile as error:
            _set_aside(self.root, f"{path.parent.name}.{path.stem}", [path], Reason(f"{path.name}: {error.reason}"))

    def _run_folders(self) -> Iterator[Path]:
        """The folders that may contain a run. Links are skipped, and listed in `unreadable`."""
        for group in _subfolders(self.root):
            if group.name not in NOT_RUNS and self._read(_unlinked, group) is not None:
                yield from (folder for folder in _subfolders(group) if self._read(_unlinked, folder) is not None)


class ClaimLost(Exception):
    """Another process has taken the run over, because this one sent no heartbeat for too long."""


class RunWriter:
    """Writes the files of a run that this process has claimed; without a claim it writes nothing."""

    def __init__(self, folder: Path, claim: Claim | None):
        self._folder, self._claim, self._checkpoint_tested = folder, claim, False

    def begin(self, config: RunConfig) -> None:
        """Write the config, and delete the result of an earlier failure."""
        if not (self._folder / "manifest.json").exists():
            self._write("manifest.json", with_checksum({"config": config.to_dict(), "sessions": []}))
        if self._claim is not None:
            (self._folder / "result.json").unlink(missing_ok=True)

    def add_session(self, session: Mapping[str, Any]) -> None:
        """Add the session of this process to the manifest."""
        manifest = self._manifest()
        self._write("manifest.json", with_checksum({**manifest, "sessions": [*manifest["sessions"], session]}))

    def add_note(self, text: str) -> None:
        """Add an event that a reader of the result should know."""
        manifest = self._manifest()
        self._write("manifest.json", with_checksum({**manifest, "notes": [*manifest.get("notes", []), text]}))

    def notes(self) -> list[str]:
        """The notes so far."""
        return self._manifest().get("notes", [])

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write the history so far, for others who watch the run."""
        self._write("metrics.jsonl", _json_lines(history), durable=False)

    def write_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save a checkpoint. The first one is loaded again as a test that it can be resumed."""
        content = _torch_bytes(state)
        if not self._checkpoint_tested:
            torch.load(BytesIO(content), weights_only=True, map_location="cpu")
            self._checkpoint_tested = True
        self._write("checkpoint.pt", content)

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint. One that cannot be read is renamed, and the run starts from the beginning."""
        try:
            content = BytesIO(json_files.read_bytes(self._folder / "checkpoint.pt", math.inf))
            damaged = zipfile.ZipFile(content).testzip()  # torch.load does not verify the checksums
            if damaged is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
            content.seek(0)
            return torch.load(content, weights_only=True, map_location="cpu")
        except FileNotFoundError:
            return None
        except Exception as error:  # torch.load raises all errors of the unpickler and the archive reader
            self.discard_checkpoint(error)
            return None

    def discard_checkpoint(self, error: Exception) -> None:
        """Rename a checkpoint that cannot be resumed, and note the reason."""
        if self._claim is not None:
            path = self._folder / "checkpoint.pt"
            path.replace(path.with_suffix(".unreadable"))
            self.add_note(f"Its checkpoint could not be resumed ({explain(error)[:200]}), so it was started again.")

    def sessions(self) -> list[Mapping[str, Any]]:
        """The processes that worked on the run so far."""
        return self._manifest()["sessions"]

    def set_aside(self, root: Path, reason: Reason) -> None:
        """Move all files except the claim to the folder `set-aside`, with the reason."""
        paths = [path for path in self._folder.iterdir() if not path.name.startswith((".", "claim."))]
        _set_aside(root, f"{self._folder.parent.name}.{self._folder.name}", paths, reason)

    def remove_partial_files(self) -> None:
        """Delete files that a killed process left half written. Only this process may write here now."""
        for path in self._folder.iterdir():
            if is_temporary(path):
                path.unlink(missing_ok=True)

    def write_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Save the trained weights."""
        self._write("weights.pt", _torch_bytes(dict(weights)))

    def write_result(
        self, status: Status, reason: str, history: Sequence[Mapping[str, float]], facts: Mapping[str, Any]
    ) -> None:
        """Write the result. A failed run keeps its checkpoint, because it may be tried again."""
        lines = _json_lines(history)
        self._write("metrics.jsonl", lines)
        result = {"status": status, "reason": reason, "facts": facts, "metrics": hashlib.sha256(lines).hexdigest()}
        self._write("result.json", with_checksum(result))
        if status != "failed" and self._claim is not None:
            (self._folder / "checkpoint.pt").unlink(missing_ok=True)

    def release(self) -> None:
        """Release the claim."""
        if self._claim is not None:
            self._claim.release()

    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self._folder)

    def _write(self, name: str, content: bytes | memoryview, *, durable: bool = True) -> None:
        if self._claim is None:
            return
        if not self._claim.holds():
            raise ClaimLost(f"another process has taken over the run in {self._folder}")
        write_atomically(self._folder / name, content, durable=durable)


def _parse_overhead(study: Study, content: Any) -> Overhead:
    overhead = Overhead.from_dict(content)
    unknown = {cost.label for cost in overhead.costs} - {contender.label for contender in study.contenders}
    if unknown or overhead.reference != study.reference:
        raise ValueError(f"it was measured for another study: {', '.join(sorted(unknown)) or overhead.reference}")
    return overhead


def _unlinked(folder: Path) -> Path:
    """The folder, if it is no symbolic link: a store may come from someone else, and files are deleted and moved."""
    if folder.is_symlink():
        raise DamagedFile(folder, "it is a symbolic link; put the folder itself here, or delete the link")
    return folder


def _damage_reason(folder: Path) -> Reason | None:
    """Why the folder of a run cannot be read; None if it can be read or contains no run."""
    try:
        read_run(folder)
    except DamagedFile as error:
        return Reason(f"{error.path.name}: {error.reason}")
    return None


def _set_aside(root: Path, name: str, paths: Sequence[Path], reason: Reason) -> None:
    target = root / "set-aside" / f"{name}.{uuid.uuid4().hex[:8]}"
    target.mkdir(parents=True)
    for path in paths:
        path.rename(target / path.name)
    write_atomically(target / "reason.txt", f"{reason}\n".encode())


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / name for name in sorted(e.name for e in entries if e.is_dir() and e.name[0] != ".")]
    except OSError:
        return []


def _safe_name(text: str) -> str:
    """A name for a folder: the text itself if it is safe and not too long, otherwise a safe form with a checksum."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")
    if plain == text and len(text) <= LONGEST_NAME:
        return text
    return f"{plain[:40]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _torch_bytes(state: Mapping[str, Any]) -> memoryview:
    content = BytesIO()
    torch.save(state, content)
    return content.getbuffer()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _json_lines(history: Sequence[Mapping[str, float]]) -> bytes:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in history).encode()
