"""Numbers and findings in words; every form of the report says them alike.

The summary is about whoever is ahead. It names RADAR's place because RADAR is what this package is about, also when it
is the last.
"""

import math
import re
from collections.abc import Iterable, Sequence

from aimopt.lab.analysis import Across, Findings, Standing
from aimopt.lab.stats import Difference

SUBJECT = "RADAR"
MINUS = "\N{MINUS SIGN}"
ARROWS = {"lower": "↓", "higher": "↑"}
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
            by_verdict.setdefault(words, []).append(standing.label)
    if not by_verdict:
        return []
    reference = findings.study.reference
    seeds = max(len(s.difference.differences) for s in findings.standings if s.difference)
    said = [
        f"{words}: {listed(by_verdict[key])}"
        for key, words in (("better", "better"), ("worse", "worse"), ("identical", "identical"))
        if key in by_verdict
    ]
    if "unsure" in by_verdict:
        many = f"{seeds} seed{'s' * (seeds != 1)}"
        if len(by_verdict) == 1:
            return [f"With {many}, no contender can be told from {reference}."]
        said.append(f"{many} cannot tell: {listed(by_verdict['unsure'])}")
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
    worse = [s.label for s in findings.standings if s.difference and s.difference.verdict == "worse"]
    better = [s.label for s in findings.standings if s.difference and s.difference.verdict == "better"]
    counted = sum(s.difference is not None for s in findings.standings)
    if not counted:
        return told
    if not better and not worse:
        return [*told, f"None of {counted} settings can be told from the defaults."]
    told.append(f"Of {counted} settings, {len(better)} are better than the defaults and {len(worse)} worse.")
    return told


def headline(findings: Sequence[Findings], over_tasks: Across | None) -> str:
    """The whole report in one sentence: how often RADAR was better, worse, or not to be told from the reference."""
    compared = [f for f in findings if f.study.name == "compare" and SUBJECT in {s.label for s in f.ranked}]
    verdicts = [(f, verdict(f.standing(SUBJECT).difference)) for f in compared if f.standing(SUBJECT).difference]
    if not verdicts:
        return ""
    so_far = "" if all(f.progress.complete for f, _ in verdicts) else "So far: "
    first, reference = verdicts[0][0], verdicts[0][0].study.reference
    if len(verdicts) == 1:
        told = {"better": f"is better than {reference}", "worse": f"is worse than {reference}"}
        words = told.get(verdicts[0][1], f"cannot be told from {reference}")
        return f"{so_far}{'on' if so_far else 'On'} {first.title}, at scale {first.study.scale}, {SUBJECT} {words}."
    counts = {word: sum(v == word for _, v in verdicts) for word in ("better", "worse")}
    unsure = len(verdicts) - sum(counts.values())
    words = f"{so_far}against {reference} on {len(verdicts)} tasks, {SUBJECT} is better on {counts['better']}, "
    words += f"worse on {counts['worse']}, and cannot be told from it on {unsure}."
    if over_tasks and SUBJECT in over_tasks.ranks:
        place = 1 + sum(rank < over_tasks.ranks[SUBJECT] for rank in over_tasks.ranks.values())
        words += f" By average rank it is {ordinal(place)} of {len(over_tasks.ranks)}."
    return sentence(words)
