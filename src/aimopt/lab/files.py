"""Runs and studies as files that people write: TOML, YAML or JSON, by the ending of the name.

Reading them runs no code, but they may name some. Carrying out a study that names code needs `--trust`.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from aimopt.lab import json_files
from aimopt.lab.store import write

NULL = "null"  # how TOML, which has no null, says it
ENDINGS = (".toml", ".yaml", ".yml", ".json")


def read(path: Path) -> dict[str, Any]:
    """The content of a file."""
    _check_ending(path)
    try:
        content = _parse(path.suffix, path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is not valid {path.suffix[1:]}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold names and values at its top, but holds {type(content).__name__}")
    return content


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that `read` gives back."""
    _check_ending(path)
    if path.suffix == ".toml":
        text = tomli_w.dumps(_with_null(content))
    elif path.suffix == ".json":
        text = json.dumps(content, indent=1) + "\n"
    else:
        text = yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True)
    write(path, text.encode())


def _parse(ending: str, content: bytes) -> Any:
    if ending == ".json":
        return json_files.opened(content)
    text = content.decode()
    return _without_null(tomllib.loads(text)) if ending == ".toml" else yaml.safe_load(text)


def _check_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path} must end in {', '.join(ENDINGS)} to be read or written")


def _with_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(item) for item in value]
    return NULL if value is None else value


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return None if value == NULL else value
