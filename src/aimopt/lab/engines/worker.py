"""A process that makes runs, one after the other: configurations in on standard input, outcomes out on standard output.

The end of its input asks it to save the run at hand and stop. So it also stops when the process that started it dies.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from aimopt.lab.config import RunConfig
from aimopt.lab.runner import Outcome, explain, run
from aimopt.lab.store import Store


def work(
    store: str | Path,
    config: Mapping[str, Any],
    *,
    device: str = "cpu",
    threads: int = 1,
    processes: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    **care: Any,
) -> tuple[Outcome, str]:
    """Make one run, here or in several processes that torchrun starts: the outcome, and why if the store cannot say."""
    if processes > 1:
        return _with_torchrun(store, config, processes, {"device": device, "threads": threads, **care})
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    try:
        return run(RunConfig.from_dict(config), Store(store), device=device, should_stop=should_stop, **care), ""
    except Exception as error:  # a failure that could not even be written down, on a full disk for example
        return "failed", explain(error)


def _with_torchrun(
    store: str | Path, config: Mapping[str, Any], processes: int, given: dict[str, Any]
) -> tuple[Outcome, str]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answered.json")
        asked.write_text(json.dumps({"store": str(store), "config": config, "answer": str(answered), **given}))
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *launch, "-m", "aimopt.lab.engines.worker", str(asked)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answered.exists():
            outcome, reason = json.loads(answered.read_text())
            return outcome, reason
    return "failed", f"torchrun ended with status {ended.returncode}: {_last_line(ended.stderr)}"


def _one_of_several(asked: Path) -> None:
    """What each process that torchrun started does."""
    given = json.loads(asked.read_text())
    answer = Path(given.pop("answer"))
    outcome = work(given.pop("store"), given.pop("config"), **given)
    if int(os.environ["RANK"]) == 0:
        answer.write_text(json.dumps(outcome))
    torch.distributed.destroy_process_group()


def _one_after_the_other() -> None:
    """What a process of the local engine does."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tasks print is not an answer
    asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        stop.set()
        asked.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (line := asked.get()) is not None and not stop.is_set():
        given = json.loads(line)
        outcome = work(given.pop("store"), given.pop("config"), should_stop=stop.is_set, **given)
        answers.write(json.dumps(outcome) + "\n")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _one_of_several(Path(sys.argv[1]))
    else:
        _one_after_the_other()
