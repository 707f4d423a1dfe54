"""The command by itself shows the paths of a step. Ctrl-C ends it with one word, also while torch is being imported."""

import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import aimopt
from aimopt import kernels
from aimopt.cli import main

SOURCES = Path(aimopt.__file__).parents[1]
PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
MODULE, FUNCTION = PROJECT["project"]["scripts"]["aimopt"].split(":")
# What an installed script does, and what `python -m aimopt` does.
SCRIPT = f"import sys\nfrom {MODULE} import {FUNCTION}\nprint('begun', flush=True)\nsys.exit({FUNCTION}())"
RUN_MODULE = "import runpy\nprint('begun', flush=True)\nrunpy.run_module('aimopt', run_name='__main__', alter_sys=True)"


def begin(*arguments: str, code: str = SCRIPT, ignoring: bool = False) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(SOURCES)!r})\n{code}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell does it; tests that run in the background themselves ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize(("code", "seconds"), [(SCRIPT, 0.02), (SCRIPT, 0.3), (SCRIPT, 1.0), (RUN_MODULE, 0.5)])
def test_ctrl_c_while_torch_is_imported_leaves_no_traceback(code: str, seconds: float, tmp_path: Path) -> None:
    process = begin("trajectories", "rosenbrock", f"--picture={tmp_path / 'plot.gif'}", code=code)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, error_output = process.communicate(timeout=60)
    assert (process.returncode, error_output) == (130, "stopped\n")


@pytest.mark.parametrize("code", [SCRIPT, RUN_MODULE])
def test_the_command_works_and_ignores_ctrl_c_if_the_shell_does(code: str) -> None:
    process = begin("--version", code=code, ignoring=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, f"aimopt {aimopt.__version__}\n")


def test_without_a_command_the_paths_of_a_step_are_shown_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    status = kernels.status()
    assert lines[0] == f"aimopt {aimopt.__version__}"
    for line, (path, state) in zip(lines[1:], status.items(), strict=False):
        assert line.startswith(f"  {path}  ")
        assert line.endswith(state)
    assert len({line.index(state) for line, state in zip(lines[1:], status.values(), strict=False)}) == 1
