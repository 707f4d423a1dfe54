"""Where and with what a result was made: versions, commit, machine, data."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from aimopt import __version__
from aimopt.bench.timing import machine

_PACKAGES = ("numpy", "scikit-learn", "transformers", "tokenizers", "gymnasium", "mujoco")


def session(device: torch.device, data: str, step: int, processes: int = 1) -> dict[str, Any]:
    """What a process that works on a run says of itself; `step` is where it took over."""
    return {
        "from_step": step,
        "versions": versions(),
        "commit": commit(),
        "machine": {"host": platform.node(), **machine(), "device": _device(device), "processes": str(processes)},
        "data": data,
    }


@cache
def versions() -> dict[str, str]:
    """Of what may change a result."""
    found = {"aimopt": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str:
    """The commit of the package's source, with `+` where files were changed since; empty when it is not a checkout."""
    where = Path(__file__).parent
    git = ["git", "-C", str(where)]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, env=environment)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True, env=environment
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
