"""Measure the costs of a study's contenders. Nothing else may run at the same time.

    overhead = measure_costs(study, device="cpu", threads=1)
    overhead.costs[0].step_seconds          0.0113

Steps of a contender and of the reference are timed in turn in one process. The memory is the peak of a fresh process
per contender. `results/costs.py` holds the data.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from aimopt.lab.defaults import ROUNDS
from aimopt.lab.execution.process_output import last_line
from aimopt.lab.execution.runner import start_training
from aimopt.lab.protocol.randomness import global_generators_kept
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.user_code import user_code
from aimopt.lab.results.costs import Cost, Overhead
from aimopt.lab.stats.tuning import Point
from aimopt.measure.machine import describe_machine
from aimopt.measure.memory import peak_bytes
from aimopt.measure.timing import paired_ratio, state_bytes_per_parameter, time_in_turn

MEMORY_STEPS = 3  # steps until the peak of the memory is reached


def measure_costs(
    study: Study,
    contenders: Collection[str] | None = None,
    *,
    device: str = "cpu",
    threads: int | None = None,
    rounds: int = ROUNDS,
) -> Overhead:
    """The costs of a study's contenders, or of those with the given labels, each timed in turn with the reference."""
    wanted = [c for c in study.contenders if contenders is None or c.label in contenders]
    configs = {c.label: study.run_config(c, Point(study.usual_rate(c)), study.seeds[0]) for c in wanted}
    peaks = _peaks(configs, device)
    reference, costs = configs[study.reference], []
    with global_generators_kept(device), _number_of_threads(threads):
        for label, config in configs.items():
            own_stepper, reference_stepper = Stepper(config, device), Stepper(reference, device)
            times = time_in_turn({"own": own_stepper, "reference": reference_stepper}, rounds)
            costs.append(
                Cost(
                    label=label,
                    step_seconds=statistics.median(times["own"]),
                    ratio=paired_ratio(times["own"], times["reference"]),
                    peak_bytes=peaks[label],
                    state_bytes=own_stepper.state_bytes(),
                    rounds=rounds,
                )
            )
        machine = {**describe_machine(), "device": device}
    return Overhead(reference=study.reference, costs=costs, machine=machine)


@contextmanager
def _number_of_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads; None leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Stepper:
    """A run that takes one step per call, and waits for the device."""

    def __init__(self, config: RunConfig, device: str):
        self.device, self.index = torch.device(device), 0
        with user_code(f"cannot train {config}", explained=(OSError, ImportError)):
            self.training = start_training(config, self.device)
            for _ in range(config.make_task().first_steady_step):
                self()

    def __call__(self) -> None:
        """Take a step."""
        self.training.step(self.index).item()
        self.index += 1

    def state_bytes(self) -> float:
        """Bytes of optimizer state per parameter."""
        sizes = [sum(p.numel() for g in o.param_groups for p in g["params"]) for o in self.training.optimizers]
        pairs = zip(self.training.optimizers, sizes, strict=True)
        totals = [state_bytes_per_parameter(optimizer) * size for optimizer, size in pairs]
        return sum(totals) / sum(sizes)


def _peaks(configs: Mapping[str, RunConfig], device: str) -> dict[str, int]:
    """The peak memory of one process per contender; on the CPU two at the same time, since nothing is timed."""
    with ThreadPoolExecutor(1 if device.startswith("cuda") else 2) as pool:
        return dict(zip(configs, pool.map(lambda config: _peak(config, device), configs.values()), strict=True))


def _peak(config: RunConfig, device: str) -> int:
    request = json.dumps({"config": config.to_dict(), "device": device})
    command = [sys.executable, "-m", "aimopt.lab.execution.cost_measurement"]
    answer = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ValueError(f"cannot measure the memory of {config}: {last_line(answer.stderr)}")
    return int(answer.stdout.split()[-1])


def _report_peak() -> None:
    """The process of `_peak`: take a few steps and print the peak memory."""
    request = json.loads(sys.stdin.read())
    stepper = Stepper(RunConfig.from_dict(request["config"]), request["device"])
    for _ in range(MEMORY_STEPS):
        stepper()
    print(peak_bytes(stepper.device))


if __name__ == "__main__":
    _report_peak()
