"""The lab: compare optimizers honestly, in one command or from Python.

from aimopt.lab import compare, investigate
investigate([compare("digits", "demo")], "results")

recipe ──► study ──► cells ──► engine ──► runner ──► store ──► stats ──► analysis ──► report
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aimopt.lab.config import RunConfig
    from aimopt.lab.engines import Resources
    from aimopt.lab.investigation import investigate
    from aimopt.lab.store import Store
    from aimopt.lab.study import Study, ablation, compare, sensitivity
    from aimopt.lab.tasks import Context, Measure, Splits, Supervised, Task, Training

_HOMES = {
    "config": ("RunConfig",),
    "engines": ("Resources",),
    "investigation": ("investigate",),
    "store": ("Store",),
    "study": ("Study", "ablation", "compare", "sensitivity"),
    "tasks": ("Context", "Measure", "Splits", "Supervised", "Task", "Training"),
}

__all__ = [
    "Context",
    "Measure",
    "Resources",
    "RunConfig",
    "Splits",
    "Store",
    "Study",
    "Supervised",
    "Task",
    "Training",
    "ablation",
    "compare",
    "investigate",
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
