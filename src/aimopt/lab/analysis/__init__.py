"""From runs to findings: which numbers a study gives, what they are worth, and whether the comparison was fair.

    findings = analyse(study, store.runs())
    findings.standing("RADAR").difference.verdict         "better", "worse", "cannot tell with 5 seeds"
    findings.audit                                         what a careful reader would ask about
    across([findings, others])                             ranks and profile over the tasks

Works at any time: on nothing, in the middle of a sweep and at its end.
"""

from aimopt.lab.analysis.across import Across, across
from aimopt.lab.analysis.analyse import analyse
from aimopt.lab.analysis.findings import (
    Curve,
    Curves,
    Findings,
    Outcome,
    Point,
    Progress,
    Published,
    Remark,
    Returns,
    Standing,
    Sweep,
    Target,
    ToTarget,
    has_order,
)

__all__ = [
    "Across",
    "Curve",
    "Curves",
    "Findings",
    "Outcome",
    "Point",
    "Progress",
    "Published",
    "Remark",
    "Returns",
    "Standing",
    "Sweep",
    "Target",
    "ToTarget",
    "across",
    "analyse",
    "has_order",
]
