"""Sharded and distributed training equals the training of one process, on 2 and 4 ranks."""

import gc
import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import aimopt
from aimopt.optimizers import class_of
from distributed_checks import CHECKS, run_checks
from model_checks import (
    FSDP2_AVERAGES,
    continue_from_checkpoint,
    step_with_given_gradients,
    three_matrix_geometries,
    tiny_model,
    whole_parameters,
)
from optimizer_driver import NEEDS_MATRICES
from process_world import run_world

pytestmark = pytest.mark.xdist_group("distributed")  # all in one worker: the processes are started once


@lru_cache
def outcomes(ranks: int) -> list[dict[str, str | None]]:
    """All checks in one process group, because starting one takes longer than most checks."""
    return run_world(ranks, run_checks)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_together(ranks: int, check: str) -> None:
    for rank, outcome in enumerate(outcomes(ranks)):
        assert outcome[check] is None, f"rank {rank}: {outcome[check]}"


def radar_in_bfloat16(model: torch.nn.Module) -> Any:
    return aimopt.RADAR(model.parameters(), lr=0.01, state_dtype="bfloat16")


def radar_in_8_bits(model: torch.nn.Module) -> Any:
    return aimopt.RADAR(model.parameters(), lr=0.01, state_dtype="int8")


def named(name: str, model: torch.nn.Module) -> Any:
    """An optimizer by its name, with RADAR for the vectors if it takes matrices alone."""
    Optimizer: Any = class_of(name)
    if name not in NEEDS_MATRICES:
        return Optimizer(model.parameters(), lr=0.01)
    weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
    return aimopt.groups.combine(Optimizer(weights, lr=0.01), aimopt.RADAR(biases, lr=0.01))


@pytest.mark.parametrize(
    ("build", "width"),
    [
        (three_matrix_geometries, 8),
        (radar_in_bfloat16, 8),
        (radar_in_8_bits, 128),
        *(pytest.param(partial(named, name), 8, id=name, marks=pytest.mark.nightly) for name in aimopt.available()),
    ],
)
def test_a_run_is_continued_on_another_number_of_ranks(build: Any, width: int, tmp_path: Path) -> None:
    for i, ranks in enumerate((4, 2, 1, 2, 4)):
        folder = str(tmp_path / "checkpoint")
        ends = run_world(ranks, continue_from_checkpoint, folder, build, width, 2, 2 * i, i == 0)
    model = tiny_model(width)
    step_with_given_gradients(model, build(model), range(2 * 5))
    for end in ends:
        for p, q in zip(end, whole_parameters(model), strict=True):
            torch.testing.assert_close(torch.tensor(p), q, rtol=1e-5, atol=1e-5)


EXAMPLES = Path(__file__).parent.parent / "examples"
with_fsdp2 = pytest.mark.skipif(not FSDP2_AVERAGES, reason="the FSDP2 of this torch does not train on CPUs")


def run_example(name: str, arguments: list[str]) -> str:
    """What an example prints on this rank, as torchrun starts it."""
    output, destroy, outliving = io.StringIO(), dist.destroy_process_group, list[Any]()

    def destroy_after_a_look() -> None:
        # If a DDP model holds the last reference to the group, gloo's threads are joined by a thread that has Python's
        # lock, and one of them may wait for it: then the rank hangs.
        outliving.extend(x for x in gc.get_objects() if type(x) is torch.nn.parallel.DistributedDataParallel)
        destroy()

    with (
        patch.object(sys, "argv", [name, *arguments]),
        patch.object(dist, "destroy_process_group", destroy_after_a_look),
        redirect_stdout(output),
    ):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert outliving == [], "a model with DDP must go before its process group"
    return output.getvalue()


@pytest.mark.parametrize(
    ("name", "arguments", "ranks"),
    [
        ("data_parallel.py", ["--scheme", "ddp"], 2),
        pytest.param("data_parallel.py", ["--scheme", "fsdp2"], 2, marks=with_fsdp2),
        pytest.param("data_parallel.py", ["--scheme", "hsdp"], 4, marks=with_fsdp2),
        ("tensor_parallel.py", [], 2),
        ("zero.py", [], 2),
    ],
)
def test_examples_run(name: str, arguments: list[str], ranks: int) -> None:
    printed, *others = run_world(ranks, run_example, name, arguments)
    first, last = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+)", printed)[0])
    assert last < 0.5 * first
    assert f"{ranks} ranks" in printed
    assert others == [""] * (ranks - 1)


@with_fsdp2
def test_the_example_of_checkpoints_goes_on_with_other_ranks(tmp_path: Path) -> None:
    arguments = ["--folder", str(tmp_path / "checkpoint")]
    for ranks, steps in ((2, 20), (4, 40), (1, 60)):
        printed, *_ = run_world(ranks, run_example, "distributed_checkpoint.py", arguments)
        assert printed.startswith(f"{steps} steps, now on {ranks} ranks")
