"""The language settings train, resume, and are the paper's at its scale."""

import copy
import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.tasks import find
from aimopt.paper.tasks.language import FinewebQwen, Language, WikitextGPT2
from small_language import GPT2, QWEN, context, finetune

NAMES = ("wikitext103-gpt2", "fineweb-qwen", "wikitext2-finetune")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIMOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=["gpt2", "qwen", "finetune"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Language:
    if request.param == "finetune":
        return finetune(tmp_path_factory.mktemp("pretrained"))
    return {"gpt2": GPT2, "qwen": QWEN}[request.param]


def test_loss_falls(task: Language) -> None:
    training = task.start(context(task))
    before = training.evaluate()
    for index in range(task.steps):
        training.step(index)
    after = training.evaluate()
    assert before["valid_loss"] == pytest.approx(math.log(512), abs=0.2)  # all tokens alike
    assert after[task.score.key] < before[task.score.key] * 0.95
    assert after[task.measure.key] < before[task.measure.key] * 0.95
    for split in ("valid", "test"):
        assert after[f"{split}_perplexity"] == math.exp(after[f"{split}_loss"])


def test_resumed_run_and_second_run_are_the_same_to_the_bit(task: Language) -> None:
    first, second, resumed = (task.start(context(task)) for _ in range(3))
    losses = [first.step(index) for index in range(3)]
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    losses += [first.step(index) for index in range(3, 6)]
    assert torch.equal(torch.stack(losses), torch.stack([second.step(index) for index in range(6)]))
    assert torch.equal(torch.stack(losses[3:]), torch.stack([resumed.step(index) for index in range(3, 6)]))
    for name, weight in first.weights().items():
        assert torch.equal(weight, second.weights()[name]), name
        assert torch.equal(weight, resumed.weights()[name]), name


def test_loss_is_that_of_transformers(task: Language) -> None:
    model, inputs = task.model().eval(), task.data().valid[0]
    expected = model(inputs.long(), labels=inputs.long()).loss
    torch.testing.assert_close(task.loss(model, (inputs,)), expected)


def test_half_precision_resumes_with_the_scale_of_its_gradients(task: Language) -> None:
    half = dataclasses.replace(task, precision="float16")
    first, resumed = (half.start(context(half)) for _ in range(2))
    before, _ = first.evaluate(), [first.step(index) for index in range(3)]
    state = copy.deepcopy(first.state_dict())
    state["scaler"]["scale"] = 2.0**16
    for training in (first, resumed):
        training.load_state_dict(copy.deepcopy(state))
    losses = [[training.step(index) for index in range(3, 6)] for training in (first, resumed)]
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))
    assert first.evaluate()["valid_loss"] < before["valid_loss"]


def test_a_gradient_that_overflows_is_skipped_and_its_scale_halved() -> None:
    training = dataclasses.replace(GPT2, precision="float16").start(context(GPT2))
    training.load_state_dict({**training.state_dict(), "scaler": {**training.scaler.state_dict(), "scale": 2.0**127}})
    before = copy.deepcopy(dict(training.weights()))
    training.step(0)
    assert training.scaler.get_scale() == 2.0**126
    assert all(torch.equal(weight, before[name]) for name, weight in training.weights().items())
    training.load_state_dict({**training.state_dict(), "scaler": {**training.scaler.state_dict(), "scale": 2.0**8}})
    training.step(0)
    assert not all(torch.equal(weight, before[name]) for name, weight in training.weights().items())


@pytest.mark.parametrize(
    ("loss", "perplexity"), [(0.0, 1.0), (math.log(22.5), 22.5), (1e4, math.inf), (math.inf, math.inf)]
)
def test_perplexity(loss: float, perplexity: float) -> None:
    assert GPT2.summary({"loss": loss})["perplexity"] == pytest.approx(perplexity)
    assert math.isnan(GPT2.summary({"loss": math.nan})["perplexity"])


@pytest.mark.parametrize(
    ("task", "count"),
    [(WikitextGPT2.at_scale("paper"), 124_439_808), (FinewebQwen.at_scale("paper"), 494_032_768)],
    ids=["GPT-2", "Qwen"],
)
def test_models_of_the_paper(task: Language, count: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in task.model().parameters()) == count


@pytest.mark.parametrize("name", NAMES[:2])
def test_small_models_have_a_hundredth_of_the_size(name: str) -> None:
    with torch.device("meta"):
        model: torch.nn.Module = find(name).at_scale("mini-1").model()  # type: ignore[attr-defined]
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 2e6


def test_attention_is_torchs_own(task: Language) -> None:
    assert task.model().config._attn_implementation == "sdpa"  # type: ignore[union-attr]


def test_tokens_of_the_paper() -> None:
    gpt2, qwen = WikitextGPT2.at_scale("paper"), FinewebQwen.at_scale("paper")
    assert gpt2.steps * gpt2.batch_size * gpt2.block == pytest.approx(328e6, rel=0.01)
    assert qwen.steps * qwen.batch_size * qwen.block == pytest.approx(1e9, rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("RADAR", {"betas": [0.9, 0.95], "gamma": 0.01}),
        ("AdamW", {"betas": [0.9, 0.95], "gamma": None}),
        ("Adan", {"betas": [0.98, 0.92, 0.95], "gamma": None}),
        ("Lion", {"betas": [0.9, 0.95], "gamma": None}),
        ("Muon", {"betas": None, "gamma": None}),
        ("torch.optim:NAdam", {"betas": [0.9, 0.95], "gamma": None}),
    ],
)
def test_qwen_has_its_own_coefficients(optimizer: str, expected: dict[str, Any]) -> None:
    options = RunConfig.create("fineweb-qwen", "paper", optimizer=optimizer).options
    assert {name: options.get(name) for name in expected} == expected
    assert options["weight_decay"] == 0


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'aimopt\[language\]'"):
        GPT2.model()


def test_prepared_tokens_are_not_written_again(task: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    task.prepare()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").iterdir()}
    checksum = task.data().checksum
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").iterdir()}
    assert checksum == task.checksum()
