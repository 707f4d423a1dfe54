"""Recompute the tables of the docs from the archived runs, and compare: `python benchmarks/recompute.py`.

Numpy and scipy do the arithmetic, and nothing of aimopt is imported: what it computes is stated a second time, in
`recomputation`. Every table of a page must be recomputed. The page links the archives that it was made from. The
program prints one sentence per disagreement, and then exits with status 1.

To add a table, write a function and name it in `TABLES` of its module, by the marker of the table as a regular
expression: the heading above it, or a comment `<!-- table: NAME -->` before it. The function gets the page, with the
runs of its archives, and the match. It returns the rows of the table, and sentences that its section must contain.
"""

import sys
from pathlib import Path

from recomputation import conditions, explored, mini, mini_1, readme, table1
from recomputation.pages import Page, disagreements

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": {"leads": readme.in_short, "table 1": table1.in_short, ".+": mini.unchecked},
    "docs/reproduction.md": mini.TABLES,
    "docs/conditions.md": conditions.TABLES,
    "docs/exploration.md": explored.TABLES,
    "docs/table1.md": table1.TABLES,
    "docs/reproduction-mini-1.md": mini_1.TABLES,
}


def main(root: Path = ROOT) -> int:
    """Check all pages; the exit status."""
    found = [text for path, tables in PAGES.items() for text in disagreements(Page(root / path), tables)]
    for text in found:
        print(text, file=sys.stderr)
    if not found:
        print(f"{', '.join(PAGES)}: the archived runs give every table")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
