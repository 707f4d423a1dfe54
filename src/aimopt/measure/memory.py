"""The peak memory of this process, or of a device."""

import sys
from pathlib import Path

import torch

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # Linux, man proc_pid_clear_refs: reset the peak resident set size


def peak_bytes(device: torch.device | None = None) -> int:
    """The peak since the process began, or since `reset_peak` if the system supports that; 0 if it is unknown."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # not `getrusage`: on Linux a new process starts with the peak of its parent
        return int(_STATUS.read_text().split("VmHWM:")[1].split()[0]) * 2**10
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows does not have it
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)


def reset_peak(device: torch.device | None = None) -> None:
    """Start a new peak at the present use, if the system supports that."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            return
