"""Count where and with what the runs of a study were made.

provenance(runs)                            {"versions.torch": {"2.13.0": 120}, "machine.threads": {"1": 120}, …}
differing(provenance(runs), "versions")     the versions that are not the same in all runs
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aimopt.lab.results.run import Run

# What must not differ within a table, because it may change the bits of a result: versions, the commit, the data; of
# the machine its processor, threads, processes, device, torch's arithmetic, and which ways to carry out a step are on
# ("path: fused, CPU"). The host name may differ: two machines may be equal in everything else.
COMPARED = ("versions", "commit", "machine", "data")
IGNORED = ("machine.host",)


def provenance(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    """Per fact of the sessions, the number of runs per value."""
    counts: dict[str, Counter[str]] = {}
    for run in {run.config.identity: run for run in runs}.values():
        facts = {fact for session in run.sessions for fact in _facts(session)}
        for name, value in sorted(facts):
            counts.setdefault(name, Counter())[value] += 1
    return {name: dict(values.most_common()) for name, values in counts.items()}


def differing(counts: Mapping[str, Mapping[str, int]], part: str) -> dict[str, Mapping[str, int]]:
    """The facts of one part of the sessions that are not the same in all runs."""
    return {
        name: values
        for name, values in counts.items()
        if name.split(".")[0] == part and name not in IGNORED and len(values) > 1
    }


def _facts(session: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    versions = session.get("versions") or {}
    for part in COMPARED:
        value = session.get(part)
        if isinstance(value, Mapping):
            own_facts = value if part == "versions" else {k: v for k, v in value.items() if k not in versions}
            yield from ((f"{part}.{name}", str(item)) for name, item in own_facts.items())
        elif value not in (None, ""):
            yield part, str(value)
