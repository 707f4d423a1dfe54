"""All datasets by name; each is declared in the module that reads it.

    print(table())                             # one line per dataset
    print(CATALOGUE["cifar10"].description())  # one dataset, with its sources, files and checksums

Every checksum is published, or was computed from data that matched their published checksum. A file without a checksum
comes from a fixed revision, and its size is checked if it is known.
"""

from aimopt.messages.text_table import text_table
from aimopt.paper.data import documents, images, models, text

CATALOGUE = {
    dataset.name: dataset
    for dataset in (
        images.CIFAR10,
        images.CIFAR100,
        text.ENWIK8,
        text.WIKITEXT2,
        text.WIKITEXT2_RAW,
        text.WIKITEXT103_RAW,
        documents.FINEWEB,
        models.GPT2,
        models.STORIES15M,
        models.GPT2_TOKENIZER,
        models.QWEN_TOKENIZER,
    )
}


def table() -> str:
    """One row per dataset: name, size, sources besides AIMOPT_DATA, licence and title."""
    rows = [("name", "MB", "sources", "licence", "title")]
    for dataset in CATALOGUE.values():
        origins = [form.files[0].origin for form in dataset.forms if form.fetchable]
        sources = [origin.split("/")[2] if "//" in origin else origin for origin in origins]
        rows.append((dataset.name, f"{dataset.megabytes:,}", ", ".join(sources), dataset.licence, dataset.title))
    return text_table(rows)
