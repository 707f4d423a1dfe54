"""Things a user names: `package.module:Name`, or `file.py:Name` for a class in a file of their own."""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from aimopt.lab.user_code import user_code
from aimopt.spelling import suggestion


def load(reference: str) -> Any:
    """What a reference names."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ValueError(f"{reference!r} names nothing; write package.module:Name or file.py:Name")
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    if not hasattr(module, name):
        public = getattr(module, "__all__", ())
        there = [
            known
            for known, value in vars(module).items()
            if isinstance(value, type) and (known in public or value.__module__ == module.__name__)
        ]
        hint = suggestion(name, sorted(there)) if there else "it has no classes"
        raise ValueError(f"{place} has no {name!r}; {hint}")
    return getattr(module, name)


def check_trusted(names: Iterable[str], trust: bool) -> None:
    """Refuse names from a file that say where code lies, unless it is trusted; other names are the package's own."""
    places = [name for name in dict.fromkeys(names) if ":" in name]
    if places and not trust:
        raise ValueError(f"it needs the code of {', '.join(places)}; if you have read and trust it, give --trust")


def trust_needed(names: Iterable[str]) -> list[str]:
    """What a command that reads these names from a file has to be given besides the file."""
    return ["--trust"] if any(":" in name for name in names) else []


def source(reference: str) -> dict[str, str]:
    """The checksum of the user's file that a reference names, by the reference; nothing for an installed module."""
    place = reference.rpartition(":")[0]
    return {reference: hashlib.sha256(Path(place).read_bytes()).hexdigest()} if place.endswith(".py") else {}


def check_sources(sources: Mapping[str, str]) -> None:
    """Refuse to go on if a user's file is not the one that a configuration was made with."""
    for reference, checksum in sources.items():
        if source(reference).get(reference) != checksum:
            place = reference.rpartition(":")[0]
            raise ValueError(f"{place} has changed since the run was asked for; ask again, or put the old file back")


def _module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} cannot be a module; write package.module:Name or file.py:Name")
    with user_code(f"the module {name} cannot be loaded"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name
    raise ValueError(f"there is no module {missing!r} here; install it, or name a file: file.py:Name")


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to load from; give its path from the current folder")
    code = path.read_bytes()
    # By place and content: an edited file is another module, and what runs is what its checksum says.
    name = f"aimopt_user_{hashlib.sha256(str(path.resolve()).encode() + code).hexdigest()[:12]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # a dataclass looks its module up while it is being made
        try:
            with user_code(f"{path} cannot be loaded"):
                exec(compile(code, str(path), "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
