"""The contracts between Python and the kernels: stated once, and the C++ side is generated from them."""

import ast
import ctypes
import re
import string
from pathlib import Path
from typing import Any

import pytest

from aimopt.kernels import layout
from aimopt.kernels.cpu import header
from aimopt.kernels.cpu.library import Library, library, load_library
from aimopt.messages.reason import Reason

ROOT = Path(__file__).parents[2]
OPERATIONS = {
    f"{operation.name}": operation for operation in (*layout.ELEMENT_OPS.values(), *layout.UNIFORM_OPS.values())
}


@pytest.mark.parametrize("name", header.generated_files())
def test_the_generated_files_are_up_to_date(name: str) -> None:
    committed = Path(header.__file__).with_name(name).read_text(encoding="utf-8")
    regenerate = 'run: python -c "from aimopt.kernels.cpu import header; header.write()"'
    assert committed == header.generated_files()[name], regenerate


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {*names, *(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))}


def test_building_needs_no_torch() -> None:
    for path in (ROOT / "setup.py", Path(layout.__file__)):
        assert not {name for name in imported(path) if name.split(".")[0] in ("torch", "aimopt")}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_language_uses_exactly_the_operands_of_an_operation(name: str) -> None:
    operation = OPERATIONS[name]
    expected = {*layout.OPERANDS[: operation.operands], *layout.NUMBERS[: operation.numbers]}
    for text in (operation.cpp, operation.triton):
        assert {field for _, field, _, _ in string.Formatter().parse(text) if field} - {"T"} == expected


@pytest.mark.parametrize("name", layout.UNIFORM_OPS)
def test_uniform_operations_are_also_defined_on_python_numbers(name: str) -> None:
    operation = layout.UNIFORM_OPS[name]
    assert operation.on_numbers is not None
    assert operation.numbers == 0
    assert isinstance(float(operation.on_numbers(*[0.5] * operation.operands)), float)


def test_the_address_row_has_no_gaps() -> None:
    row = layout.RowLayout(scalars=2, streams=4)
    assert [row.NUMEL, row.PARAM_INDEX, row.OFFSET, row.RUN, row.GAP] == [0, 1, 2, 3, 4]
    assert [row.FIRST_SCALAR, row.first_stream, row.gradient, row.width] == [5, 7, 10, 11]


def test_the_library_was_built_from_these_contracts() -> None:
    lib = library()
    assert isinstance(lib, Library), lib
    path = Path(header.__file__).with_name("libstep.so")
    loaded = ctypes.CDLL(str(path))
    loaded.aimopt_layout.restype = ctypes.c_char_p
    assert loaded.aimopt_layout().decode() == header.fingerprint()
    assert re.search(f'AIMOPT_LAYOUT "{header.fingerprint()}"', header.generated_files()["layout.h"])


def test_a_library_of_other_contracts_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_REGISTERS", layout.MAX_REGISTERS + 1)  # any change of the contracts
    load_library.cache_clear()
    try:
        refused: Any = library()
        assert isinstance(refused, Reason)
        assert "was built from another version of aimopt; reinstall aimopt with" in refused.text
    finally:
        monkeypatch.undo()
        load_library.cache_clear()
    assert isinstance(library(), Library)
