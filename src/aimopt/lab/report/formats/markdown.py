r"""The report as Markdown, for a README or an issue.

markdown(report, figures=True)          with links to the PNG files
escape("a|b *c*")                       r"a\|b \*c\*"
"""

import re
from collections.abc import Sequence

from aimopt.lab.report.sections import NamedPicture, Report, Section
from aimopt.lab.report.tables import Table, TableCell
from aimopt.messages.clean_text import one_line, printable

# Including what GitHub interprets: entities, formulas, and addresses that become links.
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$]|(?<=:)/(?=/)|(?<=www)\.)", re.IGNORECASE)
# GitHub looks for @name and #12 in the rendered text, where backslashes are gone. A space without width ends them.
MENTION = re.compile(r"(@(?=\w)|\\#(?=\d))")
SIGNS = {"ok": "ok", "warning": "**warning**", "problem": "**PROBLEM**"}


def markdown(report: Report, figures: bool) -> str:
    """The whole report; with links to the PNG files if `figures`."""
    lines = [f"# {escape(report.title)}", ""]
    lines += [escape(sentence) for sentence in (report.headline, report.progress) if sentence]
    if figures:
        lines += _figures(report.first_pictures)
    for table in (*report.results, report.ranks, *report.pooled):
        if table is not None:
            lines += ["", f"## {escape(table.title)}", "", *_table(table)]
    if figures:
        lines += _figures(report.pictures)
    for section in report.sections:
        lines += ["", f"## {escape(section.title)}", "", *_section(section, figures)]
    if report.command:
        lines += ["", "## How to reproduce", "", *(f"    {line}" for line in printable(report.command).splitlines())]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Escape all characters with a special meaning, also in a cell of a table, and mention nobody."""
    return MENTION.sub(r"\1&#8203;", SPECIAL.sub(r"\\\1", one_line(text)))


def _section(section: Section, figures: bool) -> list[str]:
    lines = [escape(" ".join(section.summary)), "", f"*{escape(section.stamp)}*"]
    for part in section.parts:
        lines += ["", f"### {escape(part.title)}"]
        if figures:
            lines += _figures(part.pictures)
        for table in part.tables:
            lines += ["", *_table(table)]
    lines += ["", "### Audit", ""]
    return lines + [f"- {SIGNS[remark.level]}: {escape(remark.text)}" for remark in section.audit]


def _figures(pictures: Sequence[NamedPicture]) -> list[str]:
    return [line for name, picture in pictures for line in ("", f"![{escape(picture.alt)}](figures/{name}.png)")]


def _table(table: Table) -> list[str]:
    head = [*map(escape, table.columns)]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    alignment = ["---"] + ["---:"] * (len(head) - 1)
    return [*(f"| {' | '.join(row)} |" for row in (head, alignment, *rows)), "", escape(table.note)]


def _cell(cell: TableCell) -> str:
    text = escape(cell.text)
    if text:
        text = {"best": f"**{text}**", "second": f"<u>{text}</u>", "": text}[cell.emphasis]
    return " ".join(part for part in (text + cell.mark, escape(cell.below)) if part)
