"""What a measurement says about its machine."""

import platform
from pathlib import Path

import pytest

from aimopt.measure import machine

TWO_PROCESSORS = """\
processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: A Processor

processor\t: 1
cpu family\t: 6
model\t\t: 143
model name\t: Another Processor
"""


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (TWO_PROCESSORS, "A Processor (family 25, model 17)"),
        ("processor\t: 0\nBogoMIPS\t: 100.00\n", platform.processor() or "unknown"),
        (None, platform.processor() or "unknown"),
    ],
    ids=["Linux on x86", "Linux elsewhere", "no Linux"],
)
def test_processors_of_one_name_are_told_apart(
    cpuinfo: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        machine.CPUINFO.write_text(cpuinfo)
    assert machine.describe_machine()["processor"] == expected
