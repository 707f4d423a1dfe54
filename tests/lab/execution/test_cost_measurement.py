"""The costs of a study's contenders, measured in processes of their own."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from aimopt.lab.execution import cost_measurement
from aimopt.lab.execution.process_output import last_line
from short_studies import short_run, short_study


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


def test_measuring_leaves_threads_and_generators_of_the_process_alone() -> None:
    study = short_study()
    torch.set_num_threads(2)
    torch_state, others = torch.get_rng_state(), (random.getstate(), str(np.random.get_state()))
    try:
        measured = cost_measurement.measure_costs(study, threads=1, rounds=1)
        assert int(measured.machine["threads"]) == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (random.getstate(), str(np.random.get_state())) == others


def test_the_last_line_has_letters_or_digits() -> None:
    assert last_line("one\ntwo\n  ----\n") == "two"
    assert last_line(" \n---\n") == "no output"
