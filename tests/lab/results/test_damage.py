"""Whatever becomes of a file of a store: a sentence with its name, and the rest goes on."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aimopt.cli import main
from aimopt.lab import api
from aimopt.lab.api import analyse_all
from aimopt.lab.protocol.protocol import Protocol
from aimopt.lab.protocol.recipes import compare, sensitivity
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.report.formats.csv_text import csv_text
from aimopt.lab.results import json_files
from aimopt.lab.results.store import Store
from written_stores import written_store

RUN_FILES = ("manifest.json", "result.json", "metrics.jsonl")
KINDS = (*RUN_FILES, "study", "overhead", "reason.txt", "claim.1")
# In the place of any value of a file.
WRONG: tuple[Any, ...] = (
    None,
    True,
    3,
    -1,
    0.5,
    10**400,
    1e308,
    "",
    "x" * 300,
    "\ud800",
    [],
    {},
    [3],
    {"a": 1},
    [[[]]],
    {"": None},
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("original") / "results"
    store, _ = written_store(root)
    folder = store.folder(next(iter(store.runs().values())).config)
    (folder / "claim.1").write_text(json.dumps({"token": "t", "host": "another machine", "pid": 1}))
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "results"))


def file_of(kind: str, root: Path) -> Path:
    patterns = {"study": "studies/*.json", "overhead": "studies/*.overhead.json", "claim.1": "*/*/claim.1"}
    found = sorted(root.glob(patterns.get(kind, f"*/*/{kind}")))
    return next(path for path in found if not path.name.endswith(".overhead.json") or kind == "overhead")


def read_all(root: Path) -> Store:
    """Read whatever there is, and draw every conclusion from it."""
    store = Store(root)
    csv_text([one.analysis for one in analyse_all(store.studies(), store)])
    store.set_aside_reasons()
    for run in store.runs().values():
        store.is_claimed(run.config)
    return store


def assert_other_files_are_read(store: Store, kind: str, count: int) -> None:
    """A damaged file costs its own run or study alone."""
    assert len(store.runs()) >= count - (kind in RUN_FILES)
    assert len(store.studies()) >= 1 - (kind == "study")


def paths_of_values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are values in a document, itself included."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_of_values(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def write_with_checksum(path: Path, value: Any) -> None:
    """Write what is wrong as if it were right: checksums fit."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in value) if isinstance(value, list) else "3\n")
        result = json_files.parse_checked((path.parent / "result.json").read_bytes())
        result["metrics"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (path.parent / "result.json").write_bytes(json_files.with_checksum(result))
    elif isinstance(value, dict) and value:
        path.write_bytes(json_files.with_checksum(value))
    else:
        path.write_text(json.dumps(value))


def documents(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json_files.parse_checked(path.read_bytes())


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_and_truncations(kind: str, root: Path) -> None:
    path, count = file_of(kind, root), len(Store(root).runs())
    content, draw = path.read_bytes(), random.Random(kind)
    for attempt in range(40):
        changed = bytearray(content)
        if attempt % 3:
            changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        else:
            del changed[draw.randrange(len(content)) :]
        path.write_bytes(changed)
        store = read_all(root)
        assert_other_files_are_read(store, kind, count)
        if kind not in ("reason.txt", "claim.1"):  # they are free text, and a sign of life
            assert path.relative_to(root).as_posix() in store.unreadable


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reason.txt"])
def test_wrong_types_with_a_right_checksum(kind: str, root: Path) -> None:
    path, count = file_of(kind, root), len(Store(root).runs())
    document, draw = documents(path), random.Random(kind)
    every = [(place, wrong) for place in paths_of_values(document) for wrong in WRONG]
    for place, wrong in draw.sample(every, min(50, len(every))):
        write_with_checksum(path, replaced(document, place, wrong))
        assert_other_files_are_read(read_all(root), kind, count)


@pytest.mark.parametrize("kind", KINDS)
def test_100_000_nested_levels(kind: str, root: Path) -> None:
    path, count = file_of(kind, root), len(Store(root).runs())
    for opening in (b"[", b'{"a":', b'{"config": ['):
        path.write_bytes(opening * 100_000)
        assert_other_files_are_read(read_all(root), kind, count)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("manifest.json", {"sessions": None}, "sessions of a manifest must be a list, got None"),
        ("result.json", {"facts": None}, "facts of a result must be names and values, got None"),
        ("study", {"axes": [3]}, "item 1 of axes of a study must be a text, got 3"),
        ("study", {"name": 3}, "name of a study must be a text, got 3"),
        ("study", {"grid": [-1.0, 1.0]}, "grid must be positive numbers"),
        ("overhead", {"reference": "another"}, "it was measured for another study"),
    ],
)
def test_status_and_report_name_the_damaged_file_and_continue(
    kind: str, change: dict[str, Any], reason: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(kind, root)
    write_with_checksum(path, {**documents(path), **change})
    name = path.relative_to(root).as_posix()
    if kind != "overhead":  # which only a report reads
        assert main(["status", str(root)]) == 0
        said = capsys.readouterr().out
        assert f"cannot read {name}: " in said
        assert reason in said
    store = read_all(root)
    assert reason in store.unreadable[name]


def test_a_report_is_written_despite_damaged_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("metrics.jsonl", "overhead"):
        path = file_of(kind, root)
        path.write_bytes(path.read_bytes()[:-9])
    assert main(["report", str(root)]) == 0
    assert "RADAR" in (root / "report" / "results.csv").read_text()
    said = capsys.readouterr().err
    assert f"cannot read {file_of('metrics.jsonl', root).relative_to(root)}: it is not the one" in said
    assert "overhead.json: its checksum is wrong" in said or "overhead.json: it is not valid JSON" in said


def test_costs_that_cannot_be_read_are_set_aside_and_measured_again(root: Path) -> None:
    store = Store(root)
    (study,) = store.studies()
    costs, path = store.overhead(study), file_of("overhead", root)
    assert costs is not None
    path.write_bytes(path.read_bytes().replace(b"0.9", b"0.8"))
    assert store.overhead(study) is None
    store.save_overhead(study, costs)
    assert store.overhead(study) == costs
    assert any("checksum is wrong" in reason for reason in store.set_aside_reasons().values())


@pytest.mark.parametrize("name", RUN_FILES)
def test_reading_does_not_block_on_a_pipe(name: str, root: Path) -> None:
    path = file_of(name, root)
    path.unlink()
    os.mkfifo(path)
    assert path.relative_to(root).as_posix() in read_all(root).unreadable


def test_a_checkpoint_that_is_a_pipe_is_discarded(root: Path) -> None:
    store = Store(root)
    config = next(run.config for run in store.runs().values() if store.holder(run.config) is None)
    os.mkfifo(store.folder(config) / "checkpoint.pt")
    writer = store.claim_run(config)
    assert writer is not None
    assert writer.read_checkpoint() is None
    assert "it is not a regular file" in writer.notes()[0]
    writer.release()


@pytest.mark.parametrize("kind", [*RUN_FILES, "study"])
def test_a_file_that_claims_to_be_larger_than_the_memory_is_not_read(kind: str, root: Path) -> None:
    path, count = file_of(kind, root), len(Store(root).runs())
    os.truncate(path, 1 << 40)  # it takes no space on the disk
    store = read_all(root)
    assert_other_files_are_read(store, kind, count)
    assert store.unreadable[path.relative_to(root).as_posix()].startswith("it has 1,099,511,627,776 bytes")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seeds": list(range(2000, 22_000))}, "seeds has 20000 numbers, and may have 10000 at most"),
        ({"search": {"points": 10**12, "seeds": [9]}}, "a search may have 10000 points and tuning seeds at most"),
    ],
)
def test_a_study_of_endless_runs_is_not_read(change: dict[str, Any], reason: str, root: Path) -> None:
    path = file_of("study", root)
    write_with_checksum(path, {**documents(path), **change})
    assert reason in read_all(root).unreadable[path.relative_to(root).as_posix()]


