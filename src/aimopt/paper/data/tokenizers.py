"""Published tokenizers: text to token ids and back.

tokenizer = gpt2(folder)
tokenizer.encode("Hello world")        # [15496, 995]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aimopt.paper.data.extras import import_language_module

END = "<|endoftext|>"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library, with plain lists of ids."""

    library: Any

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens at its ends."""
        return self.library.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        return [encoded.ids for encoded in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.library.decode(ids, skip_special_tokens=False)


def gpt2(folder: Path) -> Tokenizer:
    """GPT-2's tokenizer, from its vocabulary and merges."""
    library = import_language_module("tokenizers")
    model = library.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return Tokenizer(tokenizer)


def from_file(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json."""
    return Tokenizer(import_language_module("tokenizers").Tokenizer.from_file(str(path)))
