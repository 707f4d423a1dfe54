"""The miniatures are worth measuring: batches, lengths, decay and margins are what docs/tasks.md says."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.supervised import Supervised
from aimopt.lab.protocol.task import Context
from aimopt.lab.protocol.tasks import find
from aimopt.paper.entries import TASKS
from aimopt.paper.protocols import PROTOCOLS
from aimopt.paper.tasks.finetuning import PRETRAINING, WikitextFinetune, pretrained_weights
from aimopt.paper.tasks.language import Language
from aimopt.paper.tasks.tokens import Texts
from small_language import GPT2, SETTINGS, TEXTS

TEXT = ("wikitext103-gpt2", "fineweb-qwen", "wikitext2-finetune")
PRETRAINED = dataclasses.replace(GPT2, steps=4)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One cache for all tests here: training the tokenizer takes longer than anything else."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIMOPT_CACHE", str(folder))
        yield folder


@dataclass(frozen=True, kw_only=True)
class SmallFinetune(WikitextFinetune):
    pretraining_steps: int = 4

    def texts(self) -> Texts:
        return TEXTS

    def pretraining(self) -> Language:
        return dataclasses.replace(PRETRAINED, steps=self.pretraining_steps)


FINETUNE = SmallFinetune.at_scale("mini", SETTINGS)


def training(task: Supervised, **place: Any) -> Any:
    def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    return task.start(Context(seed=1, make_optimizer=sgd, **place))


@pytest.mark.parametrize("name", TEXT)
def test_a_batch_of_text_has_at_least_4096_tokens(name: str) -> None:
    task: Any = find(name).at_scale("mini")
    assert task.batch_size * task.block >= 32 * 128
    assert task.steps >= (300 if name == "wikitext2-finetune" else 500)


@pytest.mark.parametrize("name", TASKS)
def test_every_miniature_is_kept_and_declares_a_margin(name: str) -> None:
    task = find(name)
    assert {"mini", "mini-1", "paper"} == set(task.scales) == set(PROTOCOLS[name])
    assert 0.003 <= task.margin <= 0.1
    assert task.at_scale("mini") != task.at_scale("mini-1")


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("AdamW", {"weight_decay": 0.1, "betas": [0.9, 0.95]}),
        ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": [0.9, 0.95]}),
        ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": [0.9, 0.95]}),
        ("QHAdam", {"weight_decay": 0.1, "decouple_weight_decay": True, "betas": [0.9, 0.95]}),
        ("AdaBelief", {"weight_decay": 0.1, "weight_decouple": True, "betas": [0.9, 0.95]}),
        ("RADAR", {"weight_decay": 0.1, "gamma": 0.01}),
        ("MARS", {"gamma": 0.025, "betas": [0.95, 0.99]}),  # its γ is another number, and its β₂ its own
        ("Lion", {"weight_decay": 1.0, "betas": [0.9, 0.99]}),  # not a second moment
        ("Adan", {"weight_decay": 0.04, "betas": [0.98, 0.92, 0.99]}),
    ],
)
def test_decay_is_decoupled_and_equal_per_step(optimizer: str, expected: dict[str, Any]) -> None:
    config = RunConfig.create("fineweb-qwen", "mini", optimizer=optimizer)
    assert {name: config.options.get(name) for name in expected} == expected
    lr = find("fineweb-qwen").at_scale("mini").lr
    assert config.lr * config.options["weight_decay"] == pytest.approx(0.1 * lr)


def test_the_published_protocol_is_unchanged() -> None:
    config = RunConfig.create("fineweb-qwen", "mini-1", optimizer="Lion")
    assert config.options["betas"] == [0.9, 0.95]
    assert config.options["weight_decay"] == 0


def test_a_model_is_pretrained_once_and_fine_tuning_starts_from_it(cache: Path) -> None:
    FINETUNE.prepare()
    path = FINETUNE.source()
    assert path.parent == cache / "pretrained"
    written = path.stat().st_mtime_ns
    weights = training(FINETUNE).weights()
    pretrained = torch.load(path, weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in pretrained.items())
    start = training(PRETRAINED).weights()
    assert not torch.equal(start["transformer.h.0.mlp.c_fc.weight"], weights["transformer.h.0.mlp.c_fc.weight"])
    assert path.stat().st_mtime_ns == written


def test_pretraining_is_deterministic_and_other_weights_are_other_data() -> None:
    path, checksum, threads = pretrained_weights(PRETRAINED), FINETUNE.checksum(), torch.get_num_threads()
    first = path.read_bytes()
    path.unlink()
    assert pretrained_weights(PRETRAINED).read_bytes() == first
    assert torch.get_num_threads() == threads
    assert FINETUNE.checksum() == checksum
    assert dataclasses.replace(FINETUNE, pretraining_steps=3).checksum() != checksum


def test_the_tokenizer_of_a_pretrained_model_is_its_own() -> None:
    task, pretraining = WikitextFinetune.at_scale("mini"), PRETRAINING
    assert task.pretraining() is pretraining
    assert (task.vocabulary, task.block, task.tokenizer) == (pretraining.vocabulary, pretraining.block, "bpe")
    assert FINETUNE.encoder(TEXTS).name == PRETRAINED.encoder(TEXTS).name


def test_the_test_set_is_evaluated_after_the_last_step_only() -> None:
    unknown, known = training(GPT2), training(GPT2, steps=2)
    assert set(unknown.evaluate()) == {"valid_loss", "valid_perplexity", "test_loss", "test_perplexity"}
    known.step(0)
    assert set(known.evaluate()) == {"valid_loss", "valid_perplexity"}
    known.step(1)
    unknown.step(0)
    unknown.step(1)
    assert known.evaluate() == unknown.evaluate()


def test_validation_and_test_may_have_different_sizes() -> None:
    splits = dataclasses.replace(GPT2, evaluation_blocks=(5, 9)).data()
    assert (len(splits.valid[0]), len(splits.test[0])) == (5, 9)
    with_one = dataclasses.replace(GPT2, evaluation_blocks=5).data()
    assert (len(with_one.valid[0]), len(with_one.test[0])) == (5, 5)


@dataclass(frozen=True, kw_only=True)
class Later(Supervised):
    """A task with a setting that was added later; `large` changes it."""

    title: ClassVar[str] = "later"
    scales: ClassVar[Any] = {"mini": {}, "large": {"depth": 3}}
    later_settings: ClassVar[tuple[str, ...]] = ("depth",)
    lr: float = 0.1
    depth: int = 1

    def data(self) -> Any:
        raise NotImplementedError

    def model(self) -> Any:
        raise NotImplementedError


def test_a_later_setting_is_recorded_unless_it_has_its_default() -> None:
    assert "depth" not in Later.at_scale("mini").recorded_settings("mini")
    assert Later.at_scale("mini", {"depth": 2}).recorded_settings("mini")["depth"] == 2
    assert Later.at_scale("large").recorded_settings("large")["depth"] == 3
    changed_back = Later.at_scale("large", {"depth": 1})
    assert Later.at_scale("large", changed_back.recorded_settings("large")) == changed_back


def test_settings_added_later_do_not_change_the_identity_of_published_runs() -> None:
    paper, mini = (RunConfig.create("wikitext103-gpt2", s, optimizer="AdamW").settings for s in ("paper", "mini"))
    assert "initial_std" not in paper
    assert mini["initial_std"] == 0.08
