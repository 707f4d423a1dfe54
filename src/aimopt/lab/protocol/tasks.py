"""Tasks by name: installed packages register theirs under the entry point group `aimopt.tasks`.

    [project.entry-points."aimopt.tasks"]
    spirals = "my_package.tasks:SPIRALS"

The object is a `TaskEntry` or a `Task` class. Other tasks are named by their import path: `file.py:Class`.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aimopt.lab.protocol.entry_points import TASKS
from aimopt.lab.protocol.import_paths import load
from aimopt.lab.protocol.protocol import Protocol
from aimopt.lab.protocol.task import Measure, Task
from aimopt.lab.protocol.user_code import user_code

# The attributes of a task class, and their types.
_ATTRIBUTES = (("title", str), ("score", Measure), ("measure", Measure), ("scales", Mapping), ("packages", tuple))


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task, and one protocol per scale: how optimizers are compared on it."""

    task: type[Task]
    protocols: Mapping[str, Protocol] = field(default_factory=dict)  # by scale
    # Settings of the task in older versions. They stay part of a run's identity, so that finished runs are found.
    former_settings: Mapping[str, Any] = field(default_factory=dict)

    def protocol(self, scale: str) -> Protocol:
        """The protocol of a scale."""
        self.task.check_scale(scale)
        return self.protocols.get(scale, Protocol())


def available() -> list[str]:
    """The names of the installed tasks."""
    return TASKS.names()


def entry(name: str) -> TaskEntry:
    """The entry of an installed task, by its name, or of any task, by its import path."""
    loaded = load(name) if ":" in name else TASKS.load(name, " (a task of your own is file.py:Class)")
    task_entry = loaded if isinstance(loaded, TaskEntry) else TaskEntry(task=loaded)
    _check_task(name, task_entry.task)
    return task_entry


def find(name: str) -> type[Task]:
    """The task class, by its name or import path."""
    return entry(name).task


def _check_task(name: str, task: Any) -> None:
    """Refuse an object that is not a task, or not a complete one."""
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ValueError(f"{name} is not a task; derive the class from aimopt.lab.Task or aimopt.lab.Supervised")
    if inspect.isabstract(task):
        missing = ", ".join(sorted(task.__abstractmethods__))
        raise ValueError(f"{name} is not a complete task; define {missing} in the class")
    for attribute, kind in _ATTRIBUTES:
        if not isinstance(getattr(task, attribute, None), kind):
            raise ValueError(f"{name} is not a complete task; give the class a {attribute} of type {kind.__name__}")


def prepare(name: str, task: Task) -> None:
    """Fetch the data of a task; an error in its code becomes a message that names the task."""
    with user_code(f"the data of {name} cannot be prepared", explained=(OSError, ImportError, ValueError)):
        task.prepare()
