"""Every run in a row, for a spreadsheet or pandas."""

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from aimopt.clean_text import one_line
from aimopt.lab.analysis import Findings

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # the wide ones too: some spreadsheets read them as the others
FACTS = ("parameters", "state_bytes", "peak_bytes", "seconds", "initial")


def spreadsheet(findings: Sequence[Findings]) -> str:
    """One row a run and role: what was asked, what came of it, and the last value of everything measured."""
    rows = [row for found in findings for row in _rows(found)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_safe(name) for name in columns])
    for row in rows:
        writer.writerow([_safe(row.get(name)) for name in columns])
    return buffer.getvalue()


def _rows(found: Findings) -> list[dict[str, Any]]:
    rows = []
    for cell, run in found.cells:
        config = cell.config
        last = {name: value for record in run.history for name, value in record.items()} if run else {}
        last = {f"last_{name}": value for name, value in last.items() if name not in ("seconds", "lr")}
        rows.append({
            "study": found.study.name,
            "task": config.task,
            "scale": config.scale,
            "contender": cell.contender,
            "role": cell.role,
            "optimizer": config.optimizer,
            "lr": config.lr,
            "seed": config.seed,
            "steps": config.steps,
            "status": run.status if run else "missing",
            "value": _judged(found, cell.role, run),
            "reason": run.reason if run else "",
            **last,
            **({name: run.facts[name] for name in FACTS if name in run.facts} if run else {}),
            "options": json.dumps(dict(config.options), sort_keys=True),
            "identity": config.identity,
        })  # fmt: skip
    return rows


def _judged(found: Findings, role: str, run: Any) -> float | None:
    if run is None or not run.settled:
        return None
    value: float = run.score(found.score) if role == "search" else run.final(found.measure)
    return None if math.isnan(value) else value


def _safe(value: Any) -> Any:
    """A number as it is; text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if value is None or isinstance(value, int | float):
        return value
    text = one_line(str(value))
    return f"'{text}" if text.startswith(FORMULA) else text
