"""Write the files of a report into a folder.

write(Path("report"), [analysis])                   index.html, report.md, tables.tex, results.csv, figures/
write(Path("report"), [analysis], refresh=5.0)      a page that reloads itself, without figure files
"""

from collections.abc import Sequence
from pathlib import Path

from aimopt.atomic_files import write_atomically
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.report.figures.rendering import render_all
from aimopt.lab.report.formats.csv_text import csv_text
from aimopt.lab.report.formats.latex import latex
from aimopt.lab.report.formats.markdown import markdown
from aimopt.lab.report.html.page import page
from aimopt.lab.report.sections import all_pictures, build_report


def write(
    folder: Path,
    analyses: Sequence[StudyAnalysis],
    *,
    title: str = "",
    refresh: float | None = None,
    command: str = "",
) -> Path:
    """Write the page, Markdown, LaTeX, CSV and figures, each file atomically. Returns the path of the page.

    With `refresh`, the page reloads itself after this number of seconds, and no figure files are written: they are for
    a finished report. `command` is the command that reproduces it. Without a title, the page names what was compared.
    """
    # The fastest file first: an error of the folder is reported before the figures are drawn.
    write_atomically(folder / "results.csv", csv_text(analyses).encode(), durable=False)
    report = build_report(analyses, title, command)
    rendered = render_all(all_pictures(report), ("png", "pdf") if refresh is None else ())
    files = {
        "report.md": markdown(report, figures=refresh is None).encode(),
        "tables.tex": latex(report).encode(),
        "index.html": page(report, rendered, refresh).encode(),
    }
    for name, picture in rendered.items():
        files |= {f"figures/{name}.{ending}": content for ending, content in picture.files.items()}
    for name, content in files.items():
        write_atomically(folder / name, content, durable=False)
    return folder / "index.html"
