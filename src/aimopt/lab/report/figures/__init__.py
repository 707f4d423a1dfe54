"""The figures of a report. Each one is drawn once and rendered as SVG for the page, PNG for slides and PDF for print.

of_study(analysis, styles)["verdicts"]              the pictures of one part of a study's section
overview_pictures(analyses, styles, stamp)          the first pictures of a report about several tasks
across_tasks(across, styles, stamp)                 average ranks and performance profile
render_all(named_pictures, ("png", "pdf"))

overview.py     the first pictures of a report: the subject on every task, all verdicts
comparison.py   one row per contender: final values, differences, time to a target, costs, returns
lines.py        curves over the steps, profiles, ranks
searches.py     scores over the learning rate, and over the number of trials
sweeps.py       sensitivity to one or two options
style.py        colours and settings;  labels.py   names;  svg.py, rendering.py   output
"""

from collections.abc import Mapping, Sequence

from aimopt.lab.analysis.across_tasks import AcrossTasks
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.report.figures import comparison, lines, overview, searches, sweeps
from aimopt.lab.report.figures.style import Picture, Style

MAX_OVERVIEW_PICTURES = 2  # side by side, at the top of the page


def of_study(analysis: StudyAnalysis, styles: Mapping[str, Style]) -> dict[str, list[Picture]]:
    """The pictures of a study by the part of the section that shows them; parts without pictures are left out."""
    if analysis.sweep is not None:
        parts = {"sweep": [sweeps.sweep(analysis), searches.learning_rates(analysis, styles)]}
    else:
        parts = {
            "verdicts": [comparison.differences(analysis, styles), comparison.final_values(analysis, styles)],
            "curves": [lines.curves(analysis, shown, styles) for shown in analysis.curves],
            "search": [searches.learning_rates(analysis, styles), searches.tuning_budget(analysis, styles)],
            "cost": [comparison.to_target(analysis, styles), comparison.overhead(analysis, styles)],
            "returns": [comparison.interquartile_means(analysis, styles), comparison.improvement(analysis, styles)],
        }
    drawn = {part: [picture for picture in pictures if picture is not None] for part, pictures in parts.items()}
    return {part: pictures for part, pictures in drawn.items() if pictures}


def overview_pictures(analyses: Sequence[StudyAnalysis], styles: Mapping[str, Style], stamp: str) -> list[Picture]:
    """The first pictures of a report: none for fewer than two comparisons. Each reference has a picture of its own."""
    references = list(dict.fromkeys(analysis.study.reference for analysis in analyses))
    drawn = [overview.subject_by_task(analyses, reference, styles, stamp) for reference in references]
    if len(references) == 1:  # with several, a row of the grid would not say which of them it is about
        drawn.append(overview.verdict_grid(analyses, styles, stamp))
    return [picture for picture in drawn if picture is not None][:MAX_OVERVIEW_PICTURES]


def across_tasks(across: AcrossTasks, styles: Mapping[str, Style], stamp: str) -> list[Picture]:
    """The pictures across several tasks."""
    drawn = [lines.ranks(across, styles, stamp), lines.profile(across, styles, stamp)]
    return [picture for picture in drawn if picture is not None]
