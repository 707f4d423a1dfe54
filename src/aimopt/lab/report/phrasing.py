"""Numbers and results as text, the same in every format of the report.

    number(-0.5, 3)             "−0.500"
    summary(analysis)           ["Mine has the best mean test loss (0.41), of 2.", …]

The summary names the contenders with the best mean, and the ranks of the study's subject and reference.
"""

import math
import re
from collections.abc import Iterable, Sequence

from aimopt.lab.analysis.across_tasks import AcrossTasks
from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.protocol.study import COMPARISON, Study
from aimopt.lab.report.verdicts import VERDICT_STYLES, shortened, verdict_kind
from aimopt.lab.stats.paired import ENOUGH_SEEDS, Difference

MINUS = "\N{MINUS SIGN}"
ARROWS = {"lower": "↓", "higher": "↑"}
NAMED_CONTENDERS = 4  # at most, in the headline; it gives only the number of more
LONGEST_TITLE = 80  # characters of the names in the title


def number(value: float | None, decimals: int) -> str:
    """With this number of decimals; `–` for None and NaN, `diverged` for infinity."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "diverged"
    text = f"{value:.{decimals}f}" if abs(value) < 1e7 else f"{value:.3g}"
    return text.replace("-", MINUS)


def signed(value: float, decimals: int) -> str:
    """With its sign; a difference to a diverged run is +∞ or −∞."""
    if math.isinf(value):
        return f"{'+' if value > 0 else MINUS}∞"
    return ("+" if value > 0 else "") + number(value, decimals)


def interval(low: float, high: float, decimals: int) -> str:
    """Both ends in brackets; empty if one is NaN."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{_end(low, decimals)}, {_end(high, decimals)}]"


def _end(value: float, decimals: int) -> str:
    return number(value, decimals) if math.isfinite(value) else signed(value, decimals)


def general(value: float | None, precision: int = 3) -> str:
    """A number of any size, such as a learning rate, a ratio or an effect."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return signed(value, 0)
    return re.sub(r"e([+-])0*", r"e\1", f"{value:.{precision}g}").replace("e+", "e").replace("-", MINUS)


def probability(p: float) -> str:
    """A p value with two digits."""
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def amount(count: float, unit: str) -> str:
    """Bytes or seconds, with a prefix."""
    if unit == "B":
        for prefix in ("", "Ki", "Mi", "Gi"):
            if abs(count) < 1024 or prefix == "Gi":
                return f"{count:.3g} {prefix}B"
            count /= 1024
    if count < 1:
        return f"{count * 1e3:.3g} ms"
    return f"{count:.3g} s" if count < 120 else f"{count / 60:.3g} min"


def decimals_of(analysis: StudyAnalysis) -> int:
    """The number of decimals with which the median standard deviation shows three digits."""
    spreads = [s.spread for s in analysis.standings if s.spread]
    stds = sorted(s.std for s in spreads if math.isfinite(s.std) and s.std > 0)
    means = [abs(s.mean) for s in spreads if math.isfinite(s.mean) and s.mean]
    if stds:
        return min(6, max(0, 2 - math.floor(math.log10(stds[len(stds) // 2]))))
    return min(6, max(0, 3 - math.floor(math.log10(min(means))))) if means else 4


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    ending = "th" if 10 <= rank % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def axis_name(study: Study, option: str) -> str:
    """The symbol that a study gives to an option, or its name with spaces."""
    return study.symbols.get(option, option.replace("_", " "))


def listed(names: Iterable[str]) -> str:
    """Names as a list in a sentence: a, b and c."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def verdict(difference: Difference | None) -> str:
    """The verdict, or `no result yet`."""
    return "no result yet" if difference is None else difference.verdict


def short_verdict(difference: Difference | None) -> str:
    """The verdict for a narrow column: without the number of seeds, unless it is too small."""
    return verdict(difference) if difference is None or difference.too_few_seeds else shortened(difference.verdict)


def tuned_options(standing: Standing) -> str:
    """The chosen values of options that were searched besides the learning rate, as text."""
    return ", ".join(f"{name.replace('_', ' ')} {general(value)}" for name, value in standing.tuned.items())


