"""Steps from several threads and in forked processes. Each test has a process of its own, which may crash."""

import subprocess
import sys
from pathlib import Path

import pytest

SEVERAL_THREADS = """
import threading, torch, aimopt
torch.set_num_threads(1)
params = [torch.zeros(size, requires_grad=True) for size in (1 << 22, 1 << 21)]
optimizer = aimopt.RADAR(params, lr=1e-3)

def train():
    for _ in range(10):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        for p in params:
            p.grad = None  # frees memory that another thread's step may be reading

for p in params:
    p.grad = torch.ones_like(p)
optimizer.step()
threads = [threading.Thread(target=train) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for p in params:
    assert 2 <= optimizer.state[p]["step"].item() <= 31 and p.isfinite().all() and len(p.unique()) == 1
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
