"""Text to blocks of tokens: what the language tasks learn from.

    texts = corpus("wikitext2")                              pieces of text, by split
    encoder = find_encoder("bpe", texts["train"], 4096)      a tokenizer, here learned from the training text
    blocks(texts["valid"], encoder, length=64)               an int32 tensor (blocks, 64), mapped from disk

The pieces of a split are tokenized one by one, run together and cut into blocks; what is left over at the end is
dropped. That is the convention of Hugging Face's `run_clm` example, except that it drops the rest of every thousand
lines. Tokens are kept in the cache, under a name made from the text, the tokenizer and the amount asked for; once they
are there, a text that is known by its name is not read again.
"""

import codecs
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aimopt.lab import data
from aimopt.lab.data.extras import language
from aimopt.lab.data.fetching import SECONDS_BETWEEN_LINES, say
from aimopt.lab.data.sources import one_at_a_time

SPLITS = ("train", "valid", "test")

LEARNED_FROM = 10_000_000  # characters that a tokenizer is learned from
AT_ONCE = 256  # pieces that are tokenized on all cores
ONE_IN = 100  # of so many documents one may be for validation, and one for the test;
HELD_OUT = 2000  # so many are


class Pieces(NamedTuple):
    """A text in pieces, and a name that no other text has."""

    name: str
    read: Callable[[], Iterable[str]]  # called anew for every pass


Texts = Mapping[str, Pieces]  # by split


def corpus(name: str) -> Texts:
    """A text, by split."""
    if name not in CORPORA:
        raise ValueError(f"no corpus is called {name!r}; there are {', '.join(CORPORA)}")
    return CORPORA[name]()


def by_line(texts: Mapping[str, str]) -> Texts:
    """The lines of texts, without the empty ones."""
    return {split: Pieces(digest([texts[split]]), partial(lines, texts[split])) for split in SPLITS}


def lines(text: str) -> list[str]:
    """The lines of a text with their ends, without the empty ones."""
    return [f"{line}\n" for line in text.split("\n") if line.strip()]


def enwik8() -> Texts:
    """90, 5 and 5 million bytes, as is the custom."""
    raw = data.enwik8()
    parts = {"train": raw[:90_000_000], "valid": raw[90_000_000:95_000_000], "test": raw[95_000_000:]}
    return {split: Pieces(f"enwik8 {split}", partial(decoded, part)) for split, part in parts.items()}


def decoded(raw: bytes, size: int = 10_000) -> Iterator[str]:
    """The text of some bytes, in pieces; a character that is cut off at an end is replaced."""
    return codecs.iterdecode((raw[i : i + size] for i in range(0, len(raw), size)), "utf-8", "replace")


def fineweb() -> Texts:
    """Documents, held out by a hash of their text, since there are no splits."""
    (form,) = data.documents.FINEWEB.forms
    whole = digest([*(file.sha256 for file in form.files), f"{ONE_IN} {HELD_OUT}"])
    return {split: Pieces(f"{whole} {split}", partial(of_share, data.fineweb, split)) for split in SPLITS}


def of_share(documents: Callable[[], Iterable[str]], split: str) -> Iterator[str]:
    """The documents of a split."""
    mine = (document for document in documents() if share(document) == split)
    return itertools.islice(mine, None if split == "train" else HELD_OUT)


def share(document: str) -> str:
    """The split a document belongs to, wherever it stands in a corpus."""
    number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % ONE_IN
    return {0: "valid", 1: "test"}.get(number, "train")


def ended(pieces: Pieces, separator: str) -> Pieces:
    """The pieces, each with the separator after it."""
    return Pieces(f"{pieces.name}{separator}", lambda: (piece + separator for piece in pieces.read()))


CORPORA: Mapping[str, Callable[[], Texts]] = {
    "wikitext2": lambda: by_line(data.wikitext2()),
    "wikitext2-raw": lambda: by_line(data.wikitext2(raw=True)),
    "wikitext103-raw": lambda: by_line(data.wikitext103()),
    "enwik8": enwik8,
    "fineweb": fineweb,
}


