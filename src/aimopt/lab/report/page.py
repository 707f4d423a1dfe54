"""The report as one page that needs nothing else: no network, no other file.

Everything that users named is escaped by the template, and a policy in the page's head lets only this package's own
script run, by its hash.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aimopt.clean_text import printable
from aimopt.lab.report import words
from aimopt.lab.report.figures import STYLES, Drawn, Style
from aimopt.lab.report.sections import Report, Section, all_pictures
from aimopt.lab.report.tables import Cell, Tone
from aimopt.lab.stats import ENOUGH_SEEDS


def page(report: Report, drawn: Mapping[str, Drawn], refresh: float | None) -> str:
    """The page as HTML, with the pictures as they were drawn."""
    environment = Environment(
        loader=PackageLoader("aimopt.lab.report", "."),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = _file("page.js")
    series = "\n".join(f"  --series-{s.slot}: light-dark({s.light}, {s.dark});" for s in STYLES)
    return environment.get_template("page.html").render(
        report=report,
        subject=words.SUBJECT,
        refresh=refresh,
        css=Markup(f"{_file('page.css')}\n:root {{\n{series}\n}}"),
        script=Markup(script),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        drawn=_elements(report, drawn),
        dashes={label: _dashes(style) for label, style in report.styles.items()},
        labels={section.name: [s.label for s in section.found.standings] for section in report.sections},
        verdicts={section.name: _verdict(section) for section in report.sections},
        problems={section.name: _problems(section) for section in report.sections},
        contents=_contents(report),
        enough_seeds=ENOUGH_SEEDS,
    )


def _finalize(value: Any) -> Any:
    """What the template does to every value before it escapes it; what is marked up was made here."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return resources.files("aimopt.lab.report").joinpath(name).read_text(encoding="utf-8")


def _elements(report: Report, drawn: Mapping[str, Drawn]) -> dict[str, dict[str, Any]]:
    """The pictures as parts of a page, by name."""
    elements = {}
    for name, picture in all_pictures(report):
        drawing = Markup(drawn[name].svg)
        data = Markup(drawn[name].data.replace("<", "\\u003c"))  # no name can end the script
        elements[name] = {"title": picture.title, "caption": picture.caption, "svg": drawing, "data": data}
    return elements


def _dashes(style: Style) -> str:
    return "none" if isinstance(style.dash, str) else " ".join(f"{1.6 * length:g}" for length in style.dash[1])


def _verdict(section: Section) -> Cell | None:
    """RADAR against the reference, for the card of a study."""
    found = section.found
    standing = next((s for s in found.standings if s.label == words.SUBJECT and s.difference), None)
    if standing is None or found.sweep is not None:
        return None
    verdict = words.short_verdict(standing.difference)
    tones: Mapping[str, Tone] = {"better": "good", "worse": "bad"}
    return Cell(f"{words.SUBJECT} against {found.study.reference}: {verdict}", tone=tones.get(verdict, "unsure"))


def _problems(section: Section) -> list[tuple[str, str]]:
    counts = {level: sum(r.level == level for r in section.audit) for level in ("problem", "warning")}
    told = [(level, f"{n} {level}{'s' * (n != 1)} in the audit") for level, n in counts.items() if n]
    return told or [("ok", "audit without remarks")]


def _contents(report: Report) -> list[tuple[str, str]]:
    return [("results", "Results"), *((s.name, s.title) for s in report.sections), ("method", "How to read this")]
