"""What the tables of docs/reproduction-mini-1.md hold: the paper's protocol, with five seeds and one test."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
from scipy import stats

from recomputation.archive import PUBLISHED, Archive, Study, published_results
from recomputation.pages import Page, Recomputed, Row, Tables
from recomputation.verdicts import average_ranks, deviation, mean, ranks, verdicts

OPTIONS = {
    "ℓ": "ell",
    "ℓ/η": "ell_ratio",
    "γ": "gamma",
    "δ": "delta",
    "ζ": "zeta",
    "bias correction": "bias_correction",
}


def comparison(page: Page, match: re.Match[str]) -> Recomputed:
    """Every optimizer, the best first: ranks here and in the paper, rate, values, verdicts against two references."""
    archive, study = page.archive, page.archive.study(match["task"], name="compare")
    better, values = archive.measures(study)[2], final_values(archive, study)
    means = {label: mean(by_seed) for label, by_seed in values.items()}
    own, papers = ranks(means, better), paper_ranks(match["task"], better)
    against = {reference: verdicts(values, reference, better) for reference in ("AdamW", "RADAR")}
    rows: list[Row] = []
    for label in sorted(own, key=own.__getitem__):
        choice = archive.chosen(label, study)
        untuned = mean(archive.finals(label, study, archive.usual_rate(label, study)))
        rows.append([
            [str(own[label])],
            [str(papers[label])],
            [label],
            [choice.rate, ", edge" if choice.at_edge else ""],
            [means[label], " ± ", deviation(values[label])],
            [untuned],
            *([said.get(label, "")] for said in against.values()),
        ])  # fmt: skip
    agreement = spearman(own, papers, own)
    others = spearman(own, papers, [label for label in own if label != "RADAR"])
    sentence = ("Spearman's correlation of our ranks with the paper's: ", agreement, "; without RADAR ", others, ".")
    return Recomputed(rows, [sentence])


def variants(page: Page, match: re.Match[str]) -> Recomputed:
    """RADAR without its parts, or over one option, at RADAR's rate."""
    archive, task, rate = page.archive, tasks_by_title(page)[match["title"]], float(match["rate"])
    axes = [OPTIONS[match["option"]]] if match["option"] else []
    name = f"sensitivity-{axes[0]}" if axes else "ablation"
    found = [s for s in archive.studies if s["task"] == task and s["name"] == name and s["axes"] == axes]
    (study,) = [s for s in found if np.isclose(archive.chosen("RADAR", s).rate, rate, rtol=1e-9)]
    values = final_values(archive, study)
    against_radar = verdicts(values, "RADAR", archive.measures(study)[2])
    rows: list[Row] = [
        [[label], [mean(by_seed), " ± ", deviation(by_seed)], [against_radar.get(label, "")]]
        for label, by_seed in values.items()
    ]
    return Recomputed(rows)


def heat_map(page: Page, match: re.Match[str]) -> Recomputed:
    """Means over two options."""
    archive, axes = page.archive, [OPTIONS[match["down"]], OPTIONS[match["across"]]]
    study = archive.study(tasks_by_title(page)[match["title"]], axes=axes)
    points = {tuple(c["options"][axis] for axis in axes): c["label"] for c in study["contenders"] if c["options"]}
    down, across = ([*dict.fromkeys(point[i] for point in points)] for i in range(2))
    values = final_values(archive, study)
    rows: list[Row] = [
        [[f"{match['down']} = {y}"], *([mean(values[points[y, x]])] for x in across)] for y in down
    ]  # fmt: skip
    assert all(len(by_seed) == int(match["seeds"]) for by_seed in values.values())
    return Recomputed(rows)


