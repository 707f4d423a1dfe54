"""The lab: compare optimizers honestly, in one command or from Python.

    from aimopt.lab import compare, run
    findings = run(compare("spirals", optimizers=["Mine", "torch.optim:AdamW"]), store="results")
    findings.verdict("Mine")

    protocol ─► study ─► cells ─► scheduler ─► engine ─► runner ─► store ─► stats ─► analysis ─► findings ─► report

It knows no optimizer and no task by name: a study names them, and installed packages offer tasks (protocol/tasks.py).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aimopt.lab.api import BatchResult, analyse, run, run_all
    from aimopt.lab.execution.engines import Resources
    from aimopt.lab.findings import Findings
    from aimopt.lab.protocol.protocol import Protocol, PublishedTable, same_options
    from aimopt.lab.protocol.recipes import compare, sensitivity
    from aimopt.lab.protocol.run_config import RunConfig
    from aimopt.lab.protocol.study import Contender, Study
    from aimopt.lab.protocol.supervised import Splits, Supervised
    from aimopt.lab.protocol.task import Context, Measure, Task, Training
    from aimopt.lab.protocol.tasks import TaskEntry
    from aimopt.lab.results.store import Store

_HOMES = {
    "api": ("BatchResult", "analyse", "run", "run_all"),
    "execution.engines": ("Resources",),
    "findings": ("Findings",),
    "protocol.protocol": ("Protocol", "PublishedTable", "same_options"),
    "protocol.recipes": ("compare", "sensitivity"),
    "protocol.run_config": ("RunConfig",),
    "protocol.study": ("Contender", "Study"),
    "protocol.supervised": ("Splits", "Supervised"),
    "protocol.task": ("Context", "Measure", "Task", "Training"),
    "protocol.tasks": ("TaskEntry",),
    "results.store": ("Store",),
}

__all__ = [
    "BatchResult",
    "Contender",
    "Context",
    "Findings",
    "Measure",
    "Protocol",
    "PublishedTable",
    "Resources",
    "RunConfig",
    "Splits",
    "Store",
    "Study",
    "Supervised",
    "Task",
    "TaskEntry",
    "Training",
    "analyse",
    "compare",
    "run",
    "run_all",
    "same_options",
    "sensitivity",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            try:
                return getattr(import_module(f"{__name__}.{module}"), name)
            except ModuleNotFoundError as error:
                raise ImportError(f"aimopt.lab needs {error.name}: pip install 'aimopt[lab]'") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
