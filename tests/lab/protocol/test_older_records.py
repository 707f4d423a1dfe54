"""Studies that older versions wrote are read with what those versions took for granted."""

import json
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab import PublishedTable, Store, Study, sensitivity
from short_studies import short_study

RESULTS = {"RADAR": (0.5, 0.1), "AdamW": (0.6, 0.2)}


def third_version(study: Study) -> dict[str, Any]:
    """The record that the third version wrote: published results without a source, and no symbols."""
    record = json.loads(json.dumps(study.to_record()))
    del record["symbols"]
    return {**record, "published": {label: list(pair) for label, pair in RESULTS.items()}}


def second_version(study: Study) -> dict[str, Any]:
    """The record that the second version wrote: search length and published results are facts."""
    record = third_version(study)
    facts, published = record["facts"], record.pop("published")
    facts["settings"]["search_steps"] = record.pop("search_steps")
    facts["published"] = {**published, "Lion": [0.7, 0.1]}
    return record


@pytest.mark.parametrize("write", [third_version, second_version])
def test_published_results_of_older_versions_are_those_of_the_paper(write: Any) -> None:
    study = short_study(published=PublishedTable(source="the paper", scale="paper", results=RESULTS))
    assert Study.from_record(write(study)) == study


def test_an_older_study_without_published_results_has_none() -> None:
    study = short_study()
    assert Study.from_record({**third_version(study), "published": {}}) == study
    assert study.published is None


def test_published_results_keep_their_source_and_scale() -> None:
    study = short_study(published=PublishedTable(source="the manual", scale="full", results=RESULTS))
    assert Study.from_record(json.loads(json.dumps(study.to_record()))) == study
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study


def test_a_study_that_is_saved_again_keeps_the_file_of_an_older_version(tmp_path: Path) -> None:
    study = short_study(published=PublishedTable(source="the paper", scale="paper", results=RESULTS))
    file = tmp_path / "studies" / "older.json"
    file.parent.mkdir()
    file.write_text(json.dumps(third_version(study)))
    store = Store(tmp_path)
    assert store.save_study(study).stored_as == "older"
    assert store.set_aside_reasons() == store.unreadable == {}


def test_axes_of_older_studies_have_the_symbols_of_the_paper() -> None:
    study = sensitivity("digits", "demo", {"gamma": (0.0, 0.1), "weight_decay": (0.0, 0.1)})
    record = third_version(study)
    assert study.symbols == {"gamma": "γ"}
    assert Study.from_record({**record, "published": {}}) == study
