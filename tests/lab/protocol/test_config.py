"""The config of a run: its content, its identity, and the mistakes that it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from aimopt.lab.protocol import study_files
from aimopt.lab.protocol.run_config import RunConfig

PLAIN = RunConfig.create("digits", "demo", optimizer="radar")


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"lr": 2e-3},
        {"steps": 100},
        {"optimizer": "AdamW"},
        {"options": {"gamma": 0.2}},
        {"settings": {"batch_size": 32}},
    ],
)
def test_whatever_changes_the_result_changes_the_identity(changes: dict[str, Any]) -> None:
    assert RunConfig.create("digits", "demo", **{"optimizer": "radar", **changes}).identity != PLAIN.identity


def test_stating_the_defaults_does_not_change_the_identity() -> None:
    explicit = RunConfig.create(
        "digits", "demo", optimizer="RADAR", lr=1e-2, options={"gamma": 0.1, "betas": (0.9, 0.999)}
    )
    assert explicit.identity == PLAIN.identity


def test_a_config_is_complete() -> None:
    """It has the settings of the task, its weight decay, and the defaults of the optimizer, which may change later."""
    assert PLAIN.optimizer == "RADAR"
    assert PLAIN.settings["batch_size"] == 64
    assert PLAIN.options["weight_decay"] == PLAIN.settings["weight_decay"] == 5e-5  # the setting: see former_settings
    assert PLAIN.options["ell_ratio"] == 0.01
    assert PLAIN.steps == PLAIN.settings["steps"]


@pytest.mark.parametrize(("optimizer", "lr"), [("Adan", 2.5e-2), ("Lion", 1e-3), ("NAdam", 1e-2)])
def test_the_usual_rate_is_the_papers(optimizer: str, lr: float) -> None:
    assert RunConfig.create("digits", "demo", optimizer=optimizer).lr == pytest.approx(lr)


@pytest.mark.parametrize("ending", [".toml", ".json"])
def test_a_config_survives_a_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{ending}"
    if ending == ".toml":
        study_files.save(path, PLAIN.to_dict())
    else:
        path.write_text(json.dumps(PLAIN.to_dict()))
    assert RunConfig.from_dict(study_files.read(path)) == PLAIN
    assert RunConfig.from_dict(study_files.read(path)).identity == PLAIN.identity


def test_a_users_file_is_part_of_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\nclass Mine(torch.optim.SGD):\n    pass\n"
    Path("mine.py").write_text(code)
    first = RunConfig.create("digits", "demo", optimizer="mine.py:Mine")
    Path("mine.py").write_text(code + "# changed\n")
    assert RunConfig.create("digits", "demo", optimizer="mine.py:Mine").identity != first.identity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "learning rate must be a positive number, got 0.0"),
        ({"steps": 0}, "steps must be from 1 to 140"),
        ({"optimizer": "RADRA"}, "did you mean 'RADAR'"),
        ({"optimizer": "torch.optim:Adamw"}, "torch.optim has no 'Adamw'"),
        ({"optimizer": "nothing.missing:X"}, "no module 'nothing'"),
        ({"optimizer": "nothing.py:X"}, "no file 'nothing.py'"),
        ({"options": {"gama": 1}}, "RADAR has no option 'gama'; did you mean 'gamma'"),
        ({"settings": {"batchsize": 1}}, "Digits has no setting 'batchsize'"),
        ({"scale": "large"}, "no scale 'large'; known are demo, mini"),
        ({"task": "digit"}, "did you mean 'digits'"),
        ({"task": "collections:OrderedDict"}, "is not a task; derive the class from"),
    ],
)
def test_a_mistake_is_explained(changes: dict[str, Any], message: str) -> None:
    arguments = {"task": "digits", "scale": "demo", "optimizer": "RADAR", **changes}
    with pytest.raises(ValueError, match=message):
        RunConfig.create(arguments.pop("task"), arguments.pop("scale"), **arguments)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = ", "not valid toml"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "a.yaml is YAML.*; write it as TOML"),
        ("a.yml", "lr: 1", "a.yml is YAML.*; write it as TOML"),
        ("a.json", "[1]", "must hold names and values"),
        ("a.txt", "", "must end in .toml to be read, or in .json"),
    ],
)
def test_a_bad_file_is_explained(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        study_files.read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a"])
def test_only_toml_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.toml"):
        study_files.save(tmp_path / name, PLAIN.to_dict())
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_missing_or_unknown_field_is_refused() -> None:
    fields = PLAIN.to_dict()
    with pytest.raises(ValueError, match="has no 'colour'"):
        RunConfig.from_dict({**fields, "colour": 1})
    del fields["seed"]
    with pytest.raises(ValueError, match="lacks 'seed'"):
        RunConfig.from_dict(fields)
