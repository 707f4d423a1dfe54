"""Analysis: from the runs of a study to numbers: values, verdicts, and whether the comparison was fair.

    analysis = analyse(study, store.runs())
    analysis.standing("Mine").difference.verdict         "better", "worse", "cannot tell with 5 seeds"
    analysis.audit                                         what a careful reader would ask about
    across_tasks([analysis, other_analysis])               ranks and performance profile over several tasks

It works at any time: without runs, in the middle of a sweep and at its end.
"""

from aimopt.lab.analysis.across_tasks import Across, across_tasks
from aimopt.lab.analysis.analyse import analyse
from aimopt.lab.analysis.study_analysis import (
    Curve,
    Curves,
    Point,
    Progress,
    Published,
    Remark,
    Returns,
    RunResult,
    Standing,
    StudyAnalysis,
    Sweep,
    Target,
    ToTarget,
    has_order,
    judged_value,
)

__all__ = [
    "Across",
    "Curve",
    "Curves",
    "Point",
    "Progress",
    "Published",
    "Remark",
    "Returns",
    "RunResult",
    "Standing",
    "StudyAnalysis",
    "Sweep",
    "Target",
    "ToTarget",
    "across_tasks",
    "analyse",
    "has_order",
    "judged_value",
]
