"""A step in backward against the usual loop: peak memory, and time per training step, of a GPT with RADAR.

With few tokens per step, gradients are a large part of the memory; with many tokens, activations are. Run

    python benchmarks/in_backward.py             memory, one process per measurement
    python benchmarks/in_backward.py --time      the time of training steps as well, on an idle machine
"""

import sys

from aimopt.measure.timing import paired_ratio, time_in_turn
from aimopt.measure.train_benchmark import IN_BACKWARD, Trainer, peak_memory

USUAL, ROUNDS = "RADAR", 30
SIZE = {"width": 512, "layers": 12, "heads": 8}


def main() -> None:
    for batch in (1, 4):
        size = {**SIZE, "batch": batch}
        for name in (USUAL, IN_BACKWARD):
            process, gradients = peak_memory(name, size)
            print(f"batch {batch}, {name}: peak {process:.0f} MiB, of it gradients {gradients:.1f} MiB", flush=True)
        if "--time" in sys.argv:
            trainers = {name: Trainer(name, **size) for name in (USUAL, IN_BACKWARD)}
            times = time_in_turn({name: trainer.step for name, trainer in trainers.items()}, ROUNDS)
            print(f"batch {batch}, time, in backward / usual: {paired_ratio(times[IN_BACKWARD], times[USUAL])}")


if __name__ == "__main__":
    main()
