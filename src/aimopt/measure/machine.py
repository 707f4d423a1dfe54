"""The machine and the versions that a measurement was made with."""

import platform
from pathlib import Path

import torch

from aimopt import __version__, kernels

CPUINFO = Path("/proc/cpuinfo")  # on Linux


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
    """The name with family and model: on a virtual machine the name alone may be that of several generations."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    pairs = (line.partition(":") for line in reversed(lines))  # reversed: of several processors, the first
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = facts.get("model name") or platform.processor() or "unknown"
    numbers = [f"{shown} {facts[key]}" for key, shown in (("cpu family", "family"), ("model", "model")) if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name
