"""The picture at the top of README: `python benchmarks/overview_picture.py`, from the runs that docs/results keeps.

Two rows per setting of supervised learning, because returns of reinforcement learning differ far more between seeds:
RADAR's gain over AdamW with the same seed, and over AdamW with a tuned β1. A point per seed; the bar is the interval of
the verdict, which holds for all looks and contenders together.
Nothing is trained.
"""

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aimopt import palette
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.lab.stats.sequential import relative_gains
from aimopt.paper.entries import TASKS
from aimopt.theory import plots

DOCS = Path(__file__).parent.parent / "docs"
SUBJECT = "RADAR"
REFERENCES = {
    "AdamW": ("AdamW", palette.NAVY.light),
    "AdamW(tune='beta1')": ("AdamW, β1 tuned", palette.VERMILION.light),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DOCS / "results" / "mini.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        store = Store(folder)
        print(plots.save(draw(store, store.runs()), DOCS / "images" / "overview.png"))


def draw(store: Store, runs: Mapping[str, Run]) -> Figure:
    studies = {(study.task, study.reference): study for study in store.studies() if study.is_comparison}
    compared = [task for task in TASKS if (task, "AdamW") in studies]
    tasks = [task for task in compared if studies[task, "AdamW"].facts.measure.better == "lower"]
    title = f"{SUBJECT} against AdamW, and against AdamW with a tuned β1"
    figure, ((axes,),) = plots.new_figure(1, 1, (9, 0.8 + 1.0 * len(tasks)), title)
    labels: list[tuple[float, str]] = []
    for row, task in enumerate(tasks):
        for offset, (reference, (name, color)) in enumerate(REFERENCES.items()):
            analysis = analyse_study(studies[task, reference], runs)
            place = row + 0.36 * offset - 0.18
            verdict = _draw_gains(axes, analysis, place, color)
            labels.append((place, f"{analysis.title}\nagainst {name}: {verdict}"))
    axes.set_yticks([place for place, _ in labels], [text for _, text in labels], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color=palette.INK.light, linewidth=1)
    axes.set_xlabel(f"gain of {SUBJECT} with the same seed, in per cent; shaded: differences that do not count")
    return figure


def _draw_gains(axes: Axes, analysis: StudyAnalysis, place: float, color: str) -> str:
    """The seeds and the interval in one row; the result is the verdict."""
    subject, reference = analysis.standing(SUBJECT), analysis.reference
    by_seed = {result.seed: result.value for result in reference.finals}
    seeds = [result for result in subject.finals if result.seed in by_seed]
    gains = relative_gains(
        [result.value for result in seeds], [by_seed[result.seed] for result in seeds], analysis.measure.better
    )
    assert subject.decision is not None
    margin = 100 * analysis.study.margin
    axes.fill_betweenx([place - 0.16, place + 0.16], -margin, margin, color=palette.INK.light, alpha=0.15, linewidth=0)
    ends = [100 * subject.decision.low, 100 * subject.decision.high]
    axes.plot(100 * gains, [place] * len(gains), "o", color=color, markersize=4, alpha=0.55)
    axes.plot(ends, [place] * 2, "-", color=color, linewidth=2.5)
    return subject.decision.verdict


if __name__ == "__main__":
    main()
