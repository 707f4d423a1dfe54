"""Studies that older versions wrote are read with what those versions took for granted.

The files in tests/data/second_version are studies that the second version wrote; the archive in docs/results is a store
of the first one, and `tests/lab/test_results.py` reads it.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab import PublishedTable, Store, Study, compare, same_options
from aimopt.paper.presets import ablation, heatmap
from aimopt.paper.protocols import PROTOCOL
from short_studies import short_study

FILES = Path(__file__).parents[2] / "data" / "second_version"
# The protocol of the demonstration in that version.
FIRST = replace(PROTOCOL, options=same_options(weight_decay=5e-5), search_steps=140)
RESULTS = {"RADAR": (0.5, 0.1), "AdamW": (0.6, 0.2)}


def read(name: str) -> dict[str, Any]:
    record = json.loads((FILES / f"{name}.json").read_text())
    del record["sha256"]  # the store checks and removes it
    return record


@pytest.mark.parametrize(
    ("name", "today"),
    [
        ("order", lambda: compare("digits", "demo", optimizers=["Lion", "RADAR", "AdamW"], protocol=FIRST)),
        ("digits_abl", lambda: ablation("digits", "demo", protocol=FIRST)),
        ("digits_sens", lambda: heatmap("digits", "demo", protocol=FIRST)),
    ],
)
def test_a_study_of_the_second_version_is_that_of_today(name: str, today: Any, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    shutil.copy(FILES / f"{name}.json", tmp_path / "studies")
    store, study = Store(tmp_path), today()
    (stored,) = store.studies()
    assert stored == study
    assert stored.headline_contender == study.headline_contender
    assert {cell.config.identity for cell in stored.cells({})} == {cell.config.identity for cell in study.cells({})}
    assert store.save_study(study).stored_as == name  # no second file, and the costs that belong to this one
    assert store.set_aside_reasons() == store.unreadable == {}


def test_the_subject_of_an_older_comparison_is_that_of_the_protocol() -> None:
    assert Study.from_record(read("order")).headline_contender == "RADAR"  # not Lion, although it is first


@pytest.mark.parametrize(
    ("name", "identity"), [("order", "9f6033a1a344"), ("digits_wd", "9d50a2d17f4b"), ("qwen_set", "3ab17eb4f6c7")]
)
def test_runs_of_the_second_version_are_found(name: str, identity: str) -> None:
    study = Study.from_record(read(name))
    assert any(cell.config.identity.startswith(identity) for cell in study.cells({}))


def test_a_setting_that_is_no_option_is_refused_where_runs_would_be_made() -> None:
    definition = {name: value for name, value in read("qwen_set").items() if name != "facts"}
    with pytest.raises(ValueError, match=r"beta2=0.9 was a setting of fineweb-qwen in an older version.*leave it out"):
        Study.from_dict(definition)
    definition["settings"]["beta2"] = 0.95  # what the protocol gives
    definition["scale"] = "mini-1"  # as the miniatures of that version are called today
    study = Study.from_dict(definition)
    assert [contender.options["betas"][-1] for contender in study.contenders] == [0.95, 0.95, 0.95]
    assert study.contender("RADAR").options["gamma"] == 0.05


def test_an_older_study_of_code_that_is_not_loaded_is_read_from_its_facts() -> None:
    record = read("order")
    record["task"] = "file.py:Digits"
    study = Study.from_record(record)
    assert study.headline_contender == "Lion"
    assert study.search_steps == 140
    record["task"] = "not-installed"
    assert Study.from_record(record).facts.title == "Digits, ViT (18k)"


def test_published_results_keep_their_source_and_scale() -> None:
    study = short_study(published=PublishedTable(source="the manual", scale="full", results=RESULTS))
    assert Study.from_record(json.loads(json.dumps(study.to_record()))) == study
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study
