"""What the tables of docs/conditions.md hold: RADAR against AdamW at other lengths, widths, batch sizes and decays."""

import re

from recomputation.archive import Archive, Study
from recomputation.mini import AGAINST_RADAR, against_radar, finals, said, totals, verdicts_of
from recomputation.pages import Page, Recomputed, Row, Tables, Text
from recomputation.verdicts import deviation, mean

TASK = "wikitext103-gpt2"
REFERENCES = ("AdamW", "AdamW(betas=(0.829, 0.999))")
# The settings of a study that make it one of these conditions, in the order of the page.
CONDITIONS = {
    "300 steps": {"steps": 300},
    "500 steps (usual)": {},
    "1,000 steps": {"steps": 1000},
    "3,000 steps": {"steps": 3000},
    "twice the width": {"width": 96},
    "batches of 32 blocks, 1,000 steps": {"steps": 1000, "batch_size": 32},
    "batches of 8 blocks, 4,000 steps": {"steps": 4000, "batch_size": 8},
    "batches of 128 blocks, 250 steps": {"steps": 250, "batch_size": 128},
}
DEPENDENT = ("warmup_steps", "evaluate_every", "heads", "initial_std")  # settings that follow those


def per_condition(page: Page, _: re.Match[str]) -> Recomputed:
    """Values and rates of the three, and the verdicts on RADAR against both references."""
    archive, rows = page.archive, list[Row]()
    for name in CONDITIONS:
        studies = _studies(archive, name)
        if not studies:
            continue
        study = studies[REFERENCES[0]]
        values, cells = finals(archive, study), list[Text]()
        for label in (*REFERENCES, "RADAR"):
            choice = archive.chosen(label, study)
            edge = ", edge" if choice.at_edge else ""
            cells.append([mean(values[label]), " ± ", deviation(values[label]), " at ", choice.rate, edge])
        against = [said(verdicts_of(archive, studies[reference])["RADAR"]) for reference in REFERENCES]
        rows.append([[name], *cells, *against])
    return Recomputed(rows)


def gains_of_radar(archive: Archive, condition: str) -> list[float]:
    """In per cent, over both references."""
    studies = _studies(archive, condition)
    return [100 * verdicts_of(archive, studies[reference])["RADAR"].gain for reference in REFERENCES]


def _studies(archive: Archive, condition: str) -> dict[str, Study]:
    """The studies of a condition by their reference; none if it was not measured."""
    settings = CONDITIONS[condition]
    return {
        study["reference"]: study
        for study in archive.studies
        if (study["task"], study["name"]) == (TASK, "conditions")
        and {key: value for key, value in study["settings"].items() if key not in DEPENDENT} == settings
    }


TABLES: Tables = {"How it was measured": totals, "In short": per_condition, AGAINST_RADAR: against_radar}
