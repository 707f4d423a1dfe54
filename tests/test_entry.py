"""Ctrl-C ends the command with one word at any moment, also while it is being loaded."""

import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import aimopt

SOURCES = Path(aimopt.__file__).parents[1]
PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))
MODULE, FUNCTION = PROJECT["project"]["scripts"]["aimopt"].split(":")
# What an installed script does.
SCRIPT = f"import sys\nfrom {MODULE} import {FUNCTION}\nprint('begun', flush=True)\nsys.exit({FUNCTION}())"


def begin(*arguments: str, ignoring: bool = False) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(SOURCES)!r})\n{SCRIPT}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell does it; tests that run in the background themselves ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("seconds", [0.02, 0.3, 1.0])
def test_ctrl_c_while_torch_is_loaded_leaves_no_traceback(seconds: float) -> None:
    process = begin("trajectories", "rosenbrock", "--picture=/dev/null")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "stopped\n")


def test_the_command_does_its_work_and_does_not_hear_what_a_shell_keeps_from_it() -> None:
    process = begin("--version", ignoring=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, f"aimopt {aimopt.__version__}\n")
