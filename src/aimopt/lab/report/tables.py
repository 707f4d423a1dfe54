"""The tables of a report as data: which cells they have and what stands in them. The forms only set them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aimopt.lab.analysis import Across, Findings, Outcome, Standing
from aimopt.lab.report import words
from aimopt.lab.stats import ENOUGH_SEEDS, Spread

Tone = Literal["", "good", "bad", "unsure", "warning", "muted"]
MARKS = {"better": "▲", "worse": "▼"}


@dataclass(frozen=True)
class Cell:
    """What stands in a cell."""

    text: str
    below: str = ""  # a second line
    mark: str = ""  # of the verdict: ▲ or ▼
    emphasis: Literal["", "best", "second"] = ""
    tone: Tone = ""
    contender: str = ""  # whose row or column it heads


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is its head."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def results(findings: Sequence[Findings]) -> Table | None:
    """The paper's table: tasks as rows, contenders as columns, mean over ± standard deviation."""
    shown = [found for found in findings if found.ranked]
    if not shown:
        return None
    labels = list(dict.fromkeys(s.label for found in shown for s in found.standings))
    rows = []
    for found in shown:
        name = Cell(words.name_of(found), below=f"scale {found.study.scale}")
        rows.append((name, _metric(found), *(_result(found, label) for label in labels)))
        if any(s.published for s in found.standings):
            rows.append(_paper_row(found, labels))
    references = list(dict.fromkeys(found.study.reference for found in shown))
    note = "Mean over ± standard deviation of the seeds; best mean bold, second underlined. "
    note += f"▲ better and ▼ worse than {words.listed(references)}; no mark: the seeds cannot tell."
    return Table("results", "Results", note, ("Task", "Metric", *labels), tuple(rows))


def _metric(found: Findings) -> Cell:
    return Cell(f"{found.measure.label} {words.ARROWS[found.measure.better]}")


def _result(found: Findings, label: str) -> Cell:
    standing = next((s for s in found.standings if s.label == label), None)
    if standing is None:
        return Cell("", tone="muted")
    planned, decimals = len(found.study.seeds), words.decimals_of(found)
    if standing.spread is None:
        return Cell("…", below=f"0 of {planned}", tone="muted")
    text, below = _mean_and_std(standing.spread, decimals)
    if len(standing.spread.values) < planned:
        below = f"{below} ({len(standing.spread.values)} of {planned})"
    mark = MARKS.get(words.verdict(standing.difference), "")
    places = sorted({s.rank for s in found.ranked if s.rank})
    second = len(places) > 1 and standing.rank == places[1]
    return Cell(text, below=below, mark=mark, emphasis="best" if standing.rank == 1 else "second" if second else "")


def _mean_and_std(spread: Spread, decimals: int) -> tuple[str, str]:
    if spread.diverged:
        return "diverged", f"{spread.diverged} of {len(spread.values)}"
    return words.number(spread.mean, decimals), f"± {words.number(spread.std, decimals)}"


def _paper_row(found: Findings, labels: Sequence[str]) -> tuple[Cell, ...]:
    """The paper's numbers where the setting is the paper's; else only its ranking, which may be compared."""
    by_label = {s.label: s.published for s in found.standings}
    cells = []
    for label in labels:
        known = by_label.get(label)
        if known is None:
            cells.append(Cell("", tone="muted"))
        elif found.at_paper_setting:
            decimals = 0 if known.std >= 100 else 4
            below = f"± {words.number(known.std, decimals)}"
            cells.append(Cell(words.number(known.mean, decimals), below=below, tone="muted"))
        else:
            cells.append(Cell(words.ordinal(known.rank), tone="muted"))
    if found.at_paper_setting:
        return Cell("the paper's", tone="muted"), Cell("", tone="muted"), *cells
    return Cell("the paper's ranking", below="at its own scale", tone="muted"), Cell("rank", tone="muted"), *cells


