"""Files of runs and studies, in TOML. The JSON files of a store can be read too.

    save(Path("study.toml"), study.to_dict())
    read(Path("results/studies/compare.json"))

Reading a file runs no code, but a file may name code. Running a study that names code needs `--trust`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from aimopt.atomic_files import write_atomically
from aimopt.lab.results import json_files

# TOML has no null: None is written as the text "null", and a text "null" with a backslash before it.
NULL, ESCAPE = "null", "\\"
YAML = (".yaml", ".yml")
ENDINGS = (".toml", ".json", *YAML)  # an argument that ends so is a file, not a task


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML or JSON file."""
    if path.suffix in YAML:
        raise ValueError(f"{path} is YAML, which is not supported; write it as TOML (--save gives an example)")
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path} must end in .toml to be read, or in .json for a file of a store")
    try:
        content = _parse(path.suffix, json_files.read_bytes(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except json_files.DamagedFile as error:
        raise ValueError(f"cannot read {path}: {error.reason}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid {path.suffix[1:]}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold names and values at its top level, but holds {type(content).__name__}")
    return content


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a TOML file; `read` returns the same content."""
    if path.suffix != ".toml":
        raise ValueError(f"{path} must end in .toml to be written")
    write_atomically(path, tomli_w.dumps(_with_null(content)))


def _parse(ending: str, content: bytes) -> Any:
    return json_files.parse_checked(content) if ending == ".json" else _without_null(tomllib.loads(content.decode()))


def _with_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(item) for item in value]
    return NULL if value is None else f"{ESCAPE}{value}" if _looks_like_null(value) else value


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return None if value == NULL else value.removeprefix(ESCAPE) if _looks_like_null(value) else value


def _looks_like_null(value: Any) -> bool:
    """Whether a value is the text for None, possibly escaped."""
    return isinstance(value, str) and value.lstrip(ESCAPE) == NULL
