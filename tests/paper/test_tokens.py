"""Text is tokenized once, and every block but an incomplete last one is used."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers.decoders import ByteLevel

from aimopt.paper.tasks import tokens
from small_language import MANUAL, TEXTS

TRAIN = TEXTS["train"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    return tmp_path / "tokens"


def test_blocks_are_the_text_without_empty_lines() -> None:
    encoder = tokens.learned_bpe(TRAIN, 512)
    blocks = tokens.blocks(TRAIN, encoder, 16)
    text = "".join(TRAIN.read())
    assert "\n\n" not in text
    assert blocks.dtype == torch.int32
    ids = [token for line in TRAIN.read() for token in encoder.tokenizer.encode(line)]
    assert blocks.flatten().tolist() == ids[: len(ids) // 16 * 16]
    assert int(blocks.max()) == 511


def test_a_trained_tokenizer_loses_no_byte_and_training_is_reproducible(tmp_path: Path) -> None:
    text = [*MANUAL[:3], "Ärger, 東京 and 🙂"]
    for name in ("first", "second"):
        tokens.train_bpe(text, 512, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    tokenizer = tokens.learned_bpe(tokens.Pieces("text", lambda: text), 512).tokenizer
    strange = "\tÅngström 東京 🙂 \n"
    names = [tokenizer.library.id_to_token(token) for token in tokenizer.encode(strange)]
    assert ByteLevel().decode(names) == strange


def test_text_is_tokenized_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tokens.learned_bpe(TRAIN, 512)
    first = tokens.blocks(TRAIN, encoder, 16)

    def never(*_: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(tokens, "tokenize", never)
    monkeypatch.setattr(tokens, "train_bpe", never)
    assert torch.equal(first, tokens.blocks(TRAIN, tokens.learned_bpe(TRAIN, 512), 16))
    with pytest.raises(AssertionError, match="again"):
        tokens.blocks(TEXTS["valid"], encoder, 16)
    with pytest.raises(AssertionError, match="again"):
        tokens.learned_bpe(TRAIN, 511)
    assert sorted(path.suffix for path in cache.iterdir()) == [".int32", ".json"]


def test_first_blocks_read_only_the_beginning_of_the_text() -> None:
    encoder = tokens.learned_bpe(TRAIN, 512)
    lines_read = []

    def read() -> Iterator[str]:
        for line in TRAIN.read():
            lines_read.append(line)
            yield line

    few = tokens.blocks(tokens.Pieces("beginning", read), encoder, 16, max_blocks=5)
    assert few.shape == (5, 16)
    assert torch.equal(few, tokens.blocks(TRAIN, encoder, 16)[:5])
    assert len(lines_read) < len(list(TRAIN.read())) / 10


def test_short_text_is_refused() -> None:
    encoder = tokens.learned_bpe(TRAIN, 512)
    with pytest.raises(ValueError, match="do not fill a block of 64"):
        tokens.blocks(tokens.Pieces("few", lambda: ["a few words"]), encoder, 64)


def test_texts_with_the_same_beginning_have_blocks_of_their_own() -> None:
    encoder = tokens.learned_bpe(TRAIN, 512)
    text = "\n".join(MANUAL)
    texts = [tokens.line_pieces(dict.fromkeys(tokens.SPLITS, text + end))["train"] for end in ("one", "two")]
    first, second = (tokens.blocks(pieces, encoder, 1) for pieces in texts)
    assert torch.equal(first[:10_000], second[:10_000])
    assert not torch.equal(first, second)


def test_an_interrupted_writer_leaves_no_file(cache: Path) -> None:
    def interrupted(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens.cached_file("half.int32", interrupted)
    assert list(cache.iterdir()) == []


def test_evaluation_blocks_are_evenly_spaced() -> None:
    rows = torch.arange(10)
    assert tokens.evenly_spaced(rows, 4).tolist() == [0, 2, 5, 7]
    assert tokens.evenly_spaced(rows, None) is rows
    assert tokens.evenly_spaced(rows, 11) is rows


def test_documents_are_held_out_by_their_text() -> None:
    documents = [f"{number} {line}" for number, line in enumerate(TRAIN.read())]
    counts = Counter(map(tokens.split_of, documents))
    assert counts.keys() == set(tokens.SPLITS)
    for split in ("valid", "test"):
        assert counts[split] == pytest.approx(len(documents) / 100, rel=0.3)
    held_out = set(tokens.documents_of_split(lambda: documents, "valid"))
    assert held_out
    assert held_out == set(tokens.documents_of_split(lambda: reversed(documents), "valid"))
    assert held_out.isdisjoint(tokens.documents_of_split(lambda: documents, "train"))


def test_bytes_are_decoded_across_pieces() -> None:
    text = "naïve 東京 🙂 " * 100
    assert "".join(tokens.decode_pieces(text.encode(), size=7)) == text
    assert "".join(tokens.decode_pieces("é".encode()[1:])) == "\ufffd"


@pytest.mark.parametrize("wrong", [lambda: tokens.corpus("wiki"), lambda: tokens.find_encoder("word", TRAIN, 9)])
def test_the_error_for_an_unknown_name_lists_the_known_names(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="there are"):
        wrong()
