"""The worker process: reads job arguments on standard input, trains the runs, writes outcomes on standard output.

    run_job("results", config.to_dict(), threads=2)         ("finished", ""), in this process
    run_job("results", config.to_dict(), processes=4)       the same in four processes that torchrun starts

The line `stop` asks the worker to write a checkpoint and exit. The end of its input means that the parent process is
dead. It then has `ORPHAN_SECONDS` to write a checkpoint; otherwise the run is later resumed from an older checkpoint.
"""

import contextlib
import gc
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

from aimopt.lab.execution.process_output import last_line
from aimopt.lab.execution.runner import Outcome, train_run
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results.store import Store

ORPHAN_SECONDS = 5.0  # time to write a checkpoint after the parent process died
STOP = b"stop\n"
orphaned = threading.Event()  # set if the parent process is dead


def run_job(
    store: str | Path,
    config: Mapping[str, Any],
    *,
    must_exist: bool = False,
    device: str = "cpu",
    threads: int = 1,
    processes: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> tuple[Outcome, str]:
    """Train one run. The result is the outcome, and the reason of a failure that could not be recorded in the store."""
    if processes > 1:
        arguments = {"must_exist": must_exist, "device": device, "threads": threads, **options}
        return _start_torchrun(store, config, processes, should_stop, arguments)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    try:
        results = Store(store, must_exist=must_exist)
        return train_run(RunConfig.from_dict(config), results, device=device, should_stop=should_stop, **options), ""
    except Exception as error:  # a failure that could not be recorded, for example on a full disk
        return "failed", explain(error)


def _start_torchrun(
    store: str | Path,
    config: Mapping[str, Any],
    processes: int,
    should_stop: Callable[[], bool],
    arguments: dict[str, Any],
) -> tuple[Outcome, str]:
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({"store": str(store), "config": config, "answer": str(answer), **arguments}))
        command = [sys.executable, "-m", "aimopt.lab.execution.engines.worker", str(request), str(processes)]
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as launcher,
        ):
            assert launcher.stdin is not None
            while launcher.poll() is None:
                if orphaned.is_set():
                    launcher.stdin.close()
                elif should_stop():
                    send_line(launcher.stdin, STOP)
                time.sleep(0.1)
            output.seek(0)
            last_output = last_line(output.read().decode(errors="replace"))
        if answer.exists():
            outcome, reason = json.loads(answer.read_text())
            return outcome, reason
    return "failed", f"torchrun ended with status {launcher.returncode}: {last_output}"


def send_line(process_input: IO[bytes], line: bytes) -> None:
    """Write a line to the input of a process. If it has just died, the caller notices at the end of its output."""
    with contextlib.suppress(BrokenPipeError):
        process_input.write(line)
        process_input.flush()


def _become_torchrun(request: str, processes: str) -> None:
    """Run torchrun in this process."""
    from torch.distributed.run import main

    _ignore_signals()
    main(["--standalone", f"--nproc-per-node={processes}", "-m", "aimopt.lab.execution.engines.worker", request])


def _ignore_signals() -> None:
    """Ignore the signals that Slurm sends to every process of a job: the worker tells these when to stop."""
    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _train_with_torchrun(request: Path) -> None:
    """The main function of a process that torchrun started. All share one input; only the first one reads it."""
    _ignore_signals()
    arguments = json.loads(request.read_text())
    answer, stop = Path(arguments.pop("answer")), threading.Event()

    def listen() -> None:
        if first:
            while os.read(0, 1):
                stop.set()
        elif hasattr(select, "poll"):
            end_of_input = select.poll()
            end_of_input.register(0, 0)  # no event but the end of the input, which every process sees
            end_of_input.poll()
        else:
            return
        _exit_soon(stop)

    first = int(os.environ["RANK"]) == 0
    threading.Thread(target=listen, daemon=True).start()
    outcome, reason = run_job(arguments.pop("store"), arguments.pop("config"), should_stop=stop.is_set, **arguments)
    if first:
        answer.write_text(json.dumps((outcome, reason)))
    if outcome in ("failed", "stopped"):
        os._exit(1)  # the other processes wait for this one: torchrun ends them
    gc.collect()  # a DDP model that outlives its process group may hang: torch then joins threads that wait for Python
    torch.distributed.destroy_process_group()


def _train_many() -> None:
    """The main function of a worker of the local engine."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of tasks must not mix with the answers
    if hasattr(os, "register_at_fork"):  # the engine sees the death of this process at the end of its answers
        os.register_at_fork(after_in_child=answers.close)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        # Unbuffered: at exit, Python aborts if a thread holds the lock of a buffer.
        with open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                if line == STOP:
                    stop.set()
                requests.put(None if line == STOP else line)
        requests.put(None)
        _exit_soon(stop)

    threading.Thread(target=listen, daemon=True).start()
    while (line := requests.get()) is not None and not stop.is_set():
        arguments = json.loads(line)
        outcome = run_job(arguments.pop("store"), arguments.pop("config"), should_stop=stop.is_set, **arguments)
        answers.write(json.dumps(outcome) + "\n")


def _exit_soon(stop: threading.Event) -> None:
    """Ask the run to write a checkpoint, and end this process after `ORPHAN_SECONDS`."""
    orphaned.set()
    stop.set()
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _become_torchrun(*sys.argv[1:])
    elif len(sys.argv) == 2:
        _train_with_torchrun(Path(sys.argv[1]))
    else:
        _train_many()
