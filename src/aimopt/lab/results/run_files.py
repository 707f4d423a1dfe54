"""Read and check the files of one run: `manifest.json`, `result.json` and `metrics.jsonl`.

    read_run(folder)              a `Run`; None if the folder holds no run
    read_manifest(folder)         the config, the sessions and the notes

A file that cannot be used raises `DamagedFile`, which names the file and the reason.
"""

import hashlib
import reprlib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from aimopt.lab.protocol import run_config as configs
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.schema import Shape, fields, integer, is_number, list_of, map_of, number, one_of, plain, text
from aimopt.lab.results import json_files
from aimopt.lab.results.json_files import DamagedFile
from aimopt.lab.results.run import LARGEST, Run

_SESSION = fields(
    {},
    {"from_step": integer(0), "versions": map_of(text), "commit": text, "machine": map_of(text), "data": text},
    others=plain,
)
_FACTS = fields({}, {"seconds": number(), "initial": text, "final": text}, others=plain)
MANIFEST = fields({"config": configs.SHAPE, "sessions": list_of(_SESSION)}, {"notes": list_of(text)})
RESULT = fields(
    {"status": one_of("finished", "diverged", "failed"), "reason": text, "facts": _FACTS}, {"metrics": text}
)
NO_RESULT_YET = {"status": "running", "reason": "", "facts": {}}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The config of a run, the processes that worked on it, and the notes."""
    return json_files.read(f"{folder}/manifest.json", _manifest)


def read_run(folder: Path, in_full: Container[str] | None = None) -> Run | None:
    """A run; None if the folder holds no run. `in_full` limits for which identities the history is parsed."""
    try:
        return _read_files(folder, in_full)
    except DamagedFile:  # possibly a process replaced a file while we read another: read again
        return _read_files(folder, in_full)


def _read_files(folder: Path, in_full: Container[str] | None) -> Run | None:
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        if any((folder / name).exists() for name in ("metrics.jsonl", "result.json")):
            raise DamagedFile(folder / "manifest.json", "it is missing") from None
        return None
    fields_of_config = manifest["config"]
    config = RunConfig(**{"sources": {}, **fields_of_config, "lr": float(fields_of_config["lr"])})
    if not folder.name.endswith(config.identity[:12]):
        raise DamagedFile(folder / "manifest.json", f"the configuration is not that of {folder.name}")
    # The result first: it is written after the metrics, and deleted before they change.
    try:
        result = json_files.read(f"{folder}/result.json", _result)
    except FileNotFoundError:
        result = NO_RESULT_YET
    try:
        lines = json_files.read_bytes(f"{folder}/metrics.jsonl")
    except FileNotFoundError:
        lines = b""
    if "metrics" in result and hashlib.sha256(lines).hexdigest() != result["metrics"]:
        raise DamagedFile(folder / "metrics.jsonl", "it is not the one that the result was made with")
    if in_full is not None and config.identity not in in_full:
        return Run(config=config, status=result["status"], reason=result["reason"])
    try:
        history = _records(lines)
    except ValueError as error:
        raise DamagedFile(folder / "metrics.jsonl", str(error)) from None
    return Run(
        config=config,
        status=result["status"],
        reason=result["reason"],
        history=history,
        facts=result["facts"],
        sessions=manifest["sessions"],
        notes=manifest.get("notes", ()),
    )


def _records(lines: bytes) -> list[dict[str, float]]:
    """One record per logged step."""
    records: list[dict[str, float]] = json_files.parse_json(b"[" + b",".join(lines.splitlines()) + b"]")
    for index, record in enumerate(records):
        is_numeric = type(record) is dict and all(is_number(x) and abs(x) <= LARGEST for x in record.values())
        if not is_numeric or type(record.get("step")) is not int or record["step"] < 0:
            raise ValueError(
                f"record {index + 1} must be a step and numbers up to {LARGEST:g}, got {reprlib.repr(record)}"
            )
    return records


def _checked(shape: Shape, name: str) -> Callable[[Any], dict[str, Any]]:
    """A parser that checks the shape of a file's fields and returns them unchanged."""

    def check(content: Any) -> dict[str, Any]:
        shape(content, name)
        return content

    return check


_manifest = _checked(MANIFEST, "a manifest")
_result = _checked(RESULT, "a result")
