"""Predict the time, memory and disk space of a study within seconds. Nothing is downloaded.

    forecast = forecast_cost(study, store.runs(), Resources(workers=4))
    forecast.runs, forecast.seconds             48, 1260.0
    forecast.basis                              ("30 steps …",): what the times are extrapolated from

The time of a step comes from the runs of the same task in the store. If there are none, some steps of the reference are
timed, with smaller batches or random data if need be: `step_timing.py`.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aimopt.lab.execution.engines.local import worker_slots
from aimopt.lab.execution.resources import Resources
from aimopt.lab.execution.step_timing import StepTiming, time_steps
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.schema import is_number
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run
from aimopt.lab.stats.tuning import Point
from aimopt.measure.machine import describe_machine

TIMING_SECONDS = 10.0  # for all timings of a study; the start of the process comes on top
RESULT_BYTES = 12_000  # files of a finished run without its records
RECORD_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class CostForecast:
    """The predicted cost of the runs that are missing."""

    runs: int  # number of missing runs, at most
    first_runs: int  # the part of `runs` that is certain; seeds are added in blocks, and a search may be extended
    reused: int  # number of runs that are in the store
    step_seconds: float | None  # None: not known
    evaluation_seconds: float | None
    seconds: float | None  # of all `runs`, with `parallel_runs` at the same time
    first_seconds: float | None  # of `first_runs`
    parallel_runs: int
    peak_bytes: int  # per run; 0: not known
    disk_bytes: int  # at most: results, and the checkpoints of the running runs
    basis: tuple[str, ...]  # what the times are extrapolated from, in sentences


@dataclass(frozen=True)
class _Speed:
    """How long the parts of a run take, and from what this is known."""

    step: float | None
    evaluation: float | None
    test: float  # of the evaluation on test data after the last step, beyond that of an evaluation
    peak_bytes: int
    state_bytes: int
    basis: tuple[str, ...]


def forecast_cost(
    study: Study, runs: Mapping[str, Run], resources: Resources, seconds: float = TIMING_SECONDS
) -> CostForecast:
    """The cost of the missing runs, after at most this number of seconds for timings."""
    task, reference = study.make_task(), study.contender(study.reference)
    config = study.run_config(reference, Point(study.usual_rate(reference)), study.seeds[0])
    settled = {identity: run for identity, run in runs.items() if run.settled}
    speed = _speed(config, settled, resources, seconds)
    first = _steps_of_missing_runs(study, settled)
    reused = len({cell.config.identity for cell in study.cells(settled)} & settled.keys())
    later = max(0, study.max_run_count() - reused - len(first)) if study.search or study.looks else 0
    lengths = [*first, *[task.steps] * later]
    parallel_runs = len(worker_slots(resources))

    def total(steps: Sequence[int]) -> float | None:
        if speed.step is None:
            return None
        evaluations = sum(length // task.evaluate_every + 1 for length in steps)
        training = sum(steps) * speed.step + evaluations * (speed.evaluation or 0.0) + len(steps) * speed.test
        return training / parallel_runs

    records = sum(length // task.log_every + 1 for length in lengths)
    return CostForecast(
        runs=len(lengths),
        first_runs=len(first),
        reused=reused,
        step_seconds=speed.step,
        evaluation_seconds=speed.evaluation,
        seconds=total(lengths),
        first_seconds=total(first),
        parallel_runs=parallel_runs,
        peak_bytes=speed.peak_bytes,
        disk_bytes=len(lengths) * RESULT_BYTES + records * RECORD_BYTES + parallel_runs * speed.state_bytes,
        basis=speed.basis,
    )


def _speed(config: RunConfig, settled: Mapping[str, Run], resources: Resources, seconds: float) -> _Speed:
    """From records of the same task if there are any; the time of an evaluation is measured: records lack it."""
    known = [run for run in settled.values() if _is_comparable(run, config)]
    device = (*resources.devices, "cpu")[0]
    timing = time_steps(config, device=device, threads=resources.threads, seconds=seconds, steps=not known)
    basis = [*_explain_timing(timing, config, seconds, steps=not known)]
    step, peak, state = timing.step_seconds, timing.peak_bytes, timing.state_bytes
    if known:
        step = statistics.median(run.history[-1]["seconds"] / run.history[-1]["step"] for run in known)
        peak = max(_recorded(run, "peak_bytes") for run in known)
        state = max(4 * _recorded(run, "parameters") + _recorded(run, "state_bytes") for run in known)
        basis.insert(0, _explain_records(known))
    evaluation = timing.evaluation_seconds
    return _Speed(step, evaluation, (evaluation or 0.0) * timing.test_ratio, peak, state, tuple(basis))


def _recorded(run: Run, fact: str) -> int:
    """A number that a run recorded; 0 if it did not."""
    value: Any = run.facts.get(fact)
    return int(value) if is_number(value) else 0


def _is_comparable(run: Run, config: RunConfig) -> bool:
    """Whether the steps of a finished run take as long as those of a config, except for the optimizer."""
    same_task = (run.config.task, run.config.scale, run.config.settings) == (config.task, config.scale, config.settings)
    last = run.history[-1] if run.history else {}
    return same_task and last.get("step", 0) > 0 and last.get("seconds", 0) > 0


def _explain_records(known: Sequence[Run]) -> str:
    machines = [session["machine"] for run in known for session in run.sessions[-1:] if "machine" in session]
    where = {machine["processor"] for machine in machines if "processor" in machine}
    other = where - {describe_machine()["processor"]}
    text = f"the time of a step is the median of {len(known)} run{'s' * (len(known) != 1)} in the store"
    return f"{text}, trained on {', '.join(sorted(where))}, not on this processor" if other else text


def _explain_timing(timing: StepTiming, config: RunConfig, seconds: float, *, steps: bool) -> list[str]:
    basis = []
    if timing.missing:
        basis.append(f"a run would fetch what is missing: {timing.missing}")
    data = "random data" if timing.random_data else "its data"
    if steps and timing.steps:
        sizes = sorted(timing.steps)
        reached = not timing.full_batch or sizes[-1] == timing.full_batch
        batches = f" with batches of {' and '.join(map(str, sizes[-2:]))}" if not reached else ""
        text = f"some steps of {config.optimizer} on {data} were timed{batches} on this machine"
        basis.append(text if reached else f"{text}; the batch of {timing.full_batch} is extrapolated")
    elif steps and timing.missing:
        basis.append("so no step could be timed")
    elif steps:
        basis.append(f"no step ended within {seconds:.0f} s, so the time is not known")
    if timing.evaluation_seconds is None and not (timing.missing and not timing.random_data):
        basis.append("evaluations could not be timed and are left out")
    elif timing.evaluation_is_estimated:
        basis.append("an evaluation is estimated as a third of the training time of as many examples")
    return basis


def _steps_of_missing_runs(study: Study, runs: Mapping[str, Run]) -> list[int]:
    """The number of steps of every missing run that is certain to come."""
    named = {cell.config.identity: cell.config.steps for cell in study.cells(runs)}
    known = [steps for identity, steps in named.items() if identity not in runs]
    return known + [study.make_task().steps] * study.count_unknown_runs(runs)
