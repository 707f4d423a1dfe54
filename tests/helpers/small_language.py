"""The language tasks, small enough for a test, on the English text that comes with Python: its manual."""

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from aimopt.lab.protocol import optimizers
from aimopt.lab.protocol.task import Context
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.tasks.finetuning import WikitextFinetune
from aimopt.paper.tasks.language import FinewebQwen, Language, WikitextGPT2
from aimopt.paper.tasks.tokens import Texts, line_pieces

MANUAL = [text for _, text in sorted(topics.items())]
TEXTS = line_pieces({"train": "\n".join(MANUAL[4:]), "valid": MANUAL[0], "test": MANUAL[3]})


@dataclass(frozen=True, kw_only=True)
class SmallGPT2(WikitextGPT2):
    def texts(self) -> Texts:
        return TEXTS


@dataclass(frozen=True, kw_only=True)
class SmallQwen(FinewebQwen):
    def texts(self) -> Texts:
        return TEXTS


@dataclass(frozen=True, kw_only=True)
class SmallFinetune(WikitextFinetune):
    folder: str = ""

    def texts(self) -> Texts:
        return TEXTS

    def source(self) -> Path:
        return Path(self.folder)


SETTINGS: dict[str, Any] = dict(
    steps=12,
    warmup_steps=2,
    batch_size=8,
    micro_batches=4,
    tokenizer="bpe",
    vocabulary=512,
    block=16,
    training_blocks=256,
    evaluation_blocks=8,
    evaluation_batch_size=3,
)
SIZE = dict(width=16, layers=2, heads=2)
GPT2 = SmallGPT2.at_scale("mini", {**SETTINGS, **SIZE, "positions": 16})
QWEN = SmallQwen.at_scale("mini-1", {**SETTINGS, **SIZE, "key_value_heads": 1, "hidden": 24})


def finetune(folder: Path) -> Language:
    """The fine-tuning of a small Llama, saved as Hugging Face does."""
    transformers = import_language_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return SmallFinetune.at_scale("mini-1", {**SETTINGS, "folder": str(folder)})


def context(task: Language, optimizer: str = "RADAR", lr: float = 1e-2, **place: Any) -> Context:
    """A run of an optimizer with the task's options."""
    options = optimizers.resolved(optimizer, {"weight_decay": 0.0}, {})
    return Context(
        seed=0, make_optimizer=lambda model: optimizers.make(optimizer, model, lr=lr, options=options), **place
    )
