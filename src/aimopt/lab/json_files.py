"""JSON files of a store: every one is read here, and what is read is checked here.

    write(path, sealed(study.to_record()))      its last field, `sha256`, is the checksum of all that stands before it
    read(path, Study.from_record)               the study, or `Damaged`, which names the file and says what is wrong

A file without a checksum is of an older version and is read all the same. Reading runs no code, whatever a file says.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

SEAL = b',\n "sha256": "'
END = b'"\n}\n'
T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Damaged(ValueError):
    """A file that cannot be used, and why."""

    def __init__(self, path: Path | str, reason: str):
        self.path, self.reason = Path(path), reason
        super().__init__(f"{path} cannot be used: {reason}")


def sealed(fields: Mapping[str, Any]) -> bytes:
    """A file with these fields and its checksum."""
    text = json.dumps(fields, indent=1, ensure_ascii=False)
    # UTF-8 cannot hold half of a pair of surrogates, which a message with the name of a file may have: its escape can.
    text = _SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):x}", text)
    body = text.encode().removesuffix(b"\n}")
    return body + SEAL + hashlib.sha256(body).hexdigest().encode() + END


def read(path: Path | str, make: Callable[[Any], T]) -> T:
    """What `make` makes of a file's fields: it checks them, and raises `ValueError`. `FileNotFoundError` as usual."""
    content = read_bytes(path)
    try:
        return make(opened(content))
    except ValueError as error:
        raise Damaged(path, str(error)) from None


def read_bytes(path: Path | str) -> bytes:
    """The content of a file. A store from elsewhere may hold pipes and devices, which would never end."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise Damaged(path, "it is not a regular file")
            content = os.read(file, found.st_size)
            while len(content) < found.st_size and (more := os.read(file, found.st_size - len(content))):
                content += more
            return content
        finally:
            os.close(file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, error.strerror or type(error).__name__) from None


def opened(content: bytes) -> Any:
    """What a file says, without the checksum, which must be right if there is one."""
    value = parsed(content)
    if isinstance(value, dict) and "sha256" in value:
        body, _, end = content.rpartition(SEAL)
        if end != hashlib.sha256(body).hexdigest().encode() + END:
            raise ValueError(
                "its checksum is wrong: it has changed since it was written; if that was you, delete sha256"
            )
        del value["sha256"]
    return value


def parsed(content: bytes) -> Any:
    """What JSON says; `ValueError` for whatever else."""
    try:
        text = content.decode()
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates could not be written
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
