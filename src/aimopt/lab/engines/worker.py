"""A process that makes runs, one after the other: configurations in on standard input, outcomes out on standard output.

The line `stop` asks it to save the run at hand and end. The end of its input says that the process that started it is
dead, and nobody will wait: it has `ORPHAN_SECONDS` to save the run, which goes on from its last checkpoint otherwise.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from aimopt.lab.config import RunConfig
from aimopt.lab.runner import Outcome, explain, run
from aimopt.lab.store import Store

ORPHAN_SECONDS = 5.0  # to save a run when the process that wanted it is dead
STOP = b"stop\n"
orphaned = threading.Event()  # whether the process that started this one is dead


def work(
    store: str | Path,
    config: Mapping[str, Any],
    *,
    must_exist: bool = False,
    device: str = "cpu",
    threads: int = 1,
    processes: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    **care: Any,
) -> tuple[Outcome, str]:
    """Make one run, here or in several processes that torchrun starts: the outcome, and why if the store cannot say."""
    if processes > 1:
        given = {"must_exist": must_exist, "device": device, "threads": threads, **care}
        return _with_torchrun(store, config, processes, should_stop, given)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    try:
        results = Store(store, must_exist=must_exist)
        return run(RunConfig.from_dict(config), results, device=device, should_stop=should_stop, **care), ""
    except Exception as error:  # a failure that could not even be written down, on a full disk for example
        return "failed", explain(error)


def _with_torchrun(
    store: str | Path,
    config: Mapping[str, Any],
    processes: int,
    should_stop: Callable[[], bool],
    given: dict[str, Any],
) -> tuple[Outcome, str]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answered.json")
        asked.write_text(json.dumps({"store": str(store), "config": config, "answer": str(answered), **given}))
        command = [sys.executable, "-m", "aimopt.lab.engines.worker", str(asked), str(processes)]
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said) as launched,
        ):
            assert launched.stdin is not None
            while launched.poll() is None:
                if orphaned.is_set():
                    launched.stdin.close()
                elif should_stop():
                    ask(launched.stdin, STOP)
                time.sleep(0.1)
            said.seek(0)
            last_words = last_line(said.read().decode(errors="replace"))
        if answered.exists():
            outcome, reason = json.loads(answered.read_text())
            return outcome, reason
    return "failed", f"torchrun ended with status {launched.returncode}: {last_words}"


def ask(process_input: IO[bytes], line: bytes) -> None:
    """Write a line to a process; one that has just died is noticed by its silence."""
    with contextlib.suppress(BrokenPipeError):
        process_input.write(line)
        process_input.flush()


def _launch(asked: str, processes: str) -> None:
    """Become torchrun."""
    from torch.distributed.run import main

    _ignore_signals()
    main(["--standalone", f"--nproc-per-node={processes}", "-m", "aimopt.lab.engines.worker", asked])


def _ignore_signals() -> None:
    """Slurm signals every process of a job; the first of them tells these when it is time to stop."""
    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _one_of_several(asked: Path) -> None:
    """What each process that torchrun started does; they share an input, whose lines are for the first."""
    _ignore_signals()
    given = json.loads(asked.read_text())
    answer, stop = Path(given.pop("answer")), threading.Event()

    def listen() -> None:
        if first:
            while os.read(0, 1):
                stop.set()
        elif hasattr(select, "poll"):
            ended = select.poll()
            ended.register(0, 0)  # no event but the end, which every process sees
            ended.poll()
        else:
            return
        _end_soon(stop)

    first = int(os.environ["RANK"]) == 0
    threading.Thread(target=listen, daemon=True).start()
    outcome, reason = work(given.pop("store"), given.pop("config"), should_stop=stop.is_set, **given)
    if first:
        answer.write_text(json.dumps((outcome, reason)))
    if outcome in ("failed", "stopped"):
        os._exit(1)  # the others wait for this one: torchrun ends them
    torch.distributed.destroy_process_group()


def _one_after_the_other() -> None:
    """What a process of the local engine does."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tasks print is not an answer
    asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        # Unbuffered: Python aborts at its end while a thread holds the lock of a buffer.
        with open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                if line == STOP:
                    stop.set()
                asked.put(None if line == STOP else line)
        asked.put(None)
        _end_soon(stop)

    threading.Thread(target=listen, daemon=True).start()
    while (line := asked.get()) is not None and not stop.is_set():
        given = json.loads(line)
        outcome = work(given.pop("store"), given.pop("config"), should_stop=stop.is_set, **given)
        answers.write(json.dumps(outcome) + "\n")


def _end_soon(stop: threading.Event) -> None:
    """Save the run at hand and end this process, in the time that one has whom nobody waits for."""
    orphaned.set()
    stop.set()
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def last_line(text: str) -> str:
    """The last that a process wrote, but for ornaments."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _launch(*sys.argv[1:])
    elif len(sys.argv) == 2:
        _one_of_several(Path(sys.argv[1]))
    else:
        _one_after_the_other()