def verdicts(found: Findings) -> Table | None:
    """Paired differences from the reference, and what they are worth."""
    compared = [s for s in found.standings if s.difference is not None]
    if not compared:
        return None
    decimals = words.decimals_of(found)
    rows = []
    for standing in compared:
        d = standing.difference
        assert d is not None
        seeds = len(d.differences)
        verdict = d.verdict
        known_tones: dict[str, Tone] = {"better": "good", "worse": "bad"}
        tone = known_tones.get(verdict, "unsure")
        if seeds < len(found.study.seeds):
            verdict += f", so far ({seeds} of {len(found.study.seeds)})"
        rows.append((
            Cell(standing.label, contender=standing.label),
            Cell(words.signed(d.mean, decimals)),
            Cell(words.interval(d.low, d.high, decimals) or "–"),
            Cell(words.general(d.effect, 2)),
            Cell(words.probability(d.p)),
            Cell(words.probability(d.t_p)),
            Cell(words.probability(d.holm_p if math.isnan(d.t_p) else d.holm_t_p)),
            Cell(verdict, tone=tone),
        ))  # fmt: skip
    note = f"Gain in {found.measure.label} over {found.study.reference}, seed by seed; positive is better. "
    note += (
        "Better or worse: the p of the paired t-test, with Holm's correction, is below 0.05, and the sign flips agree "
    )
    note += f"as far as so few seeds can; with fewer than {ENOUGH_SEEDS} seeds there is no verdict. "
    note += "With diverged runs only the signs count."
    columns = ("Contender", "Gain", "95 % interval", "Effect d", "p, sign flips", "p, t", "p, Holm", "Verdict")
    return Table("verdicts", f"Against {found.study.reference}", note, columns, tuple(rows))


def rates(found: Findings) -> Table | None:
    """Learning rates, and what tuning them gave."""
    if not found.study.searches or not any(s.lr for s in found.standings):
        return None
    decimals = words.decimals_of(found)
    untuned = any(s.untuned for s in found.standings)
    rows = []
    for s in found.standings:
        if s.label != found.study.reference and not s.trials:
            continue
        flag = f"{s.edge} of the grid" if s.edge else "inside the grid" if s.lr and s.trials else ""
        cells = [
            Cell(s.label, contender=s.label),
            Cell(words.general(s.lr)),
            Cell(flag, tone="warning" if s.edge else "muted"),
            _spread_cell(s.spread, decimals),
        ]
        if untuned:
            cells += [Cell(words.general(s.usual_lr)), _spread_cell(s.untuned_spread, decimals)]
        rows.append(tuple(cells))
    columns = ("Contender", "Chosen rate", "Place", "Tuned", *(("Usual rate", "Untuned") if untuned else ()))
    note = f"{words.sentence(found.measure.label)}, mean ± standard deviation"
    note += ", at the chosen rate and at the usual one, without search." if untuned else "."
    return Table(
        "rates", "Learning rates, tuned and untuned" if untuned else "Learning rates", note, columns, tuple(rows)
    )


def _spread_cell(spread: Spread | None, decimals: int) -> Cell:
    if spread is None:
        return Cell("–", tone="muted")
    text, below = _mean_and_std(spread, decimals)
    return Cell(f"{text} {below}")


def cost(found: Findings) -> Table | None:
    """Steps and time to the target; time, memory and state of a step."""
    shown = [s for s in found.standings if s.to_target or s.cost]
    if len(shown) < 2:
        return None
    timed = found.overhead is not None
    rows = []
    for s in shown:
        reached = s.to_target
        cells = [
            Cell(s.label, contender=s.label),
            Cell("–" if reached is None else "not reached" if reached.steps is None else f"{reached.steps:.0f}"),
            Cell(words.general(reached.ratio if reached else None)),
        ]
        if timed:
            c = s.cost
            low_high = f" [{c.ratio[1]:.2f}, {c.ratio[2]:.2f}]" if c else ""
            cells += [
                Cell("–" if reached is None or reached.seconds is None else words.amount(reached.seconds, "s")),
                Cell(words.general(reached.seconds_ratio if reached else None)),
                Cell(f"{c.ratio[0]:.2f}{low_high}" if c else "–"),
                Cell(words.amount(c.peak_bytes, "B") if c else "–"),
                Cell(f"{c.state_bytes:.3g} B" if c else "–"),
            ]
        rows.append(tuple(cells))
    columns: tuple[str, ...] = ("Contender", "Steps to target", "Ratio")
    if timed:
        columns = (*columns, "Time to target", "Ratio of times", "Step time ratio", "Peak memory", "State, a parameter")
    target = found.target
    note = f"The target is {target.measure.label} {words.general(target.value, 4)}, " if target else ""
    note += f"the mean with which {found.study.reference} ends." if target else ""
    if timed:
        note += " Times are steps times the seconds of a step measured alone, with its quartiles in brackets."
    return Table("cost", "To the target, and cost", note, columns, tuple(rows))


