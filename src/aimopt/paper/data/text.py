r"""WikiText and enwik8: the same original text from every form.

splits = load(folder)
splits["train"][:30]           # ' \n = Valkyria Chronicles III ='
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aimopt.paper.data.archives import member_reader
from aimopt.paper.data.dataset import Content, Dataset, File, Form, Reader, read_unchanged
from aimopt.paper.data.extras import import_language_module

SPLITS = ("train", "valid", "test")
MERITY = "Merity et al. 2017, Pointer Sentinel Mixture Models, arXiv:1609.07843"
AUTHOR = "https://wikitext.smerity.com"  # the first address, at MetaMind, no longer exists
HUB = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/b08601e04326c79dfdd32d625aee71d232d685c3"


def load(folder: Path) -> dict[str, str]:
    """The text of each split of a prepared WikiText."""
    return {split: (folder / f"{split}.txt").read_bytes().decode() for split in SPLITS}


def parquet_reader(files_by_part: Mapping[str, Sequence[str]]) -> Reader:
    """A reader of the Hugging Face version: one row per line; an empty row is the line " " of the original."""

    def text_of(path: Path) -> str:
        table = import_language_module("pyarrow.parquet").read_table(path, columns=["text"])
        return "".join(line or " \n" for line in table["text"].to_pylist())

    def read(files: Mapping[str, Path]) -> Mapping[str, Content]:
        return {part: "".join(text_of(files[name]) for name in names).encode() for part, names in files_by_part.items()}

    return read


def _members(folder: str, ending: str) -> Reader:
    return member_reader({f"{split}.txt": f"{folder}/wiki.{split}.{ending}" for split in SPLITS})


def _author(name: str, sha256: str, read: Reader) -> Form:
    return Form((File(name, f"{AUTHOR}/{name}", sha256),), read)


def _hub(version: str, train: Sequence[File], valid: File, test: File) -> Form:
    """Files of the Hugging Face hub, in the folder of a version."""
    files = [File(f.name, f"{HUB}/{version}/{f.name}", f.sha256, f.size) for f in (*train, valid, test)]
    names = {"train.txt": [f.name for f in train], "valid.txt": [valid.name], "test.txt": [test.name]}
    return Form(tuple(files), parquet_reader(names))


ENWIK8 = Dataset(
    name="enwik8",
    title="enwik8, the first 100,000,000 bytes of a dump of the English Wikipedia of 2006",
    megabytes=36,
    licence="CC BY-SA 3.0 and GFDL",
    citation="Mahoney 2006, Large Text Compression Benchmark, mattmahoney.net/dc/textdata.html",
    parts=(File("enwik8", "", "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8", 100_000_000),),
    forms=(
        Form(
            (
                File(
                    "enwik8.zip",
                    "https://mattmahoney.net/dc/enwik8.zip",
                    "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                ),
            ),
            member_reader({"enwik8": "enwik8"}),
        ),
        Form(
            (
                File(
                    "mingru_pytorch-0.2.1.tar.gz",
                    "pypi:minGRU-pytorch==0.2.1",
                    "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
                ),
            ),
            member_reader({"enwik8": "mingru_pytorch-0.2.1/data/enwik8.gz"}),
        ),
        Form((File("enwik8"),), read_unchanged),
    ),
)

WIKITEXT2 = Dataset(
    name="wikitext-2",
    title="WikiText-2, words, with <unk> for rare ones",
    megabytes=4,
    licence="CC BY-SA 3.0",
    citation=MERITY,
    parts=(
        File("train.txt", size=10_797_148),  # no checksum: the local form has its articles in another order
        File("valid.txt", "", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 1_121_681),
        File("test.txt", "", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 1_256_449),
    ),
    forms=(
        _author(
            "wikitext-2-v1.zip",
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            _members("wikitext-2", "tokens"),
        ),
        _hub(
            "wikitext-2-v1",
            train=[File("train-00000-of-00001.parquet", size=6_068_114)],
            valid=File("validation-00000-of-00001.parquet", size=617_738),
            test=File("test-00000-of-00001.parquet", size=685_430),
        ),
        Form(
            (File("wikitext-2.tar.xz", "", "99fe54164c2057e466b75b7007603294e1f18cf474b83ec112006b8afd6752f8"),),
            _members("wikitext-2", "tokens"),
        ),
    ),
)

# The two raw versions share their validation and test texts.
RAW_VALID = File("valid.txt", "", "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7", 1_146_846)
RAW_TEST = File("test.txt", "", "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08", 1_290_590)
HUB_RAW_VALID = File(
    "validation-00000-of-00001.parquet", "", "204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c"
)
HUB_RAW_TEST = File(
    "test-00000-of-00001.parquet", "", "5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91"
)

WIKITEXT2_RAW = Dataset(
    name="wikitext-2-raw",
    title="WikiText-2, raw: every word as it is",
    megabytes=5,
    licence="CC BY-SA 3.0",
    citation=MERITY,
    parts=(
        File("train.txt", "", "6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57", 10_940_747),
        RAW_VALID,
        RAW_TEST,
    ),
    forms=(
        _author(
            "wikitext-2-raw-v1.zip",
            "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            _members("wikitext-2-raw", "raw"),
        ),
        _hub(
            "wikitext-2-raw-v1",
            train=[
                File(
                    "train-00000-of-00001.parquet",
                    "",
                    "e83889baabc497075506f91975be5fac0d45c5290b6b20582c8cd1e853d0c9f7",
                )
            ],
            valid=HUB_RAW_VALID,
            test=HUB_RAW_TEST,
        ),
    ),
)

WIKITEXT103_RAW = Dataset(
    name="wikitext-103-raw",
    title="WikiText-103, raw: every word as it is",
    megabytes=192,
    licence="CC BY-SA 3.0",
    citation=MERITY,
    parts=(File("train.txt"), RAW_VALID, RAW_TEST),
    forms=(
        _author(
            "wikitext-103-raw-v1.zip",
            "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            _members("wikitext-103-raw", "raw"),
        ),
        _hub(
            "wikitext-103-raw-v1",
            train=[
                File(
                    "train-00000-of-00002.parquet",
                    "",
                    "74da360f23826045b3e6ac6375411fdb15f003030aa74f2596ed08b857cb9212",
                ),
                File(
                    "train-00001-of-00002.parquet",
                    "",
                    "ba090ac30dbf5461e8dcbdd1a1b8e6f3cf9c2c756d64f0c1220450acd514f720",
                ),
            ],
            valid=HUB_RAW_VALID,
            test=HUB_RAW_TEST,
        ),
    ),
)