TUNED = compare("digits", "demo", optimizers=["RADAR", "AdamW(tune='weight_decay')"], protocol=Protocol().sequential())
VARIED = sensitivity("digits", "demo", {"gamma": (0.0, 0.1), "delta": (0.9, 1.1)})


@pytest.mark.parametrize(
    ("study", "contender", "change", "reason"),
    [
        (TUNED, "AdamW(tune='weight_decay')", {"options": {"weight_decay": "x"}}, "it has no weight decay here"),
        (TUNED, "AdamW(tune='weight_decay')", {"options": {"weight_decay": [1]}}, "it has no weight decay here"),
        (TUNED, "RADAR", {"usual_rate": 1e308}, "of RADAR is not a positive number; change lr or grid"),
        (TUNED, "RADAR", {"usual_rate": 1e-322}, "of RADAR is not a positive number; change lr or grid"),
        (VARIED, "gamma=0, delta=0.9", {"options": {"gamma": {}}}, "gamma of gamma=0, delta=0.9 cannot be an axis"),
        (VARIED, "gamma=0, delta=0.9", {"options": {"delta": [{}]}}, "delta of gamma=0, delta=0.9 cannot be an axis"),
    ],
)
def test_facts_of_which_no_runs_follow(
    study: Study, contender: str, change: dict[str, Any], reason: str, root: Path
) -> None:
    record = json.loads(json.dumps(study.to_record()))
    record["facts"]["contenders"][contender] |= change
    write_with_checksum(root / "studies" / "sent.json", record)
    api.status(store := read_all(root))
    assert reason in store.unreadable["studies/sent.json"]
    assert len(store.studies()) == 1


