"""Texts keep their lines in every form, tokenizers give the published ids, and documents are downloaded in order."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aimopt.paper import data
from aimopt.paper.data import documents, text
from aimopt.paper.data.catalogue import CATALOGUE
from aimopt.paper.data.dataset import Dataset, File, Form, read_unchanged
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.data.sources import cache_directory, local_directories, prepare
from aimopt.paper.data.tokenizers import Tokenizer
from file_server import Site, serving

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


def test_rows_of_the_hub_become_the_original_text(tmp_path: Path) -> None:
    original = " \n = Title = \n \n Some words , some <unk> . \n \n"
    rows = [line if line.strip() else "" for line in original.splitlines(keepends=True)]
    parquet(tmp_path / "a", rows[:3])
    parquet(tmp_path / "b", rows[3:])
    read = text.parquet_reader({"train.txt": ["a", "b"], "valid.txt": ["a"]})
    parts = read({name: tmp_path / name for name in "ab"})
    assert parts == {"train.txt": original.encode(), "valid.txt": "".join(original.splitlines(True)[:3]).encode()}


def test_texts_are_read_byte_for_byte(tmp_path: Path) -> None:
    for split in text.SPLITS:
        (tmp_path / f"{split}.txt").write_bytes(f"{split}\r\n é \n".encode())
    assert text.load(tmp_path)["valid"] == "valid\r\n é \n"


# With what is at hand, and again with a download where the internet may be used.
anywhere = pytest.mark.parametrize("download", [False, pytest.param(True, marks=pytest.mark.network)])


def prepared_folder(name: str, download: bool) -> Path:
    """The folder of a dataset."""
    if not download and not any((folder / name).is_dir() for folder in (cache_directory(), *local_directories())):
        pytest.skip(f"{name} is neither in the cache nor in AIMOPT_DATA; `make test-all` downloads it")
    return prepare(CATALOGUE[name])


GPT2_IDS = {"Hello world": [15496, 995], "Hello, world!": [15496, 11, 995, 0], "<|endoftext|>": [50256]}
QWEN_IDS = {"Hello world": [9707, 1879], "Hello, world!": [9707, 11, 1879, 0], "<|endoftext|>": [151643]}


@pytest.mark.network
@pytest.mark.parametrize("name", ["gpt2-tokenizer", "qwen2.5-tokenizer"])
def test_tokenizers_are_prepared_from_the_internet(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    folder = prepare(CATALOGUE[name])
    for part in CATALOGUE[name].parts:
        part.check(folder / part.name)


@anywhere
@pytest.mark.parametrize(
    ("name", "load", "size", "ids"),
    [
        ("gpt2-tokenizer", data.gpt2_tokenizer, 50257, GPT2_IDS),
        ("qwen2.5-tokenizer", data.qwen_tokenizer, 151665, QWEN_IDS),
    ],
)
def test_tokenizers_give_the_published_ids(
    name: str, load: Callable[[], Tokenizer], size: int, ids: dict[str, list[int]], download: bool
) -> None:
    pytest.importorskip("tokenizers")
    prepared_folder(name, download)
    tokenizer = load()
    assert tokenizer.library.get_vocab_size() == size
    assert {string: tokenizer.encode(string) for string in ids} == ids
    assert tokenizer.encode_all(TEXTS) == [tokenizer.encode(string) for string in TEXTS]
    assert [tokenizer.decode(tokenizer.encode(string)) for string in TEXTS] == TEXTS
    assert [tokenizer.encode("a<|endoftext|>b")[1]] == ids["<|endoftext|>"]


@anywhere
def test_gpt2_tokenizer_equals_that_of_transformers(download: bool) -> None:
    transformers = pytest.importorskip("transformers")
    oracle = transformers.GPT2Tokenizer.from_pretrained(prepared_folder("gpt2-tokenizer", download))
    assert len(oracle) == 50257
    assert [data.gpt2_tokenizer().encode(string) for string in TEXTS] == [oracle.encode(string) for string in TEXTS]


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
        forms=(Form(files, read_unchanged),),
    )


def test_a_file_of_documents_is_downloaded_when_it_is_reached(stories: Dataset, site: Site) -> None:
    texts = documents.iterate(stories)
    assert [next(texts) for _ in range(5)] == [f"one.parquet {i}" for i in range(5)]
    assert [name for name, _ in site.requests] == ["one.parquet"]
    assert next(texts) == "two.parquet 0"


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ImportError, match=r"need no_such_package: pip install 'aimopt\[language\]'"):
        import_language_module("no_such_package")
