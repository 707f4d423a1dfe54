"""Processes that share a batch learn what one process learns alone."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aimopt.paper.tasks.language import Language
from process_world import begin, run_world
from small_language import GPT2, QWEN, context

pytestmark = pytest.mark.xdist_group("distributed")  # one process builds what these tests share

# One with dropout, by an optimizer that tells the scale of gradients; and one without.
RUNS: dict[str, tuple[Language, str, float]] = {"gpt2": (GPT2, "SGDM", 0.3), "qwen": (QWEN, "RADAR", 1e-2)}


def learn(task: Language, optimizer: str, lr: float, **place: Any) -> dict[str, Any]:
    training = task.start(context(task, optimizer, lr, **place))
    curve = torch.stack([training.step(index) for index in range(task.steps)])
    return {"curve": curve, "weights": dict(training.weights()), "measures": training.evaluate()}


def process(cache: str, folder: str) -> None:
    os.environ["AIMOPT_CACHE"] = cache
    begin()
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for name, run in RUNS.items():
        torch.save(learn(*run, rank=rank, processes=processes), Path(folder, f"{name}-{rank}.pt"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("distributed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIMOPT_CACHE", str(folder / "cache"))
        run_world(2, process, str(folder / "cache"), str(folder))
        yield folder


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_as_one(name: str, folder: Path) -> None:
    first, second = (torch.load(folder / f"{name}-{rank}.pt") for rank in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    alone = learn(*RUNS[name])
    torch.testing.assert_close(first["curve"], alone["curve"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-3, atol=1e-4)
    assert first["measures"] == pytest.approx(alone["measures"], rel=1e-4)


def test_batch_must_be_shared_evenly() -> None:
    with pytest.raises(ValueError, match="cannot be shared by 3 processes"):
        QWEN.start(context(QWEN, processes=3))
