"""A report as data: one section per study, with sentences, pictures and tables. All formats show the same data.

report = build_report([analysis], title="My comparison", command="aimopt compare …")
report.sections[0].parts[0].tables[0].rows          the cells of the first table
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aimopt.lab.analysis.across_tasks import AcrossTasks, across_tasks
from aimopt.lab.analysis.study_analysis import Remark, StudyAnalysis
from aimopt.lab.protocol.study import COMPARISON
from aimopt.lab.report import across as across_tables
from aimopt.lab.report import figures, phrasing, tables
from aimopt.lab.report.figures.style import Picture, Style, styles_of
from aimopt.lab.report.tables import Table

T = TypeVar("T")
NamedPicture = tuple[str, Picture]  # the name of its files without ending, and the picture
SECTION_TITLES = {
    "verdicts": "Verdicts",
    "sweep": "Sweep",
    "curves": "Training and evaluation",
    "search": "Search",
    "cost": "Time and memory",
    "returns": "Returns",
}


@dataclass(frozen=True)
class SectionPart:
    """Pictures and tables about one question."""

    name: str
    title: str
    pictures: tuple[NamedPicture, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Section:
    """The section of one study."""

    name: str
    title: str
    analysis: StudyAnalysis
    summary: tuple[str, ...]
    stamp: str
    parts: tuple[SectionPart, ...]
    folded: tuple[Table, ...]  # details, closed on the page
    audit: tuple[Remark, ...]

    @property
    def is_comparison(self) -> bool:
        """Whether it compares optimizers. The page shows these sections first, and folds sweeps and ablations."""
        return self.analysis.study.is_comparison


@dataclass(frozen=True)
class Report:
    """The whole report."""

    title: str
    headline: str
    progress: str  # which runs are missing; empty if the studies are complete
    done: tuple[int, int]  # number of runs with a result, and of all runs
    first_pictures: tuple[NamedPicture, ...]  # the paired differences, before everything else
    results: tuple[Table, ...]  # one table per reference
    ranks: Table | None
    pooled: tuple[Table, ...]  # tests over several tasks, one table per reference
    pictures: tuple[NamedPicture, ...]  # across several tasks
    sections: tuple[Section, ...]
    styles: Mapping[str, Style]
    compared: tuple[str, ...]  # the contenders of the pictures across tasks, in their order
    command: str


def build_report(analyses: Sequence[StudyAnalysis], title: str, command: str) -> Report:
    """The report of several studies. Comparisons come first, sweeps last."""
    analyses = _in_order(analyses)
    styles = styles_of(analyses)
    across = across_tasks(analyses)
    compared = [analysis for analysis in analyses if analysis.study.is_comparison]
    circumstances = phrasing.circumstances([analysis for analysis in compared if analysis.ranked])
    across_stamp = f"{len(across.tasks)} tasks · {circumstances}" if across else ""
    task_count = len({analysis.study.task for analysis in compared})
    pictures = figures.across_tasks(across, styles, across_stamp) if across else []
    overview = figures.overview_pictures(compared, styles, f"{task_count} tasks · {circumstances}")
    titles = phrasing.titles(analyses)
    sections = [
        _section(analysis, styles, name, title)
        for (name, analysis), title in zip(_names(analyses).items(), titles, strict=True)
    ]
    first_pictures = _uniquely_named([(f"overview-{picture.name}", picture) for picture in overview])
    if not first_pictures:
        first_pictures, sections = _take_first_picture(sections)
    return Report(
        title=title or phrasing.title(analyses),
        headline=_headline(analyses, across),
        progress=_progress(analyses),
        done=_settled_and_total(analyses),
        first_pictures=tuple(first_pictures),
        results=tuple(tables.results(compared)),
        ranks=across_tables.ranks(across) if across else None,
        pooled=tuple(across_tables.pooled(across)) if across else (),
        pictures=tuple((f"across-{picture.name}", picture) for picture in pictures),
        sections=tuple(sections),
        styles=styles,
        compared=tuple(across.profile or across.ranks) if across else (),
        command=command,
    )


def _in_order(analyses: Sequence[StudyAnalysis]) -> list[StudyAnalysis]:
    """Comparisons first, those with the most common reference before others; of equally common ones, the shortest."""
    counts = Counter(analysis.study.reference for analysis in analyses if analysis.study.is_comparison)

    def place(analysis: StudyAnalysis) -> tuple[bool, bool, bool, int, int]:
        study = analysis.study
        is_preset = study.name != COMPARISON
        common = -counts[study.reference]
        return analysis.sweep is not None, not study.is_comparison, is_preset, common, len(study.reference)

    return sorted(analyses, key=place)


def _headline(analyses: Sequence[StudyAnalysis], across: AcrossTasks | None) -> str:
    """The headline, and the pooled test of its contender over several tasks."""
    compared = next((a.study for a in analyses if a.study.is_comparison and a.study.headline_contender), None)
    subject = compared.headline_contender if compared else None
    pooled = across_tables.pooled_sentence(across, subject, compared.reference) if compared and subject else ""
    return " ".join(text for text in (phrasing.headline(analyses, across), pooled) if text)


def all_pictures(report: Report) -> list[NamedPicture]:
    """Every picture with the name of its files."""
    in_sections = [named for section in report.sections for part in section.parts for named in part.pictures]
    return [*report.first_pictures, *report.pictures, *in_sections]


def _take_first_picture(sections: Sequence[Section]) -> tuple[list[NamedPicture], list[Section]]:
    """The first picture of a result, and the sections without it; no picture if there is no result yet."""
    for i, section in enumerate(sections):
        for j, part in enumerate(section.parts):
            if part.pictures and part.name in ("verdicts", "sweep"):
                rest = dataclasses.replace(part, pictures=part.pictures[1:])
                kept = [rest] if rest.pictures or rest.tables else []
                parts = (*section.parts[:j], *kept, *section.parts[j + 1 :])
                changed = dataclasses.replace(section, parts=parts)
                return [part.pictures[0]], [*sections[:i], changed, *sections[i + 1 :]]
    return [], list(sections)


def _names(analyses: Sequence[StudyAnalysis]) -> dict[str, StudyAnalysis]:
    """A unique name per study that is safe in file names and anchors."""
    studies = [(analysis.study, analysis) for analysis in analyses]
    return dict(_uniquely_named([(_anchor(f"{s.name} {s.task} {s.scale}")[-60:], analysis) for s, analysis in studies]))


def _uniquely_named(items: Sequence[tuple[str, T]]) -> list[tuple[str, T]]:
    """The same items; a name that was there before gets a number."""
    named: dict[str, T] = {}
    for stem, item in items:
        name, count = stem, 1
        while name in named:
            count += 1
            name = f"{stem}-{count}"
        named[name] = item
    return [*named.items()]


def _anchor(text: str) -> str:
    """The part of a user's name that is safe in a file name and in an anchor of the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _section(analysis: StudyAnalysis, styles: Mapping[str, Style], name: str, title: str) -> Section:
    drawn = figures.of_study(analysis, styles)
    tables_by_part = {
        "verdicts": [tables.verdicts(analysis)] if analysis.sweep is None else [],
        "sweep": [tables.verdicts(analysis)] if analysis.sweep is not None else [],
        "search": [tables.rates(analysis)] if analysis.sweep is None else [],
        "cost": [tables.cost(analysis)] if analysis.sweep is None else [],
        "returns": [tables.returns(analysis)],
    }
    if not analysis.study.is_comparison and analysis.sweep is None:
        tables_by_part["verdicts"][:0] = tables.results([analysis])
    parts = []
    for part, part_title in SECTION_TITLES.items():
        pictures = tuple((f"{name}-{_anchor(picture.name)}", picture) for picture in drawn.get(part, []))
        known = tuple(table for table in tables_by_part.get(part, []) if table)
        if pictures or known:
            parts.append(SectionPart(part, part_title, pictures, known))
    folded = tuple(table for table in (tables.seeds(analysis), tables.provenance(analysis)) if table)
    return Section(
        name=name,
        title=title,
        analysis=analysis,
        summary=tuple(phrasing.summary(analysis)),
        stamp=phrasing.stamp(analysis),
        parts=tuple(parts),
        folded=folded,
        audit=analysis.audit,
    )


def _settled_and_total(analyses: Sequence[StudyAnalysis]) -> tuple[int, int]:
    progresses = [analysis.progress for analysis in analyses]
    return sum(progress.settled for progress in progresses), sum(progress.total for progress in progresses)


def _progress(analyses: Sequence[StudyAnalysis]) -> str:
    settled, total = _settled_and_total(analyses)
    if settled == total:
        return ""
    running = sum(analysis.progress.running for analysis in analyses)
    failed = sum(analysis.progress.failed for analysis in analyses)
    extra = [f"{running} begun"] * (running > 0) + [f"{failed} failed"] * (failed > 0)
    done = ", ".join([f"{settled} of {total} runs have a result", *extra])
    return f"{done}. The numbers below are preliminary."
