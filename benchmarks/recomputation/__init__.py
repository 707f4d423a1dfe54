"""The tables of the docs a second time, from the archived runs, without aimopt: numpy and scipy do the arithmetic.

archive.py     the runs and studies of an archive, and what a search chose
verdicts.py    the verdicts
pages.py       a page cut into its tables, and how a table is compared with what it must say
mini_1.py      the tables of docs/reproduction-mini-1.md: the paper's protocol
mini.py        the tables of docs/reproduction.md: seeds until decided
table1.py      the tables of docs/table1.md: geometry × correction

Everything is stated a second time here on purpose: `recompute.py` compares it with what the lab printed.
"""
