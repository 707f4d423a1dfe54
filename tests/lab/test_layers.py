"""The parts of the lab import each other in one direction, function-level imports included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import aimopt.lab

LAB = Path(aimopt.lab.__file__).parent
# From the lowest to the highest. `defaults`, `findings` and `api` are modules, the others are folders.
LAYERS = ("defaults", "stats", "protocol", "results", "execution", "analysis", "report", "findings", "api")
# A study chooses its learning rates from its runs, so it needs `Run`, which is data about a config.
# A study file may come from a store, and then has a checksum.
ALLOWED = {
    ("protocol.lengths", "results.run"),
    ("protocol.schedule", "results.run"),
    ("protocol.study", "results.run"),
    ("protocol.study_files", "results.json_files"),
}


def imports(path: Path) -> Iterator[str]:
    """What a file imports from the lab, without the prefix `aimopt.lab.`: `results.run.Run`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.removeprefix("aimopt.lab.") for name in names if name.startswith("aimopt.lab."))


def is_allowed(module: str, imported: str) -> bool:
    return any(module == importer and f"{imported}.".startswith(f"{target}.") for importer, target in ALLOWED)


def wrong_imports(layers: tuple[str, ...] = LAYERS) -> list[str]:
    """Every import from a higher layer."""
    wrong = []
    for path in sorted(LAB.glob("*/**/*.py")) + [path for path in LAB.glob("*.py") if path.stem in layers]:
        module = ".".join(path.relative_to(LAB).with_suffix("").parts)
        level = layers.index(module.split(".")[0])
        for imported in sorted(set(imports(path))):
            layer = imported.split(".")[0]
            if layer in layers and layers.index(layer) > level and not is_allowed(module, imported):
                wrong.append(f"{module} imports {imported}")
    return wrong


def test_imports_point_to_lower_layers() -> None:
    assert wrong_imports() == []


def test_every_folder_of_the_lab_is_a_layer() -> None:
    folders = {path.name for path in LAB.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in LAB.glob("*.py")} - {"__init__"}
    assert folders | modules == set(LAYERS)


@pytest.mark.parametrize("lower", ["analysis", "results"])
def test_a_wrong_order_is_noticed(lower: str) -> None:
    reordered = tuple(sorted(LAYERS, key=lambda name: name == lower))  # that layer becomes the highest
    assert any(f"imports {lower}" in line for line in wrong_imports(reordered))
