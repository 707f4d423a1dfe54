"""The files of one run, read and checked: `manifest.json`, `result.json` and `metrics.jsonl`."""

import hashlib
import reprlib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from aimopt.lab import config as configs
from aimopt.lab import json_files
from aimopt.lab.config import RunConfig
from aimopt.lab.json_files import Damaged
from aimopt.lab.runs import Run
from aimopt.lab.shapes import Shape, fields, is_number, list_of, map_of, number, one_of, plain, text, whole

_SESSION = fields(
    {},
    {"from_step": whole(0), "versions": map_of(text), "commit": text, "machine": map_of(text), "data": text},
    others=plain,
)
_FACTS = fields({}, {"seconds": number(), "initial": text, "final": text}, others=plain)
MANIFEST = fields({"config": configs.SHAPE, "sessions": list_of(_SESSION)}, {"notes": list_of(text)})
RESULT = fields(
    {"status": one_of("finished", "diverged", "failed"), "reason": text, "facts": _FACTS}, {"metrics": text}
)
UNENDED = {"status": "running", "reason": "", "facts": {}}


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a run was asked, who worked on it, and what was noted."""
    return json_files.read(f"{folder}/manifest.json", _manifest)


def read_run(folder: Path, in_full: Container[str] | None = None) -> Run | None:
    """A run; None where none was begun."""
    try:
        return _read_files(folder, in_full)
    except Damaged:  # or a process at work replaced one file after we read another
        return _read_files(folder, in_full)


def _read_files(folder: Path, in_full: Container[str] | None) -> Run | None:
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        if any((folder / name).exists() for name in ("metrics.jsonl", "result.json")):
            raise Damaged(folder / "manifest.json", "it is missing") from None
        return None
    asked = manifest["config"]
    config = RunConfig(**{"sources": {}, **asked, "lr": float(asked["lr"])})
    if not folder.name.endswith(config.identity[:12]):
        raise Damaged(folder / "manifest.json", f"the configuration is not that of {folder.name}")
    # The result first: it is written after the metrics, and taken away before they change.
    try:
        ended = json_files.read(f"{folder}/result.json", _result)
    except FileNotFoundError:
        ended = UNENDED
    try:
        lines = json_files.read_bytes(f"{folder}/metrics.jsonl")
    except FileNotFoundError:
        lines = b""
    if "metrics" in ended and hashlib.sha256(lines).hexdigest() != ended["metrics"]:
        raise Damaged(folder / "metrics.jsonl", "it is not the one that the result was made with")
    if in_full is not None and config.identity not in in_full:
        return Run(config=config, status=ended["status"], reason=ended["reason"])
    try:
        history = _records(lines)
    except ValueError as error:
        raise Damaged(folder / "metrics.jsonl", str(error)) from None
    return Run(
        config=config,
        status=ended["status"],
        reason=ended["reason"],
        history=history,
        facts=ended["facts"],
        sessions=manifest["sessions"],
        notes=manifest.get("notes", ()),
    )


def _records(lines: bytes) -> list[dict[str, float]]:
    """One record per logged step."""
    records: list[dict[str, float]] = json_files.parsed(b"[" + b",".join(lines.splitlines()) + b"]")
    for index, record in enumerate(records):
        sound = type(record) is dict and all(map(is_number, record.values()))
        if not sound or type(record.get("step")) is not int or record["step"] < 0:
            raise ValueError(f"record {index + 1} must be a step and finite numbers, got {reprlib.repr(record)}")
    return records


def _checked(shape: Shape, what: str) -> Callable[[Any], dict[str, Any]]:
    """The fields of a file as they are, if they have a shape."""

    def check(kept: Any) -> dict[str, Any]:
        shape(kept, what)
        return kept

    return check


_manifest = _checked(MANIFEST, "a manifest")
_result = _checked(RESULT, "a result")
