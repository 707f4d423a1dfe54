"""Measure what the contenders of a study cost. Nothing else may run meanwhile."""

import json
import statistics
import subprocess
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from aimopt.bench.memory import peak_bytes
from aimopt.bench.timing import in_turn, machine, ratio, state_bytes
from aimopt.lab.config import RunConfig
from aimopt.lab.overhead import Cost, Overhead
from aimopt.lab.runner import start
from aimopt.lab.study import Study
from aimopt.lab.user_code import user_code

ROUNDS = 15
MEMORY_STEPS = 3


def measure(
    study: Study,
    contenders: Collection[str] | None = None,
    *,
    device: str = "cpu",
    threads: int | None = None,
    rounds: int = ROUNDS,
) -> Overhead:
    """The costs of a study's contenders, or some of them, each timed in turn with the reference."""
    if threads is not None:
        torch.set_num_threads(threads)
    wanted = [c for c in study.contenders if contenders is None or c.label in contenders]
    configs = {c.label: study.finals(c, study.usual_rate(c))[0] for c in wanted}
    peaks = _peaks(configs, device)
    reference, costs = configs[study.reference], []
    for label, config in configs.items():
        ours, theirs = Stepper(config, device), Stepper(reference, device)
        times = in_turn({"ours": ours, "theirs": theirs}, rounds)
        costs.append(
            Cost(
                label=label,
                step_seconds=statistics.median(times["ours"]),
                ratio=ratio(times["ours"], times["theirs"]),
                peak_bytes=peaks[label],
                state_bytes=ours.state_bytes(),
            )
        )
    return Overhead(reference=study.reference, costs=costs, machine={**machine(), "device": device})


class Stepper:
    """A run that takes its next step when called, and waits for the device."""

    def __init__(self, config: RunConfig, device: str):
        self.device, self.index = torch.device(device), 0
        with user_code(f"cannot train {config}", explained=(OSError, ImportError)):
            self.training = start(config, self.device)
            for _ in range(config.make_task().steady_from):
                self()

    def __call__(self) -> None:
        """Take a step."""
        self.training.step(self.index).item()
        self.index += 1

    def state_bytes(self) -> float:
        """What the optimizers keep, a parameter."""
        sizes = [sum(p.numel() for g in o.param_groups for p in g["params"]) for o in self.training.optimizers]
        kept = [state_bytes(optimizer) * size for optimizer, size in zip(self.training.optimizers, sizes, strict=True)]
        return sum(kept) / sum(sizes)


def _peaks(configs: Mapping[str, RunConfig], device: str) -> dict[str, int]:
    """The memory of a process for each contender; on processors two at a time, since none of them is timed."""
    with ThreadPoolExecutor(1 if device.startswith("cuda") else 2) as pool:
        return dict(zip(configs, pool.map(lambda config: _peak(config, device), configs.values()), strict=True))


def _peak(config: RunConfig, device: str) -> int:
    asked = json.dumps({"config": config.to_dict(), "device": device})
    command = [sys.executable, "-m", "aimopt.lab.measurement"]
    said = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if said.returncode:
        raise ValueError(f"cannot measure the memory of {config}: {said.stderr.strip().splitlines()[-1]}")
    return int(said.stdout.split()[-1])


def _report_peak() -> None:
    """What a process started for its memory does: a few steps, then the peak."""
    asked = json.loads(sys.stdin.read())
    stepper = Stepper(RunConfig.from_dict(asked["config"]), asked["device"])
    for _ in range(MEMORY_STEPS):
        stepper()
    print(peak_bytes(stepper.device))


if __name__ == "__main__":
    _report_peak()