def count_seeds(count: int) -> str:
    """1 seed, 5 seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def name_of(analysis: StudyAnalysis) -> str:
    """The name of a study in a heading."""
    if analysis.sweep:
        names = [axis_name(analysis.study, axis) for axis in analysis.sweep.axes]
        return f"{analysis.title}: sensitivity to {listed(names)}"
    return analysis.title if analysis.study.name == COMPARISON else f"{analysis.title}: {analysis.study.name}"


def titles(analyses: Sequence[StudyAnalysis]) -> list[str]:
    """One title per study, which tells it apart from the others."""
    return told_apart([(name_of(analysis), analysis.study) for analysis in analyses])


def told_apart(named: Sequence[tuple[str, Study]]) -> list[str]:
    """The names of studies. Those of the same name also say their settings and their reference, where they differ."""
    groups: dict[str, list[Study]] = {}
    for name, study in named:
        groups.setdefault(name, []).append(study)
    settings = {name: _telling_settings(studies) for name, studies in groups.items()}
    with_settings = [
        name + "".join(f", {key} {study.settings[key]}" for key in settings[name] if key in study.settings)
        for name, study in named
    ]
    references: dict[str, set[str]] = {}
    for text, (_, study) in zip(with_settings, named, strict=True):
        references.setdefault(text, set()).add(study.reference)
    return [
        f"{text}, against {study.reference}" if len(references[text]) > 1 else text
        for text, (_, study) in zip(with_settings, named, strict=True)
    ]


def _telling_settings(studies: Sequence[Study]) -> list[str]:
    """The settings that tell studies apart; one that tells no more of them apart than those before it is left out."""
    chosen: list[str] = []
    for key in dict.fromkeys(key for study in studies for key in study.settings):
        distinct_before, distinct_with_key = (
            {tuple(str(study.settings.get(name)) for name in names) for study in studies}
            for names in (chosen, [*chosen, key])
        )
        if len(distinct_with_key) > len(distinct_before):
            chosen.append(key)
    return chosen


def stamp(analysis: StudyAnalysis) -> str:
    """Task, scale, hardware and versions, in one line under every figure."""
    return f"{analysis.title} · {circumstances([analysis])}"


def circumstances(analyses: Sequence[StudyAnalysis]) -> str:
    """Scale, hardware and versions of all runs; what is not recorded is left out."""
    scales = dict.fromkeys(analysis.study.scale for analysis in analyses)
    hardware = _values(analyses, "machine.device") - {"cpu"} or _values(analyses, "machine.processor")
    processor = _one_value(hardware, "different processors")
    threads = _one_value(_values(analyses, "machine.threads"), "several")
    where = f"{processor}, {threads} thread{'s' * (threads != '1')}" if processor and threads else processor
    versions = {name: _one_value(_values(analyses, f"versions.{name}"), "mixed") for name in ("aimopt", "torch")}
    known_versions = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return " · ".join(part for part in (f"scale {', '.join(scales)}", where, known_versions) if part)


def _values(analyses: Sequence[StudyAnalysis], fact: str) -> set[str]:
    return {value for analysis in analyses for value in analysis.provenance.get(fact, {})}


def _one_value(values: set[str], if_several: str) -> str:
    """The value of a provenance fact that all runs share; empty if no run has it."""
    return next(iter(values)) if len(values) == 1 else if_several if values else ""


def summary(analysis: StudyAnalysis) -> list[str]:
    """The results of a study, in sentences."""
    progress = analysis.progress
    so_far = [] if progress.complete else [f"So far: {progress.settled} of {progress.total} runs are over."]
    if not analysis.ranked:
        return [*so_far, "There is no result yet."]
    if all(standing.spread and standing.diverged == len(standing.spread.values) for standing in analysis.ranked):
        sentences = ["Every contender diverged."]
    elif all(standing.diverged for standing in analysis.ranked):
        sentences = ["Every contender diverged on at least one seed.", *([] if analysis.sweep else _verdicts(analysis))]
    else:
        sentences = _sweep_sentences(analysis) if analysis.sweep else [_ranking(analysis), *_verdicts(analysis)]
    for standing in analysis.standings:
        if standing.diverged:
            sentences.append(f"{standing.label} diverged on {standing.diverged} of {len(standing.finals)} seeds.")
    edges = [standing.label for standing in analysis.standings if standing.edge]
    if edges:
        tried = "rates tried" if analysis.study.search else "grid"
        sentences.append(
            f"The learning rate of {listed(edges)} ended at the edge of the {tried}: it may not be the best."
        )
    return so_far + sentences


def _ranking(analysis: StudyAnalysis) -> str:
    ranked, decimals = analysis.ranked, decimals_of(analysis)
    if len(ranked) == 1:
        return f"Only {ranked[0].label} has a result ({_mean(ranked[0], decimals)})."
    best = [s for s in ranked if s.rank == 1]
    label, reference = analysis.measure.label, analysis.study.reference
    assert best[0].spread
    leaders = f"{listed(s.label for s in best)} {'has' if len(best) == 1 else 'have'} the best mean {label}"
    leaders += f" ({number(best[0].spread.mean, decimals)})"
    others = [s for s in ranked if s.label in (analysis.study.subject, reference) and s not in best]
    ranks = [f"{s.label} is {ordinal(s.rank or 0)} of {len(ranked)} ({_mean(s, decimals)})" for s in others]
    return f"{leaders}; {listed(ranks)}." if ranks else f"{leaders}, of {len(ranked)}."


def _mean(standing: Standing, decimals: int) -> str:
    return number(standing.spread.mean if standing.spread else None, decimals)


def _verdicts(analysis: StudyAnalysis) -> list[str]:
    by_verdict: dict[str, list[str]] = {}
    undecided: list[Difference] = []
    for standing in analysis.standings:
        if standing.difference is not None:
            text = standing.difference.verdict
            kind = "unsure" if verdict_kind(text) == "unsure" else text
            kind = "too few" if standing.difference.too_few_seeds else kind
            by_verdict.setdefault(kind, []).append(standing.label)
            undecided += [standing.difference] if kind in ("unsure", "too few") else []
    if not by_verdict:
        return []
    reference = analysis.study.reference
    seeds = _seeds_text(undecided) if undecided else ""
    if len(by_verdict) == 1 and not by_verdict.keys().isdisjoint(("unsure", "too few")):
        reason = f": a verdict needs at least {ENOUGH_SEEDS}" if "too few" in by_verdict else ""
        return [f"With {seeds}, no contender can be distinguished from {reference}{reason}."]
    decided = sorted(
        by_verdict.keys() - {"unsure", "too few"},
        key=lambda text: (list(VERDICT_STYLES).index(verdict_kind(text)), text),
    )
    parts = [f"{text}: {listed(by_verdict[text])}" for text in decided]
    if "unsure" in by_verdict:
        parts.append(f"{seeds} cannot tell: {listed(by_verdict['unsure'])}")
    if "too few" in by_verdict:
        parts.append(f"too few seeds, at least {ENOUGH_SEEDS} are needed: {listed(by_verdict['too few'])}")
    return [f"Against {reference}, {'; '.join(parts)}."]


def _sweep_sentences(analysis: StudyAnalysis) -> list[str]:
    decimals, reference = decimals_of(analysis), analysis.reference
    best = next((s for s in analysis.ranked if s.label != reference.label), None)
    if best is None:
        return []
    leader = f"The best mean {analysis.measure.label} of the grid is {_mean(best, decimals)}, at {best.label}"
    if best.diverged:
        leader = "Every setting of the grid diverged"
    defaults = "the defaults have no result yet"
    if reference.spread:
        defaults = "the defaults diverged" if reference.diverged else f"the defaults give {_mean(reference, decimals)}"
    sentences = [f"{leader}; {defaults}."]
    compared = [s.difference for s in analysis.standings if s.difference]
    better, worse = ([d for d in compared if verdict_kind(d.verdict) == kind] for kind in ("better", "worse"))
    count = len(compared)
    if not count:
        return sentences
    if not better and not worse:
        too_few = all(d.too_few_seeds for d in compared)
        reason = f": a verdict needs at least {ENOUGH_SEEDS} seeds" if too_few else ""
        return [*sentences, f"None of {count} settings can be distinguished from the defaults{reason}."]
    sentences.append(f"Of {count} settings, {len(better)} are better than the defaults and {len(worse)} worse.")
    return sentences


def subject_of(analyses: Sequence[StudyAnalysis]) -> str | None:
    """The contender that a report is about: the subject of its first comparison, else the reference of its sweeps."""
    comparisons = [analysis.study for analysis in analyses if analysis.study.is_comparison]
    headline_contenders = [study.headline_contender for study in comparisons]
    references = [analysis.study.reference for analysis in analyses]
    return next((label for label in (*headline_contenders, *references) if label), None)


def title(analyses: Sequence[StudyAnalysis]) -> str:
    """What was compared: the contenders by name if they are few or short, against the reference."""
    comparisons = [a.study for a in analyses if a.study.is_comparison]
    comparisons = [study for study in comparisons if study.name == COMPARISON] or comparisons
    if not comparisons:
        subject = subject_of(analyses)
        return f"Variants of {subject}" if subject else "A study of optimizers"
    references = list(dict.fromkeys(study.reference for study in comparisons))
    first = [study.headline_contender for study in comparisons if study.headline_contender]
    # Some studies may have the contender of the headline as their reference.
    references = [label for label in references if label not in first[:1]] or references
    contenders = [*first, *(c.label for study in comparisons for c in study.contenders)]
    others = [label for label in dict.fromkeys(contenders) if label not in references]
    if not others:
        return listed(references)
    names = listed(others)
    if len(names) > LONGEST_TITLE:
        count = len(others) - 1
        names = f"{others[0]} and {count} other{'s' * (count != 1)}" if count else others[0]
    return f"{names} against {listed(references)}"


def headline(analyses: Sequence[StudyAnalysis], over_tasks: AcrossTasks | None) -> str:
    """The whole report in a few sentences: on how many tasks the subject was better or worse than the reference.

    They name the reference and the scale, and give the number of seeds and of contenders. If other contenders were
    better than the reference, they are named too.
    """
    comparisons = [a for a in analyses if a.study.is_comparison and a.study.headline_contender]
    if not comparisons:
        return ""
    subject, reference = comparisons[0].study.headline_contender, comparisons[0].study.reference
    assert subject is not None
    with_subject = [a for a in comparisons if subject in {s.label for s in a.ranked} and a.study.reference == reference]
    judged = [(a, d) for a in with_subject if (d := a.standing(subject).difference)]
    if not judged:
        return ""
    so_far = "" if all(a.progress.complete for a, _ in judged) else "So far: "
    basis = _basis([a for a, _ in judged], [d for _, d in judged])
    also = _others_better([a for a, _ in judged], subject)
    if len(judged) == 1:
        only, difference = judged[0]
        kind = verdict_kind(difference.verdict)
        exactly = difference.verdict.partition(" ")[2] if kind == "equal" else ""
        result = f"{VERDICT_STYLES[kind].predicate} {reference}{f' {exactly}' if exactly else ''}"
        where = f"{'on' if so_far else 'On'} {only.title}, at scale {only.study.scale}"
        return f"{so_far}{where}, {subject} {result} ({basis}).{also}"
    scales = listed(dict.fromkeys(a.study.scale for a, _ in judged))
    text = f"{so_far}against {reference} on {len(judged)} tasks at scale {scales}, {subject} is "
    text += f"{_counted_verdicts([d for _, d in judged])} ({basis})."
    if over_tasks and subject in over_tasks.ranks:
        position = 1 + sum(rank < over_tasks.ranks[subject] for rank in over_tasks.ranks.values())
        text += f" By average rank it is {ordinal(position)} of {len(over_tasks.ranks)}."
    return sentence(text) + also + _against_others(comparisons, subject, reference)


def _counted_verdicts(differences: Sequence[Difference]) -> str:
    """On how many tasks each verdict holds."""
    counts = {kind: sum(verdict_kind(d.verdict) == kind for d in differences) for kind in VERDICT_STYLES}
    same = counts["equal"] + counts["identical"]
    equal = f"equal to it on {same}, " if same else ""
    text = f"better on {counts['better']}, worse on {counts['worse']}, {equal}"
    return f"{text}and cannot be distinguished from it on {counts['unsure']}"


def _against_others(comparisons: Sequence[StudyAnalysis], subject: str, reference: str) -> str:
    """The verdicts on the subject against every other reference that it has on several tasks."""
    text = ""
    for other in dict.fromkeys(a.study.reference for a in comparisons if a.study.reference not in (reference, subject)):
        with_subject = [a for a in comparisons if a.study.reference == other and subject in {s.label for s in a.ranked}]
        differences = [d for a in with_subject if (d := a.standing(subject).difference)]
        if len(differences) > 1:
            text += f" Against {other} it is {_counted_verdicts(differences)}."
    return text


def _others_better(analyses: Sequence[StudyAnalysis], subject: str) -> str:
    """The other contenders that are better than the reference, as a sentence; empty if there are none."""
    counts: dict[str, int] = {}
    for analysis in analyses:
        for standing in analysis.standings:
            if (
                standing.label != subject
                and standing.difference
                and verdict_kind(standing.difference.verdict) == "better"
            ):
                counts[standing.label] = counts.get(standing.label, 0) + 1
    if not counts or len(counts) > NAMED_CONTENDERS:
        return f" {len(counts)} other contenders are better than {analyses[0].study.reference} too." if counts else ""
    ordered = sorted(counts, key=lambda label: -counts[label])
    on = [f"{label} on {counts[label]}" if len(analyses) > 1 else label for label in ordered]
    return f" Also better than {analyses[0].study.reference}: {listed(on)}."


def _seeds_text(differences: Sequence[Difference]) -> str:
    """How many paired seeds these verdicts have: contenders may have different numbers of seeds."""
    counts = sorted({len(d.differences) for d in differences})
    return count_seeds(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _basis(analyses: Sequence[StudyAnalysis], differences: Sequence[Difference]) -> str:
    """The basis of verdicts: the number of paired seeds, and the names or the number of the contenders."""
    seeds = _seeds_text(differences)
    if any(d.too_few_seeds for d in differences):
        seeds += f", a verdict needs at least {ENOUGH_SEEDS}"
    labels = list(dict.fromkeys(s.label for analysis in analyses for s in analysis.standings))
    contenders = f"among {listed(labels)}" if len(labels) <= NAMED_CONTENDERS else f"among {len(labels)} contenders"
    return f"{seeds}; {contenders}"
