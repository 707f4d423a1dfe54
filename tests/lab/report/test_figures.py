"""Figures: rendered in several processes, in colours that everybody can distinguish."""

import dataclasses
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from aimopt import palette
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.report.figures import lines, rendering, searches
from aimopt.lab.report.figures.labels import apart, clipped_names
from aimopt.lab.report.figures.rendering import RenderedPicture, render_all
from aimopt.lab.report.figures.style import styles_of
from aimopt.lab.report.figures.svg import svg
from aimopt.lab.report.sections import all_pictures, build_report
from trained_findings import OVERHEAD, comparison, findings, runs_of

pytestmark = pytest.mark.xdist_group("trained")  # one process builds what these tests share


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_pictures_rendered_in_two_processes_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 2)
    shares, forked = list[int](), rendering._forked

    def count_share(function: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        shares.append(len(items))
        return forked(function, items)

    monkeypatch.setattr(rendering, "_forked", count_share)

    def rendered(per_process: int) -> dict[str, RenderedPicture]:
        monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", per_process)
        report = build_report(findings()[1:2], "title", "command")
        return render_all(all_pictures(report)[1:3], ("png", "pdf"))

    in_one = rendered(per_process=2)
    assert shares == []
    in_two = rendered(per_process=1)
    assert shares == [1]  # the second picture was given to a forked process
    assert [set(picture.files) for picture in in_one.values()] == [{"png", "pdf"}] * 2
    assert in_one == in_two


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_forked_processes_share_the_work_and_failed_shares_are_done_in_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendering, "_processes", lambda: 3)
    monkeypatch.setattr(rendering, "PICTURES_PER_PROCESS", 2)
    here = os.getpid()
    made = rendering.map_in_processes(lambda item: (item, os.getpid()), range(10))
    assert [item for item, _ in made] == list(range(10))
    assert len({process for _, process in made}) == 3
    assert [process == here for _, process in made[:4]] == [True, False, False, True]

    def fail(item: int) -> int:
        if item % 3 == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        if item % 3 == 2 and os.getpid() != here:
            raise KeyError(item)
        return os.getpid()

    assert rendering.map_in_processes(fail, range(10)) == [here] * 10
    with pytest.raises(ZeroDivisionError):
        rendering.map_in_processes(lambda item: 1 / (item - 4), range(10))
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_ctrl_c_at_the_start_of_a_forked_process_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A terminal sends it to all processes; the parent answers."""
    monkeypatch.setattr(rendering, "_processes", lambda: 2)
    send, here = rendering._send, os.getpid()

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        send(*arguments)

    monkeypatch.setattr(rendering, "_send", interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore Ctrl-C
    try:
        made = rendering.map_in_processes(lambda item: os.getpid() == here, range(12))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert made == [True, False] * 6
    assert capfd.readouterr().err == ""


def test_names_of_any_length_fit_into_every_figure() -> None:
    """A name without room for the axes makes matplotlib warn, which is an error in tests; no text leaves the figure."""
    names = {
        "RADAR": "RADAR(" + ", ".join(f"option_{i}=0.0{i}" for i in range(12)) + ")",
        "AdamW": "some.package.of.optimizers:" + "A" * 150,
        "Lion": "RADAR(" + ", ".join(f"option_{i}=0.0{i}" for i in range(11)) + ", option_11=0.12)",
    }
    study = comparison()
    contenders = tuple(dataclasses.replace(c, label=names[c.label]) for c in study.contenders)
    study = dataclasses.replace(study, contenders=contenders, reference=names["AdamW"], subject=names["RADAR"])
    costs = [dataclasses.replace(cost, label=names[cost.label]) for cost in OVERHEAD.costs]
    overhead = dataclasses.replace(OVERHEAD, reference=names["AdamW"], costs=costs)
    renamed = analyse_study(study, runs_of(comparison), overhead)
    task = dataclasses.replace(renamed, title="A task with a name of many words " * 5)
    report = build_report([renamed, task], "", "")
    pictures = dict(all_pictures(report))
    assert {"overview-subject", "overview-verdicts"} <= pictures.keys()
    assert len(pictures) >= 15
    for picture in pictures.values():
        for drawn in (picture, rendering.for_print(picture)):
            drawn.figure.draw_without_rendering()
            width, height = drawn.figure.get_size_inches()
            box = drawn.figure.get_tightbbox()
            assert -0.02 < box.x0 < box.x1 < width + 0.02, picture.name
            assert -0.02 < box.y0 < box.y1 < height + 0.02, picture.name
            assert min(ax.get_position().width for ax in drawn.figure.axes) > 0.1, picture.name


def test_every_reference_has_its_own_titles_and_first_picture() -> None:
    """The same task is compared with two references, and another task too."""
    studies = [dataclasses.replace(comparison(), reference=reference) for reference in ("Lion", "AdamW")]
    compared = [analyse_study(study, runs_of(comparison)) for study in studies]
    elsewhere = [dataclasses.replace(analysis, title="Elsewhere") for analysis in compared]
    report = build_report([*compared, *elsewhere], "", "")
    assert [section.title for section in report.sections] == [
        "Digits, MLP (1k), against Lion", "Elsewhere, against Lion",
        "Digits, MLP (1k), against AdamW", "Elsewhere, against AdamW",
    ]  # fmt: skip
    titles = {name: picture.title for name, picture in report.first_pictures}
    assert titles == {"overview-subject": "RADAR against Lion", "overview-subject-2": "RADAR against AdamW"}
    assert report.headline.startswith("Against Lion on 2 tasks")
    assert " Against AdamW it is better on " in report.headline
    assert report.title == "RADAR against Lion and AdamW"
    assert [table.title for table in report.results] == ["Results, against Lion", "Results, against AdamW"]
    for table, reference in zip(report.results, ("Lion", "AdamW"), strict=True):
        assert [row[0].text for row in table.rows if row[0].text] == [compared[0].title, "Elsewhere"]
        assert f"worse than {reference};" in table.note
        marks = {label: cell.mark for label, cell in zip(table.columns, table.rows[0], strict=True)}
        assert marks[reference] == ""
    assert [table.title for table in report.pooled] == [
        f"All tasks together, against {label}" for label in ("Lion", "RADAR", "AdamW")
    ]


def test_studies_of_one_task_are_told_apart_by_what_differs() -> None:
    """A setting that tells no further studies apart is left out, in titles and in the rows of the picture."""
    short, long, wide = (
        {"steps": 40, "warmup_steps": 1},
        {"steps": 60, "warmup_steps": 2},
        {"steps": 60, "log_every": 1},
    )
    first = analyse_study(comparison(), runs_of(comparison))
    same_runs = [dataclasses.replace(first, study=dataclasses.replace(first.study, settings=s)) for s in (short, long)]
    compared = [*same_runs, dataclasses.replace(first, study=dataclasses.replace(first.study, settings=wide))]
    report = build_report(compared, "", "")
    details = ["steps 40, warmup_steps 1", "steps 60, warmup_steps 2", "steps 60"]
    assert [section.title for section in report.sections] == [f"Digits, MLP (1k), {detail}" for detail in details]
    (_, picture), *_ = report.first_pictures
    rows = [" ".join(label.get_text().split()) for label in picture.figure.axes[0].get_yticklabels()]
    assert rows == [f"Digits, MLP (1k), {detail}" for detail in details]


def test_a_tuned_option_has_a_name_that_fits() -> None:
    names = ["RADAR(tune='beta1')", "AdamW(tune='beta1')", "RADAR(gamma=0.05)"]
    assert clipped_names(names, 18) == ["RADAR, β1 tuned", "AdamW, β1 tuned", "RADAR(gamma=0.05)"]
    assert clipped_names(names[:1], 19) == names[:1]
    assert clipped_names(["AdamW(tune='weight_decay')"], 25) == ["AdamW, weight decay tuned"]
    assert clipped_names(["AdEMAMix(tune='beta1')"], 12) == ["AdEMAM…tuned"]


def test_clipped_names_stay_different() -> None:
    names = [f"{'RADAR' * 9}{i}{'x' * 40}" for i in range(3)]
    shown = clipped_names(names, 18)
    assert len(set(shown)) == 3
    assert max(map(len, shown)) <= 18
    assert clipped_names(["RADAR", "AdamW"], 18) == ["RADAR", "AdamW"]


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    assert apart([0.5, 0.1], 0.1) == [0.5, 0.1]
    crowded = [0.99, 0.98, 0.97, 0.0]
    placed = apart(crowded, 0.1)
    assert np.argsort(placed).tolist() == np.argsort(crowded).tolist()
    assert np.diff(sorted(placed)).min() > 0.1 - 1e-12
    assert max(placed) <= 1
    assert apart([], 0.1) == []


def test_only_the_subject_and_the_reference_show_their_bands() -> None:
    """The other bands are drawn for a reader who points at a line, and are left out of files."""
    picture = dict(all_pictures(build_report(findings()[:1], "", "")))["compare-odd-task-small-demo-curve-valid-loss"]
    bands = ElementTree.fromstring(svg(picture, "x")).findall(".//*[@class='band']")
    labels = [standing.label for standing in findings()[0].standings]
    assert {band.get("data-series") for band in bands} == {str(labels.index("Lion"))}
    assert len(rendering.for_print(picture).figure.axes[0].collections) == 2
    assert [line.band for line in picture.panels[0].lines] == [label != "Lion" for label in labels]


def test_of_many_contenders_the_best_have_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 2)
    first = findings()[0]
    picture = lines.curves(first, first.curves[0], styles_of([first]))
    assert picture is not None
    assert [line.label for line in picture.panels[0].lines] == ["RADAR", "AdamW"]
    assert "The 2 best of 3 contenders." in picture.caption


def test_the_tuning_budget_ends_at_the_best_score_of_the_search() -> None:
    first = findings()[0]
    picture = searches.tuning_budget(first, styles_of([first]))
    assert picture is not None
    for line in picture.panels[0].lines:
        scores = [trial.value for trial in first.standing(line.label).trials]
        assert line.points[-1][:2] == [len(scores), min(scores)]
        assert line.points[0][1] == pytest.approx(np.mean(scores))


def test_the_score_of_a_rate_is_the_mean_over_its_tuning_seeds() -> None:
    first = findings()[0]
    radar = first.standing("RADAR")
    again = [trial._replace(seed=6, value=trial.value + 1) for trial in radar.trials[1:]]
    several = dataclasses.replace(radar, trials=(*radar.trials, *again))
    standings = tuple(several if s.label == "RADAR" else s for s in first.standings)
    picture = searches.learning_rates(dataclasses.replace(first, standings=standings), styles_of([first]))
    assert picture is not None
    points = picture.panels[0].lines[0].points
    added = [0.0, *[0.5] * len(again)]
    assert [y for _, y, _, _ in points] == pytest.approx(np.add([t.value for t in radar.trials], added))
    assert "Seeds 5 and 6" in picture.caption


# Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}

TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]

TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


def oklab(colour: str, vision: Any) -> Any:
    """Where a colour lies for some eyes, by Ottosson (2020)."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0, 1)
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ seen)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_two_colours_are_distinguishable(theme: str, vision: str) -> None:
    places = [oklab(getattr(colour, theme), VISIONS[vision]) for colour in palette.SERIES]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) > 0.1


def test_a_contender_has_one_colour_and_radar_always_the_same() -> None:
    styles = styles_of(findings())
    assert styles["RADAR"].slot == 0
    for found in findings()[:2]:
        slots = [styles[standing.label].slot for standing in found.standings]
        assert len(set(slots)) == len(slots)
