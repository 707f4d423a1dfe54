"""FineWeb-Edu's sample of ten billion tokens: documents, each file downloaded when it is reached."""

from collections.abc import Iterator

from aimopt.paper.data.dataset import Dataset, File, Form, read_unchanged
from aimopt.paper.data.extras import import_language_module
from aimopt.paper.data.sources import obtain_file

DOCUMENTS_PER_BATCH = 1024
HUB = "https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu/resolve/87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
CHECKSUMS = (
    "b1ba7b2ce4cb5ea6ef42dca40263eabb85f37700d01693a68e9b30a31d78e871",
    "3fcf2dc69cd52503986276d3d2d26a8c356d0f2ea28a0de4fdbda8cf87755693",
    "547ae182d132c9f06b6ce63149567208ea9f57630bfd9b1a2938e504f0c9ebd7",
    "22184e6eb25759ddd97783751ffc73e1705dfa2542e630dae1f2a8bac8ee6ddb",
    "33557ddd87a07a4ae6fcaf7a4789c7b484e5cc0c273ca12a65b74200e6d8748b",
    "e08d79927ecb377786572cd854817c748ceb8880878b1a0eb91abf8c85d505ea",
    "554fa2613c9261d6c9c396caab881de3160175794c6c3e1856bf28a0e9cb9b76",
    "4b7d1f697d4afff7f5f65cb7aa4d83acc6db716da4d46ea23399d0c50608c6e3",
    "a6d9dcc0c72ecd7c7f0173c2d06b3a4249a2ccaa94961469d1a522ca689bbf1a",
    "f836cd3c70b95776699eb6c356b2dbf702816e25dcf39992f5c80a29029d23c3",
    "e5a2eae25f057f0856a10bfae314c6ca8ea8bb08456d2131e9e89b2b8305e2f6",
    "db71cf0425bb3d1813a09f12ff1acd6dabdfb91a2e4f141960254ee5a7f036e7",
    "08b47a3e1c25161f796d2f8dbf99ccf60affdebdcea4910833d0d5783315551f",
    "b393f51fefab26cd6f4c8f65707c1924f6666c4961a0ebebe04bb57f7ec832de",
)

FILES = tuple(
    File(f"{i:03}_00000.parquet", f"{HUB}/sample/10BT/{i:03}_00000.parquet", sha256)
    for i, sha256 in enumerate(CHECKSUMS)
)
FINEWEB = Dataset(
    name="fineweb-edu",
    title="FineWeb-Edu, the sample of ten billion tokens, in files of 2 GB downloaded as they are used",
    megabytes=28_518,
    licence="ODC-By 1.0",
    citation="Penedo et al. 2024, The FineWeb Datasets, arXiv:2406.17557",
    parts=(),  # a study reads only the beginning
    forms=(Form(FILES, read_unchanged),),
)


def iterate(dataset: Dataset) -> Iterator[str]:
    """The documents in order; a file is downloaded when the previous one has been read."""
    (form,) = dataset.forms
    parquet = import_language_module("pyarrow.parquet")
    for file in form.files:
        with parquet.ParquetFile(obtain_file(dataset, file)) as content:
            for batch in content.iter_batches(DOCUMENTS_PER_BATCH, columns=["text"]):
                yield from batch["text"].to_pylist()
