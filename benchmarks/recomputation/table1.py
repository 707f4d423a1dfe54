"""What the tables of docs/table1.md hold: the paper's first table, geometry × correction."""

import re

import numpy as np
from scipy import stats

from recomputation.archive import Archive, Study
from recomputation.mini import COMPARISON, finals, totals
from recomputation.pages import Page, Recomputed, Row, Tables, Text
from recomputation.verdicts import deviation, mean, relative_gains

GEOMETRIES = ("Euclidean", "weighted", "spectral", "infinity")
CORRECTIONS = ("direct", "one step", "K = 2", "secant")
LOOKS = 2  # after five seeds, and after ten
LEVEL = 0.05 / (len(GEOMETRIES) * (len(CORRECTIONS) - 1)) / LOOKS  # all intervals of a table hold together


def cells(page: Page, match: re.Match[str]) -> Recomputed:
    """Per geometry: the values of the direct cell, and the gains of the other cells of its row over it."""
    study = page.archive.study(match["task"], name="table1")
    rows: list[Row] = []
    for geometry in GEOMETRIES:
        direct = finals(page.archive, study)[f"{geometry} + direct"]
        values: Text = [mean(direct), " ± ", deviation(direct)]
        rows.append([[geometry], values, *map(_interval, _gains(page.archive, study, geometry))])
    return Recomputed(rows)


def rates(page: Page, match: re.Match[str]) -> Recomputed:
    """The chosen learning rate of each cell."""
    study = page.archive.study(match["task"], name="table1")
    rows: list[Row] = []
    for geometry in GEOMETRIES:
        chosen = [page.archive.chosen(f"{geometry} + {name}", study) for name in CORRECTIONS]
        rows.append([[geometry], *([one.rate, ", edge" if one.at_edge else ""] for one in chosen)])
    return Recomputed(rows)


def rows_compared(page: Page, _: re.Match[str]) -> Recomputed:
    """How far Muon's cell is ahead of AdamW's."""
    leads = []
    for study in _studies(page):
        values, better = finals(page.archive, study), page.archive.measures(study)[2]
        gains = relative_gains(values["spectral + direct"], values["weighted + direct"], better)
        leads.append(100 * float(gains.mean()))
    return Recomputed(phrases=[("by ", leads[0], " % on text and ", leads[1], " % on images")])


def in_short(page: Page, match: re.Match[str]) -> Recomputed:
    """README's table: per geometry the mean gains, in the order of the settings of docs/table1.md."""
    rows: list[Row] = []
    for geometry in GEOMETRIES:
        gains = [one for study in _studies(page) for one in _gains(page.archive, study, geometry)]
        rows.append([[geometry], *map(_mean_gain, gains)])
    return Recomputed(rows, rows_compared(page, match).phrases)


def _studies(page: Page) -> list[Study]:
    found = [study for study in page.archive.studies if study["name"] == "table1"]
    return sorted(found, key=lambda study: study["task"], reverse=True)  # text first


def _gains(archive: Archive, study: Study, geometry: str) -> list[np.ndarray]:
    values, better = finals(archive, study), archive.measures(study)[2]
    direct = values[f"{geometry} + direct"]
    return [relative_gains(values[f"{geometry} + {name}"], direct, better) for name in CORRECTIONS[1:]]


def _interval(gains: np.ndarray) -> Text:
    low, high = _bounds(gains)
    return [100 * float(gains.mean()), " % [", 100 * low, ", ", 100 * high, "]"]


def _mean_gain(gains: np.ndarray) -> Text:
    """In bold if its interval does not contain 0."""
    low, high = _bounds(gains)
    mark = "" if low <= 0 <= high else "**"
    return [mark, 100 * float(gains.mean()), f" %{mark}"]


def _bounds(gains: np.ndarray) -> tuple[float, float]:
    return stats.t.interval(1 - LEVEL, len(gains) - 1, gains.mean(), stats.sem(gains))


TABLES: Tables = {
    "In short": rows_compared,
    "How it was measured": totals,
    r"rates of (?P<task>[\w-]+)": rates,
    COMPARISON: cells,
}
