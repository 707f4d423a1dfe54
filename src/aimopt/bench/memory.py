"""The most memory that a process, or what it has on a device, took."""

import sys
from pathlib import Path

import torch

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PEAK_ONLY = "5"  # of what Linux may clear there


def peak_bytes(device: torch.device | None = None) -> int:
    """The peak since the process began, or since `forget_peak` where the system can forget it; 0 if it is unknown."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # Linux lets a process inherit what `getrusage` says of the one that started it
        return int(_STATUS.read_text().split("VmHWM:")[1].split()[0]) * 2**10
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)


def forget_peak(device: torch.device | None = None) -> None:
    """Let the peak begin anew, where the system can."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _REFERENCES.exists():
        try:
            _REFERENCES.write_text(_PEAK_ONLY)
        except OSError:
            return
