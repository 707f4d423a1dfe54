"""The tasks by name, `all` for those of the paper. A user's own is named by its place: `file.py:Class`."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from aimopt.lab.references import load
from aimopt.lab.tasks.supervised import Splits, Supervised
from aimopt.lab.tasks.task import Better, Context, Measure, Task, Training, check_protocol
from aimopt.lab.user_code import user_code
from aimopt.spelling import suggestion

__all__ = [
    "Better",
    "Context",
    "Measure",
    "Splits",
    "Supervised",
    "Task",
    "Training",
    "available",
    "check_protocol",
    "find",
    "named",
    "prepare",
]

NAMED: Mapping[str, str] = {
    "digits": "aimopt.lab.tasks.digits:Digits",
    "cifar10-vit": "aimopt.lab.tasks.vision:Cifar10ViT",
    "cifar100-resnet50": "aimopt.lab.tasks.vision:Cifar100ResNet",
    "wikitext103-gpt2": "aimopt.lab.tasks.language:WikitextGPT2",
    "fineweb-qwen": "aimopt.lab.tasks.language:FinewebQwen",
    "wikitext2-finetune": "aimopt.lab.tasks.language:WikitextFinetune",
    "halfcheetah-sac": "aimopt.lab.tasks.sac:HalfCheetah",
    "walker2d-sac": "aimopt.lab.tasks.sac:Walker2d",
    "pendulum-sac": "aimopt.lab.tasks.sac:Pendulum",
}
PAPER = tuple(name for name in NAMED if name not in ("digits", "pendulum-sac"))


def available() -> list[str]:
    """The names of the tasks that come with the package."""
    return list(NAMED)


def named(names: Iterable[str]) -> list[str]:
    """The names, once each, with the paper's tasks in the place of `all`."""
    return list(dict.fromkeys(name for given in names for name in (PAPER if given == "all" else (given,))))


def find(name: str) -> type[Task]:
    """The task of a name, or at a place."""
    if name not in NAMED and ":" not in name:
        raise ValueError(f"no task is called {name!r}; {suggestion(name, NAMED)} (a task of your own is file.py:Class)")
    task: Any = load(NAMED.get(name, name))
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ValueError(f"{name} is no task; derive the class from aimopt.lab.Task or aimopt.lab.Supervised")
    if inspect.isabstract(task):
        missing = ", ".join(sorted(task.__abstractmethods__))
        raise ValueError(f"{name} is no complete task; define {missing} in the class")
    for attribute, kind in (("title", str), ("score", Measure), ("measure", Measure), ("scales", Mapping)):
        if not isinstance(getattr(task, attribute, None), kind):
            raise ValueError(f"{name} is no complete task; give the class a {attribute}, which is a {kind.__name__}")
    return task


def prepare(name: str, task: Task) -> None:
    """Fetch the data of a task; whatever its own code raises is a sentence that names it."""
    with user_code(f"the data of {name} cannot be prepared", explained=(OSError, ImportError, ValueError)):
        task.prepare()
