"""Predict the time, memory and disk space of a study, from a few timed steps of one of its runs.

forecast = forecast_cost(study, store.runs(), Resources(workers=4))
forecast.runs, forecast.seconds             48, 1260.0
"""

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from aimopt.lab.execution.cost_measurement import Stepper
from aimopt.lab.execution.engines.local import worker_slots
from aimopt.lab.execution.resources import Resources
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run
from aimopt.lab.stats.tuning import Point
from aimopt.measure.memory import peak_bytes, reset_peak

TIMED_SECONDS, TIMED_STEPS = 2.0, 30  # whichever is reached first
RESULT_BYTES = 12_000  # files of a finished run without its records
RECORD_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class CostForecast:
    """The predicted cost of the runs that are missing."""

    runs: int  # number of missing runs, at most
    reused: int  # number of runs that are in the store
    step_seconds: float
    evaluation_seconds: float
    seconds: float  # of the whole study, with `parallel_runs` at the same time
    parallel_runs: int
    peak_bytes: int  # per run
    disk_bytes: int  # at most: results, and the checkpoints of the running runs


def forecast_cost(study: Study, runs: Mapping[str, Run], resources: Resources) -> CostForecast:
    """Time a few steps and one evaluation of the reference, and multiply by the missing steps."""
    torch.set_num_threads(resources.threads)
    task, reference = study.make_task(), study.contender(study.reference)
    config = study.run_config(reference, Point(study.usual_rate(reference)), study.seeds[0])
    device = (*resources.devices, "cpu")[0]
    parallel_runs = len(worker_slots(resources))
    reset_peak(torch.device(device))
    stepper = Stepper(config, device)
    begin, steps = time.perf_counter(), 0
    while steps < TIMED_STEPS and time.perf_counter() - begin < TIMED_SECONDS and stepper.index < config.steps:
        stepper()
        steps += 1
    step_seconds = (time.perf_counter() - begin) / max(1, steps)
    begin = time.perf_counter()
    stepper.training.evaluate()
    evaluation_seconds = time.perf_counter() - begin
    saved = io.BytesIO()
    torch.save(stepper.training.state_dict(), saved)
    settled = {identity: run for identity, run in runs.items() if run.settled}
    steps_left = _steps_of_missing_runs(study, settled)
    evaluations = sum(length // task.evaluate_every + 1 for length in steps_left)
    records = sum(length // task.log_every + 1 for length in steps_left)
    return CostForecast(
        runs=len(steps_left),
        reused=len({cell.config.identity for cell in study.cells(settled)} & settled.keys()),
        step_seconds=step_seconds,
        evaluation_seconds=evaluation_seconds,
        seconds=(sum(steps_left) * step_seconds + evaluations * evaluation_seconds) / parallel_runs,
        parallel_runs=parallel_runs,
        peak_bytes=peak_bytes(torch.device(device)),
        disk_bytes=len(steps_left) * RESULT_BYTES + records * RECORD_BYTES + parallel_runs * saved.tell(),
    )


def _steps_of_missing_runs(study: Study, runs: Mapping[str, Run]) -> Sequence[int]:
    """The number of steps of every missing run."""
    named = {cell.config.identity: cell.config.steps for cell in study.cells(runs)}
    known = [steps for identity, steps in named.items() if identity not in runs]
    return known + [study.make_task().steps] * study.count_unknown_runs(runs)