class Encoder(NamedTuple):
    """A tokenizer, and a name that no other has."""

    name: str
    tokenizer: data.Tokenizer


def find_encoder(name: str, training: Pieces, vocabulary: int) -> Encoder:
    """A published tokenizer; or `bpe`, one of so many tokens that is learned from the training text."""
    if name == "bpe":
        return byte_pairs(training, vocabulary)
    if name not in PUBLISHED:
        raise ValueError(f"no tokenizer is called {name!r}; there are bpe, {', '.join(PUBLISHED)}")
    tokenizer = PUBLISHED[name]()
    return Encoder(f"{name}-{digest([tokenizer.library.to_str()])}", tokenizer)


PUBLISHED: Mapping[str, Callable[[], data.Tokenizer]] = {
    "gpt2": data.gpt2_tokenizer,
    "qwen": data.qwen_tokenizer,
    "stories15m": lambda: data.tokenizers.from_file(data.stories15m() / "tokenizer.json"),
}


def byte_pairs(training: Pieces, vocabulary: int) -> Encoder:
    """A byte-level BPE, learned once from the beginning of a text."""
    text = list(beginning(training.read(), LEARNED_FROM))
    name = f"bpe{vocabulary}-{digest(text)}"
    path = kept(f"{name}.json", lambda path: learn(text, vocabulary, path))
    return Encoder(name, data.tokenizers.from_file(path))


def learn(text: list[str], vocabulary: int, path: Path) -> None:
    """Write a byte-level BPE."""
    library = language("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.save(str(path))


def blocks(pieces: Pieces, encoder: Encoder, length: int, at_most: int | None = None) -> Tensor:
    """The blocks of a text, or the first so many; tokenized once and mapped from disk."""
    wanted = None if at_most is None else at_most * length
    key = digest([encoder.name, str(wanted), pieces.name])
    path = kept(f"{key}.int32", lambda path: tokenize(pieces.read(), encoder.tokenizer, wanted, path))
    count = path.stat().st_size // np.dtype(np.int32).itemsize
    if count < length:
        raise ValueError(f"{count} tokens do not fill a block of {length}; give more text or a smaller block")
    return torch.from_numpy(np.memmap(path, np.int32, "c", shape=(count // length, length)))


def spread(rows: Tensor, count: int | None) -> Tensor:
    """So many of the rows, evenly spread; all if there are no more."""
    if count is None or count >= len(rows):
        return rows
    return rows[torch.arange(count) * len(rows) // count]


def tokenize(pieces: Iterable[str], tokenizer: data.Tokenizer, wanted: int | None, path: Path) -> None:
    """Write the tokens of the pieces, or the first so many; 32 bits, for Qwen's."""
    count, rest, told = 0, iter(pieces), time.monotonic()
    with path.open("wb") as file:
        while (wanted is None or count < wanted) and (batch := list(itertools.islice(rest, AT_ONCE))):
            ids = np.fromiter(itertools.chain.from_iterable(tokenizer.encode_all(batch)), np.int32)
            ids[: None if wanted is None else wanted - count].tofile(file)
            count += len(ids)
            if time.monotonic() - told > SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                say(f"  {count / 1e6:,.0f} million tokens" + (f" of {wanted / 1e6:,.0f}" if wanted else ""))


def beginning(pieces: Iterable[str], characters: int) -> Iterator[str]:
    """The first pieces, until they have so many characters."""
    for piece in pieces:
        yield piece
        characters -= len(piece)
        if characters <= 0:
            return


def digest(parts: Iterable[str]) -> str:
    """A short name for some text."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:{part}".encode())
    return hashed.hexdigest()[:16]


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """A file of the cache, made when it is missing, by one process at a time; it is there whole or not at all."""
    path = data.cache_directory() / "tokens" / name
    if not path.exists():
        with one_at_a_time(name):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    make(Path(folder, name))
                    os.replace(Path(folder, name), path)
    return path
