"""All datasets of the lab by name; each is declared beside what reads it.

    print(table())                             # a line each
    print(CATALOGUE["cifar10"].described())    # one, with its sources, files and checksums

Every checksum is either published, or was taken here from data whose published checksum held. A file without one
comes from a fixed revision, and its size is checked if that is known.
"""

from aimopt.bench.timing import aligned
from aimopt.lab.data import documents, images, models, text

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
    """The datasets, a line each: name, size, where they can be had besides AIMOPT_DATA, terms, and what they are."""
    rows = [("name", "MB", "sources", "licence", "what")]
    for dataset in CATALOGUE.values():
        origins = [form.files[0].origin for form in dataset.forms if form.fetchable]
        places = [origin.split("/")[2] if "//" in origin else origin for origin in origins]
        rows.append((dataset.name, f"{dataset.megabytes:,}", ", ".join(places), dataset.licence, dataset.title))
    return aligned(rows)
