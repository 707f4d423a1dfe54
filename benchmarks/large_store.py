"""Make a store of many runs that were never trained, to measure how long `aimopt status` and `aimopt report` take.

python benchmarks/large_store.py build/large --seeds 34                            10,406 runs of 16 studies
python benchmarks/large_store.py build/large --seeds 670 --tasks digits --sweeps 0   10,000 runs of one study
/usr/bin/time -v aimopt status build/large
/usr/bin/time -v aimopt report build/large
"""

import argparse
import math
import os
import random
from collections.abc import Callable, Iterator

from aimopt.lab.protocol.recipes import compare, sensitivity
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.task import Measure
from aimopt.lab.protocol.tasks import available
from aimopt.lab.results import sessions
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store

import torch  # isort: skip

RECORDS = 50  # per run, as in the runs of docs/results
EVALUATE_EVERY = 5  # records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--seeds", type=int, default=34, help="final seeds per study (34)")
    parser.add_argument("--tasks", nargs="+", default=[name for name in available() if name != "pendulum-sac"])
    parser.add_argument("--sweeps", type=int, choices=(0, 1), default=1, help="also a sweep of each task (1)")
    arguments = parser.parse_args()
    os.fsync = lambda fd: None  # these files may be lost in a power cut
    store = Store(arguments.store)
    seeds = tuple(range(10, 10 + arguments.seeds))
    written = 0
    for task in arguments.tasks:
        for make in (compare, sensitivity)[: 1 + arguments.sweeps]:
            written += write_study(store, make(task, "mini", seeds=seeds))
    print(f"{written} runs in {store.root}")


def write_study(store: Store, study: Study) -> int:
    """Write every run of a study, the search first: it decides on the others."""
    store.save_study(study)
    task, runs = study.make_task(), dict[str, Run]()
    session = sessions.describe_session(torch.device("cpu"), "0" * 64, 0)
    while todo := [cell.config for cell in study.cells(runs) if cell.config.identity not in runs]:
        for config in todo:
            if config.identity not in runs:
                runs[config.identity] = write_run(store, config, session, (task.score, task.measure))
    return len(runs)


def write_run(store: Store, config: RunConfig, session: dict[str, object], measures: tuple[Measure, Measure]) -> Run:
    """One run, with curves that depend on its learning rate and seed."""
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)
    writer.add_session(session)
    records = list(history(config, measures))
    writer.write_result("finished", "", records, {"seconds": 60.0, "parameters": 10**5, "initial": str(config.seed)})
    writer.release()
    return Run(config=config, status="finished", history=records)


def history(config: RunConfig, measures: tuple[Measure, Measure]) -> Iterator[dict[str, float]]:
    """Falling curves with noise."""
    noise: Callable[[float, float], float] = random.Random(config.identity).gauss
    for index in range(1, RECORDS + 1):
        loss = 2.0 * math.exp(-3 * index / RECORDS) + abs(math.log(config.lr) + 7) / 10 + noise(0.0, 0.01)
        step = max(1, config.steps * index // RECORDS)
        record = {"step": step, "train_loss": loss, "lr": config.lr, "seconds": 1.3 * index + noise(0.0, 0.1)}
        if index % EVALUATE_EVERY == 0:
            record |= {measure.key: loss + noise(0.05, 0.01) for measure in measures}
        yield record


if __name__ == "__main__":
    main()
