"""What a run records about the noise of its test set, against the losses of its examples."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from aimopt.lab.execution.runner import train_run
from aimopt.lab.protocol import supervised
from aimopt.lab.protocol.supervised import Splits, SupervisedTraining
from aimopt.lab.protocol.task import Context
from aimopt.lab.results.store import Store
from aimopt.lab.stats.example_noise import jackknife_error
from short_studies import short_run


def training(**settings: Any) -> SupervisedTraining:
    config = short_run(settings=settings)

    def make_optimizer(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    started = config.make_task().start(Context(seed=0, make_optimizer=make_optimizer))
    assert isinstance(started, SupervisedTraining)
    few = tuple(tensor[:80] for tensor in started.splits.test)
    started.splits = Splits(train=started.splits.train, valid=started.splits.valid, test=few)
    return started


def error(started: SupervisedTraining, measure: str = "test_loss") -> float:
    return jackknife_error(started.test_without_parts()[measure])


def losses_of_examples(started: SupervisedTraining) -> np.ndarray:
    started.model.eval()
    inputs, labels = started.splits.test
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(started.model(inputs), labels, reduction="none").double().numpy()


def test_errors_are_those_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few parts know the standard error roughly; as many parts as examples know it exactly."""
    started = training()
    examples = losses_of_examples(started)
    exact = stats.sem(examples)
    monkeypatch.setattr(supervised, "NOISE_PARTS", 20)
    assert error(started) == pytest.approx(exact, rel=0.4)
    monkeypatch.setattr(supervised, "NOISE_PARTS", len(examples))
    assert error(started) == pytest.approx(exact, rel=1e-4)
    monkeypatch.setattr(supervised, "NOISE_EXAMPLES", len(examples) // 2)
    monkeypatch.setattr(supervised, "NOISE_PARTS", len(examples) // 2)
    assert error(started) == pytest.approx(exact, rel=0.3)


def test_a_summary_has_the_error_of_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of exp(loss) is exp(loss) times that of the loss, if it is small."""
    started = training()
    monkeypatch.setattr(type(started.task), "summary", lambda task, means: {"perplexity": math.exp(means["loss"])})
    monkeypatch.setattr(supervised, "NOISE_PARTS", len(started.splits.test[0]))
    examples = losses_of_examples(started)
    expected = math.exp(examples.mean()) * stats.sem(examples)
    assert set(started.test_without_parts()) == {"test_perplexity"}
    assert error(started, "test_perplexity") == pytest.approx(expected, rel=0.01)


def test_a_tiny_test_set_has_no_known_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FEWEST_PARTS", 10**6)
    assert training().test_without_parts() == {}


def test_a_finished_run_records_its_errors(tmp_path: Path) -> None:
    store, config = Store(tmp_path), short_run()
    assert train_run(config, store) == "finished"
    run = store.run(config)
    assert run is not None
    without_parts = run.facts["test_without_parts"]
    assert set(without_parts) <= {name for name in run.history[-1] if name.startswith("test_")}
    losses = without_parts["test_loss"]
    assert len(losses) == supervised.NOISE_PARTS
    assert float(np.mean(losses)) == pytest.approx(run.history[-1]["test_loss"], rel=0.05)


def test_errors_that_cannot_be_computed_do_not_fail_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(training: SupervisedTraining) -> dict[str, list[float]]:
        raise RuntimeError("this model needs batches of 512")

    monkeypatch.setattr(SupervisedTraining, "test_without_parts", fail)
    store, config = Store(tmp_path), short_run()
    assert train_run(config, store) == "finished"
    run = store.run(config)
    assert run is not None
    assert "test_without_parts" not in run.facts
