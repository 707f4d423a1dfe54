"""Forecasts: from records, from timed steps, from smaller batches, and without data. Nothing is downloaded."""

import socket
from pathlib import Path

import pytest
import torch

from aimopt.lab.execution import step_timing
from aimopt.lab.execution.cost_forecast import forecast_cost
from aimopt.lab.execution.resources import Resources
from aimopt.lab.execution.runner import start_training
from aimopt.lab.execution.step_timing import StepTiming, time_steps
from aimopt.lab.protocol.offline import WouldDownload, downloads_allowed, without_downloads
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.supervised import SupervisedTraining
from aimopt.lab.results.store import Store
from short_studies import short_run, short_study
from written_stores import written_store

ENOUGH = 120.0  # seconds; a process that has measured everything ends before


@pytest.mark.parametrize(
    ("steps", "full_batch", "expected"),
    [
        ({}, 128, None),
        ({128: 0.5}, 128, 0.5),
        ({0: 0.5}, 0, 0.5),  # a task whose steps have no batch
        ({32: 0.5}, 128, 2.0),
        ({8: 0.1, 32: 0.34}, 128, 1.3),  # 0.02 s, and 0.01 s per example
        ({8: 0.1, 32: 0.34, 128: 2.0}, 128, 2.0),
        ({8: 0.2, 32: 0.1}, 128, 0.1),  # the first was disturbed: more examples never take less time
    ],
)
def test_the_time_of_a_step_lies_on_the_line_through_the_largest_batches(
    steps: dict[int, float], full_batch: int, expected: float | None
) -> None:
    assert StepTiming(steps, full_batch).step_seconds == (None if expected is None else pytest.approx(expected))


def training(batch_size: int, micro_batches: int) -> SupervisedTraining:
    settings = {"batch_size": batch_size, "micro_batches": micro_batches}
    started = start_training(short_run(settings=settings), torch.device("cpu"))
    assert isinstance(started, SupervisedTraining)
    return started


def test_batches_grow_to_that_of_the_task_in_whole_parts() -> None:
    assert step_timing._batches(training(64, 1)) == [(1, 1), (4, 1), (16, 1), (64, 1)]
    assert step_timing._batches(training(64, 8)) == [(1, 1), (4, 1), (16, 2), (64, 8)]
    assert step_timing._batches(training(3, 1)) == [(3, 1)]


def test_every_batch_is_timed_if_there_is_time_and_only_the_first_if_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_timing, "TIMED_SECONDS", 0.0)
    started, config = training(64, 8), short_run()
    assert [batch for batch, _ in step_timing._time_steps(config, started, float("inf"))] == [1, 4, 16, 64]
    assert [batch for batch, _ in step_timing._time_steps(config, started, 0.0)] == [1]


def test_steps_and_evaluation_are_timed_in_a_process() -> None:
    timing = time_steps(short_run(), device="cpu", threads=1, seconds=ENOUGH)
    assert max(timing.steps) == timing.full_batch == 64
    assert timing.step_seconds is not None
    assert timing.evaluation_seconds is not None
    assert not timing.evaluation_is_estimated
    assert timing.peak_bytes > timing.state_bytes > 100_000
    assert (timing.missing, timing.random_data) == ("", False)


def test_a_step_that_is_not_supervised_is_timed_whole() -> None:
    """Its batch is not varied, so its time is not extrapolated."""
    config = RunConfig.create("pendulum-sac", "mini", optimizer="AdamW")
    timing = time_steps(config, device="cpu", threads=1, seconds=ENOUGH)
    assert (list(timing.steps), timing.full_batch) == ([0], 0)
    assert timing.step_seconds == timing.steps[0]


def test_missing_data_are_named_and_replaced_by_random_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    config = RunConfig.create("cifar10-vit", "mini-1", optimizer="AdamW")
    timing = time_steps(config, device="cpu", threads=1, seconds=ENOUGH)
    assert timing.missing == "cifar10 is not on this machine; its download has about 170 MB"
    assert timing.random_data
    assert max(timing.steps) == timing.full_batch == 64
    assert timing.test_ratio == 1.0
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["cifar10"]  # its lock


