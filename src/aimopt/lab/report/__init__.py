"""The report: what a study found, as a page, Markdown, LaTeX, CSV, figures and a table on the terminal.

    write(Path("report"), [analyse(study, runs)], command="aimopt compare digits")
    rich.print(terminal_table(findings))
    with serve(Path("report"), again) as server: server.serve_forever()

It trains nothing and reads no results from the disk: everything comes from `Findings`.
"""

from aimopt.lab.report.forms.terminal import terminal_table
from aimopt.lab.report.server import serve
from aimopt.lab.report.writing import write

__all__ = ["serve", "terminal_table", "write"]
