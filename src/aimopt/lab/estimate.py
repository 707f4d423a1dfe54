"""What a study will take, from a few steps of one of its runs."""

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from aimopt.bench.memory import forget_peak, peak_bytes
from aimopt.lab.engines import Resources
from aimopt.lab.engines.local import places
from aimopt.lab.measurement import Stepper
from aimopt.lab.runs import Run
from aimopt.lab.study import Study

TIMED_SECONDS, TIMED_STEPS = 2.0, 30  # whichever is reached first
RESULT_BYTES = 12_000  # of a finished run besides its records
RECORD_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What is left of a study."""

    runs: int
    found: int  # runs that are there already
    step_seconds: float
    evaluation_seconds: float
    seconds: float  # with this many runs at once
    at_once: int
    peak_bytes: int  # of a run
    disk_bytes: int  # at most: results, and the checkpoints of the runs at work


def estimate(study: Study, runs: Mapping[str, Run], resources: Resources) -> Estimate:
    """Time a few steps and one evaluation of the reference, and count."""
    torch.set_num_threads(resources.threads)
    task, reference = study.make_task(), study.contender(study.reference)
    config, device = study.finals(reference, study.usual_rate(reference))[0], (*resources.devices, "cpu")[0]
    at_once = len(places(resources))
    forget_peak(torch.device(device))
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
    left = _lengths(study, settled)
    evaluations = sum(length // task.evaluate_every + 1 for length in left)
    records = sum(length // task.log_every + 1 for length in left)
    return Estimate(
        runs=len(left),
        found=len({cell.config.identity for cell in study.cells(settled)} & settled.keys()),
        step_seconds=step_seconds,
        evaluation_seconds=evaluation_seconds,
        seconds=(sum(left) * step_seconds + evaluations * evaluation_seconds) / at_once,
        at_once=at_once,
        peak_bytes=peak_bytes(torch.device(device)),
        disk_bytes=len(left) * RESULT_BYTES + records * RECORD_BYTES + at_once * saved.tell(),
    )


def _lengths(study: Study, runs: Mapping[str, Run]) -> Sequence[int]:
    """The steps of every run that is left."""
    named = {cell.config.identity: cell.config.steps for cell in study.cells(runs)}
    left = [steps for identity, steps in named.items() if identity not in runs]
    return left + [study.make_task().steps] * study.unnamed(runs)
