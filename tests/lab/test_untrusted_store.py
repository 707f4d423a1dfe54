"""A store is data: reading it loads no code that it names, until somebody says that they trust it."""

import json
from pathlib import Path

import pytest

from aimopt.cli import main
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.protocol import study_files
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results import json_files
from aimopt.lab.results.store import Store
from aimopt.lab.stats.tuning import Point
from engine_runs import OWN
from short_studies import short_run
from written_stores import written_run

SPY = 'open("loaded", "a").close()\n'


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a study of a user's task and optimizer; their file would say if it was loaded again."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    study = compare("own.py:Points", optimizers=["own.py:Slow", "AdamW"], grid=(1.0,), seeds=(0, 1))
    store = Store("results")
    store.save_study(study)
    for cell in study.cells({}):
        written_run(store, cell.config)
    Path("own.py").write_text(SPY + OWN)
    return store


def strip_facts(store: Store) -> Path:
    """As an older version would have kept the study."""
    (path,) = (store.root / "studies").glob("*.json")
    kept = json_files.parse_checked(path.read_bytes())
    path.write_text(json.dumps({name: value for name, value in kept.items() if name != "facts"}))
    return path


def test_status_and_report_load_nothing(sent: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "compare of own.py:Points at scale mini: 4 finished\n"
    assert main(["report"]) == 0
    assert "Points of three clouds" in (sent.root / "report" / "report.md").read_text()
    assert not Path("loaded").exists()
    Path("own.py").unlink()
    assert main(["status"]) == 0
    assert "4 finished" in capsys.readouterr().out


def test_an_older_study_is_only_loaded_with_trust(sent: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = strip_facts(sent)
    wanted = f"cannot read studies/{path.name}: it needs the code of own.py:Points, own.py:Slow; if you have read and"
    assert main(["status"]) == 0
    assert wanted in capsys.readouterr().out
    assert main(["report"]) == 0
    assert wanted in capsys.readouterr().err
    assert not Path("loaded").exists()
    assert main(["status", "--trust"]) == 0
    assert "compare of own.py:Points at scale mini: 4 missing" in capsys.readouterr().out  # its code has changed
    assert Path("loaded").exists()


def test_a_module_that_a_study_names_is_not_imported(sent: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    Path("named_module.py").write_text(SPY + OWN)
    path = strip_facts(sent)
    path.write_text(path.read_text().replace("own.py:Points", "named_module:Points"))
    assert main(["status"]) == 0
    assert not Path("loaded").exists()


def test_a_study_of_the_packages_own_tasks_needs_no_trust(store: Store) -> None:
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"])
    store.save_study(study)
    strip_facts(store)
    (read,) = store.studies()
    assert read == study
    assert read.facts == study.facts


def test_the_stored_facts_are_those_of_the_code(store: Store) -> None:
    study = compare("digits", "demo", optimizers=["RADAR", "Adan(weight_decay=0.1)"])
    store.save_study(study)
    (read,) = store.studies()
    assert read.stored_facts == study.facts
    assert read.cells({}) == study.cells({})
    contender = study.contenders[1]
    config = RunConfig.create("digits", "demo", optimizer="Adan", options={"weight_decay": 0.1}, seed=3)
    assert study.run_config(contender, Point(study.usual_rate(contender)), 3) == config
    assert store.study_file(read) == store.study_file(study)


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_study_in_a_file_is_only_run_with_trust(sent: Store, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "own.py:Points", "--over=eps=1e-8", "--optimizer=own.py:Slow", "--save=s.toml"]) == 0
    Path("s.json").write_text(json.dumps(study_files.read(Path("s.toml"))))
    Path("loaded").unlink()
    Path("own.py").write_text("# not yet loaded\n" + SPY + OWN)
    assert main(["sweep", f"s.{ending}"]) == 2
    assert f"aimopt sweep: s.{ending}: it needs the code of own.py:Points, own.py:Slow" in capsys.readouterr().err
    assert not Path("loaded").exists()
    assert main(["sweep", f"s.{ending}", "--trust", "--save=again.toml"]) == 0
    assert Path("loaded").exists()


def test_a_run_in_a_file_is_only_trained_with_trust(sent: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", "--optimizer=own.py:Slow", "--save=run.toml"]) == 0
    Path("loaded").unlink()
    Path("own.py").write_text("# not yet loaded\n" + SPY + OWN)
    assert main(["run", "run.toml"]) == 2
    assert "aimopt run: run.toml: it needs the code of own.py:Slow" in capsys.readouterr().err
    assert not Path("loaded").exists()
    assert main(["run", "run.toml", "--trust", "--save=again.toml"]) == 0
    assert Path("loaded").exists()


def test_a_study_of_a_store_can_be_carried_out(sent: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (sent.root / "studies").glob("*.json")
    assert main(["sweep", str(path), "--trust", "--save=again.toml"]) == 0
    path.write_text(path.read_text().replace('"compare"', '"compare2"'))
    assert main(["sweep", str(path), "--trust", "--save=again.toml"]) == 2
    assert "has changed since it was written; if you edited it, delete the field sha256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.toml", 'axes = [3]\nname = "x"', "s.toml: a study lacks 'task'"),
        ("s.json", "[" * 100_000, "s.json is not valid json: it is nested too deeply"),
        ("s.yaml", "&a [*a]", "s.yaml is YAML, which is not supported; write it as TOML"),
        ("s.toml", "x = " + "[" * 5_000, "s.toml is n"),
        ("s.toml", b"\xff\xfe", "s.toml is not valid toml"),
    ],
)
def test_a_wrong_file_gives_an_error_of_one_sentence(
    name: str, content: str | bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["sweep", name]) == 2
    assert message in capsys.readouterr().err


def test_a_link_in_the_place_of_a_run_leads_nobody_out_of_the_store(store: Store, tmp_path: Path) -> None:
    """Its target looks like a damaged run, whose files would be set aside."""
    config, project = short_run(), tmp_path / "project"
    project.mkdir()
    for name in ("manifest.json", "notes.txt", ".draft.0123abcd"):
        (project / name).write_text("of the user")
    folder = store.folder(config)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(project)
    outcome, reason = run_job(store.root, config.to_dict())
    assert outcome == "failed"
    assert f"{folder} cannot be used: it is a symbolic link" in reason
    assert {path.name for path in project.iterdir()} == {"manifest.json", "notes.txt", ".draft.0123abcd"}


def test_a_link_in_the_place_of_a_tasks_folder_leads_nobody_out_of_the_store(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs are not read, and no run is trained at its target."""
    config, elsewhere = short_run(), Store(tmp_path / "elsewhere")
    written_run(elsewhere, config)
    group = store.folder(config).parent
    store.root.mkdir()
    group.symlink_to(elsewhere.folder(config).parent)
    assert store.runs() == {}
    assert "it is a symbolic link" in store.unreadable[group.name]
    assert main(["status", str(store.root)]) == 0
    assert f"cannot read {group.name}: it is a symbolic link; put the folder itself here" in capsys.readouterr().out
    before = sorted(elsewhere.root.rglob("*"))
    new = short_run(seed=5)
    outcome, reason = run_job(store.root, new.to_dict())
    assert outcome == "failed"
    assert f"{group} cannot be used: it is a symbolic link" in reason
    assert sorted(elsewhere.root.rglob("*")) == before


def test_a_link_in_the_place_of_a_run_is_not_read(store: Store, tmp_path: Path) -> None:
    config, elsewhere = short_run(), Store(tmp_path / "elsewhere")
    written_run(elsewhere, config)
    folder = store.folder(config)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(elsewhere.folder(config))
    assert store.runs() == {}
    assert "it is a symbolic link" in store.unreadable[f"{folder.parent.name}/{folder.name}"]
