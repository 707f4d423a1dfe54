"""Where and with what the runs were made, counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aimopt.lab.runs import Run

# What must not differ within a table. The host is no part: two machines may be alike in all that matters.
COMPARED = ("versions", "commit", "machine", "data")
IGNORED = ("machine.host",)


def provenance(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    """Each fact of the sessions, and how many runs say what of it: `{"versions.torch": {"2.13.0": 120}}`."""
    counts: dict[str, Counter[str]] = {}
    for run in {run.config.identity: run for run in runs}.values():
        said = {fact for session in run.sessions for fact in _facts(session)}
        for name, value in sorted(said):
            counts.setdefault(name, Counter())[value] += 1
    return {name: dict(values.most_common()) for name, values in counts.items()}


def differing(found: Mapping[str, Mapping[str, int]], part: str) -> dict[str, Mapping[str, int]]:
    """The facts of a part of the sessions that are not the same in all runs."""
    return {
        name: values
        for name, values in found.items()
        if name.split(".")[0] == part and name not in IGNORED and len(values) > 1
    }


def _facts(session: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    versions = session.get("versions") or {}
    for part in COMPARED:
        value = session.get(part)
        if isinstance(value, Mapping):
            said_once = value if part == "versions" else {k: v for k, v in value.items() if k not in versions}
            yield from ((f"{part}.{name}", str(item)) for name, item in said_once.items())
        elif value not in (None, ""):
            yield part, str(value)
