"""What the tables of docs/exploration.md hold: successive halving over optimizers."""

import re
from collections.abc import Mapping

import numpy as np

from recomputation.archive import Archive, Study
from recomputation.mini import AGAINST_RADAR, COMPARISON, SHOWN, against_radar, totals, unchecked, verdicts_of
from recomputation.pages import Page, Recomputed, Row, Tables, Text

KEPT = 3  # a third goes on
CONFIRMED = ("cifar100-resnet50", "fineweb-qwen")  # the tasks of the confirmation

Scores = Mapping[float, Mapping[int, float]]  # of one optimizer: rate -> seed -> score, low is good


def halving(page: Page, match: re.Match[str]) -> Recomputed:
    """Per optimizer its rate, and its best mean score on every rung that it reached; the furthest and best first."""
    archive = page.archive
    exploration = archive.exploration(match["task"])
    scores = {c["label"]: _scores(archive, c["label"], exploration) for c in exploration["contenders"]}
    best = {label: _best_per_rung(by_rate, exploration) for label, by_rate in scores.items()}
    _check_who_went_on(best, exploration)
    sign = 1 if archive.measures(exploration)[2] == "lower" else -1
    rows: list[Row] = []
    for label in sorted(best, key=lambda name: (-len(best[name]), best[name][-1])):
        means: list[Text] = [[sign * mean] for mean, _ in best[label]]
        unreached: list[Text] = [[""]] * (len(exploration["rungs"]) - len(means))
        rows.append([[SHOWN.get(label, label)], [best[label][-1][1]], *means, *unreached])
    return Recomputed(rows)


def _scores(archive: Archive, label: str, exploration: Study) -> Scores:
    key, _, better = archive.measures(exploration)
    sign = 1 if better == "lower" else -1
    found: dict[float, dict[int, float]] = {}
    for run in archive.trials(label, exploration):
        found.setdefault(run.config["lr"], {})[run.config["seed"]] = sign * run.mean_of_last(key, better, 3)
    return found


def _best_per_rung(scores: Scores, exploration: Study) -> list[tuple[float, float]]:
    """The best mean and its rate, per rung with a rate that has all of its seeds."""
    best = []
    for count in exploration["rungs"]:
        seeds = exploration["seeds"][:count]
        means = [
            (float(np.mean([by_seed[seed] for seed in seeds])), rate)
            for rate, by_seed in scores.items()
            if all(seed in by_seed for seed in seeds)
        ]
        if means:
            best.append(min(means))
    return best


def _check_who_went_on(best: Mapping[str, list[tuple[float, float]]], exploration: Study) -> None:
    """The third with the best means of a rung reached the next one, and the reference did in any case."""
    for rung in range(len(exploration["rungs"]) - 1):
        on_rung = sorted((label for label in best if len(best[label]) > rung), key=lambda label: best[label][rung])
        expected = {*on_rung[: -(-len(on_rung) // KEPT)], exploration["reference"]}
        went_on = {label for label in on_rung if len(best[label]) > rung + 1}
        if went_on != expected:
            raise ValueError(f"rung {rung + 1} of {exploration['task']}: {went_on} went on, and {expected} should have")


def gains_over_radar(archive: Archive, task: str) -> dict[str, float]:
    """Of the optimizers that were confirmed, in per cent."""
    study = archive.study(task, name="confirm", reference="RADAR")
    return {SHOWN.get(label, label): 100 * verdict.gain for label, verdict in verdicts_of(archive, study).items()}


def in_short(page: Page, _: re.Match[str]) -> Recomputed:
    """What was confirmed."""
    images, text = (gains_over_radar(page.archive, task) for task in CONFIRMED)
    soap, muon = ([gains[label] for gains in (images, text)] for label in ("SOAP", "Muon, RADAR for the rest"))
    return Recomputed(phrases=[
        ("by ", soap[0], " % and ", muon[0], " % on CIFAR-100, by ", soap[1], " % and ", muon[1], " % on Qwen"),
        ("better than RADAR by ", text["RADAR, cautious"], " %, and CautiousAdamW itself by ", text["CautiousAdamW"]),
    ])  # fmt: skip


TABLES: Tables = {
    "In short": in_short,
    "How it was measured": totals,
    f"explored: {COMPARISON}": halving,
    AGAINST_RADAR: against_radar,
    "In time": unchecked,
}