def returns(found: Findings) -> Table | None:
    """Interquartile means and probabilities of improvement."""
    shown = [s for s in found.standings if s.returns is not None]
    if not shown:
        return None
    decimals = max(0, words.decimals_of(found) - 1)

    def row(s: Standing) -> tuple[Cell, ...]:
        assert s.returns is not None
        means = [s.returns.last, s.returns.best]
        chances = [s.returns.last_improvement, s.returns.best_improvement]
        return (
            Cell(s.label, contender=s.label),
            *(Cell(words.number(m.value, decimals), below=words.interval(m.low, m.high, decimals)) for m in means),
            *(Cell(f"{c.value:.2f}", below=words.interval(c.low, c.high, 2)) if c else Cell("–") for c in chances),
        )

    return Table(
        "returns",
        "Interquartile means",
        f"Of {found.measure.label}, with 95 % bootstrap intervals; best is the best of the last tenth of the "
        f"evaluations. The probability is that a run beats one of {found.study.reference}.",
        ("Contender", "Last", "Best", "P(improves), last", "P(improves), best"),
        tuple(row(s) for s in shown),
    )


def seeds(found: Findings) -> Table | None:
    """The raw values."""
    if not any(s.finals for s in found.standings):
        return None
    decimals = words.decimals_of(found)
    rows = []
    for s in found.standings:
        for kind, outcomes in (("tuned", s.finals), ("usual rate", s.untuned if found.study.searches else ())):
            if outcomes:
                by_seed = {outcome.seed: outcome for outcome in outcomes}
                values = [_outcome(by_seed.get(seed), decimals) for seed in found.study.seeds]
                rows.append((Cell(s.label, contender=s.label), Cell(kind, tone="muted"), *values))
    columns = ("Contender", "Rate", *(f"Seed {seed}" for seed in found.study.seeds))
    return Table("seeds", "Every seed", f"Final {found.measure.label}.", columns, tuple(rows))


def _outcome(outcome: Outcome | None, decimals: int) -> Cell:
    if outcome is None or outcome.status == "missing":
        return Cell("…", tone="muted")
    if outcome.settled:
        return Cell(words.number(outcome.value, decimals), tone="bad" if outcome.status == "diverged" else "")
    return Cell(outcome.status, tone="warning")


def ranks(over: Across) -> Table:
    """Average ranks, and those on each task."""
    rows = [
        (
            Cell(label, contender=label),
            Cell(f"{rank:.2f}", emphasis="best" if rank == min(over.ranks.values()) else ""),
            *(Cell(f"{by[label]:g}") for by in over.ranks_by_task.values()),
        )
        for label, rank in over.ranks.items()
    ]
    left = f" Left out, without a result on every task: {words.listed(over.left_out)}." if over.left_out else ""
    note = f"Rank by the mean, 1 the best; ties share.{left}"
    return Table("ranks", "Average rank", note, ("Contender", "Average", *over.tasks), tuple(rows))


def provenance(found: Findings) -> Table | None:
    """Where and with what the runs were made."""
    if not found.provenance:
        return None
    rows = [
        (Cell(name.replace(".", ": ", 1)), Cell("; ".join(f"{value} ({count})" for value, count in values.items())))
        for name, values in found.provenance.items()
    ]
    return Table("provenance", "Provenance", "In brackets, how many runs say so.", ("Fact", "Value"), tuple(rows))
