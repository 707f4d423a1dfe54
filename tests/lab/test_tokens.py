"""Text becomes blocks of tokens once, and nothing of it is lost but the end."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers.decoders import ByteLevel

from aimopt.lab.tasks import tokens
from small_language import MANUAL, TEXTS

TRAIN = TEXTS["train"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    return tmp_path / "tokens"


def test_blocks_are_the_text_without_empty_lines() -> None:
    encoder = tokens.byte_pairs(TRAIN, 512)
    blocks = tokens.blocks(TRAIN, encoder, 16)
    text = "".join(TRAIN.read())
    assert "\n\n" not in text
    assert blocks.dtype == torch.int32
    ids = [token for line in TRAIN.read() for token in encoder.tokenizer.encode(line)]
    assert blocks.flatten().tolist() == ids[: len(ids) // 16 * 16]
    assert int(blocks.max()) == 511


def test_learned_tokenizer_loses_no_byte_and_is_learned_alike(tmp_path: Path) -> None:
    text = [*MANUAL[:3], "Ärger, 東京 and 🙂"]
    for name in ("first", "second"):
        tokens.learn(text, 512, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    tokenizer = tokens.byte_pairs(tokens.Pieces("text", lambda: text), 512).tokenizer
    strange = "\tÅngström 東京 🙂 \n"
    names = [tokenizer.library.id_to_token(token) for token in tokenizer.encode(strange)]
    assert ByteLevel().decode(names) == strange


def test_text_is_tokenized_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tokens.byte_pairs(TRAIN, 512)
    first = tokens.blocks(TRAIN, encoder, 16)

    def never(*_: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(tokens, "tokenize", never)
    monkeypatch.setattr(tokens, "learn", never)
    assert torch.equal(first, tokens.blocks(TRAIN, tokens.byte_pairs(TRAIN, 512), 16))
    with pytest.raises(AssertionError, match="again"):
        tokens.blocks(TEXTS["valid"], encoder, 16)
    with pytest.raises(AssertionError, match="again"):
        tokens.byte_pairs(TRAIN, 511)
    assert sorted(path.suffix for path in cache.iterdir()) == [".int32", ".json"]


def test_first_blocks_need_no_more_of_the_text() -> None:
    encoder = tokens.byte_pairs(TRAIN, 512)
    taken = []

    def some() -> Iterator[str]:
        for line in TRAIN.read():
            taken.append(line)
            yield line

    few = tokens.blocks(tokens.Pieces("some", some), encoder, 16, at_most=5)
    assert few.shape == (5, 16)
    assert torch.equal(few, tokens.blocks(TRAIN, encoder, 16)[:5])
    assert len(taken) < len(list(TRAIN.read())) / 10


def test_short_text_is_refused() -> None:
    encoder = tokens.byte_pairs(TRAIN, 512)
    with pytest.raises(ValueError, match="do not fill a block of 64"):
        tokens.blocks(tokens.Pieces("few", lambda: ["a few words"]), encoder, 64)


def test_texts_that_only_begin_alike_are_told_apart() -> None:
    encoder = tokens.byte_pairs(TRAIN, 512)
    text = "\n".join(MANUAL)
    made = [tokens.by_line(dict.fromkeys(tokens.SPLITS, text + end))["train"] for end in ("one", "two")]
    first, second = (tokens.blocks(pieces, encoder, 1) for pieces in made)
    assert torch.equal(first[:10_000], second[:10_000])
    assert not torch.equal(first, second)


def test_interrupted_work_leaves_nothing(cache: Path) -> None:
    def torn(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens.kept("half.int32", torn)
    assert list(cache.iterdir()) == []


def test_evaluation_blocks_are_spread_over_the_text() -> None:
    rows = torch.arange(10)
    assert tokens.spread(rows, 4).tolist() == [0, 2, 5, 7]
    assert tokens.spread(rows, None) is rows
    assert tokens.spread(rows, 11) is rows


def test_documents_are_held_out_by_their_text() -> None:
    documents = [f"{number} {line}" for number, line in enumerate(TRAIN.read())]
    counts = Counter(map(tokens.share, documents))
    assert counts.keys() == set(tokens.SPLITS)
    for split in ("valid", "test"):
        assert counts[split] == pytest.approx(len(documents) / 100, rel=0.3)
    held_out = set(tokens.of_share(lambda: documents, "valid"))
    assert held_out
    assert held_out == set(tokens.of_share(lambda: reversed(documents), "valid"))
    assert held_out.isdisjoint(tokens.of_share(lambda: documents, "train"))


def test_bytes_are_decoded_across_pieces() -> None:
    text = "naïve 東京 🙂 " * 100
    assert "".join(tokens.decoded(text.encode(), size=7)) == text
    assert "".join(tokens.decoded("é".encode()[1:])) == "\ufffd"


@pytest.mark.parametrize("wrong", [lambda: tokens.corpus("wiki"), lambda: tokens.find_encoder("word", TRAIN, 9)])
def test_unknown_names_are_refused_with_the_known(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="there are"):
        wrong()