PRINTING = """
from dataclasses import dataclass
import torch
from aimopt.lab import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Line(Supervised):
    title = "A line"
    lr: float = 1e-2
    steps: int = 8
    evaluate_every: int = 2
    batch_size: int = 8

    def data(self):
        print()
        print('{"steps": 1}')
        raise FileNotFoundError("line.csv")

    def random_examples(self):
        x = torch.linspace(-1, 1, 64)[:, None]
        return Splits(*[(x, (x > 0).long().flatten())] * 3)

    def model(self):
        open("weights.pt")
"""


def test_a_task_may_print_and_a_missing_model_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("line.py").write_text(PRINTING)
    config = RunConfig.create("line.py:Line", optimizer="AdamW")
    timing = time_steps(config, device="cpu", threads=1, seconds=ENOUGH)
    assert timing.missing == "line.csv; [Errno 2] No such file or directory: 'weights.pt'"
    assert (timing.steps, timing.random_data) == ({}, False)


def forecast_basis(study: Study, store: Store, monkeypatch: pytest.MonkeyPatch, timing: StepTiming) -> tuple[str, ...]:
    monkeypatch.setattr("aimopt.lab.execution.cost_forecast.time_steps", lambda *_, **__: timing)
    return forecast_cost(study, store.runs(), Resources(workers=1)).basis


def test_a_forecast_says_what_it_is_extrapolated_from(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    study = short_study()
    timings = {
        "AdamW on its data were timed on this machine": StepTiming({64: 0.1}, 64, 0.2),
        "with batches of 4 and 16 on this machine; the batch of 64 is ext": StepTiming(
            {1: 0.1, 4: 0.2, 16: 0.3}, 64, 0.2
        ),
        "no step ended within 10 s": StepTiming(),
        "so no step could be timed": StepTiming(missing="a file"),
        "a run would fetch what is missing: a file": StepTiming(missing="a file"),
        "on random data": StepTiming({64: 0.1}, 64, 0.2, missing="a file", random_data=True),
        "evaluations could not be timed": StepTiming({64: 0.1}, 64),
        "estimated as a third": StepTiming({64: 0.1}, 64, 0.2, evaluation_is_estimated=True),
    }
    for text, timing in timings.items():
        assert text in "; ".join(forecast_basis(study, store, monkeypatch, timing))


def test_a_forecast_uses_the_records_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, study = written_store(tmp_path)
    asked = list[bool]()

    def only_evaluation(*_: object, steps: bool, **__: object) -> StepTiming:
        asked.append(steps)
        return StepTiming(evaluation_seconds=0.5, test_ratio=2.0)

    monkeypatch.setattr("aimopt.lab.execution.cost_forecast.time_steps", only_evaluation)
    forecast = forecast_cost(study, store.runs(), Resources(workers=1))
    assert asked == [False]
    assert (forecast.runs, forecast.seconds) == (0, 0.0)
    assert forecast.step_seconds == pytest.approx(0.1)
    assert forecast.basis[0] == "the time of a step is the median of 12 runs in the store"
    more = short_study("RADAR", "AdamW", "Lion")
    forecast = forecast_cost(more, store.runs(), Resources(workers=1))
    lengths = [6, 6, 12, 12, 12, 12]  # two search runs, two final runs, two at the usual rate
    assert forecast.runs == len(lengths)
    evaluations = sum(length // 2 + 1 for length in lengths)
    assert forecast.seconds == pytest.approx(0.1 * sum(lengths) + 0.5 * evaluations + 2 * 0.5 * len(lengths))


def test_downloads_are_refused_only_inside_of_the_block() -> None:
    with without_downloads():
        assert not downloads_allowed()
        with pytest.raises(WouldDownload), socket.socket() as connection:
            connection.connect(("127.0.0.1", 9))
    assert downloads_allowed()
    with pytest.raises(ConnectionError), socket.socket() as connection:
        connection.connect(("127.0.0.1", 9))  # nothing listens there
