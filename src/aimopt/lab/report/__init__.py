"""The report of a study: a web page, Markdown, LaTeX, CSV, figures and a table on the terminal.

    write(Path("report"), [analyse_study(study, runs)], command="aimopt compare …")
    rich.print(terminal_table(analysis))
    with serve(Path("report"), regenerate) as server: server.serve_forever()

It trains nothing and reads no results from the disk: everything comes from `StudyAnalysis`.
"""

from aimopt.lab.report.formats.terminal import terminal_table
from aimopt.lab.report.report_files import write
from aimopt.lab.report.server import serve

__all__ = ["serve", "terminal_table", "write"]
