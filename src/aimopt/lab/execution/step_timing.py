"""Time a few steps of a run within a number of seconds, in a process of its own, without downloading anything.

    timing = time_steps(config, device="cpu", threads=1, seconds=10.0)
    timing.steps                    {8: 0.11, 32: 0.39}: seconds of a step with batches of 8 and 32 examples
    timing.full_batch               128: the batch of the task, which would have taken too long
    timing.step_seconds             1.51: on the line through the last two

A step of a large task takes minutes on a processor. Supervised tasks are therefore timed with growing batches until the
batch of the task is reached or the next one would take too long. The process reports what it has measured so far; at
the end of the time it is killed.
"""

import dataclasses
import io
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from aimopt.lab.execution.process_output import last_line
from aimopt.lab.execution.runner import start_training
from aimopt.lab.protocol.offline import without_downloads
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.supervised import Supervised, SupervisedTraining, set_splits
from aimopt.lab.protocol.task import Training
from aimopt.lab.protocol.user_code import explain, user_code
from aimopt.measure.memory import peak_bytes, reset_peak

# Lines of the process: its imports are done, a result, it has ended. Other lines are those of the task.
READY, RESULT, END = "step timing: ready", "step timing: ", "\n"
START_SECONDS = 60.0  # for the imports, at most
TIMED_SECONDS, TIMED_STEPS = 1.5, 30  # per batch size, whichever is reached first
BATCH_FACTOR = 4  # between two batch sizes
USABLE_SHARE = 0.7  # of the remaining time: the next batch is only tried if its steps should take less
TRAINING_TO_EVALUATION = 3.0  # a training step costs about three forward passes


@dataclass
class StepTiming:
    """What was measured until the time was over."""

    steps: dict[int, float] = field(default_factory=dict)  # examples per step -> seconds; 0 examples: not known
    full_batch: int = 0  # examples of a step of the task; 0: its steps have no batch
    evaluation_seconds: float | None = None
    evaluation_is_estimated: bool = False  # from the time of a step, because an evaluation takes too long
    test_ratio: float = 0.0  # seconds of the evaluation on test data after the last step, relative to an evaluation
    peak_bytes: int = 0
    state_bytes: int = 0  # of a checkpoint
    missing: str = ""  # which data are missing; empty: none
    random_data: bool = False  # whether random data replaced missing ones

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step of the task, extrapolated if its batch was not reached; None if nothing was timed."""
        if not self.steps:
            return None
        *smaller, largest = sorted(self.steps)
        seconds = self.steps[largest]
        if not smaller:
            return seconds * max(1, self.full_batch) / max(1, largest)
        slope = max(0.0, (seconds - self.steps[smaller[-1]]) / (largest - smaller[-1]))
        return seconds + slope * (self.full_batch - largest)


def time_steps(config: RunConfig, *, device: str, threads: int, seconds: float, steps: bool = True) -> StepTiming:
    """Time a run for this number of seconds; without `steps`, only one evaluation of it."""
    request = {"config": config.to_dict(), "device": device, "threads": threads, "steps": steps, "seconds": seconds}
    command = [sys.executable, "-m", "aimopt.lab.execution.step_timing"]
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timing, lines, printed = StepTiming(), queue.Queue[str](), ""
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
        try:
            process.stdin.write(json.dumps(request))
            process.stdin.close()
            deadline = time.monotonic() + START_SECONDS  # imports take long on a busy machine
            while (line := _next_line(lines, deadline)) is not None:
                if line == READY:
                    deadline = time.monotonic() + seconds
                elif line == END:
                    if process.wait():
                        raise ValueError(f"cannot time a step of {config}: {last_line(printed)}")
                    break
                elif line.startswith(RESULT):
                    _add(timing, json.loads(line.removeprefix(RESULT)))
                else:
                    printed = line
        finally:
            process.kill()
    return timing


def _forward(stream: IO[str], lines: "queue.Queue[str]") -> None:
    for line in stream:
        lines.put(line.rstrip("\n"))
    lines.put(END)


def _next_line(lines: "queue.Queue[str]", deadline: float) -> str | None:
    """The next line; None if there is none until the deadline."""
    try:
        return lines.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def _add(timing: StepTiming, result: Mapping[str, Any]) -> None:
    for name, value in result.items():
        if name == "error":
            raise ValueError(value)
        if name == "steps":
            timing.steps |= {int(batch): float(measured) for batch, measured in value.items()}
        else:
            setattr(timing, name, value)


def _measure(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Measure, and yield each result as soon as it is known."""
    config, device = RunConfig.from_dict(request["config"]), torch.device(request["device"])
    deadline = time.monotonic() + request["seconds"]
    torch.set_num_threads(request["threads"])
    reset_peak(device)
    with without_downloads(), user_code(f"cannot train {config}", explained=(OSError, ImportError)):
        try:
            training = start_training(config, device)
        except OSError as error:
            yield {"missing": _first_line(error)}
            task = config.make_task()
            if not isinstance(task, Supervised) or (examples := task.random_examples()) is None:
                return
            set_splits(task, examples)
            try:
                training = start_training(config, device)
            except OSError as second:  # a model that is not there, either
                yield {"missing": f"{_first_line(error)}; {_first_line(second)}"}
                return
            yield {"random_data": True}
        seconds_per_example = 0.0
        if request["steps"]:
            for examples_per_step, seconds in _time_steps(config, training, deadline):
                seconds_per_example = seconds / max(1, examples_per_step)
                task = config.make_task()
                full_batch = task.batch_size if isinstance(task, Supervised) else 0
                yield {"steps": {examples_per_step: seconds}, "full_batch": full_batch}
                yield {"peak_bytes": peak_bytes(device)}
        saved = io.BytesIO()
        torch.save(training.state_dict(), saved)
        yield {"state_bytes": saved.tell()}
        yield from _time_evaluation(training, seconds_per_example, deadline)
        yield {"peak_bytes": peak_bytes(device)}


