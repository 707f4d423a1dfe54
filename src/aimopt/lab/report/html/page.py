"""The report as one self-contained web page: it needs no network and no other file.

    page(report, rendered_pictures, refresh=None)           "<!doctype html>…"
    page(report, rendered_pictures, refresh=5.0)            a page that reloads itself every five seconds

The template escapes every name that users gave. A security policy in the head of the page allows only the script of
this package to run, by its hash.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aimopt import palette
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.rendering import RenderedPicture
from aimopt.lab.report.figures.style import Style
from aimopt.lab.report.sections import Report, Section, all_pictures
from aimopt.lab.report.tables import TableCell
from aimopt.lab.report.verdicts import VERDICT_STYLES, verdict_style
from aimopt.lab.stats.paired import ENOUGH_SEEDS
from aimopt.messages.clean_text import printable


def page(report: Report, rendered: Mapping[str, RenderedPicture], refresh: float | None) -> str:
    """The page as HTML. `rendered` are the pictures by name."""
    environment = Environment(
        loader=PackageLoader("aimopt.lab.report.html", "."),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = f'"use strict";\n{{\n{_file("page.js")}{_file("plots.js")}}}\n'
    return environment.get_template("page.html").render(
        report=report,
        subject=phrasing.subject_of([section.analysis for section in report.sections]),
        refresh=refresh,
        css=Markup(f"{palette.css_variables()}\n{_file('page.css')}"),
        script=Markup(script),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        pictures=_picture_elements(report, rendered),
        dashes={label: _dashes(style) for label, style in report.styles.items()},
        labels={section.name: [s.label for s in section.analysis.standings] for section in report.sections},
        verdicts={section.name: _verdict(section) for section in report.sections},
        problems={section.name: _problems(section) for section in report.sections},
        comparisons=[section for section in report.sections if section.is_comparison],
        sweeps=[section for section in report.sections if not section.is_comparison],
        marks={style.mark: (style.tone, kind) for kind, style in VERDICT_STYLES.items() if style.mark},
        contents=_contents(report),
        looks=any(section.analysis.study.looks for section in report.sections),
        fixed_seeds=any(not section.analysis.study.looks for section in report.sections),
        enough_seeds=ENOUGH_SEEDS,
    )


def _finalize(value: Any) -> Any:
    """Make every text printable before the template escapes it. Markup was made by this package."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return resources.files("aimopt.lab.report.html").joinpath(name).read_text(encoding="utf-8")


def _picture_elements(report: Report, rendered: Mapping[str, RenderedPicture]) -> dict[str, dict[str, Any]]:
    """The pictures as elements of the page, by name."""
    elements = {}
    for name, picture in all_pictures(report):
        drawing = Markup(rendered[name].svg)
        data = Markup(rendered[name].data.replace("<", "\\u003c"))  # so that no name can end the script element
        elements[name] = {"title": picture.title, "caption": picture.caption, "svg": drawing, "data": data}
    return elements


def _dashes(style: Style) -> str:
    return "none" if isinstance(style.dash, str) else " ".join(f"{1.6 * length:g}" for length in style.dash[1])


def _verdict(section: Section) -> TableCell | None:
    """The subject of a comparison against its reference, for the card of the study."""
    analysis = section.analysis
    subject = analysis.study.headline_contender
    standing = next((s for s in analysis.standings if s.label == subject and s.difference), None)
    if standing is None or not analysis.study.is_comparison:
        return None
    verdict = phrasing.short_verdict(standing.difference)
    return TableCell(f"{subject} against {analysis.study.reference}: {verdict}", tone=verdict_style(verdict).tone)


def _problems(section: Section) -> list[tuple[str, str]]:
    counts = {level: sum(r.level == level for r in section.audit) for level in ("problem", "warning")}
    remarks = [(level, f"{n} {level}{'s' * (n != 1)} in the audit") for level, n in counts.items() if n]
    return remarks or [("ok", "audit without remarks")]


def _contents(report: Report) -> list[tuple[str, str]]:
    """Anchors and their titles; of comparisons on the same task, the first."""
    comparisons = [section for section in report.sections if section.is_comparison]
    first_sections: dict[str, str] = {}
    for section in comparisons:
        first_sections.setdefault(phrasing.name_of(section.analysis), section.name)
    links = [(name, title) for title, name in first_sections.items()]
    sweeps = [("sweeps", "Sweeps")] if len(comparisons) < len(report.sections) else []
    return [("results", "Results"), *links, *sweeps, ("method", "How to read this")]
