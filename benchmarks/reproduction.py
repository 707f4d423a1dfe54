"""The tables of the pages that show results: `python benchmarks/reproduction.py STORE`.

In the paper's protocol each setting is compared twice, with AdamW and with RADAR, since the paper's claim is that RADAR
is ahead of all. With seeds until decided there are two studies per setting: against AdamW, and against AdamW with a
tuned β1; in some settings there is a third, of RADAR's rivals against it. Table 1 of the paper is one study per
setting, and so is an exploration.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scipy import stats

import evidence
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.explored import Explored
from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.protocol import lengths
from aimopt.lab.protocol.exploration import Exploration
from aimopt.lab.protocol.study import COMPARISON, Study
from aimopt.lab.report import phrasing
from aimopt.lab.report.tables import saved_cell
from aimopt.lab.report.verdicts import verdict_kind
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.lab.stats.equivalent_steps import equivalent_steps
from aimopt.lab.stats.paired import LEVEL
from aimopt.lab.stats.pooled import pooled_differences
from aimopt.lab.stats.sequential import relative_gains
from aimopt.lab.stats.values import Better, Floats
from aimopt.paper.entries import TASKS
from aimopt.paper.presets import CORRECTIONS, GEOMETRIES
from recomputation.mini import P_LIMITS, SHOWN

ORDER = (*TASKS, "pendulum-sac")  # the paper's settings, and one more
REFERENCES = ("AdamW", evidence.CONTROL)
IN_OTHER_TABLES = (evidence.IN_CONDITIONS_NAME, lengths.NAME)
WHAT_IS_COMPARED = {evidence.CONFIRMATION: "confirmed", COMPARISON: "against RADAR"}
POOLED_HEAD = ("| optimizer | against | settings | ahead on | p | |", "|---|---|---|---|---|---|")
TABLE1_LOOKS = 2  # all cells were looked at after five seeds, and then after ten


def tables(store: Store) -> Iterator[str]:
    """The lines of every table: the comparisons, then the ablations and sweeps, by setting."""
    runs = store.runs()
    studies = sorted(store.studies(), key=lambda s: (not s.is_comparison, s.name, ORDER.index(s.task)))
    in_looks = [s for s in studies if s.looks and s.name == COMPARISON and s.reference in REFERENCES]
    if in_looks:
        yield from tables_in_looks(in_looks, runs)
    rivals = [s for s in studies if s.looks and s.name == COMPARISON and s.reference == "RADAR"]
    yield from rivals_together([analyse_study(study, runs) for study in rivals])
    for study in studies:
        if study not in in_looks and study.name not in IN_OTHER_TABLES:
            yield from _table_of(study)(study, runs)
            yield ""
    yield from conditions(runs)
    yield ""
    for exploration in evidence.explored():
        yield from explored(exploration, runs)
        yield ""


def _table_of(study: Study) -> Callable[[Study, Mapping[str, Run]], Iterator[str]]:
    if study.name == "table1":
        return table1
    if study.looks:
        return against_radar
    return comparison if study.is_comparison else heat_map if len(study.axes) == 2 else variants


def table1(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Geometry × correction; a gain is over the direct cell of its row, in an interval for all cells of the table."""
    analysis = analyse_study(study, runs)
    if not analysis.progress.complete:
        return
    yield f"### {analysis.title} (`{study.task}`)"
    yield ""
    direct, *others = CORRECTIONS
    yield f"| geometry | {direct}, {analysis.measure.label} | {' | '.join(others)} |"
    yield f"|---|---|{'---|' * len(others)}"
    level = LEVEL / (len(GEOMETRIES) * len(others)) / TABLE1_LOOKS
    for geometry in GEOMETRIES:
        first, *rest = (analysis.standing(f"{geometry} + {name}") for name in CORRECTIONS)
        cells = [gain_interval(gains_over(first, other, analysis.measure.better), level) for other in rest]
        yield f"| {geometry} | {spread(analysis, first)} | {' | '.join(cells)} |"
    yield ""
    yield f"<!-- table: rates of {study.task} -->"
    yield ""
    yield f"| learning rate | {' | '.join(CORRECTIONS)} |"
    yield f"|---|{'---|' * len(CORRECTIONS)}"
    for geometry in GEOMETRIES:
        chosen = (analysis.standing(f"{geometry} + {name}") for name in CORRECTIONS)
        yield f"| {geometry} | {' | '.join(rate(one) for one in chosen)} |"


def gains_over(reference: Standing, standing: Standing, better: Better) -> Floats:
    values, reference_values = ([run.value for run in s.finals] for s in (standing, reference))
    return relative_gains(values, reference_values, better)


def gain_interval(gains: Floats, level: float) -> str:
    """The mean gain in per cent, and its interval by Student's t."""
    low, high = stats.t.interval(1 - level, len(gains) - 1, gains.mean(), stats.sem(gains))
    return f"{100 * gains.mean():+.1f} % [{100 * low:+.1f}, {100 * high:+.1f}]"


