"""Only named files are read from an archive, and nothing is written."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from aimopt.paper.data import archives
from aimopt.paper.data.archives import extract, member_reader


def tar(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w:xz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            file.addfile(entry)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["a.tgz", "a.xz", "a.zip", "a.whl"])
def test_named_files_are_read_and_gzip_files_are_decompressed(tmp_path: Path, name: str) -> None:
    members = {"x/plain": b"one", "x/packed.gz": gzip.compress(b"two"), "../outside": b"three", "/root": b"four"}
    make = zipped if name in ("a.zip", "a.whl") else tar
    archive = make(tmp_path / name, members)
    assert member_reader({"first": "x/plain", "second": "x/packed.gz"})({name: archive}) == {
        "first": b"one",
        "second": b"two",
    }
    assert list(tmp_path.iterdir()) == [archive]


def test_a_link_is_not_a_file(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", {"real": b"one"}, links={"wanted": "/etc/passwd"})
    with pytest.raises(ValueError, match=r"a\.tgz has no file wanted"):
        extract(archive, ["wanted"])


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "packed.zip"])
def test_a_member_that_decompresses_to_too_many_bytes_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 10**6)
    zeros, make = bytes(10**6), zipped if name.endswith(".zip") else tar
    member = "x.gz" if name == "packed.zip" else "x"

    def unpack(content: bytes) -> object:
        archive = make(tmp_path / name, {member: gzip.compress(content) if member == "x.gz" else content})
        return member_reader({"part": member})({name: archive})

    assert unpack(zeros) == {"part": zeros}
    with pytest.raises(ValueError, match=f"{member} decompresses to more than 1,000,000 bytes"):
        unpack(zeros + b"0")
