"""The tasks by name. A user's own is named by its place: `file.py:Class` or `package.module:Class`."""

import difflib
from collections.abc import Mapping
from typing import Any

from aimopt.lab.references import load
from aimopt.lab.tasks.supervised import Splits, Supervised
from aimopt.lab.tasks.task import Better, Context, Measure, Task, Training

__all__ = ["Better", "Context", "Measure", "Splits", "Supervised", "Task", "Training", "available", "find"]

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


def available() -> list[str]:
    """The names of the tasks that come with the package."""
    return list(NAMED)


def find(name: str) -> type[Task]:
    """The task of a name, or at a place."""
    if name not in NAMED and ":" not in name:
        close = difflib.get_close_matches(name, NAMED, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(NAMED)}"
        raise ValueError(f"no task is called {name!r}; {hint} A task of your own is file.py:Class")
    task: Any = load(NAMED.get(name, name))
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ValueError(f"{name} is no task; derive the class from aimopt.lab.Task or aimopt.lab.Supervised")
    return task