def in_short(page: Page, _: re.Match[str]) -> Recomputed:
    """Counts over all comparisons; the words between them are the page's own."""
    archive = page.archive
    studies = {task: archive.study(task, name="compare") for task in tasks_by_title(page).values()}
    better = {task: archive.measures(study)[2] for task, study in studies.items()}
    values = {task: final_values(archive, study) for task, study in studies.items()}
    means = {task: {label: mean(v) for label, v in by_label.items()} for task, by_label in values.items()}
    untuned = {task: untuned_means(archive, study) for task, study in studies.items()}
    over_adamw = [verdicts(values[task], "AdamW", better[task])["RADAR"] for task in studies]
    over_radar = [verdicts(values[task], "RADAR", better[task]) for task in studies]
    first = sum(ranks(means[task], better[task])["RADAR"] == 1 for task in studies)
    ahead = [is_ahead(untuned[task], "RADAR", "AdamW", better[task]) for task in studies]
    leads = [is_ahead(means[task], "RADAR", "AdamW", better[task]) for task in studies]
    orders = [order_without_radar(means[task], task, better[task]) for task in studies]
    all_tasks = average_ranks(means, better)
    losses = average_ranks({task: means[task] for task in studies if better[task] == "lower"}, better)
    other = [label for said in over_radar for label, verdict in said.items() if verdict == "better"]
    worse, undecided = over_adamw.count("worse"), over_adamw.count("cannot tell")
    return Recomputed(phrases=[
        ("RADAR has the best mean | ", first, " of ", len(studies), ":"),
        ("RADAR is *better* than AdamW | ", over_adamw.count("better"), ":"),
        ("RADAR is *worse* than AdamW | ", worse or "none", "; five seeds cannot tell in the other ", undecided),
        ("where RADAR's mean is ", "ahead each time" if all(leads) else f"ahead in {sum(leads)}"),
        ("another optimizer is *better* than RADAR | ", len(other), ": ", ", ".join(other)),
        ("RADAR's mean is ahead of AdamW's | ", sum(ahead), " of ", len(ahead)),
        ("is ", float(np.mean(orders)), " on average, from ", min(orders), " to ", max(orders)),
        ("(", all_tasks["RADAR"], "; NAdam ", all_tasks["NAdam"], ", AdaBelief ", all_tasks["AdaBelief"], ")"),
        ("NAdam has the best one (", losses["NAdam"], ", RADAR ", losses["RADAR"], ")"),
    ])  # fmt: skip


def totals(page: Page, _: re.Match[str]) -> Recomputed:
    """Runs and hours; no run failed or diverged."""
    archive = page.archive
    unfinished = sum(run.status != "finished" for run in archive.runs)
    compared = 0
    for study in (s for s in archive.studies if s["name"] == "compare"):
        labels = [contender["label"] for contender in study["contenders"]]
        compared += sum(archive.count_runs(label, study) for label in labels)
    hours = sum(run.seconds for run in archive.runs) / 3600
    return Recomputed(phrases=[
        ("there are ", len(archive.runs), " runs; ", compared, " of them belong to the comparisons"),
        (unfinished or "No", " run failed or diverged"),
        ("The training time is ", hours, " hours in total"),
    ])  # fmt: skip


def tasks_by_title(page: Page) -> dict[str, str]:
    """The task of each title, from the headings of the comparisons."""
    matches = (re.fullmatch(COMPARISON, section.marker) for section in page.sections)
    return {match["title"]: match["task"] for match in matches if match}


def final_values(archive: Archive, study: Study) -> dict[str, dict[int, float]]:
    """Per contender and seed, the reported value at the chosen rate."""
    return {c["label"]: archive.finals(c["label"], study) for c in study["contenders"]}


def untuned_means(archive: Archive, study: Study) -> dict[str, float]:
    """The means at the usual rates."""
    labels = [contender["label"] for contender in study["contenders"]]
    return {label: mean(archive.finals(label, study, archive.usual_rate(label, study))) for label in labels}


def is_ahead(means: Mapping[str, float], one: str, other: str, better: str) -> bool:
    return means[one] < means[other] if better == "lower" else means[one] > means[other]


def paper_ranks(task: str, better: str) -> dict[str, int]:
    """The ranks of the optimizers in the paper's table."""
    return ranks({label: results[0] for label, results in published_results(PUBLISHED)[task].items()}, better)


def order_without_radar(means: Mapping[str, float], task: str, better: str) -> float:
    """The correlation of our ranks with the paper's, without RADAR."""
    return spearman(ranks(means, better), paper_ranks(task, better), [label for label in means if label != "RADAR"])


def spearman(own: Mapping[str, int], papers: Mapping[str, int], labels: Iterable[str]) -> float:
    pairs = [(own[label], papers[label]) for label in labels]
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


COMPARISON = r"(?P<title>[^:]+) \(`(?P<task>[\w-]+)`\)"
TABLES: Tables = {
    "The paper's protocol, in miniature": totals,
    "In short": in_short,
    COMPARISON: comparison,
    r"(?P<title>[^:]+): RADAR (?:over (?P<option>.+)|without its parts), at (?P<rate>[\d.e-]+)": variants,
    r"(?P<title>[^:]+): .+ over (?P<down>.+) and (?P<across>.+), (?P<seeds>\d+) seeds": heat_map,
}
