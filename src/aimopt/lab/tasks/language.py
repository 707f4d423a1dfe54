"""The paper's language settings: GPT-2 on WikiText-103, Qwen2.5-0.5B on FineWeb-Edu, GPT-2 fine-tuned on WikiText-2.

    WikitextGPT2.at("mini")                      1.3M parameters on WikiText-2, half a minute on one core
    FinewebQwen.at("paper", {"block": 1024})     the paper's, in shorter blocks

At scale `paper` everything is the paper's, and what it leaves open is a setting with our choice. At scale `mini` the
same code trains far smaller models on smaller texts: it compares optimizers with one another, never with
the paper's numbers. A block's tokens are inputs and, shifted by one, labels, so that a block of 512 gives 511
predictions, as in Hugging Face's models. Perplexity is the exponential of the mean loss of a token.

On weight decay the paper is silent. Its Adam and AdamW end within 0.0003 of one another in fine-tuning, which a decay
coupled to Adam's gradients hardly allows. So there is none, as is the default of Hugging Face's `Trainer`, in whose
words the paper gives its settings. Adam and AdamW are then one and the same.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from aimopt.lab import data, optimizers
from aimopt.lab.data.extras import language
from aimopt.lab.tasks import tokens
from aimopt.lab.tasks.supervised import Batch, Splits, Supervised
from aimopt.lab.tasks.task import Measure


@dataclass(frozen=True, kw_only=True)
class Language(Supervised):
    """Prediction of the next token."""

    measure: ClassVar[Measure] = Measure("test_perplexity", "test perplexity")
    extra: ClassVar[str] = "language"

    corpus: str  # wikitext2, wikitext2-raw, wikitext103-raw, enwik8 or fineweb
    tokenizer: str  # gpt2, qwen, stories15m; or bpe, trained on the training text
    vocabulary: int  # of the model; of the tokenizer too if it is trained here
    block: int
    training_blocks: int | None = None  # the first so many of the training text
    evaluation_blocks: int | None = None  # so many of the validation text and of the test text, evenly spread
    clip: float | None = 1.0

    @abstractmethod
    def model(self) -> nn.Module:
        """A causal language model whose output has `logits`."""

    def texts(self) -> tokens.Texts:
        """The text of each split, in pieces."""
        return tokens.corpus(self.corpus)

    def data(self) -> Splits:
        texts = self.texts()
        encoder = tokens.find_encoder(self.tokenizer, texts["train"], self.vocabulary)
        train = tokens.blocks(texts["train"], encoder, self.block, self.training_blocks)
        valid, test = (
            tokens.spread(tokens.blocks(texts[split], encoder, self.block), self.evaluation_blocks)
            for split in ("valid", "test")
        )
        return Splits((train,), (valid,), (test,))

    def prepare(self) -> None:
        self.data()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = batch[0].long()
        labels = functional.pad(inputs[:, 1:], (0, 1), value=-100)  # the last position predicts nothing
        return functional.cross_entropy(model(inputs).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        loss = means["loss"]
        return {"loss": loss, "perplexity": math.inf if loss > 700 else math.exp(loss)}


@dataclass(frozen=True, kw_only=True)
class WikitextGPT2(Language):
    """GPT-2 from scratch on WikiText-103, lines run together without an end-of-text token, empty ones left out.

    The paper evaluates every 100 steps in the search and every 500 in final runs; here it is always 100, which contains
    both and costs one part in twenty. The mini one learns from WikiText-2.
    """

    title: ClassVar[str] = "WikiText-103, GPT-2"
    titles: ClassVar[Mapping[str, str]] = {"mini": "WikiText-2, small GPT-2"}
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (22.4963, 0.0933),
        "RAD": (26.0321, 0.0331),
        "Adam": (26.0733, 0.0321),
        "AdamW": (26.0281, 0.0433),
        "NAdam": (23.9754, 0.2368),
        "Adan": (23.0514, 0.1909),
        "AdaBelief": (25.5079, 0.0738),
        "Lion": (26.1346, 0.2068),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 2e-3,
            "steps": 300,
            "search_steps": 150,
            "evaluate_every": 30,
            "warmup_steps": 15,
            "batch_size": 8,
            "micro_batches": 1,
            "evaluation_batch_size": 32,
            "precision": "float32",
            "corpus": "wikitext2",
            "tokenizer": "bpe",
            "vocabulary": 4096,
            "block": 64,
            "evaluation_blocks": 96,
            "width": 128,
            "layers": 4,
            "heads": 4,
            "positions": 64,
        },
    }

    lr: float = 3e-4
    steps: int = 10_000
    search_steps: int = 1000
    evaluate_every: int = 100
    log_every: int = 10
    warmup_steps: int = 500
    batch_size: int = 64
    micro_batches: int = 4
    evaluation_batch_size: int = 16
    precision: Literal["float32", "bfloat16", "float16"] = "float16"
    corpus: str = "wikitext103-raw"
    tokenizer: str = "gpt2"
    vocabulary: int = 50_257
    block: int = 512
    width: int = 768
    layers: int = 12
    heads: int = 12
    positions: int = 1024
    dropout: float = 0.1

    def model(self) -> nn.Module:
        transformers = language("transformers")
        config = transformers.GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=self.positions,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            **PLAIN,
        )
        return transformers.GPT2LMHeadModel(config)


@dataclass(frozen=True, kw_only=True)
class FinewebQwen(Language):
    """Qwen2.5-0.5B from scratch on a billion tokens of FineWeb-Edu.

    The paper takes a batch in 16 parts of 4 blocks on each of four GPUs: 64 parts, shared by any number of processes
    that divides it. It does not say of which text its perplexity is; here 2,000 documents are held out for validation
    and 2,000 for the test, chosen by a hash of their text. The mini one learns from the first two million tokens of
    enwik8 and is evaluated on the customary parts of it.
    """

    title: ClassVar[str] = "FineWeb-Edu, Qwen2.5-0.5B"
    titles: ClassVar[Mapping[str, str]] = {"mini": "enwik8, small Qwen2"}
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (30.3029, 0.2812),
        "RAD": (30.8392, 0.7031),
        "Adam": (31.7604, 0.9650),
        "AdamW": (31.3155, 0.8857),
        "NAdam": (49.1373, 2.1917),
        "Adan": (133.2456, 15.2367),
        "AdaBelief": (31.0569, 0.6742),
        "Lion": (331.9066, 50.1679),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 2e-3,
            "steps": 350,
            "search_steps": 175,
            "evaluate_every": 35,
            "warmup_steps": 10,
            "batch_size": 8,
            "micro_batches": 2,
            "evaluation_batch_size": 32,
            "precision": "float32",
            "corpus": "enwik8",
            "tokenizer": "bpe",
            "separator": "",
            "vocabulary": 4096,
            "block": 64,
            "training_blocks": 32_768,
            "evaluation_blocks": 96,
            "width": 128,
            "layers": 4,
            "heads": 4,
            "key_value_heads": 2,
            "hidden": 352,
        },
    }

    lr: float = 3e-4
    steps: int = 1908
    search_steps: int = 300  # the paper does not say; the fewest with three evaluations
    evaluate_every: int = 100
    log_every: int = 10
    warmup_steps: int = 40
    batch_size: int = 256
    micro_batches: int = 64
    evaluation_batch_size: int = 4
    precision: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    corpus: str = "fineweb"
    tokenizer: str = "qwen"
    separator: str = "<|endoftext|>"  # after each document; the paper does not say
    vocabulary: int = 151_936
    block: int = 2048
    training_blocks: int | None = 1908 * 256
    width: int = 896
    layers: int = 24
    heads: int = 14
    key_value_heads: int = 2
    hidden: int = 4864
    rope_base: float = 1e6
    beta2: float = 0.95  # the decay of the second moment, for all optimizers
    gamma: float = 0.01  # RADAR's

    def texts(self) -> tokens.Texts:
        return {split: tokens.ended(pieces, self.separator) for split, pieces in super().texts().items()}

    def options(self, optimizer: str) -> dict[str, Any]:
        options = {**super().options(optimizer), "gamma": self.gamma}
        if betas := optimizers.resolved(optimizer, {}, {}).get("betas"):
            options["betas"] = (*betas[:-1], self.beta2)
        return options

    def model(self) -> nn.Module:
        transformers = language("transformers")
        config = transformers.Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
            tie_word_embeddings=True,
            **PLAIN,
        )
        return transformers.Qwen2ForCausalLM(config)


@dataclass(frozen=True, kw_only=True)
class WikitextFinetune(Language):
    """A pretrained model, GPT-2, on WikiText-2, for three epochs.

    An epoch is taken to be 72 batches: so many are filled by the 2.39 million GPT-2 tokens that the raw text is said
    to have. With <unk> for rare words it has 4,731 blocks, 73 batches. The mini one is a Llama of 15 million parameters
    that was pretrained on children's stories, and sees 240 blocks, a two-hundredth of an epoch.
    """

    title: ClassVar[str] = "WikiText-2 fine-tuning, GPT-2"
    titles: ClassVar[Mapping[str, str]] = {"mini": "WikiText-2 fine-tuning, stories15M"}
    score: ClassVar[Measure] = Measure("valid_perplexity", "validation perplexity")
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (21.5358, 0.0082),
        "RAD": (21.5744, 0.0133),
        "Adam": (21.5768, 0.0132),
        "AdamW": (21.5765, 0.0129),
        "NAdam": (21.5513, 0.0054),
        "Adan": (21.6465, 0.0092),
        "AdaBelief": (21.5578, 0.0169),
        "Lion": (21.7824, 0.0412),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 2.5e-4,
            "steps": 60,
            "search_steps": 30,
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
    search_steps: int = 72
    evaluate_every: int = 10
    log_every: int = 1
    batch_size: int = 64
    micro_batches: int = 4
    evaluation_batch_size: int = 16
    precision: Literal["float32", "bfloat16", "float16"] = "float16"
    corpus: str = "wikitext2-raw"
    tokenizer: str = "gpt2"
    vocabulary: int = 50_257
    block: int = 512
    pretrained: Literal["gpt2", "stories15m"] = "gpt2"

    def prepare(self) -> None:
        super().prepare()
        self.source()

    def source(self) -> Path:
        """Where the pretrained model lies."""
        return data.gpt2() if self.pretrained == "gpt2" else data.stories15m()

    def model(self) -> nn.Module:
        transformers = language("transformers")
        transformers.utils.logging.disable_progress_bar()
        return transformers.AutoModelForCausalLM.from_pretrained(
            self.source(), dtype=torch.float32, attn_implementation="sdpa", use_cache=False
        )


# No cache of keys and values; and token numbers that only generation needs may lie outside a small vocabulary.
PLAIN: Mapping[str, Any] = {
    "attn_implementation": "sdpa",
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
