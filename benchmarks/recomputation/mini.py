"""What the tables of docs/reproduction.md hold: searches on whole schedules, and seeds until decided."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from recomputation.archive import PUBLISHED, Archive, Choice, Study, published_results
from recomputation.pages import Page, Recomputed, Row, Tables, Text
from recomputation.steps import fewer_steps
from recomputation.verdicts import LEVEL, Decision, Together, decisions, deviation, holm, mean, relative_gains, together

P_LIMITS = (0.001, 0.01)  # a smaller p is printed as smaller than the first of these that is larger
# How the page names the contenders that have options.
SHOWN = {
    "AdamW(tune='beta1')": "AdamW, β1 tuned",
    "RADAR(tune='beta1')": "RADAR, β1 tuned",
    "QHAdam(nus=(0.7, 1.0), betas=(0.995, 0.999))": "QHAdam, ν 0.7, β1 0.995",
    "QHAdam(nus=(0.7, 1.0), betas=(0.9, 0.999))": "QHAdam, ν 0.7, β1 0.9",
    "AdamW(betas=(0.829, 0.999))": "AdamW, β1 0.829",
    "AdamW(betas=(0.8, 0.999))": "AdamW, β1 0.8",
    **{
        f"{name}(weight_decay={decay})": f"{name}, weight decay {decay:g}"
        for name in ("RADAR", "AdamW")
        for decay in (0.0, 0.5, 1.0)
    },
    "RADAR(bias_correction='exact')": "RADAR, exact",
    "RADAR(gamma=0.2, bias_correction='exact')": "RADAR, γ 0.2, exact",
    "RADAR(gamma=0.4, bias_correction='exact')": "RADAR, γ 0.4, exact",
    "QHAdam(betas=(0.99, 0.999), nus=(0.7, 1.0))": "QHAdam, ν 0.7, β1 0.99",
    "QHAdam(betas=(0.995, 0.999), nus=(0.7, 1.0))": "QHAdam, ν 0.7, β1 0.995",
    "Muon(rest='RADAR')": "Muon, RADAR for the rest",
    "AcceleratedMuon(rest='RADAR')": "AcceleratedMuon, RADAR for the rest",
    "Muon": "Muon, AdamW for the rest",
    "Hybrid": "Muon, RADAR for the rest",
    "AIM(filter='GradientDifference(0.9, 0.1)', geometry='Relativistic(0.999)', "
    "correction='Cautious(FixedPoint(ell_ratio=0.01))')": "RADAR, cautious",
    "AIM(filter='GradientDifference(0.9, 0.01)', geometry='Relativistic(0.95)', "
    "correction='Cautious(FixedPoint(ell_ratio=0.01))')": "RADAR, cautious",
}
CONTROL = "AdamW(tune='beta1')"
CORE = ("RADAR", "AdamW", CONTROL, "RADAR(tune='beta1')")  # in every setting
REFERENCES = ("AdamW", CONTROL)
COMPARISON = r"(?P<title>[^:]+) \(`(?P<task>[\w-]+)`\)"
AGAINST_RADAR = rf"(?P<what>against RADAR|confirmed|weight decay|bias correction|no warm-up): {COMPARISON}"


def comparison(page: Page, match: re.Match[str]) -> Recomputed:
    """Every contender, the best first: rate, β1, values, seeds, and the verdicts against both references."""
    archive = page.archive
    studies = {reference: _study(archive, match["task"], reference) for reference in REFERENCES}
    study = studies["AdamW"]
    verdicts = {reference: verdicts_of(archive, studies[reference]) for reference in REFERENCES}
    rows: list[Row] = []
    for label, choice, (name, rate, *values) in _ranked(archive, study, finals(archive, study)):
        momentum = choice.momentum or _momentum(study["facts"]["contenders"][label]["options"])
        rows.append([name, rate, [momentum], *values, *(said(verdicts[r].get(label)) for r in REFERENCES)])
    return Recomputed(rows)


def against_radar(page: Page, match: re.Match[str]) -> Recomputed:
    """Every rival of RADAR, the best first: rate, values, seeds, and the verdict against it."""
    name = {"against RADAR": "compare", "confirmed": "confirm"}.get(match["what"], match["what"])
    return against_reference(page.archive, page.archive.study(match["task"], name=name, reference="RADAR"))


def against_reference(archive: Archive, study: Study) -> Recomputed:
    """Every contender of a study, the best first, with its verdict. Other studies may have more of its seeds."""
    verdicts = verdicts_of(archive, study)
    most = max(verdict.seeds for verdict in verdicts.values())
    counts = {label: verdict.seeds for label, verdict in verdicts.items()} | {study["reference"]: most}
    values = {label: dict([*by_seed.items()][: counts[label]]) for label, by_seed in finals(archive, study).items()}
    return Recomputed([[*cells, said(verdicts.get(label))] for label, _, cells in _ranked(archive, study, values)])


def _ranked(archive: Archive, study: Study, values: Mapping[str, Mapping[int, float]]) -> list[tuple[str, Choice, Row]]:
    """The contenders, the best first: label, choice of the search, and the cells that all tables have."""
    sign = 1 if archive.measures(study)[2] == "lower" else -1
    ranked: list[tuple[str, Choice, Row]] = []
    for label in sorted(values, key=lambda name: sign * mean(values[name])):
        choice, by_seed = archive.chosen(label, study), values[label]
        shown: Text = [SHOWN.get(label, label)]
        rate: Text = [choice.rate, ", edge" if choice.at_edge else ""]
        ranked.append((label, choice, [shown, rate, [mean(by_seed), " ± ", deviation(by_seed)], [len(by_seed)]]))
    return ranked


def in_short(page: Page, _: re.Match[str]) -> Recomputed:
    """Per setting: the paper's numbers and ours, and the verdicts on RADAR."""
    rows: list[Row] = []
    for section in page.sections:
        match = re.fullmatch(COMPARISON, section.marker)
        if match:
            papers = published_results(PUBLISHED).get(match["task"])
            in_paper: Text = [papers["AdamW"][0], " → ", papers["RADAR"][0]] if papers else [""]
            rows.append([[match["title"]], in_paper, *_lead(page.archive, match["task"])])
    return Recomputed(rows)


