"""Where and with what a run was made: versions, commit, machine, data.

describe_session(torch.device("cpu"), data="5c0e…", step=0)["versions"]["torch"]      "2.13.0"
commit()                                                                             "df13fed…+", + for changes
"""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from aimopt import __version__
from aimopt.measure.machine import describe_machine


def describe_session(
    device: torch.device, data: str, step: int, processes: int = 1, packages: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The provenance of a process that works on a run.

    `step` is the step from which it trains; `packages` are those of the task.
    """
    return {
        "from_step": step,
        "versions": versions(packages),
        "commit": commit(),
        "machine": {
            "host": platform.node(),
            **describe_machine(),
            "device": _device(device),
            "processes": str(processes),
            **_arithmetic(),
        },
        "data": data,
    }


@cache
def versions(packages: tuple[str, ...] = ()) -> dict[str, str]:
    """The versions of the packages that may change any result, and of these, if they are installed."""
    installed = {"aimopt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", *packages):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


@cache
def commit() -> str:
    """The commit of the package's source, with `+` if files were changed since; empty if it is not a git checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, env=environment)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True, env=environment
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _arithmetic() -> dict[str, str]:
    """What changes the last bits of torch's results, besides the processor and the number of threads."""
    return {
        "instructions of torch": torch.backends.cpu.get_cpu_capability(),
        "float32 matrix products": torch.get_float32_matmul_precision(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
