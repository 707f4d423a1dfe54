"""The picture at the top of README: `python benchmarks/overview_picture.py`, from the runs that docs/results keeps.

One row per setting: RADAR's lead over AdamW with the same seed, in standard deviations of AdamW's five results. Nothing
is trained, and no run is left out.
"""

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from aimopt import palette
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.report import phrasing
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.paper.entries import TASKS
from aimopt.theory import plots

DOCS = Path(__file__).parent.parent / "docs"
SUBJECT, REFERENCE = "RADAR", "AdamW"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DOCS / "results" / "mini.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        store = Store(folder)
        print(plots.save(draw(store, store.runs()), DOCS / "images" / "overview.png"))


def draw(store: Store, runs: Mapping[str, Run]) -> Figure:
    figure, ((axes,),) = plots.new_figure(
        1, 1, (9, 4.2), f"{SUBJECT} against {REFERENCE}: the paper's seven settings, in miniature"
    )
    comparisons = {study.task: study for study in store.studies() if study.is_comparison}
    labels = []
    for row, task in enumerate(TASKS):
        analysis = analyse_study(comparisons[task], runs)
        subject, reference = analysis.standing(SUBJECT), analysis.standing(REFERENCE)
        assert subject.spread is not None
        assert reference.spread is not None
        unit = reference.spread.std * (1 if analysis.measure.better == "higher" else -1)
        by_seed = {result.seed: result.value for result in reference.finals}
        leads = [(result.value - by_seed[result.seed]) / unit for result in subject.finals]
        last = row == len(TASKS) - 1
        axes.plot(
            sum(leads) / len(leads),
            row,
            "|",
            color=palette.VERMILION.light,
            markersize=18,
            markeredgewidth=3,
            label="mean" if last else "",
        )
        axes.plot(
            leads,
            [row] * len(leads),
            "o",
            color=palette.NAVY.light,
            markersize=5,
            alpha=0.7,
            label="one seed" if last else "",
        )
        labels.append(f"{analysis.title}\n{phrasing.verdict(subject.difference)}")
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color=palette.INK.light, linewidth=1)
    axes.set_xlabel(
        f"lead of {SUBJECT} over {REFERENCE} with the same seed, in standard deviations of {REFERENCE}'s results"
    )
    axes.legend(loc="lower right", fontsize=8)
    return figure


if __name__ == "__main__":
    main()
