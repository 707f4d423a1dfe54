"""The tables of docs/reproduction.md, from a store: `python benchmarks/reproduction.py results`.

Each setting twice compared, with AdamW and with RADAR, since the paper's claim is that RADAR is ahead of all.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scipy.stats import spearmanr

from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.protocol.study import Study
from aimopt.lab.report import phrasing
from aimopt.lab.report.verdicts import verdict_kind
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.paper.entries import TASKS


def tables(store: Store) -> Iterator[str]:
    """The lines of every table: the comparisons, then the ablations and sweeps, by setting."""
    runs = store.runs()
    for study in sorted(store.studies(), key=lambda s: (not s.is_comparison, s.name, TASKS.index(s.task))):
        table = comparison if study.is_comparison else heat_map if len(study.axes) == 2 else variants
        yield from table(study, runs)
        yield ""


def comparison(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Every optimizer, the best first: its place here and in the paper, and two verdicts."""
    analysis, against_radar = (
        analyse_study(study, runs),
        analyse_study(dataclasses.replace(study, reference="RADAR"), runs),
    )
    yield f"### {analysis.title} (`{study.task}`)"
    yield ""
    yield f"| | paper | optimizer | rate | {analysis.measure.label} | at η₀ | against AdamW | against RADAR |"
    yield "|---|---|---|---|---|---|---|---|"
    for s in analysis.ranked:
        other = against_radar.standing(s.label)
        cells = (
            str(s.rank),
            str(s.published.rank) if s.published else "",
            s.label,
            f"{s.lr:g}{', edge' if s.edge else ''}",
            spread(analysis, s),
            phrasing.number(s.untuned_spread.mean, phrasing.decimals_of(analysis)) if s.untuned_spread else "",
            verdict(analysis, s),
            verdict(against_radar, other),
        )
        yield f"| {' | '.join(cells)} |"
    if not analysis.progress.complete:
        return
    yield ""
    yield (
        f"Spearman's correlation of our ranks with the paper's: {agreement(analysis.ranked):+.2f}; "
        f"without RADAR {agreement(s for s in analysis.ranked if s.label != 'RADAR'):+.2f}."
    )


def agreement(standings: Iterable[Standing]) -> float:
    """Spearman's correlation of ranks here with those in the paper."""
    ranks = [(s.rank, s.published.rank) for s in standings if s.published]
    return spearmanr(*zip(*ranks, strict=True)).statistic


def variants(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """RADAR without its parts or over an option, at RADAR's rate."""
    analysis = analyse_study(study, runs)
    what = f"over {phrasing.axis_name(study, study.axes[0])}" if study.axes else "without its parts"
    yield f"### {analysis.title}: RADAR {what}, at {analysis.standings[0].lr:g}"
    yield ""
    yield f"| | {analysis.measure.label} | against RADAR |"
    yield "|---|---|---|"
    for s in analysis.standings:
        yield f"| {s.label} | {spread(analysis, s)} | {verdict(analysis, s)} |"


def heat_map(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Means over two options."""
    analysis = analyse_study(study, runs)
    assert analysis.sweep is not None
    down, across = (phrasing.axis_name(study, axis) for axis in study.axes)
    rows, columns = analysis.sweep.values
    seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) > 1)}"
    yield f"### {analysis.title}: {analysis.measure.label} over {down} and {across}, {seeds}"
    yield ""
    yield f"| | {' | '.join(f'{across} = {column}' for column in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for row in rows:
        standings = [analysis.standing(analysis.sweep.labels[row, column]) for column in columns]
        yield f"| {down} = {row} | {' | '.join(mean(analysis, s) for s in standings)} |"


def verdict(analysis: StudyAnalysis, standing: Standing) -> str:
    """In a word or two; of the reference, none."""
    if standing.label == analysis.study.reference:
        return ""
    said = phrasing.verdict(standing.difference)
    return "cannot tell" if verdict_kind(said) == "unsure" else said


def spread(analysis: StudyAnalysis, standing: Standing) -> str:
    """Mean ± standard deviation."""
    deviation = standing.spread.std if standing.spread else None
    return f"{mean(analysis, standing)} ± {phrasing.number(deviation, phrasing.decimals_of(analysis))}"


def mean(analysis: StudyAnalysis, standing: Standing) -> str:
    """The mean, or that there is none yet."""
    return phrasing.number(standing.spread.mean if standing.spread else None, phrasing.decimals_of(analysis))


if __name__ == "__main__":
    print("\n".join(tables(Store(Path(sys.argv[1])))))
