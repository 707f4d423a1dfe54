"""The costs of a study's contenders, measured in processes of their own."""

import subprocess
import sys

import pytest

from aimopt.lab.execution import cost_measurement
from aimopt.lab.execution.process_output import last_line
from short_studies import short_run


@pytest.mark.parametrize(
    ("stderr", "reason"), [("", "no output"), ("Traceback\n  ^^^^\nKilled: no memory\n\n", "Killed: no memory")]
)
def test_a_process_that_dies_is_a_sentence_with_its_last_line(
    stderr: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import sys; sys.stderr.write({stderr!r}); sys.exit(3)"
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([sys.executable, "-c", code], **options))
    with pytest.raises(ValueError, match=f"^cannot measure the memory of digits RADAR .*: {reason}$"):
        cost_measurement._peak(short_run(), "cpu")


def test_the_last_line_has_letters_or_digits() -> None:
    assert last_line("one\ntwo\n  ----\n") == "two"
    assert last_line(" \n---\n") == "no output"
