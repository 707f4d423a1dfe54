"""Tables of plain text."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """One line per row, with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
