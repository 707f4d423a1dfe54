r"""The tables of a report as LaTeX, for `\input{tables}`. They need the package booktabs.

latex(report)              "\begin{table*}[t]…"
escape("50% of a_b")       r"50\% of a\_b"
"""

from aimopt.lab.report.sections import Report
from aimopt.lab.report.tables import Table, TableCell
from aimopt.messages.clean_text import one_line

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "[": "{[}", "]": "{]}", "*": "{*}",  # at the start of a row they would be read as options of the row before
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "±": r"$\pm$", "−": "$-$", "∞": r"$\infty$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "–": "--", "…": r"\dots{}",
    "▲": "$^{+}$", "▼": "$^{-}$", "γ": r"$\gamma$", "ℓ": r"$\ell$", "η": r"$\eta$", "δ": r"$\delta$",
    "ζ": r"$\zeta$", "β": r"$\beta$", "θ": r"$\theta$", "·": r"$\cdot$",
}  # fmt: skip


def latex(report: Report) -> str:
    """The results of all tasks, then the results and verdicts of every study."""
    parts = ["% \\usepackage{booktabs}"]
    parts += [_table(table, table.title) for table in (*report.results, report.ranks, *report.pooled) if table]
    for section in report.sections:
        for part in section.parts:
            caption = f"{section.title}, scale {section.analysis.study.scale}"
            parts += [_table(t, f"{caption}: {t.title}") for t in part.tables if t.name in ("results", "verdicts")]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Escape all characters with a special meaning; the result is one line."""
    return "".join(SPECIAL.get(character, character) for character in one_line(text))


def _table(table: Table, title: str) -> str:
    left = 2 if table.name == "results" else 1
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape(title)}. {escape(table.note)}}}",
        r"\small",
        rf"\begin{{tabular}}{{{'l' * left}{'c' * (len(table.columns) - left)}}}",
        r"\toprule",
        _row([rf"\textbf{{{escape(column)}}}" for column in table.columns]),
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        spaced = r"\addlinespace[4pt]" if i and any(cell.below for cell in row) else ""
        lines += [spaced] * bool(spaced) + [_row([_cell(cell) for cell in row])]
        if any(cell.below for cell in row):
            lines.append(_row([_emphasized(escape(cell.below), cell) for cell in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}"])


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: TableCell) -> str:
    return _emphasized(escape(cell.text), cell) + escape(cell.mark)


def _emphasized(text: str, cell: TableCell) -> str:
    if not text or not cell.emphasis:
        return text
    return rf"\textbf{{{text}}}" if cell.emphasis == "best" else rf"\underline{{{text}}}"