def test_lists_of_lists_are_values_of_an_axis(root: Path) -> None:
    record = json.loads(json.dumps(VARIED.to_record()))
    record["facts"]["contenders"]["gamma=0, delta=0.9"]["options"]["gamma"] = [[1], [2]]
    write_with_checksum(root / "studies" / "sent.json", record)
    assert len(read_all(root).studies()) == 2


def test_a_run_without_a_step_is_not_read(root: Path) -> None:
    """The report would take it for the reference at another length."""
    store = Store(root)
    (study,) = store.studies()
    finals = [cell.config for cell in study.cells(store.runs()) if cell.role == "final"]
    config = next(config for config in finals if config.optimizer == study.reference)
    empty = dataclasses.replace(config, steps=0, settings={**config.settings, "steps": 0, "warmup_steps": 1})
    folder = Path(shutil.copytree(store.folder(config), store.folder(empty)))
    write_with_checksum(folder / "manifest.json", {"config": empty.to_dict(), "sessions": []})
    write_with_checksum(folder / "metrics.jsonl", [{"step": 0, "test_loss": 1.0}])
    assert "steps of config of a manifest must be a whole number from 1, got 0" in str(read_all(root).unreadable)


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, None])
def test_a_setting_that_should_be_a_number(value: Any, root: Path) -> None:
    """The runs fit to the study, which has a text or a list for the length of its warm-up."""
    study = file_of("study", root)
    document = documents(study)
    document["facts"]["settings"]["warmup_steps"] = value
    write_with_checksum(study, document)
    for path in sorted(root.glob("digits-demo/*/manifest.json")):
        manifest = documents(path)
        manifest["config"]["settings"]["warmup_steps"] = value
        write_with_checksum(path, manifest)
        identity = RunConfig.from_dict(manifest["config"]).identity
        path.parent.rename(path.parent.with_name(f"{path.parent.name[:-12]}{identity[:12]}"))
    store = read_all(root)
    assert store.unreadable == {}
    assert len(store.studies()) == 1


def test_numbers_whose_sums_are_infinite_are_not_read(root: Path) -> None:
    path = file_of("metrics.jsonl", root)
    write_with_checksum(path, [{**record, "test_loss": 1e308} for record in documents(path)])
    reason = read_all(root).unreadable[path.relative_to(root).as_posix()]
    assert reason.startswith("record 1 must be a step and numbers up to 1e+300, got")


def test_files_without_a_checksum_are_read_as_before(root: Path) -> None:
    before = read_all(root).runs()
    for path in root.glob("**/*.json"):
        path.write_text(json.dumps(json_files.parse_checked(path.read_bytes())))
    store = read_all(root)
    assert store.runs() == before
    assert store.unreadable == {}


def test_a_changed_result_is_noticed(root: Path) -> None:
    path = file_of("result.json", root)
    path.write_text(path.read_text().replace('"finished"', '"diverged"'))
    assert "its checksum is wrong" in read_all(root).unreadable[path.relative_to(root).as_posix()]


def test_only_the_selected_runs_are_read_in_full(root: Path) -> None:
    store = Store(root)
    whole = store.runs()
    chosen = next(iter(whole))
    short = store.runs(in_full={chosen})
    assert short[chosen] == whole[chosen]
    assert {identity: run.status for identity, run in short.items()} == {i: run.status for i, run in whole.items()}
    assert [identity for identity, run in short.items() if run.history] == [chosen]
