"""Text to blocks of tokens: the data of the language tasks.

    texts = corpus("wikitext2")                              pieces of text, by split
    encoder = find_encoder("bpe", texts["train"], 4096)      a tokenizer, here trained on the training text
    blocks(texts["valid"], encoder, length=64)               an int32 tensor (blocks, 64), memory-mapped

The pieces of a split are tokenized one by one, concatenated and cut into blocks; an incomplete block at the end is
dropped. Hugging Face's `run_clm` example does the same, except that it drops an incomplete block after every thousand
lines. Tokens are stored in the cache, under a name that depends on the text, the tokenizer and the number of tokens.
Once they are there, a text with a known name is not read again.
"""

import codecs
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aimopt.atomic_files import atomic_replacement
from aimopt.paper import data
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.data.fetching import LOGGER, SECONDS_BETWEEN_LINES
from aimopt.paper.data.sources import cache_directory, process_lock
from aimopt.paper.data.tokenizers import Tokenizer

SPLITS = ("train", "valid", "test")

TOKENIZER_CHARACTERS = 10_000_000  # length of the text that a tokenizer is trained on
PIECES_PER_BATCH = 256  # tokenized together, on all cores
DOCUMENTS_PER_HELD_OUT = 100  # one document in 100 is for validation, and one for the test, up to
HELD_OUT_DOCUMENTS = 2000  # of each


class Pieces(NamedTuple):
    """A text in pieces, with a unique name."""

    name: str
    read: Callable[[], Iterable[str]]  # called once per pass over the text


Texts = Mapping[str, Pieces]  # by split


def corpus(name: str) -> Texts:
    """The pieces of a corpus, by split."""
    if name not in CORPORA:
        raise ValueError(f"no corpus is called {name!r}; there are {', '.join(CORPORA)}")
    return CORPORA[name]()


def line_pieces(texts: Mapping[str, str]) -> Texts:
    """The lines of each split, without the empty ones."""
    return {split: Pieces(digest([texts[split]]), partial(lines, texts[split])) for split in SPLITS}


def lines(text: str) -> list[str]:
    """The lines of a text with their line ends, without the empty ones."""
    return [f"{line}\n" for line in text.split("\n") if line.strip()]


def enwik8() -> Texts:
    """The usual splits: 90, 5 and 5 million bytes."""
    raw = data.enwik8()
    parts = {"train": raw[:90_000_000], "valid": raw[90_000_000:95_000_000], "test": raw[95_000_000:]}
    return {split: Pieces(f"enwik8 {split}", partial(decode_pieces, part)) for split, part in parts.items()}


def decode_pieces(raw: bytes, size: int = 10_000) -> Iterator[str]:
    """The text of bytes, in pieces; an incomplete character at an end of the bytes is replaced."""
    return codecs.iterdecode((raw[i : i + size] for i in range(0, len(raw), size)), "utf-8", "replace")


def fineweb() -> Texts:
    """Documents; there are no published splits, so a hash of the text decides which are held out."""
    (form,) = data.documents.FINEWEB.forms
    corpus_name = digest([*(file.sha256 for file in form.files), f"{DOCUMENTS_PER_HELD_OUT} {HELD_OUT_DOCUMENTS}"])
    return {
        split: Pieces(f"{corpus_name} {split}", partial(documents_of_split, data.fineweb, split)) for split in SPLITS
    }


def documents_of_split(documents: Callable[[], Iterable[str]], split: str) -> Iterator[str]:
    """The documents of a split, in order."""
    selected = (document for document in documents() if split_of(document) == split)
    return itertools.islice(selected, None if split == "train" else HELD_OUT_DOCUMENTS)


def split_of(document: str) -> str:
    """The split of a document; its position in the corpus does not matter."""
    number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % DOCUMENTS_PER_HELD_OUT
    return {0: "valid", 1: "test"}.get(number, "train")


def with_separator(pieces: Pieces, separator: str) -> Pieces:
    """The pieces, each followed by the separator."""
    return Pieces(f"{pieces.name}{separator}", lambda: (piece + separator for piece in pieces.read()))


CORPORA: Mapping[str, Callable[[], Texts]] = {
    "wikitext2": lambda: line_pieces(data.wikitext2()),
    "wikitext2-raw": lambda: line_pieces(data.wikitext2(raw=True)),
    "wikitext103-raw": lambda: line_pieces(data.wikitext103()),
    "enwik8": enwik8,
    "fineweb": fineweb,
}


