"""Texts keep their lines in every form, tokenizers give the published ids, and documents become tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab import data
from aimopt.lab.data import documents, text
from aimopt.lab.data.dataset import Dataset, File, Form, as_they_are
from aimopt.lab.data.extras import language
from serving import Site, serving

TEXTS = [
    "Hello world",
    " 12 345\n\n\tzwölf  Bäume, don't!",
    "日本語のテキスト 🙂",
    "a<|endoftext|>b",
    " \n = Valkyria Chronicles III = \n",
]


def parquet(path: Path, rows: list[str]) -> bytes:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(pyarrow.table({"text": rows, "id": list(range(len(rows)))}), path, row_group_size=2)
    return path.read_bytes()


def test_lines_of_the_hub_become_the_original_text(tmp_path: Path) -> None:
    original = " \n = Title = \n \n Some words , some <unk> . \n \n"
    rows = [line if line.strip() else "" for line in original.splitlines(keepends=True)]
    parquet(tmp_path / "a", rows[:3])
    parquet(tmp_path / "b", rows[3:])
    read = text.parquet_lines({"train.txt": ["a", "b"], "valid.txt": ["a"]})
    parts = read({name: tmp_path / name for name in "ab"})
    assert parts == {"train.txt": original.encode(), "valid.txt": "".join(original.splitlines(True)[:3]).encode()}


def test_texts_are_read_byte_for_byte(tmp_path: Path) -> None:
    for split in text.SPLITS:
        (tmp_path / f"{split}.txt").write_bytes(f"{split}\r\n é \n".encode())
    assert text.load(tmp_path)["valid"] == "valid\r\n é \n"


@pytest.mark.parametrize(
    ("tokenizer", "size", "end", "ids"),
    [
        (data.gpt2_tokenizer, 50257, 50256, {"Hello world": [15496, 995], "Hello, world!": [15496, 11, 995, 0]}),
        (data.qwen_tokenizer, 151665, 151643, {"Hello world": [9707, 1879], "Hello, world!": [9707, 11, 1879, 0]}),
    ],
)
def test_tokenizers_give_the_published_ids(tokenizer: Any, size: int, end: int, ids: dict[str, list[int]]) -> None:
    pytest.importorskip("tokenizers")
    made = tokenizer()
    assert (made.library.get_vocab_size(), made.encode("<|endoftext|>")) == (size, [end])
    assert {words: made.encode(words) for words in ids} == ids
    assert made.encode_all(TEXTS) == [made.encode(words) for words in TEXTS]
    assert [made.decode(made.encode(words)) for words in TEXTS] == TEXTS
    assert made.encode(f"a{'<|endoftext|>'}b")[1] == end


def test_gpt2_tokenizer_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = data.prepare(data.CATALOGUE["gpt2-tokenizer"])
    theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    assert len(theirs) == 50257
    assert [data.gpt2_tokenizer().encode(words) for words in TEXTS] == [theirs.encode(words) for words in TEXTS]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def stories(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    names = ("one.parquet", "two.parquet")
    site.files = {name: parquet(tmp_path / name, [f"{name} {i}" for i in range(5)]) for name in names}
    files = tuple(File(name, site.url(name)) for name in names)
    return Dataset(
        name="stories",
        title="",
        megabytes=1,
        licence="",
        citation="",
        parts=(),
        forms=(Form(files, as_they_are),),
    )


def test_documents_are_fetched_as_they_are_used(stories: Dataset, site: Site) -> None:
    each = documents.each(stories)
    assert [next(each) for _ in range(5)] == [f"one.parquet {i}" for i in range(5)]
    assert [name for name, _ in site.asked] == ["one.parquet"]
    assert next(each) == "two.parquet 0"


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ImportError, match=r"need no_such_package: pip install 'aimopt\[language\]'"):
        language("no_such_package")
