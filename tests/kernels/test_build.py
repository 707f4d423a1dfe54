"""Building the kernel: the package works without a compiler, and the kernel's own threads work without torch's."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aimopt

SOURCES = Path(aimopt.__file__).parent / "kernels" / "cpu"
COMPILER = shutil.which("g++") or shutil.which("clang++")


def python(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_package_without_its_kernel_steps_unfused_and_reports_it(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("libstep*", "__pycache__")
    shutil.copytree(SOURCES.parents[1], tmp_path / "aimopt", ignore=ignored)
    code = """
import torch, aimopt
from aimopt.cli import main
main([])
p = torch.ones(3, requires_grad=True)
p.grad = torch.ones(3)
aimopt.RADAR([p], lr=0.1).step()
print(aimopt.__file__, p.tolist())
try:
    aimopt.RADAR([p], fused=True)
except ValueError as error:
    print(error)
"""
    shown = python(code, tmp_path)
    assert re.search(r"fused, CPU +off: no C\+\+ compiler was found when aimopt was installed", shown)
    assert "fused=True: no C++ compiler" in shown
    assert str(tmp_path) in shown


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_thread_pool_does_all_the_work_and_survives_a_fork(tmp_path: Path) -> None:
    """The pool that is used if torch has no OpenMP to share, under the thread sanitizer."""
    program = tmp_path / "pool.cpp"
    program.write_text(
        """
#include <cstdio>
#include <sys/wait.h>
#include "threads.h"

static void work(void *data, int thread) { static_cast<int64_t *>(data)[thread] += thread + 1; }

static int check(int rounds) {
    for (int threads : {2, 5, 3}) {
        int64_t sums[8] = {};
        for (int i = 0; i < rounds; i++) aimopt::run_parallel(work, sums, threads);
        for (int k = 0; k < threads; k++)
            if (sums[k] != int64_t(rounds) * (k + 1)) return 1;
    }
    return 0;
}

int main(int count, char **) {
    if (aimopt::shares_threads()) return 2;
    if (check(2000)) return 3;
    if (count == 1) return 0;  // the sanitizer cannot follow threads through a fork
    if (pid_t child = fork()) {
        int status = 0;
        waitpid(child, &status, 0);
        if (status != 0) return 4;
    } else {
        _exit(check(20));
    }
    return check(2000);
}
"""
    )
    options = ["-std=c++17", "-O1", "-g", "-pthread", f"-I{SOURCES}"]
    for sanitizer, arguments in ([], ["fork"]), (["-fsanitize=thread"], []):
        binary = str(tmp_path / "pool")
        subprocess.run([str(COMPILER), *options, *sanitizer, str(program), "-o", binary, "-ldl"], check=True)
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