def tables_in_looks(studies: Sequence[Study], runs: Mapping[str, Run]) -> Iterator[str]:
    """The settings in short, then every contender of each."""
    analyses: dict[str, list[StudyAnalysis]] = {}
    for study in sorted(studies, key=lambda s: s.reference != REFERENCES[0]):
        analysis = analyse_study(study, runs)
        if analysis.progress.complete:
            analyses.setdefault(study.task, []).append(analysis)
    analyses = {task: pair for task, pair in analyses.items() if len(pair) == len(REFERENCES)}
    yield "| setting | paper | AdamW | RADAR | RADAR against AdamW | against AdamW, β1 tuned | both with β1 tuned |"
    yield "|---|---|---|---|---|---|---|"
    for pair in analyses.values():
        papers = [pair[0].standing(label).published for label in ("AdamW", "RADAR")]
        cells = [
            pair[0].title,
            " → ".join(f"{p.mean:g}" for p in papers if p),
            *(mean(pair[0], most_seeds(pair, label)) for label in ("AdamW", "RADAR")),
            *(decision(analysis.standing("RADAR")) for analysis in pair),
            decision(pair[-1].standing("RADAR(tune='beta1')")),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| setting | AdamW, half the steps | AdamW | AdamW, twice the steps | RADAR | fewer steps than AdamW |"
    yield "|---|---|---|---|---|---|"
    yield from filter(None, (in_steps(pair, runs) for pair in analyses.values()))
    yield ""
    yield from all_together([pair for pair in analyses.values() if pair[0].standing("RADAR").published])
    yield ""
    for pair in analyses.values():
        yield from comparison_in_looks(pair)
        yield ""


def all_together(pairs: Sequence[Sequence[StudyAnalysis]]) -> Iterator[str]:
    """One test per reference and contender over all settings, with the seeds of the first look.

    All contenders have those; later seeds are only those of contenders that were not decided before.
    """
    if len(pairs) < 2:
        return
    yield from POOLED_HEAD
    for number, reference in enumerate(REFERENCES):
        labels = [label for label in evidence.CORE if label not in REFERENCES[:number]]
        yield from pooled_rows([pair[number] for pair in pairs], labels, reference)


def rivals_together(analyses: Sequence[StudyAnalysis]) -> Iterator[str]:
    """One test per rival of RADAR, over all settings that have them."""
    complete = [analysis for analysis in analyses if analysis.progress.complete]
    if len(complete) < 2:
        return
    yield "### All rivals together"
    yield ""
    yield from POOLED_HEAD
    yield from pooled_rows(complete, [standing.label for standing in complete[0].standings], "RADAR")
    yield ""


def pooled_rows(analyses: Sequence[StudyAnalysis], labels: Sequence[str], reference: str) -> Iterator[str]:
    """These contenders against a reference, over one comparison per setting."""
    better = {analysis.study.task: analysis.measure.better for analysis in analyses}
    values = {analysis.study.task: first_look(analysis, labels) for analysis in analyses}
    for label, d in pooled_differences(values, reference, better).items():
        p = next((f"<{limit:g}" for limit in P_LIMITS if d.holm_p < limit), f"{d.holm_p:.2f}")
        names = (SHOWN.get(name, name) for name in (label, reference))
        yield f"| {' | '.join([*names, str(len(d.tasks)), f'{d.ahead} of {d.pairs}', p, d.verdict])} |"


def first_look(analysis: StudyAnalysis, labels: Sequence[str]) -> dict[str, dict[int, float]]:
    """The values of these contenders by seed, up to the first look."""
    seeds = analysis.study.seeds[: analysis.study.looks[0]]
    by_label = {label: values_by_seed(analysis.standing(label)) for label in labels}
    return {label: {seed: by_seed[seed] for seed in seeds} for label, by_seed in by_label.items()}


def in_steps(pair: Sequence[StudyAnalysis], runs: Mapping[str, Run]) -> str:
    """A row: AdamW at half, usual and twice the steps, RADAR at the usual ones, and the steps that it saves."""
    first, steps = pair[0], pair[0].study.facts.settings["steps"]
    others = [analyse_study(study, runs) for study in evidence.at_other_lengths(first.study, lambda: runs)]
    if not others or not all(other.progress.complete for other in others):
        return ""
    radar = most_seeds(pair, "RADAR")
    by_length = {other.study.facts.settings["steps"]: other.standing("AdamW") for other in others}
    by_length[steps] = most_seeds(pair, "AdamW")
    values = {length: values_by_seed(standing) for length, standing in by_length.items()}
    saved = saved_cell(equivalent_steps(values, values_by_seed(radar), steps, first.measure.better))
    means = [mean(first, standing) for standing in (*(by_length[n] for n in sorted(by_length)), radar)]
    return f"| {' | '.join([first.title, *means, f'{saved.text} {saved.below}'])} |"


def values_by_seed(standing: Standing) -> dict[int, float]:
    return {run.seed: run.value for run in standing.finals}


def comparison_in_looks(pair: Sequence[StudyAnalysis]) -> Iterator[str]:
    """Every contender, the best first, with its verdicts against both references."""
    first = pair[0]
    yield f"### {first.title} (`{first.study.task}`)"
    yield ""
    yield f"| optimizer | rate | β1 | {first.measure.label} | seeds | against AdamW | against AdamW, β1 tuned |"
    yield "|---|---|---|---|---|---|---|"
    sign = 1 if first.measure.better == "lower" else -1
    standings = [most_seeds(pair, standing.label) for standing in first.standings]
    for s in sorted(standings, key=lambda s: sign * s.spread.mean if s.spread else 0):
        cells = (
            SHOWN.get(s.label, s.label),
            rate(s),
            f"{s.tuned.get('beta1', momentum(s)):g}",
            spread(first, s),
            str(len(s.finals)),
            *(decision(analysis.standing(s.label)) for analysis in pair),
        )
        yield f"| {' | '.join(cells)} |"


def against_radar(study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    """Every rival of RADAR, the best first, with its verdict against it."""
    analysis = analyse_study(study, runs)
    if not analysis.progress.complete:
        return
    yield f"### {WHAT_IS_COMPARED.get(study.name, study.name)}: {analysis.title} (`{study.task}`)"
    yield ""
    yield f"| optimizer | rate | {analysis.measure.label} | seeds | against {study.reference} |"
    yield "|---|---|---|---|---|"
    for s in analysis.ranked:
        cells = (SHOWN.get(s.label, s.label), rate(s), spread(analysis, s), str(len(s.finals)), decision(s))
        yield f"| {' | '.join(cells)} |"


def conditions(runs: Mapping[str, Run]) -> Iterator[str]:
    """One row per condition: the means, and RADAR against AdamW with the usual and with less momentum."""
    radar, *references = evidence.IN_CONDITIONS
    rows = []
    for name, settings in evidence.CONDITIONS.items():
        analyses = [analyse_study(study, runs) for study in evidence.in_condition(settings)]
        if all(analysis.progress.complete for analysis in analyses):
            first = analyses[0]
            means = [f"{spread(first, s)} at {rate(s)}" for s in map(first.standing, (*references, radar))]
            verdicts = [decision(analysis.standing(radar)) for analysis in analyses]
            rows.append(f"| {name} | {' | '.join([*means, *verdicts])} |")
    if rows:
        shown = [SHOWN.get(label, label) for label in (*references, radar)]
        yield f"| condition | {' | '.join(shown)} | RADAR against {shown[0]} | against {shown[1]} |"
        yield f"|---|{'---|' * (2 * len(references) + 1)}"
        yield from rows


def explored(exploration: Exploration, runs: Mapping[str, Run]) -> Iterator[str]:
    """Every optimizer of an exploration: those that came furthest first, with the mean score per rung."""
    rungs = exploration.plan(runs)
    if len(rungs) < len(exploration.rungs) or not rungs[-1].is_complete:
        return
    facts = exploration.study.facts
    yield f"### explored: {facts.title} (`{exploration.study.task}`)"
    yield ""
    counts = [f"{count} seed{'s' * (count > 1)}" for count in exploration.rungs]
    yield f"| {facts.score.label}, mean | rate | {' | '.join(counts)} |"
    yield f"|---|---|{'---|' * len(counts)}"
    for label, entries in Explored(exploration, rungs).standings():
        scores = [f"{entry.score:.4f}" for entry in entries] + [""] * (len(counts) - len(entries))
        yield f"| {SHOWN.get(label, label)} | {entries[-1].rate:.3g} | {' | '.join(scores)} |"


def most_seeds(pair: Sequence[StudyAnalysis], label: str) -> Standing:
    """The standing of a contender in the study in which it has more seeds."""
    return max((analysis.standing(label) for analysis in pair), key=lambda standing: len(standing.finals))


def rate(standing: Standing) -> str:
    return f"{standing.lr:.3g}{', edge' if standing.edge else ''}"


def momentum(standing: Standing) -> float:
    return float(standing.options["betas"][0])


def decision(standing: Standing) -> str:
    """The verdict, with the mean gain and its interval in per cent; of the reference, nothing."""
    if standing.decision is None or standing.difference is None:
        return ""
    found = standing.decision
    center = 100 * (found.low + found.high) / 2
    return f"{found.verdict}: {center:+.2f} % [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


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
    return stats.spearmanr(*zip(*ranks, strict=True)).statistic


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
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/reproduction.py STORE (benchmarks/evidence.py train STORE makes one)")
    print("\n".join(tables(Store(Path(sys.argv[1])))))
