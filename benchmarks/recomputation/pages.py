"""A page of the docs, cut at its markers, and how its tables are compared with what they must say.

A marker is a heading, or a comment `<!-- table: NAME -->`. A number is compared at the precision with which the page
prints it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from recomputation.archive import Archive

MARKER = re.compile(r"#+ (?P<heading>.+)|<!-- table: (?P<name>.+) -->")
LINKED_ARCHIVE = re.compile(r"\]\(((?:docs/)?results/[\w.-]+\.tar\.xz)\)")
NUMBER = r"([+−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

Text = Sequence[str | float]  # a text with numbers, such as ("p = ", 0.034)
Row = list[Text]


@dataclass(frozen=True)
class Section:
    """The lines of a page from one marker to the next."""

    marker: str
    first_line: int
    lines: Sequence[str]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of its table, without the head."""
        table = [line for line in self.lines if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


_read_once = lru_cache(Archive.read)


@dataclass(frozen=True)
class Page:
    """A page of the docs, cut at its markers."""

    path: Path

    @cached_property
    def sections(self) -> list[Section]:
        """The sections; a marker inside a code block is none."""
        lines = self.path.read_text().splitlines()
        fenced = np.cumsum([line.startswith("```") for line in lines]) % 2
        starts = [i for i, line in enumerate(lines) if MARKER.fullmatch(line) and not fenced[i]]
        ends = [*starts[1:], len(lines)]
        return [
            Section(_marker(lines[start]), start + 1, lines[start:end]) for start, end in zip(starts, ends, strict=True)
        ]

    @cached_property
    def archive(self) -> Archive:
        """The runs of all archives that the page links."""
        links = dict.fromkeys(LINKED_ARCHIVE.findall(self.path.read_text()))
        return _read_once(tuple((self.path.parent / link).resolve() for link in links))


@dataclass(frozen=True)
class Recomputed:
    """What a section must say."""

    rows: Sequence[Row] | None = None  # None: its table is prose, and the phrases are its figures
    phrases: Sequence[Text] = field(default=())


Tables = Mapping[str, Callable[[Page, re.Match[str]], Recomputed]]  # by marker, as a regular expression


def _marker(line: str) -> str:
    match = MARKER.fullmatch(line)
    assert match is not None
    return match["heading"] or match["name"]


def disagreements(page: Page, recompute: Tables) -> Iterator[str]:
    """One sentence per table, cell or phrase of a page that the archive does not confirm."""
    for section in page.sections:
        where = f"{page.path.name}, line {section.first_line}, {section.marker!r}"
        matches = ((re.fullmatch(pattern, section.marker), function) for pattern, function in recompute.items())
        match, function = next(((match, function) for match, function in matches if match), (None, None))
        if match is None or function is None:
            if section.rows:
                yield f"{where}: this table is not recomputed; name a function for it in TABLES"
            continue
        expected = function(page, match)
        for phrase in expected.phrases:
            if not says(" ".join(section.lines), phrase):
                yield f"{where}: the page does not say {shown(phrase)!r}"
        if expected.rows is not None:
            yield from _different_cells(where, section.rows, expected.rows)
    for pattern in recompute:
        if not any(re.fullmatch(pattern, section.marker) for section in page.sections):
            yield f"{page.path.name}: no table has the marker {pattern!r}; remove it from TABLES"


def _different_cells(where: str, printed: Sequence[Sequence[str]], rows: Sequence[Row]) -> Iterator[str]:
    if len(printed) != len(rows):
        yield f"{where}: the page has {len(printed)} rows, and there are {len(rows)}"
    for cells, expected in zip(printed, rows, strict=False):
        if len(cells) != len(expected):
            yield f"{where}, row {cells[0]!r}: the page has {len(cells)} cells, and there are {len(expected)}"
        for cell, text in zip(cells, expected, strict=False):
            if not says(cell, text, whole=True):
                yield f"{where}, row {' | '.join(cells)!r}: the page says {cell!r}, recomputed is {shown(text)!r}"


def says(printed: str, text: Text, *, whole: bool = False) -> bool:
    """Whether a printed text is or contains this text, with its numbers at the printed precision."""
    parts = [part for part in text if part != ""]
    pattern = "".join(re.escape(part) if isinstance(part, str) else NUMBER for part in parts)
    numbers = [float(part) for part in parts if not isinstance(part, str)]
    matches = [re.fullmatch(pattern, printed)] if whole else re.finditer(pattern, printed)
    return any(all(map(_agrees, match.groups(), numbers)) for match in matches if match)


def _agrees(printed: str, value: float) -> bool:
    """Whether a printed number is this one, rounded; a value in the middle may be rounded to either side."""
    number = Decimal(printed.replace("−", "-"))
    last_digit = 10.0 ** int(number.as_tuple().exponent)
    return abs(float(number) - value) <= 0.5 * last_digit * (1 + 1e-6)


def shown(text: Text) -> str:
    return "".join(part if isinstance(part, str) else f"{part:.7g}" for part in text)
