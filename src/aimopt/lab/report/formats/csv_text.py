r"""CSV with one row per run, for a spreadsheet program or pandas.

csv_text([analysis])          "study,task,scale,contender,role,…\ncompare,…"
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from aimopt.lab.analysis.study_analysis import StudyAnalysis, judged_value
from aimopt.lab.protocol.schedule import Role
from aimopt.lab.results.run import Run
from aimopt.messages.clean_text import one_line

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # full-width forms too: some programs treat them the same
FACTS = ("parameters", "state_bytes", "peak_bytes", "seconds", "initial")


def csv_text(analyses: Sequence[StudyAnalysis]) -> str:
    """One row per run and role: its config, its result, and the last value of every measure."""
    rows = [row for analysis in analyses for row in run_rows(analysis)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_safe(name) for name in columns])
    for row in rows:
        writer.writerow([_safe(row.get(name)) for name in columns])
    return buffer.getvalue()


def run_rows(analysis: StudyAnalysis) -> list[dict[str, Any]]:
    """One row per run and role of a study."""
    rows = []
    for cell, run in analysis.cells:
        config = cell.config
        last = {name: value for record in run.history for name, value in record.items()} if run else {}
        last = {f"last_{name}": value for name, value in last.items() if name not in ("seconds", "lr")}
        rows.append({
            "study": analysis.study.name,
            "task": config.task,
            "scale": config.scale,
            "contender": cell.contender,
            "role": cell.role,
            "optimizer": config.optimizer,
            "lr": config.lr,
            "seed": config.seed,
            "steps": config.steps,
            "status": run.status if run else "missing",
            "value": _value(analysis, cell.role, run),
            "reason": run.reason if run else "",
            **last,
            **({name: run.facts[name] for name in FACTS if name in run.facts} if run else {}),
            "options": json.dumps(dict(config.options), sort_keys=True),
            "identity": config.identity,
        })  # fmt: skip
    return rows


def _value(analysis: StudyAnalysis, role: Role, run: Run | None) -> float | None:
    return judged_value(run, role, analysis.score, analysis.measure) if run is not None and run.settled else None


def _safe(value: Any) -> Any:
    """A number unchanged. Text that a spreadsheet program would take for a formula gets a leading apostrophe."""
    if value is None or isinstance(value, int | float):
        return value
    text = one_line(str(value))
    return f"'{text}" if text.startswith(FORMULA) else text
