"""The API reference: one page per public module, with every public name. mkdocstrings shows their docstrings.

modules()                ["aimopt", "aimopt.groups", …]
page("aimopt.theory")    "# `aimopt.theory` … ::: aimopt.theory.frequency.Response …"
"""

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Those that a version does not have are left out.
PUBLIC = (
    "aimopt",
    "aimopt.groups",
    "aimopt.parts.component",
    "aimopt.testing",
    "aimopt.jax",
    "aimopt.theory",
    "aimopt.theory.plots",
    "aimopt.lab",
    "aimopt.kernels",
)


def modules() -> list[str]:
    """The public modules."""
    return [module for module in PUBLIC if find_spec(module) is not None]


def path(module: str) -> str:
    """The page of a module."""
    return f"api/{module}.md"


def names(module: str) -> dict[str, str]:
    """The public names of a module, each with the path at which it is defined; "" for a module."""
    found = import_module(module)
    listed = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module and not _is_alias(value)
    ]
    return {name: _definition(module, name, getattr(found, name)) for name in listed}


def page(module: str) -> str:
    """The Markdown of a page."""
    lines = [f"# {module}", "", inspect.cleandoc(import_module(module).__doc__ or ""), ""]
    for name, definition in names(module).items():
        if definition:
            lines += [f"::: {definition}", ""]
        else:
            lines += [f"## {name}", "", f"A module: see [{module}.{name}]({module}.{name}.md).", ""]
    return "\n".join(lines)


def _definition(module: str, name: str, value: Any) -> str:
    if inspect.ismodule(value):
        return ""
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{module}.{name}"


def _is_alias(value: Any) -> bool:
    return not (inspect.isclass(value) or inspect.isfunction(value))