def _first_line(error: Exception) -> str:
    return (str(error) or explain(error)).splitlines()[0]


def _time_steps(config: RunConfig, training: Training, deadline: float) -> Iterator[tuple[int, float]]:
    """The number of examples of a step and its seconds, for growing batches; one result with 0 for other tasks."""
    supervised = training if isinstance(training, SupervisedTraining) else None
    index = 0
    for _ in range(0 if supervised else config.make_task().first_steady_step):
        training.step(index).item()
        index += 1
    seconds = 0.0
    for examples, parts in _batches(supervised) if supervised else [(0, 1)]:
        if seconds and 2 * BATCH_FACTOR * seconds > USABLE_SHARE * (deadline - time.monotonic()):
            return
        if supervised:
            supervised.task = dataclasses.replace(supervised.task, batch_size=examples, micro_batches=parts)
            training.step(index).item()  # the first step of a size reserves memory
        begin, count = time.perf_counter(), 0
        while count == 0 or (count < TIMED_STEPS and time.perf_counter() - begin < TIMED_SECONDS):
            training.step(index).item()
            index, count = min(index + 1, config.steps - 1), count + 1
        seconds = (time.perf_counter() - begin) / count
        yield examples, seconds


def _batches(training: SupervisedTraining) -> list[tuple[int, int]]:
    """Growing batches up to that of the task: the number of examples, and of parts with separate gradients."""
    full, parts = training.task.batch_size, training.task.micro_batches
    part, chosen = full // parts, [(full, parts)]
    examples = full // BATCH_FACTOR
    while examples:
        chosen.append((examples // part * part, examples // part) if examples > part else (examples, 1))
        examples //= BATCH_FACTOR
    return chosen[::-1]


def _time_evaluation(training: Training, seconds_per_example: float, deadline: float) -> Iterator[dict[str, Any]]:
    """Seconds of an evaluation; if it would take too long, an estimate from those of a training step."""
    if isinstance(training, SupervisedTraining):
        valid, test = (len(split[0]) for split in (training.splits.valid, training.splits.test))
        estimated = seconds_per_example * valid / TRAINING_TO_EVALUATION
        yield {"test_ratio": test / max(1, valid)}
        yield {"evaluation_seconds": estimated or None, "evaluation_is_estimated": True}
        if estimated > USABLE_SHARE * (deadline - time.monotonic()):
            return
        training.context = dataclasses.replace(training.context, steps=sys.maxsize)  # without the test data
    begin = time.perf_counter()
    training.evaluate()
    yield {"evaluation_seconds": time.perf_counter() - begin, "evaluation_is_estimated": False}


def _main() -> None:
    """The process of `time_steps`: one line per result."""
    print(READY, flush=True)
    try:
        for result in _measure(json.loads(sys.stdin.read())):
            print(f"{RESULT}{json.dumps(result)}", flush=True)
    except (ValueError, OSError, ImportError) as error:
        print(f"{RESULT}{json.dumps({'error': str(error) or explain(error)})}", flush=True)


if __name__ == "__main__":
    _main()
