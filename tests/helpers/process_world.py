"""Run a function in several processes that form one process group, as torchrun does.

    run_world(2, check, "argument")      per rank what check("argument") returned; raises if a rank failed

The processes are forked from one server that has imported torch and this package: so a world starts in a fraction of a
second. They find each other by the environment variables that torchrun sets.
"""

import faulthandler
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

SECONDS = 300  # a world that takes longer hangs
PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.optim", "aimopt"]


def run_world(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What the function returns on each rank, after all of them have ended."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # As under torchrun, the store is not one of the ranks: one that ends early would leave the others without it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_run, args=(sender, rank, size, store.port, function, args), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    try:
        return _collect([receiver for receiver, _ in pipes])
    finally:
        for process in processes:
            process.kill()
            process.join()


def begin() -> None:
    """Join the process group. A rank that waits for another one too long fails."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS / 3))


def grid() -> Any:
    """A mesh of two dimensions: 2×1 or 2×2."""
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("outer", "inner"))


def _collect(receivers: list[Any]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [receiver for rank, receiver in enumerate(receivers) if rank not in results]
        ready: list[Any] = connection.wait(waiting, timeout=SECONDS)
        assert ready, f"ranks {[rank for rank in range(len(receivers)) if rank not in results]} hang"
        for receiver in ready:
            rank = receivers.index(receiver)
            try:
                error, results[rank] = receiver.recv()
            except EOFError:
                error = "it ended without a result"
            assert error is None, f"rank {rank} of {len(receivers)}: {error}"
    return [results[rank] for rank in range(len(receivers))]


def _run(sender: Any, rank: int, size: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), AIMOPT_COMPILE="0")
    os.environ |= dict(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(0.8 * SECONDS, exit=True)  # a rank that hangs says where
    try:
        sender.send((None, function(*args)))
    except BaseException:
        sender.send((traceback.format_exc(), None))
    if dist.is_initialized():
        dist.destroy_process_group()