def leads(page: Page, _: re.Match[str]) -> Recomputed:
    """README's table: per setting of the paper, RADAR's gains over AdamW with and without a tuned β1; the hybrid's."""
    rows: dict[str, Row] = {}
    for study in _papers_settings(page.archive, "AdamW"):
        task, title = study["task"], f"{study['facts']['title']}: {study['facts']['measure']['label']}"
        verdicts = [verdicts_of(page.archive, _study(page.archive, task, reference)) for reference in REFERENCES]
        values = finals(page.archive, study)
        means: Text = [mean(values["AdamW"]), " → ", mean(values["RADAR"])]
        gains = [briefly(by_label["RADAR"]) for by_label in verdicts]
        steps, hybrid = steps_saved(page.archive, task), hybrid_against_radar(page.archive, task)
        rows[title] = [[title], means, gains[0], steps, gains[1], briefly(hybrid) if hybrid else [""]]
    (section,) = (section for section in page.sections if section.marker == "leads")
    places = {cells[0]: i for i, cells in enumerate(section.rows)}
    return Recomputed(sorted(rows.values(), key=lambda row: places.get(str(row[0][0]), len(places))))


def hybrid_against_radar(archive: Archive, task: str) -> Decision | None:
    """Muon for matrices with RADAR for the rest: among RADAR's rivals, else in the confirmation of the exploration."""
    for name, label in (("compare", "Hybrid"), ("confirm", "Muon(rest='RADAR')")):
        if any((s["task"], s["name"], s["reference"]) == (task, name, "RADAR") for s in archive.studies):
            return verdicts_of(archive, archive.study(task, name=name, reference="RADAR"))[label]
    return None


def _lead(archive: Archive, task: str) -> Row:
    """The means of AdamW and RADAR; RADAR against both references, and with a tuned β1 against the same of AdamW."""
    studies = {reference: _study(archive, task, reference) for reference in REFERENCES}
    values = {reference: finals(archive, study) for reference, study in studies.items()}
    verdicts = {reference: verdicts_of(archive, study) for reference, study in studies.items()}
    return [
        *([mean(values["AdamW"][label])] for label in ("AdamW", "RADAR")),
        *(said(verdicts[reference]["RADAR"]) for reference in REFERENCES),
        said(verdicts[CONTROL]["RADAR(tune='beta1')"]),
    ]


def in_steps(page: Page, _: re.Match[str]) -> Recomputed:
    """Per setting: AdamW at half, usual and twice the steps, RADAR at the usual ones, and the steps that it saves."""
    rows: list[Row] = []
    for section in page.sections:
        match = re.fullmatch(COMPARISON, section.marker)
        by_length = _reference_by_length(page.archive, match["task"]) if match else {}
        if match and len(by_length) > 1:
            means: list[Text] = [[mean(by_seed)] for _, by_seed in sorted(by_length.items())]
            radar = finals(page.archive, _study(page.archive, match["task"], "AdamW"))["RADAR"]
            rows.append([[match["title"]], *means, [mean(radar)], steps_saved(page.archive, match["task"])])
    return Recomputed(rows)


def all_together(page: Page, match: re.Match[str]) -> Recomputed:
    """One test per reference and contender over the paper's settings."""
    rows: list[Row] = []
    for number, reference in enumerate(REFERENCES):
        labels = [label for label in CORE if label not in REFERENCES[: number + 1]]
        rows += _pooled(page, match[0], labels, reference)
    return Recomputed(rows)


def rivals_together(page: Page, match: re.Match[str]) -> Recomputed:
    """One test per rival of RADAR over the paper's settings that have them."""
    study, *_ = _papers_settings(page.archive, "RADAR")
    labels = [contender["label"] for contender in study["contenders"] if contender["label"] != "RADAR"]
    return Recomputed(_pooled(page, match[0], labels, "RADAR"))


