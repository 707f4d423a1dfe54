"""Numbers and findings in words; every form of the report says them alike.

The summary is about whoever is ahead. It names RADAR's place because RADAR is what this package is about, also when it
is the last.
"""

import math
import re
from collections.abc import Iterable, Sequence

from aimopt.lab.analysis import Across, Findings, Standing
from aimopt.lab.stats import ENOUGH_SEEDS, Difference

SUBJECT = "RADAR"
MINUS = "\N{MINUS SIGN}"
ARROWS = {"lower": "↓", "higher": "↑"}
NAMED_CONTENDERS = 4  # in the headline; of more it gives the number
AXES = {"gamma": "γ", "ell_ratio": "ℓ/η", "ell": "ℓ", "delta": "δ", "zeta": "ζ"}


def number(value: float | None, decimals: int) -> str:
    """With so many decimals; `–` where there is none, and a diverged run by its name."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "diverged"
    digits = f"{value:.{decimals}f}" if abs(value) < 1e7 else f"{value:.3g}"
    return digits.replace("-", MINUS)


def signed(value: float, decimals: int) -> str:
    """With its sign; a gain or loss by divergence without a number."""
    if math.isinf(value):
        return f"{'+' if value > 0 else MINUS}∞"
    return ("+" if value > 0 else "") + number(value, decimals)


def interval(low: float, high: float, decimals: int) -> str:
    """In brackets; nothing where there is none."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{_end(low, decimals)}, {_end(high, decimals)}]"


def _end(value: float, decimals: int) -> str:
    return number(value, decimals) if math.isfinite(value) else signed(value, decimals)


