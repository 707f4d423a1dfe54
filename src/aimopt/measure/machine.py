"""The machine and the versions that a measurement was made with."""

import platform
from pathlib import Path

import torch

from aimopt import __version__, kernels


def describe_machine() -> dict[str, str]:
    """Processor, threads, system, versions, and the kernels that are active."""
    return {
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aimopt": __version__,
        **{f"path: {name}": state for name, state in kernels.status().items()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
