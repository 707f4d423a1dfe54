"""Steps from several threads and in forked processes. Each test has a process of its own, which may crash."""

import subprocess
import sys
from pathlib import Path

import pytest

# The gradients stay: torch itself crashes if one thread replaces `.grad` while another one reads it.
SEVERAL_THREADS = """
import threading, torch, aimopt
torch.set_num_threads(1)

def trained(threads):
    params = [torch.zeros(size, requires_grad=True) for size in (1 << 21, 1 << 20)]
    optimizer = aimopt.RADAR(params, lr=1e-3, fused=True)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    train = lambda: [optimizer.step() for _ in range(30 // threads)]
    workers = [threading.Thread(target=train) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return params

for one, several in zip(trained(1), trained(3)):
    assert torch.equal(one, several)
"""
FORK = """
import os, torch, aimopt
torch.set_num_threads(2)
p = torch.zeros(1 << 20, requires_grad=True)
p.grad = torch.ones_like(p)
optimizer = aimopt.RADAR([p], lr=1e-3, fused=True)
optimizer.step()
child = os.fork()
optimizer.step()
if child == 0:
    os._exit(0 if float(optimizer.state[p]["step"]) == 2 and p[0] == p[-1] else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=40)


def test_steps_of_several_threads_on_one_optimizer_take_turns() -> None:
    run(SEVERAL_THREADS)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs fork and GNU OpenMP")
def test_a_forked_process_does_not_wait_for_the_threads_of_its_parent() -> None:
    run(FORK)
