"""The lab: compare optimizers honestly, in one command or from Python.

    from aimopt.lab import compare, run
    findings = run(compare("spirals", optimizers=["Mine", "torch.optim:AdamW"]), store="results")
    findings.verdict("Mine")

    protocol ─► study ─► cells ─► scheduler ─► engine ─► runner ─► store ─► stats ─► analysis ─► findings ─► report

It knows no optimizer and no task by name: a study names them, and installed packages offer tasks (protocol/tasks.py).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aimopt.messages.extras import install_command

if TYPE_CHECKING:  # type checkers cannot read the table below; `name as name` means that the name is exported
    from aimopt.lab.analysis.explored import Explored as Explored
    from aimopt.lab.api import BatchResult as BatchResult
    from aimopt.lab.api import analyse as analyse
    from aimopt.lab.api import explore as explore
    from aimopt.lab.api import run as run
    from aimopt.lab.api import run_all as run_all
    from aimopt.lab.execution.resources import Resources as Resources
    from aimopt.lab.findings import Findings as Findings
    from aimopt.lab.protocol.exploration import Exploration as Exploration
    from aimopt.lab.protocol.lengths import lengths as lengths
    from aimopt.lab.protocol.protocol import Protocol as Protocol
    from aimopt.lab.protocol.protocol import PublishedTable as PublishedTable
    from aimopt.lab.protocol.protocol import same_options as same_options
    from aimopt.lab.protocol.recipes import compare as compare
    from aimopt.lab.protocol.recipes import sensitivity as sensitivity
    from aimopt.lab.protocol.run_config import RunConfig as RunConfig
    from aimopt.lab.protocol.study import Contender as Contender
    from aimopt.lab.protocol.study import Study as Study
    from aimopt.lab.protocol.supervised import Splits as Splits
    from aimopt.lab.protocol.supervised import Supervised as Supervised
    from aimopt.lab.protocol.task import Context as Context
    from aimopt.lab.protocol.task import Measure as Measure
    from aimopt.lab.protocol.task import Task as Task
    from aimopt.lab.protocol.task import Training as Training
    from aimopt.lab.protocol.tasks import TaskEntry as TaskEntry
    from aimopt.lab.results.store import Store as Store

# The exported names by module; a module is imported when the first of its names is used.
_NAMES = {
    "analysis.explored": ("Explored",),
    "api": ("BatchResult", "analyse", "explore", "run", "run_all"),
    "execution.resources": ("Resources",),
    "findings": ("Findings",),
    "protocol.exploration": ("Exploration",),
    "protocol.lengths": ("lengths",),
    "protocol.protocol": ("Protocol", "PublishedTable", "same_options"),
    "protocol.recipes": ("compare", "sensitivity"),
    "protocol.run_config": ("RunConfig",),
    "protocol.study": ("Contender", "Study"),
    "protocol.supervised": ("Splits", "Supervised"),
    "protocol.task": ("Context", "Measure", "Task", "Training"),
    "protocol.tasks": ("TaskEntry",),
    "results.store": ("Store",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"aimopt.lab needs {error.name}: {install_command('lab')}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
