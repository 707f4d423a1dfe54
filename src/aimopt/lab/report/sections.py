"""A report as data: sections, each with its sentences, pictures and tables. Page, Markdown and LaTeX set the same."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aimopt.lab.analysis import Findings, Remark, across
from aimopt.lab.report import figures, tables, words
from aimopt.lab.report.figures import Picture, Style
from aimopt.lab.report.tables import Table

Named = tuple[str, Picture]  # the name of its files, and the picture
PARTS = {
    "verdicts": "Verdicts",
    "sweep": "Sweep",
    "curves": "Training, evaluation, learning rate",
    "cost": "Time and memory",
    "returns": "Returns",
}


@dataclass(frozen=True)
class Part:
    """Pictures and tables of one question."""

    name: str
    title: str
    pictures: tuple[Named, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Section:
    """A study."""

    name: str
    title: str
    found: Findings
    summary: tuple[str, ...]
    stamp: str
    parts: tuple[Part, ...]
    folded: tuple[Table, ...]  # what few readers want
    audit: tuple[Remark, ...]


@dataclass(frozen=True)
class Report:
    """All of it."""

    title: str
    headline: str
    progress: str  # what is still to be done; empty when all is
    done: tuple[int, int]  # runs that are over, of how many
    results: Table | None
    ranks: Table | None
    pictures: tuple[Named, ...]  # over several tasks
    sections: tuple[Section, ...]
    styles: Mapping[str, Style]
    compared: tuple[str, ...]  # the contenders of the pictures over tasks, in their order
    command: str


def build(findings: Sequence[Findings], title: str, command: str) -> Report:
    """Everything but the setting."""
    styles = figures.styles_of(findings)
    over = across(findings)
    compared = [found for found in findings if found.study.name == "compare"]
    results = tables.results(compared)
    stamp = "; ".join(dict.fromkeys(words.stamp(f).split(" · ", 1)[1] for f in compared if f.ranked))
    over_stamp = f"{len(over.tasks)} tasks · {stamp}" if over else ""
    pictures = figures.over_tasks(over, styles, over_stamp) if over else []
    return Report(
        title=title,
        headline=words.headline(findings, over),
        progress=_progress(findings),
        done=(sum(f.progress.settled for f in findings), sum(f.progress.total for f in findings)),
        results=results,
        ranks=tables.ranks(over) if over else None,
        pictures=tuple((f"across-{picture.name}", picture) for picture in pictures),
        sections=tuple(_section(found, styles, name) for name, found in _names(findings).items()),
        styles=styles,
        compared=tuple(over.profile or over.ranks) if over else (),
        command=command,
    )


def all_pictures(report: Report) -> list[Named]:
    """Every picture, with the name of its files."""
    return [*report.pictures, *(named for s in report.sections for part in s.parts for named in part.pictures)]


def _names(findings: Sequence[Findings]) -> dict[str, Findings]:
    """A name for every study that can be a file's and an anchor's."""
    named: dict[str, Findings] = {}
    for found in findings:
        study = found.study
        stem = _slug(f"{study.name} {study.task} {study.scale}")[-60:]
        name, count = stem, 1
        while name in named:
            count += 1
            name = f"{stem}-{count}"
        named[name] = found
    return named


def _slug(text: str) -> str:
    """Of names that users gave, what is harmless in a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _section(found: Findings, styles: Mapping[str, Style], name: str) -> Section:
    drawn = figures.of_study(found, styles)
    own = {
        "verdicts": [tables.verdicts(found)] if found.sweep is None else [],
        "sweep": [tables.verdicts(found)] if found.sweep is not None else [],
        "curves": [tables.rates(found)] if found.sweep is None else [],
        "cost": [tables.cost(found)] if found.sweep is None else [],
        "returns": [tables.returns(found)],
    }
    if found.study.name != "compare" and found.sweep is None:
        own["verdicts"].insert(0, tables.results([found]))
    parts = []
    for part, title in PARTS.items():
        pictures = tuple((f"{name}-{_slug(picture.name)}", picture) for picture in drawn.get(part, []))
        known = tuple(table for table in own.get(part, []) if table)
        if pictures or known:
            parts.append(Part(part, title, pictures, known))
    folded = tuple(table for table in (tables.seeds(found), tables.provenance(found)) if table)
    return Section(
        name=name,
        title=words.name_of(found),
        found=found,
        summary=tuple(words.summary(found)),
        stamp=words.stamp(found),
        parts=tuple(parts),
        folded=folded,
        audit=found.audit,
    )


def _progress(findings: Sequence[Findings]) -> str:
    settled, total = sum(f.progress.settled for f in findings), sum(f.progress.total for f in findings)
    if settled == total:
        return ""
    running, failed = sum(f.progress.running for f in findings), sum(f.progress.failed for f in findings)
    extra = [f"{running} under way"] * (running > 0) + [f"{failed} failed"] * (failed > 0)
    return f"{settled} of {total} runs are over{', ' if extra else ''}{', '.join(extra)}. All that follows is so far."
