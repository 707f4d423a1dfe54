"""The results of a study, for notebooks and scripts.

    findings = run(study, store="results")
    print(findings.table())             one row per contender
    findings.verdict("Mine")            "better", "worse", "equal …", "undecided …", …
    findings.runs                       one row per run: a pandas frame if pandas is installed
    findings.figure("differences")      a matplotlib figure
    findings.report("report")           the whole report as a folder

A notebook shows `findings` as its table and summary.
"""

import html
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aimopt.lab import report
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.protocol.import_paths import trust_needed
from aimopt.lab.protocol.study import Study
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures import of_study
from aimopt.lab.report.figures.style import Picture, styles_of
from aimopt.lab.report.formats.csv_text import run_rows
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.messages.clean_text import one_line
from aimopt.messages.spelling import suggestion
from aimopt.messages.text_table import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("contender", "lr", "mean", "std", "seeds", "gain", "verdict")


@dataclass(frozen=True)
class ResultTable:
    """Rows of results; terminals and notebooks show them as a table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        cells = [[_cell_text(row[column]) for column in self.columns] for row in self.rows]
        return f"{self.title}\n{text_table([self.columns, *map(tuple, cells)])}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        rows = [
            "".join(f"<td>{html.escape(_cell_text(row[column]))}</td>" for column in self.columns) for row in self.rows
        ]
        body = "".join(f"<tr>{cells}</tr>" for cells in rows)
        caption = f"<caption>{html.escape(one_line(self.title))}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Findings:
    """The results of a study at one time. Call `analyse` again to include newer runs."""

    def __init__(self, analysis: StudyAnalysis, store: Store):
        self.analysis, self.store = analysis, store

    @property
    def study(self) -> Study:
        """The study that was run."""
        return self.analysis.study

    @property
    def complete(self) -> bool:
        """Whether every run of the study is finished or has diverged."""
        return self.analysis.progress.complete

    @property
    def failed(self) -> list[Run]:
        """The runs that failed; the next `run` of the study tries them again."""
        return [run for _, run in self.analysis.cells if run is not None and run.status == "failed"]

    def table(self) -> ResultTable:
        """One row per contender: chosen learning rate, mean, std, number of seeds, gain over the reference, verdict."""
        rows = []
        for standing in self.analysis.standings:
            spread, difference = standing.spread, standing.difference
            is_reference = standing.label == self.study.reference
            rows.append({
                "contender": standing.label,
                "lr": standing.lr,
                "mean": spread.mean if spread else None,
                "std": spread.std if spread else None,
                "seeds": len(spread.values) if spread else 0,
                "gain": difference.mean if difference else None,
                "verdict": "reference" if is_reference else phrasing.verdict(difference),
            })  # fmt: skip
        measure = self.analysis.measure
        title = f"{phrasing.name_of(self.analysis)}: {measure.label}, {measure.better} is better"
        return ResultTable(title, COLUMNS, tuple(rows))

    def verdict(self, contender: str) -> str:
        """How a contender compares with the reference."""
        labels = [standing.label for standing in self.analysis.standings]
        if contender not in labels:
            raise ValueError(f"no contender is called {contender!r}; {suggestion(contender, labels)}")
        if contender == self.study.reference:
            return "reference"
        return phrasing.verdict(self.analysis.standing(contender).difference)

    @property
    def summary(self) -> list[str]:
        """The results in sentences."""
        return phrasing.summary(self.analysis)

    @property
    def runs(self) -> Any:
        """One row per run and role: a pandas frame if pandas is installed, else a list of dictionaries."""
        rows = run_rows(self.analysis)
        try:
            import pandas
        except ModuleNotFoundError:
            return rows
        return pandas.DataFrame(rows)

    @property
    def figures(self) -> list[str]:
        """The names of all figures of this study."""
        return list(self._pictures())

    def figure(self, name: str) -> "Figure":
        """A figure by name."""
        pictures = self._pictures()
        if name not in pictures:
            raise ValueError(f"this study has no figure {name!r}; {suggestion(name, pictures)}")
        return pictures[name].figure

    def report(self, path: str | Path | None = None, *, refresh: float | None = None) -> Path:
        """Write the report to a folder (default: `report` in the store); return the path of its page."""
        return write_report([self], self.store.root / "report" if path is None else path, refresh=refresh)

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *map(one_line, self.summary)])

    def __repr__(self) -> str:
        progress = self.analysis.progress
        return f"<Findings of {self.study.name} on {self.study.task}: {progress.settled} of {progress.total} runs>"

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{html.escape(one_line(sentence))}</p>" for sentence in self.summary)
        return f"{self.table()._repr_html_()}{sentences}"

    def _pictures(self) -> dict[str, Picture]:
        by_part = of_study(self.analysis, styles_of([self.analysis]))
        return {picture.name: picture for pictures in by_part.values() for picture in pictures}


def write_report(findings: Sequence[Findings], path: str | Path, *, refresh: float | None = None) -> Path:
    """Write one report about several studies to a folder; return the path of its page.

    With `refresh`, the page reloads itself after this number of seconds.
    """
    commands = []
    for result in findings:
        file, names = str(result.store.study_file(result.study)), result.study.task_and_optimizers()
        commands.append(shlex.join(["aimopt", "sweep", file, *trust_needed(names)]))
    return report.write(
        Path(path), [result.analysis for result in findings], refresh=refresh, command="\n".join(commands)
    )


def _cell_text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return "diverged" if math.isinf(value) else phrasing.general(value, 4)
    return one_line(str(value))
