"""The layout of the package and of its tests: CONTRIBUTING names all folders, imports point one way, groups hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import aimopt

PACKAGE = Path(aimopt.__file__).parent
ROOT = PACKAGE.parents[1]
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 60

# A module imports from its own layer and from those before it. Modules of one layer may import each other, but
# theory, measure and jax, which share a place in the order, may not.
LAYERS = (
    ("messages", "atomic_files", "palette"),
    ("parts",),
    ("step",),
    ("kernels",),
    ("light_optimizer", "stepping", "aim", "backward", "new_groups", "checks", "checkpoints", "groups", "diagnostics"),
    ("optimizers",),
    ("testing",),
    ("theory", "measure", "jax"),
    ("lab",),
    ("paper",),
    ("cli",),
)
INDEPENDENT = ({"theory", "measure"}, {"theory", "jax"}, {"measure", "jax"})
POSITION = {name: position for position, names in enumerate(LAYERS) for name in names}
# The package itself re-exports the layers up to the optimizers, and `python -m aimopt` is the command line.
POSITION |= {"__init__": POSITION["optimizers"], "__main__": POSITION["cli"]}


def layer(module: str) -> str:
    """The layer of a module, by its dotted name below the package: "kernels.cpu.launch" is in "kernels"."""
    return module.split(".")[0] or "__init__"


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_nodes(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, also those inside functions, except those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield from import_nodes(other)
        else:
            yield from import_nodes(child)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module below the package) of every import of this package."""
    for node in import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "aimopt"
                else [node.module or ""]
            )
        for name in names:
            if name == "aimopt":
                yield node.lineno, "__init__"
            elif name.startswith("aimopt."):
                yield node.lineno, name.removeprefix("aimopt.")


def violations(path: Path) -> Iterator[str]:
    importer = layer(dotted(path))
    for line, module in imported_modules(path):
        imported = layer(module)
        if imported not in POSITION:
            imported = "__init__"  # a name that the package itself exports
        backwards = POSITION[imported] > POSITION[importer]
        sideways = imported != importer and any({imported, importer} <= pair for pair in INDEPENDENT)
        if backwards or sideways:
            yield f"{path.relative_to(ROOT)}:{line}: {importer} imports {module}"


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(dotted(path)) for path in MODULES} <= {*POSITION}


def test_imports_point_one_way() -> None:
    found = [violation for path in MODULES for violation in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from aimopt.kernels import status", 1),
        ("def f():\n    import aimopt.lab.api", 1),
        ("from aimopt import RADAR", 1),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from aimopt.aim import AIM", 0),
        ("from aimopt.parts.component import Parts", 0),
        ("from aimopt.messages.reason import Reason", 0),
    ],
)
def test_an_import_against_the_order_is_found(
    source: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "src" / "aimopt" / "step" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text(source)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "src" / "aimopt")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert len(list(violations(module))) == expected


def test_no_function_is_longer_than_60_lines() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_LINES
    ]
    assert not found, "\n".join(found)


def test_contributing_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in MODULES} - {"."}
    missing = sorted(folder for folder in folders if f"`{folder}/`" not in text)
    assert not missing, f"CONTRIBUTING.md does not name {missing}"


@pytest.mark.xdist_group("group")
def test_groups_of_tests_share_a_worker(request: pytest.FixtureRequest) -> None:
    """Else every worker builds what a group shares. pytest-xdist distributes tests by what follows the last @."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@group")
