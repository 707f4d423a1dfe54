"""Read, check and format the JSON files of a store.

    write(path, with_checksum(study.to_record()))      the last field, `sha256`, is the checksum of all bytes before it
    read(path, Study.from_record)                      the study, or `DamagedFile` with the file and the reason

A file without a checksum was written by an older version and is accepted. Reading never runs code from a file.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

CHECKSUM_FIELD = b',\n "sha256": "'
END = b'"\n}\n'
MAX_BYTES = 1 << 29  # of a JSON file: millions of records; a sparse file may claim more than the memory can hold
T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")


class DamagedFile(ValueError):
    """A file that cannot be used, with the reason."""

    def __init__(self, path: Path | str, reason: str):
        self.path, self.reason = Path(path), reason
        super().__init__(f"{path} cannot be used: {reason}")


def with_checksum(fields: Mapping[str, Any]) -> bytes:
    """The content of a file with these fields and their checksum."""
    text = json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)  # `parse_json` refuses NaN
    # A message may contain a file name with a single surrogate, which UTF-8 cannot encode: write its escape.
    text = _SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):x}", text)
    body = text.encode().removesuffix(b"\n}")
    return body + CHECKSUM_FIELD + hashlib.sha256(body).hexdigest().encode() + END


def read(path: Path | str, parse: Callable[[Any], T]) -> T:
    """Read a file and pass its fields to `parse`, which checks them. `DamagedFile` if it raises `ValueError`."""
    content = read_bytes(path)
    try:
        return parse(parse_checked(content))
    except ValueError as error:
        raise DamagedFile(path, str(error)) from None


def read_bytes(path: Path | str, max_bytes: float = MAX_BYTES) -> bytes:
    """The content of a regular file. A foreign store may contain pipes and devices, which would block forever."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise DamagedFile(path, "it is not a regular file")
            if info.st_size > max_bytes:
                raise DamagedFile(path, f"it has {info.st_size:,} bytes, more than the {max_bytes:,} that are read")
            content = os.read(file, info.st_size)
            while len(content) < info.st_size and (more := os.read(file, info.st_size - len(content))):
                content += more
            return content
        finally:
            os.close(file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFile(path, error.strerror or type(error).__name__) from None


def parse_checked(content: bytes) -> Any:
    """The value of a file without its checksum. A checksum must be right if there is one."""
    value = parse_json(content)
    if isinstance(value, dict) and "sha256" in value:
        body, _, end = content.rpartition(CHECKSUM_FIELD)
        if end != hashlib.sha256(body).hexdigest().encode() + END:
            raise ValueError(
                "its checksum is wrong: it has changed since it was written; if you edited it, delete the field sha256"
            )
        del value["sha256"]
    return value


def parse_json(content: bytes) -> Any:
    """The value of a JSON text; `ValueError` for anything else."""
    try:
        text = content.decode()
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a single surrogate could not be written again
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