def _pooled(page: Page, marker: str, labels: Sequence[str], reference: str) -> list[Row]:
    """A row per contender: all pairs of setting and seed, with the seeds of the first look."""
    (section,) = (section for section in page.sections if section.marker == marker)
    printed = {(cells[0], cells[1]): cells[4] for cells in section.rows}
    found = {label: over_all_settings(page.archive, label, reference) for label in labels}
    corrected = holm({label: test.p for label, test in found.items()})
    rows: list[Row] = []
    for label, test in found.items():
        p = corrected[label]
        verdict = "cannot tell" if p >= LEVEL else "ahead" if test.mean > 0 else "behind"
        names = [SHOWN.get(name, name) for name in (label, reference)]
        ahead: Text = [test.ahead, " of ", test.pairs]
        limits: Text = [f"<{limit:g}" for limit in P_LIMITS if p < limit]
        shown = limits[:1] or [_or_printed(p, printed.get((names[0], names[1]), ""))]
        rows.append([[names[0]], [names[1]], [test.tasks], ahead, shown, [verdict]])
    return rows


def _or_printed(p: float, printed: str) -> float:
    """The printed p, if it may come from other random flips: both p have an error of up to 0.004, and it is rounded."""
    try:
        return float(printed) if abs(float(printed) - p) <= 0.005 + 0.004 else p
    except ValueError:
        return p


@cache
def over_all_settings(archive: Archive, label: str, reference: str) -> Together:
    """A contender in the paper's settings, with the seeds of the first look."""
    gains = []
    for study in _papers_settings(archive, reference):
        values, first = finals(archive, study), study["looks"][0]
        gains.append(relative_gains(values[label], values[reference], archive.measures(study)[2])[:first])
    return together(gains)


@cache
def steps_saved(archive: Archive, task: str) -> Text:
    """How many steps RADAR saves of AdamW's; empty if AdamW was trained at one length only."""
    study = _study(archive, task, "AdamW")
    by_length, radar = _reference_by_length(archive, task), finals(archive, study)["RADAR"]
    if len(by_length) == 1:
        return [""]
    return fewer_steps(by_length, radar, study["facts"]["settings"]["steps"], archive.measures(study)[2])


def _reference_by_length(archive: Archive, task: str) -> dict[int, dict[int, float]]:
    """AdamW's final values, by length and seed."""
    other = [study for study in archive.studies if (study["task"], study["name"]) == (task, "lengths")]
    studies = [_study(archive, task, "AdamW"), *other]
    return {s["facts"]["settings"]["steps"]: archive.finals("AdamW", s) for s in studies}


def unchecked(page: Page, match: re.Match[str]) -> Recomputed:
    """A table that is not about runs."""
    return Recomputed()


def totals(page: Page, _: re.Match[str]) -> Recomputed:
    """Runs and hours."""
    archive = page.archive
    hours = sum(run.seconds for run in archive.runs) / 3600
    ended_badly = sum(run.status != "finished" for run in archive.runs)
    return Recomputed(phrases=[
        (len(archive.runs), " runs, ", hours, " hours of training"),
        (ended_badly or "none", " failed or diverged"),
    ])  # fmt: skip


def _papers_settings(archive: Archive, reference: str) -> list[Study]:
    """The comparisons with this reference in the settings of the paper."""
    papers = published_results(PUBLISHED)
    found = (study for study in archive.studies if (study["name"], study["reference"]) == ("compare", reference))
    return [study for study in found if study["task"] in papers]


def _study(archive: Archive, task: str, reference: str) -> Study:
    return archive.study(task, name="compare", reference=reference)


def finals(archive: Archive, study: Study) -> dict[str, dict[int, float]]:
    """Per contender and seed, the reported value at the chosen point."""
    return {c["label"]: archive.finals(c["label"], study) for c in study["contenders"]}


def verdicts_of(archive: Archive, study: Study) -> dict[str, Decision]:
    """Per contender the verdict against the reference of the study."""
    values, better = finals(archive, study), archive.measures(study)[2]
    reference = values.pop(study["reference"])
    gains = {label: relative_gains(by_seed, reference, better) for label, by_seed in values.items()}
    return decisions(gains, study["looks"], study["margin"])


def said(decision: Decision | None) -> Text:
    """A verdict with its interval, as the pages print it."""
    if decision is None:
        return [""]
    percent = [100 * number for number in (decision.gain, decision.low, decision.high)]
    return [f"{decision.verdict}: ", percent[0], " % [", percent[1], ", ", percent[2], "]"]


def briefly(decision: Decision) -> Text:
    """The gain with its interval: in bold if it is decided that there is one."""
    gain, low, high = (100 * number for number in (decision.gain, decision.low, decision.high))
    bold = "**" if decision.verdict in ("better", "worse") else ""
    equal = "equal: " if decision.verdict.startswith("equal") else ""
    return [f"{equal}{bold}", gain, f" %{bold} [", low, ", ", high, "]"]


def _momentum(options: Mapping[str, Any]) -> float:
    return float(options["betas"][0])


TABLES: Tables = {
    "How it was measured": totals,
    "In short": in_short,
    "In steps": in_steps,
    "All settings together": all_together,
    "All rivals together": rivals_together,
    COMPARISON: comparison,
    AGAINST_RADAR: against_radar,
}
