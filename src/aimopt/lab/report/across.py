"""What a report says about several tasks together: tables of ranks and of pooled tests, and one sentence.

ranks(across).rows[0][1]                       TableCell("2.0", below="[1.6, 2.6]")
pooled(across)                                 one table per reference
pooled_sentence(across, "Mine", "Other")       "Pooled over 35 pairs of task and seed, Mine is ahead of Other …"
"""

from aimopt.lab.analysis.across_tasks import AcrossTasks
from aimopt.lab.report import phrasing
from aimopt.lab.report.tables import Table, TableCell
from aimopt.lab.report.verdicts import Tone
from aimopt.lab.stats.bootstrap import Interval

POOLED_COLUMNS = ("Contender", "Tasks", "Ahead on", "Relative gain", "p, sign flips", "p, Holm", "Verdict")
TONES: dict[str, Tone] = {"ahead": "good", "behind": "bad"}


def ranks(across: AcrossTasks) -> Table:
    """Average ranks, and the rank on each task."""
    best = min(across.ranks.values())
    rows = []
    for label, rank in across.ranks.items():
        known = across.rank_intervals[label]
        below = phrasing.interval(known.low, known.high, 2)
        rows.append((
            TableCell(label, contender=label),
            TableCell(f"{rank:.2f}", below=below, emphasis="best" if rank == best else ""),
            *(TableCell(f"{task_ranks[label]:g}") for task_ranks in across.ranks_by_task.values()),
        ))  # fmt: skip
    note = "Rank by the mean, 1 is the best; equal means share a rank. "
    note += "In brackets, the 95 % interval if the seeds of each task are resampled."
    if across.left_out:
        note += f" Left out, because they have no result on every task: {phrasing.listed(across.left_out)}."
    if across.left_out_tasks:
        note += f" Left out, because they have few of the contenders: {'; '.join(across.left_out_tasks)}."
    return Table("ranks", "Average rank", note, ("Contender", "Average", *across.tasks), tuple(rows))


def pooled(across: AcrossTasks) -> list[Table]:
    """Per reference, whether each contender is ahead over all pairs of task and seed."""
    found: list[Table] = []
    for reference, differences in across.pooled.items():
        rows = []
        for label, d in differences.items():
            rows.append((
                TableCell(label, contender=label),
                TableCell(str(len(d.tasks)), below=f"without {'; '.join(d.left_out)}" if d.left_out else ""),
                TableCell(f"{d.ahead} of {d.pairs}", below=f"{d.ties} equal" if d.ties else ""),
                TableCell(_percent(d.gain)),
                TableCell(phrasing.probability(d.p)),
                TableCell(phrasing.probability(d.holm_p)),
                TableCell(d.verdict, tone=TONES.get(d.verdict, "unsure")),
            ))  # fmt: skip
        note = (
            f"Pairs of task and seed on which a contender is ahead of {reference}. The sign-flip test over all pairs "
            "gives every task equal weight; Holm's correction is over the contenders that differ. In a study with "
            "looks only the seeds of the first look count. The relative gain is averaged over tasks with positive "
            "losses, with its 95 % interval."
        )
        title = f"All tasks together, against {reference}"
        found.append(Table(f"pooled-{len(found)}", title, note, POOLED_COLUMNS, tuple(rows)))
    return [table for table in found if table.rows]


def pooled_sentence(across: AcrossTasks | None, subject: str, reference: str) -> str:
    """The pooled test of the subject against the reference; empty if there is none."""
    d = across.pooled.get(reference, {}).get(subject) if across else None
    if d is None or d.verdict == "identical":
        return ""
    p = "p < 0.001" if d.holm_p < 0.001 else f"p = {phrasing.probability(d.holm_p)}"
    text = f"Pooled over {d.pairs} pairs of task and seed, {subject} is ahead of {reference} on {d.ahead} ({p})"
    return f"{text}." if d.verdict != "cannot tell" else f"{text}, which shows no difference."


def _percent(gain: Interval | None) -> str:
    if gain is None:
        return "–"
    value, low, high = (100 * end for end in gain)
    return f"{phrasing.signed(value, 1)} % {phrasing.interval(low, high, 1)}"
