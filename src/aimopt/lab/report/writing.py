"""Write a report into a folder."""

from collections.abc import Sequence
from pathlib import Path

from aimopt.lab import store
from aimopt.lab.analysis import Findings
from aimopt.lab.report import figures
from aimopt.lab.report.forms.latex import latex
from aimopt.lab.report.forms.markdown import markdown
from aimopt.lab.report.forms.spreadsheet import spreadsheet
from aimopt.lab.report.page import page
from aimopt.lab.report.sections import all_pictures, build


def write(
    folder: Path,
    findings: Sequence[Findings],
    *,
    title: str = "A comparison of optimizers",
    refresh: float | None = None,
    command: str = "",
) -> Path:
    """Write the page, Markdown, LaTeX, CSV and figures, each file whole or not at all; the result is the page's path.

    With `refresh`, the page reloads itself after so many seconds, and the figures are in the page alone: files of them
    are for a report that is done. `command` is how to reproduce it.
    """
    # The quickest first: a folder that cannot be written to is told of before the figures are drawn.
    store.write(folder / "results.csv", spreadsheet(findings).encode(), lasting=False)
    report = build(findings, title, command)
    drawn = figures.draw_all(all_pictures(report), report.styles, ("png", "pdf") if refresh is None else ())
    files = {
        "report.md": markdown(report, figures=refresh is None).encode(),
        "tables.tex": latex(report).encode(),
        "index.html": page(report, drawn, refresh).encode(),
    }
    for name, picture in drawn.items():
        files |= {f"figures/{name}.{ending}": content for ending, content in picture.files.items()}
    for name, content in files.items():
        store.write(folder / name, content, lasting=False)
    return folder / "index.html"
