"""torch's base class of optimizers without the import of its compiler.

torch excludes four methods from compilation, and imports its whole compiler to do so when the first of them is called:
about two seconds in every process that has an optimizer. Nothing is compiled before that import, so until then there is
nothing to exclude them from.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from torch.optim import Optimizer

R = TypeVar("R")


def _without_compiler(excluded: Callable[..., R]) -> Callable[..., R]:
    """A method of torch that imports the compiler only if someone else has."""
    method = inspect.unwrap(excluded)

    @wraps(method)
    def call(self: Optimizer, *args: object, **kwargs: object) -> R:
        return (excluded if "torch._dynamo" in sys.modules else method)(self, *args, **kwargs)

    return call


class LightOptimizer(Optimizer):
    """torch's `Optimizer`; a process that compiles nothing does not import torch's compiler."""

    add_param_group = _without_compiler(Optimizer.add_param_group)
    state_dict = _without_compiler(Optimizer.state_dict)
    load_state_dict = _without_compiler(Optimizer.load_state_dict)
    zero_grad = _without_compiler(Optimizer.zero_grad)
