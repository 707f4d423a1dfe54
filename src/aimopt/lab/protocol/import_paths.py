"""Import paths: `package.module:Name` for installed code, `file.py:Name` for a class in a user's file.

load("torch.optim:AdamW")               the class
source("file.py:Mine")                  {"file.py:Mine": checksum of the file}
"""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Mapping
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
    """The checksum of the user's file, by its import path; empty for an installed module."""
    file = import_path.rpartition(":")[0]
    return {import_path: hashlib.sha256(Path(file).read_bytes()).hexdigest()} if file.endswith(".py") else {}


def check_sources(sources: Mapping[str, str]) -> None:
    """Refuse a run if one of the user's files has changed since its config was made."""
    for import_path, checksum in sources.items():
        if source(import_path).get(import_path) != checksum:
            file = import_path.rpartition(":")[0]
            raise ValueError(
                f"{file} has changed since the run was configured; give the command again, or restore the old file"
            )


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
    # The name depends on path and content: an edited file is another module, and the code that runs has the checksum.
    name = f"aimopt_user_{hashlib.sha256(str(path.resolve()).encode() + code).hexdigest()[:12]}"
    if name not in sys.modules:
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
