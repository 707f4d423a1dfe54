"""Execution options: how a step is carried out. This is their only statement.

An option is one line of `Execution`: its name, its type, its default, a line of documentation, its allowed values, and
which checkpoints may set it. For example

    maximize: Annotated[bool, Option(False, "Ascend instead of descend.", in_arithmetic=True)]
    fused: Annotated[bool | None, Option(None, "…", choices=(True, False, None), adopted_from="none")]

Everything else is derived from it: the keywords that mypy knows, the constructor and its defaults, the signature and
text that `help()` shows, the check of a group's values, the reserved names of a group, the loading of checkpoints.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

import torch

from aimopt.messages.spelling import suggestion
from aimopt.parts.component import Decay, Iterate


@dataclass(frozen=True)
class Option:
    """What there is to say about one option, apart from its name and type."""

    default: Any
    documentation: str
    choices: tuple[Any, ...] = (True, False)  # the values that a group may hold
    # Which checkpoints set it on loading: those of any optimizer, those of an optimizer with the same parts, or none,
    # because it belongs to the machine that the run is on.
    adopted_from: Literal["any", "same parts", "none"] = "any"
    in_arithmetic: bool = False  # whether `Move` reads it: then a kernel is made for each of its values


class Execution(TypedDict, total=False):
    """How a step is carried out: the keywords that every optimizer takes."""

    maximize: Annotated[bool, Option(False, "Ascend instead of descend.", in_arithmetic=True)]
    foreach: Annotated[
        bool | None,
        Option(
            None,
            "Step all tensors of a group with torch's multi-tensor functions. None uses them where torch would.",
            choices=(True, False, None),
            adopted_from="same parts",
        ),
    ]
    fused: Annotated[
        bool | None,
        Option(
            None,
            "Step all tensors of a group in one pass over memory. None does it where a kernel can, unless `foreach` is "
            "given. True raises an error where no kernel can, and unscales a GradScaler's gradients in the same pass.",
            choices=(True, False, None),
            adopted_from="none",
        ),
    ]
    state_dtype: Annotated[
        str | torch.dtype | None,
        Option(
            None,
            'The dtype of the state: "bfloat16" halves its memory, "int8" quarters it. None is the dtype of the '
            "parameter, and float32 for 16-bit parameters. The state of complex parameters is always complex. With "
            '"int8" moments take one byte per element and one scale per 128 of them; other buffers, and parameters '
            "with fewer than 4096 elements, keep float32.",
            choices=(None, "float32", "bfloat16", "int8"),
            adopted_from="none",
        ),
    ]
    stochastic_rounding: Annotated[
        bool,
        Option(
            True,
            "Round 16-bit parameters and state up or down at random, so that small updates are not lost. False rounds "
            "to the nearest value.",
        ),
    ]
    capturable: Annotated[
        bool,
        Option(
            False,
            "Store step counts on the device, so that the step can be captured in a CUDA graph.",
            adopted_from="same parts",
        ),
    ]
    differentiable: Annotated[bool, Option(False, "Let autograd record the step.", adopted_from="same parts")]
    skip_nonfinite: Annotated[
        bool,
        Option(
            False,
            "Skip the whole step, and leave the state as it is, if any gradient is infinite or NaN. `skipped_steps` of "
            "the first group counts these steps. Reading the gradients waits for the device.",
        ),
    ]


class Keywords(Execution, total=False):
    """The keywords that every named optimizer takes: execution options, and the parts that it leaves open.

    A part may also be given by its name, such as "Average", for config files.
    """

    decay: Decay | str | None
    iterate: Iterate | str | None


_TYPES_AND_OPTIONS = {name: get_args(hint) for name, hint in get_type_hints(Execution, include_extras=True).items()}
OPEN_PARTS = {name: hint for name, hint in get_type_hints(Keywords).items() if name not in _TYPES_AND_OPTIONS}
OPTIONS: dict[str, Option] = {name: option for name, (_, option) in _TYPES_AND_OPTIONS.items()}


def with_defaults(given: Execution) -> dict[str, Any]:
    """The values of all options as a parameter group holds them, or a TypeError for a keyword that is no option."""
    for name in given:
        if name not in OPTIONS:
            hint = suggestion(name, OPTIONS)
            raise TypeError(f"AIM() got an unexpected keyword argument {name!r}; {hint}")
    return {name: _plain(given.get(name, option.default)) for name, option in OPTIONS.items()}


def _plain(value: Any) -> Any:
    """A value that a checkpoint can hold: a dtype by its name."""
    return str(value).removeprefix("torch.") if isinstance(value, (str, torch.dtype)) else value


def expanded_signature(init: Callable[..., None]) -> inspect.Signature:
    """The signature of a constructor, with every option in place of **execution."""
    parameters = list(inspect.signature(init).parameters.values())[1:]
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        keyword = inspect.Parameter.KEYWORD_ONLY
        open_parts = OPEN_PARTS if Keywords in get_args(parameters[-1].annotation) else {}
        parameters[-1:] = [
            *(inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in open_parts.items()),
            *(
                inspect.Parameter(name, keyword, default=option.default, annotation=kind)
                for name, (kind, option) in _TYPES_AND_OPTIONS.items()
            ),
        ]
    return inspect.Signature(parameters)


def documented(docstring: str | None) -> str | None:
    """A class's docstring, with a section about the options at its end."""
    if docstring is None:  # python -OO
        return None
    lines = [
        textwrap.fill(f"{name}: {option.documentation}", 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for name, option in OPTIONS.items()
    ]
    return "\n".join([docstring.rstrip(), "", "    Execution options:", *lines, "    "])