class Encoder(NamedTuple):
    """A tokenizer with a unique name."""

    name: str
    tokenizer: Tokenizer


def find_encoder(name: str, training: Pieces, vocabulary: int) -> Encoder:
    """A published tokenizer; or `bpe`, trained on the training text, with a vocabulary of this size."""
    if name == "bpe":
        return learned_bpe(training, vocabulary)
    if name not in PUBLISHED_TOKENIZERS:
        raise ValueError(f"no tokenizer is called {name!r}; there are bpe, {', '.join(PUBLISHED_TOKENIZERS)}")
    tokenizer = PUBLISHED_TOKENIZERS[name]()
    return Encoder(f"{name}-{digest([tokenizer.library.to_str()])}", tokenizer)


PUBLISHED_TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = {
    "gpt2": data.gpt2_tokenizer,
    "qwen": data.qwen_tokenizer,
    "stories15m": lambda: data.tokenizers.from_file(data.stories15m() / "tokenizer.json"),
}


def learned_bpe(training: Pieces, vocabulary: int) -> Encoder:
    """A byte-level BPE, trained once on the beginning of a text."""
    text = list(first_pieces(training.read(), TOKENIZER_CHARACTERS))
    name = f"bpe{vocabulary}-{digest(text)}"
    path = cached_file(f"{name}.json", lambda path: train_bpe(text, vocabulary, path))
    return Encoder(name, data.tokenizers.from_file(path))


def train_bpe(text: list[str], vocabulary: int, path: Path) -> None:
    """Train a byte-level BPE and write it to a file."""
    library = import_language_module("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.save(str(path))


def blocks(pieces: Pieces, encoder: Encoder, length: int, max_blocks: int | None = None) -> Tensor:
    """The blocks of a text, or the first `max_blocks`; tokenized once and memory-mapped."""
    max_tokens = None if max_blocks is None else max_blocks * length
    key = digest([encoder.name, str(max_tokens), pieces.name])
    path = cached_file(f"{key}.int32", lambda path: tokenize(pieces.read(), encoder.tokenizer, max_tokens, path))
    count = path.stat().st_size // np.dtype(np.int32).itemsize
    if count < length:
        raise ValueError(f"{count} tokens do not fill a block of {length}; give more text or a smaller block")
    return torch.from_numpy(np.memmap(path, np.int32, "c", shape=(count // length, length)))


def evenly_spaced(rows: Tensor, count: int | None) -> Tensor:
    """`count` of the rows, evenly spaced; all rows if there are no more."""
    if count is None or count >= len(rows):
        return rows
    return rows[torch.arange(count) * len(rows) // count]


def tokenize(pieces: Iterable[str], tokenizer: Tokenizer, max_tokens: int | None, path: Path) -> None:
    """Write the tokens of the pieces, or the first `max_tokens`; Qwen's ids need 32 bits."""
    count, remaining, last_line = 0, iter(pieces), time.monotonic()
    with path.open("wb") as file:
        while max_tokens is None or count < max_tokens:
            batch = list(itertools.islice(remaining, PIECES_PER_BATCH))
            if not batch:
                break
            ids = np.fromiter(itertools.chain.from_iterable(tokenizer.encode_all(batch)), np.int32)
            ids[: None if max_tokens is None else max_tokens - count].tofile(file)
            count += len(ids)
            if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                of_total = f" of {max_tokens / 1e6:,.0f}" if max_tokens else ""
                LOGGER.info(f"  {count / 1e6:,.0f}{of_total} million tokens")


def first_pieces(pieces: Iterable[str], characters: int) -> Iterator[str]:
    """The first pieces, until they have this many characters."""
    for piece in pieces:
        yield piece
        characters -= len(piece)
        if characters <= 0:
            return


def digest(parts: Iterable[str]) -> str:
    """A short name for a text."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:{part}".encode())
    return hashed.hexdigest()[:16]


def cached_file(name: str, make: Callable[[Path], None], folder: str = "tokens") -> Path:
    """The path of a file in the cache, made by one process at a time if it is missing; it is never incomplete."""
    path = cache_directory() / folder / name
    if not path.exists():
        with process_lock(name):
            if not path.exists():
                with atomic_replacement(path) as temporary_path:
                    make(temporary_path)
    return path