def general(value: float | None, digits: int = 3) -> str:
    """A number of unknown size: learning rates, ratios, effects."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return signed(value, 0)
    return re.sub(r"e([+-])0*", r"e\1", f"{value:.{digits}g}").replace("e+", "e").replace("-", MINUS)


def probability(p: float) -> str:
    """A p value; no more digits than are worth reading."""
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


def decimals_of(findings: Findings) -> int:
    """So many that a typical standard deviation shows three digits, as in the paper's tables."""
    spreads = [s.spread for s in findings.standings if s.spread]
    stds = sorted(s.std for s in spreads if math.isfinite(s.std) and s.std > 0)
    means = [abs(s.mean) for s in spreads if math.isfinite(s.mean) and s.mean]
    if stds:
        return min(6, max(0, 2 - math.floor(math.log10(stds[len(stds) // 2]))))
    return min(6, max(0, 3 - math.floor(math.log10(min(means))))) if means else 4


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    ending = "th" if 10 <= place % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def axis_name(option: str) -> str:
    """An option as the paper calls it, or in words."""
    return AXES.get(option, option.replace("_", " "))


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def verdict(difference: Difference | None) -> str:
    """The verdict; a wait where no seed is there yet."""
    return "no result yet" if difference is None else difference.verdict


def short_verdict(difference: Difference | None) -> str:
    """The verdict for a narrow place; the number of seeds is left out where it is not the reason."""
    said = verdict(difference)
    return "cannot tell" if difference and is_unsure(said) and not difference.too_few_seeds else said


def count_seeds(count: int) -> str:
    """1 seed, 5 seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def is_unsure(words: str) -> bool:
    """Whether a verdict is none."""
    return words.startswith("cannot tell")


def name_of(findings: Findings) -> str:
    """What a study is called in a heading."""
    kind = findings.study.name
    if findings.sweep:
        return f"{findings.title}: sensitivity to {listed(axis_name(axis) for axis in findings.sweep.axes)}"
    return findings.title if kind == "compare" else f"{findings.title}: {kind}"


def stamp(findings: Findings) -> str:
    """Task, scale, hardware and versions, for every figure."""
    hardware = _one(findings, "machine.device", but="cpu") or _one(findings, "machine.processor")
    threads = _one(findings, "machine.threads")
    where = f"{hardware}{f', {threads} thread' + 's' * (threads != '1') if threads else ''}" if hardware else ""
    versions = [f"{name} {_one(findings, f'versions.{name}')}" for name in ("aimopt", "torch")]
    known = [words for words in versions if not words.endswith(" ")]
    return " · ".join(
        part for part in (findings.title, f"scale {findings.study.scale}", where, ", ".join(known)) if part
    )


def _one(findings: Findings, fact: str, but: str = "") -> str:
    """What all runs say of themselves; `mixed` where they do not agree."""
    values = [value for value in findings.provenance.get(fact, {}) if value != but]
    return values[0] if len(values) == 1 else "mixed" if values else ""


def summary(findings: Findings) -> list[str]:
    """What came of a study, in sentences."""
    progress = findings.progress
    so_far = [] if progress.complete else [f"So far: {progress.settled} of {progress.total} runs are over."]
    if not findings.ranked:
        return [*so_far, "There is no result yet."]
    if all(standing.diverged for standing in findings.ranked):
        told = ["Every contender diverged."]
    else:
        told = _sweep_sentences(findings) if findings.sweep else [_ranking(findings), *_verdicts(findings)]
    for standing in findings.standings:
        if standing.diverged:
            told.append(f"{standing.label} diverged on {standing.diverged} of {len(standing.finals)} seeds.")
    edges = [standing.label for standing in findings.standings if standing.edge]
    if edges:
        told.append(f"The learning rate of {listed(edges)} ended at the edge of the grid: it may not be the best.")
    return so_far + told


def _ranking(findings: Findings) -> str:
    ranked, decimals = findings.ranked, decimals_of(findings)
    if len(ranked) == 1:
        return f"Only {ranked[0].label} has a result ({_mean(ranked[0], decimals)})."
    best = [s for s in ranked if s.rank == 1]
    label, reference = findings.measure.label, findings.study.reference
    assert best[0].spread
    words = f"{listed(s.label for s in best)} {'has' if len(best) == 1 else 'have'} the best mean {label}"
    words += f" ({number(best[0].spread.mean, decimals)})"
    others = [s for s in ranked if s.label in (SUBJECT, reference) and s not in best]
    places = [f"{s.label} is {ordinal(s.rank or 0)} of {len(ranked)} ({_mean(s, decimals)})" for s in others]
    return f"{words}; {listed(places)}." if places else f"{words}, of {len(ranked)}."


def _mean(standing: Standing, decimals: int) -> str:
    return number(standing.spread.mean if standing.spread else None, decimals)


def _verdicts(findings: Findings) -> list[str]:
    by_verdict: dict[str, list[str]] = {}
    for standing in findings.standings:
        if standing.difference is not None:
            words = "unsure" if is_unsure(standing.difference.verdict) else standing.difference.verdict
            words = "too few" if standing.difference.too_few_seeds else words
            by_verdict.setdefault(words, []).append(standing.label)
    if not by_verdict:
        return []
    reference = findings.study.reference
    many = count_seeds(max(len(s.difference.differences) for s in findings.standings if s.difference))
    if len(by_verdict) == 1 and not by_verdict.keys().isdisjoint(("unsure", "too few")):
        why = f": a verdict needs at least {ENOUGH_SEEDS}" if "too few" in by_verdict else ""
        return [f"With {many}, no contender can be told from {reference}{why}."]
    said = [
        f"{words}: {listed(by_verdict[key])}"
        for key, words in (("better", "better"), ("worse", "worse"), ("identical", "identical"))
        if key in by_verdict
    ]
    if "unsure" in by_verdict:
        said.append(f"{many} cannot tell: {listed(by_verdict['unsure'])}")
    if "too few" in by_verdict:
        said.append(f"too few seeds, at least {ENOUGH_SEEDS} are needed: {listed(by_verdict['too few'])}")
    return [f"Against {reference}, {'; '.join(said)}."]


def _sweep_sentences(findings: Findings) -> list[str]:
    decimals, reference = decimals_of(findings), findings.reference
    best = next((s for s in findings.ranked if s.label != reference.label), None)
    if best is None:
        return []
    words = f"The best mean {findings.measure.label} of the grid is {_mean(best, decimals)}, at {best.label}"
    defaults = (
        f"the defaults give {_mean(reference, decimals)}" if reference.spread else "the defaults have no result yet"
    )
    told = [f"{words}; {defaults}."]
    compared = [s.difference for s in findings.standings if s.difference]
    better, worse = ([d for d in compared if d.verdict == verdict] for verdict in ("better", "worse"))
    counted = len(compared)
    if not counted:
        return told
    if not better and not worse:
        few = all(d.too_few_seeds for d in compared)
        why = f": a verdict needs at least {ENOUGH_SEEDS} seeds" if few else ""
        return [*told, f"None of {counted} settings can be told from the defaults{why}."]
    told.append(f"Of {counted} settings, {len(better)} are better than the defaults and {len(worse)} worse.")
    return told


def headline(findings: Sequence[Findings], over_tasks: Across | None) -> str:
    """The whole report in one sentence: how often RADAR was better, worse, or not to be told from the reference.

    It says on how many seeds and among which contenders.
    """
    compared = [f for f in findings if f.study.name == "compare" and SUBJECT in {s.label for s in f.ranked}]
    judged = [(f, d) for f in compared if (d := f.standing(SUBJECT).difference)]
    if not judged:
        return ""
    so_far = "" if all(f.progress.complete for f, _ in judged) else "So far: "
    first, reference = judged[0][0], judged[0][0].study.reference
    basis = _basis([f for f, _ in judged], [d for _, d in judged])
    if len(judged) == 1:
        told = {"better": f"is better than {reference}", "worse": f"is worse than {reference}"}
        words = told.get(judged[0][1].verdict, f"cannot be told from {reference}")
        where = f"{'on' if so_far else 'On'} {first.title}, at scale {first.study.scale}"
        return f"{so_far}{where}, {SUBJECT} {words} ({basis})."
    counts = {word: sum(d.verdict == word for _, d in judged) for word in ("better", "worse")}
    unsure = len(judged) - sum(counts.values())
    words = f"{so_far}against {reference} on {len(judged)} tasks, {SUBJECT} is better on {counts['better']}, "
    words += f"worse on {counts['worse']}, and cannot be told from it on {unsure} ({basis})."
    if over_tasks and SUBJECT in over_tasks.ranks:
        place = 1 + sum(rank < over_tasks.ranks[SUBJECT] for rank in over_tasks.ranks.values())
        words += f" By average rank it is {ordinal(place)} of {len(over_tasks.ranks)}."
    return sentence(words)


def _basis(findings: Sequence[Findings], differences: Sequence[Difference]) -> str:
    """What verdicts rest on: the paired seeds, and the contenders by name or, if they are many, by number."""
    counts = sorted({len(d.differences) for d in differences})
    many = count_seeds(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    if any(d.too_few_seeds for d in differences):
        many += f", a verdict needs at least {ENOUGH_SEEDS}"
    labels = list(dict.fromkeys(s.label for f in findings for s in f.standings))
    who = f"among {listed(labels)}" if len(labels) <= NAMED_CONTENDERS else f"among {len(labels)} contenders"
    return f"{many}; {who}"
