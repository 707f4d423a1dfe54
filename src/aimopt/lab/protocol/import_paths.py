"""Import paths: `package.module:Name` for installed code, `file.py:Name` for a class in a user's file.

load("torch.optim:AdamW")               the class
source("mine/task.py:Mine")             {"mine/task.py:Mine": its checksum, "mine/helper.py": that of a file it imports}

A file may import others from its folder. Which ones is read from its text, so that nothing has to be run to know the
sources of a run; an import whose name is computed is not seen. An installed module of the same name comes first.
"""

import ast
import hashlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

from aimopt.lab.protocol.user_code import user_code
from aimopt.messages.spelling import suggestion


def load(import_path: str) -> Any:
    """Import the object at an import path."""
    module_name, _, name = import_path.rpartition(":")
    if not module_name or not name:
        raise ValueError(f"{import_path!r} is not an import path; write package.module:Name or file.py:Name")
    module = _file(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    if not hasattr(module, name):
        public = getattr(module, "__all__", ())
        classes = [
            attribute
            for attribute, value in vars(module).items()
            if isinstance(value, type) and (attribute in public or value.__module__ == module.__name__)
        ]
        hint = suggestion(name, sorted(classes)) if classes else "it has no classes"
        raise ValueError(f"{module_name} has no {name!r}; {hint}")
    return getattr(module, name)


def check_trusted(names: Iterable[str], trust: bool) -> None:
    """Refuse import paths in a file that is not trusted. Registered names are code of installed packages."""
    import_paths = [name for name in dict.fromkeys(names) if ":" in name]
    if import_paths and not trust:
        raise ValueError(f"it needs the code of {', '.join(import_paths)}; if you have read and trust it, give --trust")


def trust_needed(names: Iterable[str]) -> list[str]:
    """The arguments that a command needs to read these names from a file: `--trust` if one is an import path."""
    return ["--trust"] if any(":" in name for name in names) else []


def source(import_path: str) -> dict[str, str]:
    """The checksums of the user's file, by its import path, and of the files that it imports from its folder.

    Empty for an installed module.
    """
    file = import_path.rpartition(":")[0]
    if not file.endswith(".py"):
        return {}
    helpers = {helper.as_posix(): _checksum(helper) for helper in sorted(_helpers(Path(file)).values())}
    return {import_path: _checksum(Path(file)), **helpers}


def check_sources(sources: Mapping[str, str]) -> None:
    """Refuse a run if one of the user's files has changed since its config was made."""
    for import_path, checksum in sources.items():
        file = import_path if import_path.endswith(".py") else import_path.rpartition(":")[0]
        if not Path(file).is_file() or _checksum(Path(file)) != checksum:
            raise ValueError(
                f"{file} has changed since the run was configured; give the command again, or restore the old file"
            )


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _helpers(path: Path) -> dict[str, Path]:
    """The files of its folder that a file imports, and that these import, by the names of their modules."""
    helpers: dict[str, Path] = {}
    waiting = [("", path)]
    while waiting:
        importer, file = waiting.pop()
        try:
            imports = list(_imports(ast.parse(file.read_bytes()), importer, file.name == "__init__.py"))
        except (OSError, SyntaxError, ValueError):  # loading the file raises the error that says what is wrong
            continue
        for name in imports:
            file = path.parent.joinpath(*name.split("."))
            found = next((f for f in (file.with_suffix(".py"), file / "__init__.py") if f.is_file()), None)
            if found is not None and found != path and name not in helpers and not _is_installed(name, path.parent):
                helpers[name] = found
                waiting.append((name, found))
    return helpers


def _imports(tree: ast.Module, importer: str, is_package: bool) -> Iterator[str]:
    """The names of modules that a text may import: of `from a import b`, both a and a.b, and the packages of each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = importer.split(".")[: len(importer.split(".")) - node.level + is_package] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}".removeprefix(".") for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _is_installed(name: str, folder: Path) -> bool:
    """Whether the module is found elsewhere than in this folder, or in another one of a user's file."""
    package = name.partition(".")[0]
    specs = (finder.find_spec(package, None) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec is not None), None)
    if spec is None:
        return False
    places = spec.submodule_search_locations if spec.origin is None else [spec.origin]
    folders = {folder.resolve(), *map(Path, _FOLDERS)}
    return all(folders.isdisjoint([*Path(place).resolve().parents][:2]) for place in places or ())


def _module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is not a module name; write package.module:Name or file.py:Name")
    with user_code(f"the module {name} cannot be loaded"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name
    raise ValueError(f"there is no module {missing!r}; install it, or name a file: file.py:Name")


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to load from; give its path from the current folder")
    code = path.read_bytes()
    helpers = _helpers(path)
    # The name depends on paths and contents: an edited file is another module, and the code that runs has the checksum.
    texts = [code, *(file.read_bytes() for file in helpers.values())]
    checksums = b"".join(hashlib.sha256(text).digest() for text in texts)
    name = f"aimopt_user_{hashlib.sha256(str(path.resolve()).encode() + checksums).hexdigest()[:12]}"
    if name not in sys.modules:
        _make_importable(path.parent, helpers)
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # `dataclass` reads sys.modules when a class is defined
        try:
            with user_code(f"{path} cannot be loaded"):
                exec(compile(code, str(path), "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _make_importable(folder: Path, helpers: Mapping[str, Path]) -> None:
    """Let the modules of a folder be imported, after all installed ones and before those of other users' folders."""
    for name, file in helpers.items():
        sys.modules.pop(name, None)  # it may be of another folder, or the file may have changed
        with suppress(OSError):  # Python takes compiled code for new if the file was edited in the same second
            Path(cache_from_source(str(file))).unlink(missing_ok=True)
    own, installed = str(folder.resolve()), [entry for entry in sys.path if entry not in _FOLDERS]
    _FOLDERS[:] = [own, *(other for other in _FOLDERS if other != own)]
    sys.path[:] = [*installed, *_FOLDERS]
    importlib.invalidate_caches()


_FOLDERS: list[str] = []  # of users' files, at the end of sys.path
