"""The names that `aimopt.lab` exports are stated twice, for Python and for type checkers; both are the same."""

import ast
from pathlib import Path

import pytest

import aimopt.lab


def test_type_checkers_see_the_exported_names() -> None:
    assert aimopt.lab.__file__ is not None
    module = ast.parse(Path(aimopt.lab.__file__).read_text())
    (block,) = [node for node in module.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: f"{node.module}" for node in imports for alias in node.names}
    assert seen == {name: f"aimopt.lab.{home}" for name, home in aimopt.lab._MODULES.items()}
    assert aimopt.lab.__all__ == sorted(aimopt.lab._MODULES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'aimopt\.lab' has no attribute 'comparison'"):
        aimopt.lab.comparison  # noqa: B018
