"""The tables of docs/reproduction.md, from a store: `python benchmarks/reproduction.py results`.

Each setting twice compared, with AdamW and with RADAR, since the paper's claim is that RADAR is ahead of all.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scipy.stats import spearmanr

from aimopt.lab.analysis import Findings, Standing, analyse
from aimopt.lab.report import words
from aimopt.lab.runs import Run
from aimopt.lab.store import Store
from aimopt.lab.study import Study
from aimopt.lab.tasks import PAPER


def tables(store: Store) -> Iterator[str]:
    """The lines of every table: the comparisons, then the ablations and sweeps, by setting."""
    runs = store.runs()
    for study in sorted(store.studies(), key=lambda s: (s.name != "compare", s.name, PAPER.index(s.task))):
        form = comparison if study.name == "compare" else heat_map if len(study.axes) == 2 else variants
        yield from form(study, runs)
        yield ""


def comparison(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Every optimizer, the best first: its place here and in the paper, and two verdicts."""
    found, against_radar = analyse(study, runs), analyse(dataclasses.replace(study, reference="RADAR"), runs)
    yield f"### {found.title} (`{study.task}`)"
    yield ""
    yield f"| | paper | optimizer | rate | {found.measure.label} | at η₀ | against AdamW | against RADAR |"
    yield "|---|---|---|---|---|---|---|---|"
    for s in found.ranked:
        other = against_radar.standing(s.label)
        cells = (
            str(s.rank),
            str(s.published.rank) if s.published else "",
            s.label,
            f"{s.lr:g}{', edge' if s.edge else ''}",
            spread(found, s),
            words.number(s.untuned_spread.mean, words.decimals_of(found)) if s.untuned_spread else "",
            verdict(found, s),
            verdict(against_radar, other),
        )
        yield f"| {' | '.join(cells)} |"
    if not found.progress.complete:
        return
    yield ""
    yield (
        f"Spearman's correlation of our ranks with the paper's: {agreement(found.ranked):+.2f}; "
        f"without RADAR {agreement(s for s in found.ranked if s.label != 'RADAR'):+.2f}."
    )


def agreement(standings: Iterable[Standing]) -> float:
    """Spearman's correlation of ranks here with those in the paper."""
    ranks = [(s.rank, s.published.rank) for s in standings if s.published]
    return spearmanr(*zip(*ranks, strict=True)).statistic


def variants(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """RADAR without its parts or over an option, at RADAR's rate."""
    found = analyse(study, runs)
    what = f"over {words.axis_name(study.axes[0])}" if study.axes else "without its parts"
    yield f"### {found.title}: RADAR {what}, at {found.standings[0].lr:g}"
    yield ""
    yield f"| | {found.measure.label} | against RADAR |"
    yield "|---|---|---|"
    for s in found.standings:
        yield f"| {s.label} | {spread(found, s)} | {verdict(found, s)} |"


def heat_map(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Means over two options."""
    found = analyse(study, runs)
    assert found.sweep is not None
    down, across = (words.axis_name(axis) for axis in study.axes)
    rows, columns = found.sweep.values
    seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) > 1)}"
    yield f"### {found.title}: {found.measure.label} over {down} and {across}, {seeds}"
    yield ""
    yield f"| | {' | '.join(f'{across} = {column}' for column in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for row in rows:
        standings = [found.standing(found.sweep.labels[row, column]) for column in columns]
        yield f"| {down} = {row} | {' | '.join(mean(found, s) for s in standings)} |"


def verdict(found: Findings, standing: Standing) -> str:
    """In a word or two; of the reference, none."""
    if standing.label == found.study.reference:
        return ""
    said = words.verdict(standing.difference)
    return "cannot tell" if words.is_unsure(said) else said


def spread(found: Findings, standing: Standing) -> str:
    """Mean ± standard deviation."""
    deviation = standing.spread.std if standing.spread else None
    return f"{mean(found, standing)} ± {words.number(deviation, words.decimals_of(found))}"


def mean(found: Findings, standing: Standing) -> str:
    """The mean, or that there is none yet."""
    return words.number(standing.spread.mean if standing.spread else None, words.decimals_of(found))


if __name__ == "__main__":
    print("\n".join(tables(Store(Path(sys.argv[1])))))
