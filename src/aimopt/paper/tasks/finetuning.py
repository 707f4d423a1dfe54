"""Fine-tuning on WikiText-2: the paper's with GPT-2, and a miniature whose model is pretrained here.

    WikitextFinetune.at_scale("paper")     GPT-2, downloaded
    WikitextFinetune.at_scale("mini")      a GPT-2 of 136,960 parameters that has read the Wikipedia of enwik8

The miniature's model knows its domain: it was trained on encyclopedia articles with their markup, and is fine-tuned on
articles without. `prepare` pretrains it once, in two to three minutes on one core, and keeps its weights in the cache.
They depend on the settings of `PRETRAINING` alone, up to the rounding of another processor or version of torch.
`checksum` includes them, so that runs from other weights can be distinguished.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from aimopt.lab.protocol.task import Context, Measure
from aimopt.paper import data
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.data.fetching import LOGGER, SECONDS_BETWEEN_LINES
from aimopt.paper.tasks import tokens
from aimopt.paper.tasks.language import Language, WikitextGPT2

# Six million tokens, each seen once.
PRETRAINING = WikitextGPT2.at_scale(
    "mini",
    {
        "corpus": "enwik8",
        "training_blocks": 96_000,
        "steps": 1500,
        "warmup_steps": 75,
        "width": 64,
        "heads": 4,
        "initial_std": 0.07,
    },
)
DECAY = 0.1


@dataclass(frozen=True, kw_only=True)
class WikitextFinetune(Language):
    """A pretrained model on WikiText-2, for three epochs.

    An epoch here has 72 batches, as many as the 2.39 million GPT-2 tokens reported for the raw text fill. With <unk>
    for rare words the text has 4,731 blocks, 73 batches. The model of scale `mini-1` is a Llama with 15 million
    parameters, pretrained on children's stories; it sees 240 blocks, a two-hundredth of an epoch.
    """

    title: ClassVar[str] = "WikiText-2 fine-tuning, GPT-2"
    titles: ClassVar[Mapping[str, str]] = {
        "mini": "WikiText-2 fine-tuning, GPT-2 (137k)",
        "mini-1": "WikiText-2 fine-tuning, stories15M",
    }
    score: ClassVar[Measure] = Measure("valid_perplexity", "validation perplexity")
    margin: ClassVar[float] = 0.003  # all seeds start from the same weights
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 4e-3,
            "steps": 300,
            "evaluate_every": 30,
            "log_every": 10,
            "batch_size": 64,
            "micro_batches": 1,
            "evaluation_batch_size": 128,
            "precision": "float32",
            "corpus": "wikitext2",
            "tokenizer": "bpe",
            "vocabulary": 512,
            "block": 64,
            "evaluation_blocks": (256, 4096),
            "pretrained": "enwik8",
        },
        "mini-1": {
            "lr": 2.5e-4,
            "steps": 60,
            "evaluate_every": 6,
            "batch_size": 4,
            "micro_batches": 1,
            "precision": "float32",
            "corpus": "wikitext2",
            "tokenizer": "stories15m",
            "vocabulary": 32_000,
            "block": 64,
            "evaluation_blocks": 16,
            "pretrained": "stories15m",
        },
    }

    lr: float = 1e-4
    steps: int = 216
    evaluate_every: int = 10
    log_every: int = 1
    batch_size: int = 64
    micro_batches: int = 4
    evaluation_batch_size: int = 16
    precision: Literal["float32", "bfloat16", "float16"] = "float16"
    corpus: str = "wikitext2-raw"
    tokenizer: str = "gpt2"  # bpe: that of a model that is pretrained here
    vocabulary: int = 50_257
    block: int = 512
    pretrained: Literal["gpt2", "stories15m", "enwik8"] = "gpt2"  # enwik8: pretrained here

    def prepare(self) -> None:
        super().prepare()
        self.source()

    def checksum(self) -> str:
        checksum = super().checksum()
        if self.pretrained != "enwik8":
            return checksum
        return hashlib.sha256(checksum.encode() + self.source().read_bytes()).hexdigest()

    def encoder(self, texts: tokens.Texts) -> tokens.Encoder:
        """The tokenizer of the pretrained model."""
        task = self.pretraining()
        return super().encoder(texts) if self.pretrained != "enwik8" else task.encoder(task.texts())

    def pretraining(self) -> Language:
        """The task on which the model of `pretrained="enwik8"` is pretrained."""
        return PRETRAINING

    def source(self) -> Path:
        """The folder of the pretrained model; of one that is pretrained here, the file of its weights."""
        if self.pretrained == "enwik8":
            return pretrained_weights(self.pretraining())
        return data.gpt2() if self.pretrained == "gpt2" else data.stories15m()

    def model(self) -> nn.Module:
        if self.pretrained == "enwik8":
            model = self.pretraining().model()
            model.load_state_dict(torch.load(self.source(), weights_only=True))
            return model
        transformers = import_language_module("transformers")
        transformers.utils.logging.disable_progress_bar()
        return transformers.AutoModelForCausalLM.from_pretrained(
            self.source(), dtype=torch.float32, attn_implementation="sdpa", use_cache=False
        )


def pretrained_weights(task: Language) -> Path:
    """The weights of a task's model after its whole schedule, trained once with torch's AdamW and kept in the cache."""
    settings = json.dumps(dataclasses.asdict(task), sort_keys=True)
    key = tokens.digest([type(task).__name__, settings, f"AdamW {DECAY}"])
    return tokens.cached_file(f"{key}.pt", lambda path: _pretrain(task, path), folder="pretrained")


def _pretrain(task: Language, path: Path) -> None:
    LOGGER.info("pretraining a small GPT-2, once; two to three minutes")
    threads, last_line = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)  # the same weights with any number of cores

    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=task.lr, weight_decay=DECAY)

    try:
        training = task.start(Context(seed=0, make_optimizer=make_optimizer))
        for index in range(task.steps):
            training.step(index)
            if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                LOGGER.info(f"  {index + 1:,} of {task.steps:,} steps")
    finally:
        torch.set_num_threads(threads)
    content = BytesIO()  # a file would contain its own name, and this one has a temporary one
    torch.save(training.weights(), content)
    path.write_bytes(content.getvalue())
