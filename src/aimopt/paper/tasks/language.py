"""The paper's language settings with random initial weights: GPT-2 on WikiText-103, Qwen2.5-0.5B on FineWeb-Edu.

    WikitextGPT2.at_scale("mini")                      84,288 parameters on WikiText-2, half a minute on one core
    FinewebQwen.at_scale("paper", {"block": 1024})     the paper's setting, in shorter blocks

The scale `paper` has the paper's values; what the paper leaves open is a setting with our choice. At scale `mini` the
same code trains far smaller models on smaller texts: it compares optimizers with each other, never with the paper's
numbers. A batch has 4,096 tokens there: with far smaller ones, optimizers look alike. The tokens of a block are the
inputs and, shifted by one, the labels. A block of 512 therefore gives 511 predictions, as in the models of Hugging
Face. Perplexity is the exponential of the mean loss per token.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from aimopt.lab.protocol.supervised import Batch, Splits, Supervised
from aimopt.lab.protocol.task import Measure
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.tasks import tokens

UNKNOWN_BLOCKS = 500  # assumed for a timing without the text; WikiText's splits have about as many blocks of 512 tokens


@dataclass(frozen=True, kw_only=True)
class Language(Supervised):
    """Prediction of the next token."""

    measure: ClassVar[Measure] = Measure("test_perplexity", "test perplexity")
    packages: ClassVar[tuple[str, ...]] = ("tokenizers", "transformers")
    margin: ClassVar[float] = 0.005

    corpus: str  # wikitext2, wikitext2-raw, wikitext103-raw, enwik8 or fineweb
    tokenizer: str  # gpt2, qwen, stories15m; or bpe, trained on the training text
    vocabulary: int  # number of tokens that the model knows; also of a tokenizer that is trained here
    block: int  # tokens per block
    training_blocks: int | None = None  # number of blocks, from the start of the training text; None: all
    # Number of evenly spaced blocks of each other split, or (of validation, of test); None: all.
    evaluation_blocks: int | tuple[int, int] | None = None
    clip: float | None = 1.0

    @abstractmethod
    def model(self) -> nn.Module:
        """A causal language model; its output has `logits`."""

    def texts(self) -> tokens.Texts:
        """The text of each split, in pieces."""
        return tokens.corpus(self.corpus)

    def encoder(self, texts: tokens.Texts) -> tokens.Encoder:
        """The tokenizer."""
        return tokens.find_encoder(self.tokenizer, texts["train"], self.vocabulary)

    def data(self) -> Splits:
        texts = self.texts()
        encoder = self.encoder(texts)
        train = tokens.blocks(texts["train"], encoder, self.block, self.training_blocks)
        counts = self.evaluation_blocks
        valid_count, test_count = counts if isinstance(counts, tuple) else (counts, counts)
        valid, test = (
            tokens.evenly_spaced(tokens.blocks(texts[split], encoder, self.block), count)
            for split, count in (("valid", valid_count), ("test", test_count))
        )
        return Splits((train,), (valid,), (test,))

    def random_examples(self) -> Splits:
        counts = self.evaluation_blocks
        valid, test = counts if isinstance(counts, tuple) else (counts, counts)

        def blocks(count: int | None) -> Batch:  # `expand` needs no memory; without a text, its length is not known
            one = torch.randint(self.vocabulary, (1, self.block), dtype=torch.int32)
            return (one.expand(UNKNOWN_BLOCKS if count is None else count, self.block),)

        return Splits(train=blocks(self.batch_size), valid=blocks(valid), test=blocks(test))

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
    """GPT-2 from scratch on WikiText-103; lines are joined without an end-of-text token, empty lines are left out.

    The paper evaluates every 100 steps in the search and every 500 in final runs. Here it is always every 100, which
    includes both and adds a twentieth to the time. The scale `mini` trains on WikiText-2.
    """

    title: ClassVar[str] = "WikiText-103, GPT-2"
    titles: ClassVar[Mapping[str, str]] = {"mini": "WikiText-2, GPT-2 (84k)", "mini-1": "WikiText-2, small GPT-2"}
    later_settings: ClassVar[tuple[str, ...]] = ("initial_std",)
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 1.6e-2,
            "steps": 500,
            "evaluate_every": 50,
            "warmup_steps": 40,
            "batch_size": 64,
            "micro_batches": 1,
            "evaluation_batch_size": 128,
            "precision": "float32",
            "corpus": "wikitext2",
            "tokenizer": "bpe",
            "vocabulary": 512,
            "block": 64,
            "evaluation_blocks": (256, 4096),
            "width": 48,
            "layers": 2,
            "heads": 3,
            "positions": 64,
            "dropout": 0.0,
            "initial_std": 0.08,
        },
        "mini-1": {
            "lr": 2e-3,
            "steps": 300,
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
    initial_std: float = 0.02  # of the weights; GPT-2's own for 768 units, far too small for 48

    def model(self) -> nn.Module:
        transformers = import_language_module("transformers")
        config = transformers.GPT2Config(
            vocab_size=self.vocabulary,
            n_positions=self.positions,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            initializer_range=self.initial_std,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, in one operation instead of eight
            **SHARED_CONFIG,
        )
        return transformers.GPT2LMHeadModel(config)


@dataclass(frozen=True, kw_only=True)
class FinewebQwen(Language):
    """Qwen2.5-0.5B from scratch on a billion tokens of FineWeb-Edu.

    The paper splits a batch into 16 parts of 4 blocks on each of four GPUs: 64 parts. The number of processes must
    divide 64, because they share the parts. The paper does not say on which text it measures perplexity. Here 2,000
    documents are held out for validation and 2,000 for the test; a hash of their text chooses them. The scale `mini`
    trains on the first two million tokens of enwik8 and is evaluated on its usual validation and test parts.
    """

    title: ClassVar[str] = "FineWeb-Edu, Qwen2.5-0.5B"
    titles: ClassVar[Mapping[str, str]] = {"mini": "enwik8, Qwen2 (74k)", "mini-1": "enwik8, small Qwen2"}
    later_settings: ClassVar[tuple[str, ...]] = ("initial_std",)
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "mini": {
            "lr": 1.6e-2,
            "steps": 500,
            "evaluate_every": 50,
            "warmup_steps": 40,
            "batch_size": 64,
            "micro_batches": 1,
            "evaluation_batch_size": 128,
            "precision": "float32",
            "corpus": "enwik8",
            "tokenizer": "bpe",
            "separator": "",
            "vocabulary": 512,
            "block": 64,
            "training_blocks": 32_768,
            "evaluation_blocks": (256, 4096),
            "width": 48,
            "layers": 2,
            "heads": 3,
            "key_value_heads": 1,
            "hidden": 128,
            "initial_std": 0.08,
        },
        "mini-1": {
            "lr": 2e-3,
            "steps": 350,
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
    evaluate_every: int = 100
    log_every: int = 10
    warmup_steps: int = 40
    batch_size: int = 256
    micro_batches: int = 64
    evaluation_batch_size: int = 4
    precision: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    corpus: str = "fineweb"
    tokenizer: str = "qwen"
    separator: str = "<|endoftext|>"  # after each document; the paper does not specify it
    vocabulary: int = 151_936
    block: int = 2048
    training_blocks: int | None = 1908 * 256
    width: int = 896
    layers: int = 24
    heads: int = 14
    key_value_heads: int = 2
    hidden: int = 4864
    rope_base: float = 1e6
    initial_std: float = 0.02  # of the weights

    def texts(self) -> tokens.Texts:
        return {split: tokens.with_separator(pieces, self.separator) for split, pieces in super().texts().items()}

    def model(self) -> nn.Module:
        transformers = import_language_module("transformers")
        config = transformers.Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            initializer_range=self.initial_std,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
            tie_word_embeddings=True,
            **SHARED_CONFIG,
        )
        return transformers.Qwen2ForCausalLM(config)


# No cache of keys and values. No special tokens: only generation needs them, and a small vocabulary may not have them.
SHARED_CONFIG: Mapping[str, Any] = {
    "attn_implementation": "sdpa",
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
