"""Figures: rendered in several processes, in colours that everybody can distinguish."""

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aimopt import palette
from aimopt.lab.report.figures import rendering
from aimopt.lab.report.figures.rendering import RenderedPicture, render_all
from aimopt.lab.report.figures.style import styles_of
from aimopt.lab.report.sections import all_pictures, build_report
from trained_findings import (
    findings,
)

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
        return render_all(all_pictures(report)[1:3], report.styles, ("png", "pdf"))

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
