"""The lab on the command line.

    aimopt compare digits --scale demo             the paper's protocol: search, seeds, table, verdicts, report
    aimopt sweep digits --preset heatmap           one optimizer over its options
    aimopt run digits --optimizer RADAR --lr 1e-3  one run
    aimopt overhead digits                         what a step costs
    aimopt report | status                         what is there
    aimopt tasks | optimizers | prepare            what there could be

What they need beyond torch is imported when they run.
"""

from aimopt.commands import Subparsers
from aimopt.lab.commands import costs, lists, results, studies


def add_to(subparsers: Subparsers) -> None:
    """Add the lab's commands."""
    for module in (studies, costs, results, lists):
        module.add_to(subparsers)
