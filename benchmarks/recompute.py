"""Recompute the tables of the docs from the archived runs, and compare: `python benchmarks/recompute.py`.

Numpy and scipy do the arithmetic, and nothing of aimopt is imported: what it computes is stated a second time, here and
in `archived_runs.py`. Every table of a page must be recomputed. The page links the archives that it was made from. The
program prints one sentence per disagreement, and then exits with status 1.

To add a table, write a function and name it in `PAGES`, by the marker of the table as a regular expression: the heading
above it, or a comment `<!-- table: NAME -->` before it. The function gets the page, with the runs of its archives, and
the match. It returns the rows of the table, and sentences that its section must contain. A number is compared at the
precision with which the page prints it.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from scipy import stats

from archived_runs import Archive, Study, average_ranks, published_results, ranks, verdicts

ROOT = Path(__file__).parent.parent
MARKER = re.compile(r"#+ (?P<heading>.+)|<!-- table: (?P<name>.+) -->")
LINKED_ARCHIVE = re.compile(r"\]\((results/[\w.-]+\.tar\.xz)\)")
NUMBER = r"([+−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
OPTIONS = {
    "ℓ": "ell",
    "ℓ/η": "ell_ratio",
    "γ": "gamma",
    "δ": "delta",
    "ζ": "zeta",
    "bias correction": "bias_correction",
}

Text = Sequence[str | float]  # a text with numbers, such as ("p = ", 0.034)
Row = list[Text]


@dataclass(frozen=True)
class Section:
    """The lines of a page from one marker to the next."""

    marker: str
    first_line: int
    lines: Sequence[str]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of its table, without the head."""
        table = [line for line in self.lines if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


_read_once = lru_cache(Archive.read)


@dataclass(frozen=True)
class Page:
    """A page of the docs, cut at its markers."""

    path: Path

    @cached_property
    def sections(self) -> list[Section]:
        """The sections; a marker inside a code block is none."""
        lines = self.path.read_text().splitlines()
        fenced = np.cumsum([line.startswith("```") for line in lines]) % 2
        starts = [i for i, line in enumerate(lines) if MARKER.fullmatch(line) and not fenced[i]]
        ends = [*starts[1:], len(lines)]
        return [
            Section(_marker(lines[start]), start + 1, lines[start:end]) for start, end in zip(starts, ends, strict=True)
        ]

    @cached_property
    def archive(self) -> Archive:
        """The runs of all archives that the page links."""
        links = dict.fromkeys(LINKED_ARCHIVE.findall(self.path.read_text()))
        return _read_once(tuple((self.path.parent / link).resolve() for link in links))

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The task of each title, from the headings of the comparisons."""
        matches = (re.fullmatch(COMPARISON, section.marker) for section in self.sections)
        return {match["title"]: match["task"] for match in matches if match}


@dataclass(frozen=True)
class Recomputed:
    """What a section must say."""

    rows: Sequence[Row] | None = None  # None: its table is prose, and the phrases are its figures
    phrases: Sequence[Text] = field(default=())


def _marker(line: str) -> str:
    match = MARKER.fullmatch(line)
    assert match is not None
    return match["heading"] or match["name"]


# What the tables of docs/reproduction.md hold


def comparison(page: Page, match: re.Match[str]) -> Recomputed:
    """Every optimizer, the best first: ranks here and in the paper, rate, values, verdicts against two references."""
    archive, study = page.archive, page.archive.study(match["task"], name="compare")
    better, values = archive.measures(study)[2], final_values(archive, study)
    means = {label: mean(by_seed) for label, by_seed in values.items()}
    own, papers = ranks(means, better), paper_ranks(match["task"], better)
    against = {reference: verdicts(values, reference, better) for reference in ("AdamW", "RADAR")}
    rows: list[Row] = []
    for label in sorted(own, key=own.__getitem__):
        choice = archive.chosen(label, study)
        untuned = mean(archive.finals(label, study, archive.usual_rate(label, study)))
        rows.append([
            [str(own[label])],
            [str(papers[label])],
            [label],
            [choice.rate, ", edge" if choice.at_edge else ""],
            [means[label], " ± ", deviation(values[label])],
            [untuned],
            *([said.get(label, "")] for said in against.values()),
        ])  # fmt: skip
    agreement = spearman(own, papers, own)
    others = spearman(own, papers, [label for label in own if label != "RADAR"])
    sentence = ("Spearman's correlation of our ranks with the paper's: ", agreement, "; without RADAR ", others, ".")
    return Recomputed(rows, [sentence])


def variants(page: Page, match: re.Match[str]) -> Recomputed:
    """RADAR without its parts, or over one option, at RADAR's rate."""
    archive, task, rate = page.archive, page.tasks[match["title"]], float(match["rate"])
    axes = [OPTIONS[match["option"]]] if match["option"] else []
    name = f"sensitivity-{axes[0]}" if axes else "ablation"
    found = [s for s in archive.studies if s["task"] == task and s["name"] == name and s["axes"] == axes]
    (study,) = [s for s in found if np.isclose(archive.chosen("RADAR", s).rate, rate, rtol=1e-9)]
    values = final_values(archive, study)
    against_radar = verdicts(values, "RADAR", archive.measures(study)[2])
    rows: list[Row] = [
        [[label], [mean(by_seed), " ± ", deviation(by_seed)], [against_radar.get(label, "")]]
        for label, by_seed in values.items()
    ]
    return Recomputed(rows)


def heat_map(page: Page, match: re.Match[str]) -> Recomputed:
    """Means over two options."""
    archive, axes = page.archive, [OPTIONS[match["down"]], OPTIONS[match["across"]]]
    study = archive.study(page.tasks[match["title"]], axes=axes)
    points = {tuple(c["options"][axis] for axis in axes): c["label"] for c in study["contenders"] if c["options"]}
    down, across = ([*dict.fromkeys(point[i] for point in points)] for i in range(2))
    values = final_values(archive, study)
    rows: list[Row] = [
        [[f"{match['down']} = {y}"], *([mean(values[points[y, x]])] for x in across)] for y in down
    ]  # fmt: skip
    assert all(len(by_seed) == int(match["seeds"]) for by_seed in values.values())
    return Recomputed(rows)


def in_short(page: Page, _: re.Match[str]) -> Recomputed:
    """Counts over all comparisons; the words between them are the page's own."""
    archive = page.archive
    studies = {task: archive.study(task, name="compare") for task in page.tasks.values()}
    better = {task: archive.measures(study)[2] for task, study in studies.items()}
    values = {task: final_values(archive, study) for task, study in studies.items()}
    means = {task: {label: mean(v) for label, v in by_label.items()} for task, by_label in values.items()}
    untuned = {task: untuned_means(archive, study) for task, study in studies.items()}
    over_adamw = [verdicts(values[task], "AdamW", better[task])["RADAR"] for task in studies]
    over_radar = [verdicts(values[task], "RADAR", better[task]) for task in studies]
    first = sum(ranks(means[task], better[task])["RADAR"] == 1 for task in studies)
    ahead = [is_ahead(untuned[task], "RADAR", "AdamW", better[task]) for task in studies]
    leads = [is_ahead(means[task], "RADAR", "AdamW", better[task]) for task in studies]
    orders = [order_without_radar(means[task], task, better[task]) for task in studies]
    all_tasks = average_ranks(means, better)
    losses = average_ranks({task: means[task] for task in studies if better[task] == "lower"}, better)
    other = [label for said in over_radar for label, verdict in said.items() if verdict == "better"]
    worse, undecided = over_adamw.count("worse"), over_adamw.count("cannot tell")
    return Recomputed(phrases=[
        ("RADAR has the best mean | ", first, " of ", len(studies), ":"),
        ("RADAR is *better* than AdamW | ", over_adamw.count("better"), ":"),
        ("RADAR is *worse* than AdamW | ", worse or "none", "; five seeds cannot tell in the other ", undecided),
        ("where RADAR's mean is ", "ahead each time" if all(leads) else f"ahead in {sum(leads)}"),
        ("another optimizer is *better* than RADAR | ", len(other), ": ", ", ".join(other)),
        ("RADAR's mean is ahead of AdamW's | ", sum(ahead), " of ", len(ahead)),
        ("is ", float(np.mean(orders)), " on average, from ", min(orders), " to ", max(orders)),
        ("(", all_tasks["RADAR"], "; NAdam ", all_tasks["NAdam"], ", AdaBelief ", all_tasks["AdaBelief"], ")"),
        ("NAdam has the best one (", losses["NAdam"], ", RADAR ", losses["RADAR"], ")"),
    ])  # fmt: skip


def totals(page: Page, _: re.Match[str]) -> Recomputed:
    """Runs and hours; no run failed or diverged."""
    archive = page.archive
    unfinished = sum(run.status != "finished" for run in archive.runs)
    compared = 0
    for study in (s for s in archive.studies if s["name"] == "compare"):
        labels = [contender["label"] for contender in study["contenders"]]
        compared += sum(archive.count_runs(label, study) for label in labels)
    hours = sum(run.seconds for run in archive.runs) / 3600
    return Recomputed(phrases=[
        ("there are ", len(archive.runs), " runs; ", compared, " of them belong to the comparisons"),
        (unfinished or "No", " run failed or diverged"),
        ("The training time is ", hours, " hours in total"),
    ])  # fmt: skip


def final_values(archive: Archive, study: Study) -> dict[str, dict[int, float]]:
    """Per contender and seed, the reported value at the chosen rate."""
    return {c["label"]: archive.finals(c["label"], study) for c in study["contenders"]}


def untuned_means(archive: Archive, study: Study) -> dict[str, float]:
    """The means at the usual rates."""
    labels = [contender["label"] for contender in study["contenders"]]
    return {label: mean(archive.finals(label, study, archive.usual_rate(label, study))) for label in labels}


def mean(by_seed: Mapping[int, float]) -> float:
    return float(np.mean([*by_seed.values()]))


def deviation(by_seed: Mapping[int, float]) -> float:
    return float(np.std([*by_seed.values()], ddof=1))


def is_ahead(means: Mapping[str, float], one: str, other: str, better: str) -> bool:
    return means[one] < means[other] if better == "lower" else means[one] > means[other]


def paper_ranks(task: str, better: str) -> dict[str, int]:
    """The ranks of the optimizers in the paper's table."""
    published = published_results(ROOT / "src" / "aimopt" / "paper" / "published.py")
    return ranks({label: results[0] for label, results in published[task].items()}, better)


def order_without_radar(means: Mapping[str, float], task: str, better: str) -> float:
    """The correlation of our ranks with the paper's, without RADAR."""
    return spearman(ranks(means, better), paper_ranks(task, better), [label for label in means if label != "RADAR"])


def spearman(own: Mapping[str, int], papers: Mapping[str, int], labels: Iterable[str]) -> float:
    pairs = [(own[label], papers[label]) for label in labels]
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


COMPARISON = r"(?P<title>[^:]+) \(`(?P<task>[\w-]+)`\)"
PAGES: Mapping[str, Mapping[str, Callable[[Page, re.Match[str]], Recomputed]]] = {
    "docs/reproduction.md": {
        "The reproduction, in miniature": totals,
        "In short": in_short,
        COMPARISON: comparison,
        r"(?P<title>[^:]+): RADAR (?:over (?P<option>.+)|without its parts), at (?P<rate>[\d.e-]+)": variants,
        r"(?P<title>[^:]+): .+ over (?P<down>.+) and (?P<across>.+), (?P<seeds>\d+) seeds": heat_map,
    },
}


# Comparing a page with what it must say


def disagreements(page: Page, recompute: Mapping[str, Callable[[Page, re.Match[str]], Recomputed]]) -> Iterator[str]:
    """One sentence per table, cell or phrase of a page that the archive does not confirm."""
    for section in page.sections:
        where = f"{page.path.name}, line {section.first_line}, {section.marker!r}"
        matches = ((re.fullmatch(pattern, section.marker), function) for pattern, function in recompute.items())
        match, function = next(((match, function) for match, function in matches if match), (None, None))
        if match is None or function is None:
            if section.rows:
                yield f"{where}: this table is not recomputed; name a function for it in PAGES"
            continue
        expected = function(page, match)
        for phrase in expected.phrases:
            if not says(" ".join(section.lines), phrase):
                yield f"{where}: the page does not say {shown(phrase)!r}"
        if expected.rows is not None:
            yield from _different_cells(where, section.rows, expected.rows)
    for pattern in recompute:
        if not any(re.fullmatch(pattern, section.marker) for section in page.sections):
            yield f"{page.path.name}: no table has the marker {pattern!r}; remove it from PAGES"


def _different_cells(where: str, printed: Sequence[Sequence[str]], rows: Sequence[Row]) -> Iterator[str]:
    if len(printed) != len(rows):
        yield f"{where}: the page has {len(printed)} rows, and there are {len(rows)}"
    for cells, expected in zip(printed, rows, strict=False):
        if len(cells) != len(expected):
            yield f"{where}, row {cells[0]!r}: the page has {len(cells)} cells, and there are {len(expected)}"
        for cell, text in zip(cells, expected, strict=False):
            if not says(cell, text, whole=True):
                yield f"{where}, row {' | '.join(cells)!r}: the page says {cell!r}, recomputed is {shown(text)!r}"


def says(printed: str, text: Text, *, whole: bool = False) -> bool:
    """Whether a printed text is or contains this text, with its numbers at the printed precision."""
    parts = [part for part in text if part != ""]
    pattern = "".join(re.escape(part) if isinstance(part, str) else NUMBER for part in parts)
    numbers = [float(part) for part in parts if not isinstance(part, str)]
    matches = [re.fullmatch(pattern, printed)] if whole else re.finditer(pattern, printed)
    return any(all(map(_agrees, match.groups(), numbers)) for match in matches if match)


def _agrees(printed: str, value: float) -> bool:
    """Whether a printed number is this one, rounded; a value in the middle may be rounded to either side."""
    number = Decimal(printed.replace("−", "-"))
    last_digit = 10.0 ** int(number.as_tuple().exponent)
    return abs(float(number) - value) <= 0.5 * last_digit * (1 + 1e-6)


def shown(text: Text) -> str:
    return "".join(part if isinstance(part, str) else f"{part:.7g}" for part in text)


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
