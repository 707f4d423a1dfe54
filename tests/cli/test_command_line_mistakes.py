"""Wrong command lines: one sentence that says what was wrong and what to do, status 2, and never a traceback."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aimopt.cli import main
from aimopt.lab.protocol import study_files
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store

MINE = """
from dataclasses import dataclass, field
import torch
from aimopt.lab import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Line(Supervised):
    title = "A line"
    lr: float = 1e-2
    def data(self):
        raise KeyError("no data")
    def model(self):
        return torch.nn.Linear(1, 2)

@dataclass(frozen=True, kw_only=True)
class NoData(Supervised):
    title = "Without data"
    lr: float = 1e-2
    def model(self):
        return torch.nn.Linear(1, 2)

@dataclass(frozen=True, kw_only=True)
class NoRate(NoData):
    lr: float = field()
    def data(self):
        raise KeyError("no data")

class NoTitle(Line):
    title = None

@dataclass(frozen=True, kw_only=True)
class Leaves(Line):
    def __post_init__(self):
        raise SystemExit(0)

@dataclass(frozen=True, kw_only=True)
class Negative(Line):
    lr: float = -1.0

class Raises(torch.optim.SGD):
    def __init__(self, params, lr):
        raise RuntimeError("out of luck")

class NeedsMore(torch.optim.SGD):
    def __init__(self, params, lr, needed):
        super().__init__(params, lr)

def factory(params, lr):
    return torch.optim.SGD(params, lr)
"""
FILES = {
    "mine.py": MINE,
    "leaves.py": "import sys\nsys.exit(0)\n",
    "ends.py": "raise GeneratorExit\n",
    "broken.py": "class Task(:\n",
    "needy.py": "import nothere\n",
    "a_file": "",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)
    Path("a_folder.toml").mkdir()
    Path("store").mkdir()


def error_message(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The error message of a wrong command line."""
    try:
        status = main(shlex.split(line))
    except SystemExit as error:  # raised by argparse
        status = int(str(error.code))
    message = capsys.readouterr().err
    assert status == 2, line
    assert message.count("\n") == 1, message
    assert message.startswith("aimopt"), message
    assert not list(Path().glob("results/*")), "nothing is trained"
    return message


TASKS = {
    "digit": "no task is called 'digit'; did you mean 'digits'?",
    "''": "must not be empty, got ''",
    "'.:x'": "'.' is not a module name; write package.module:Name or file.py:Name",
    "os:system": "os:system is not a task; derive the class from",
    "mine.py:Lin": "mine.py has no 'Lin'; did you mean 'Line'?",
    "mine.py:NoData": "mine.py:NoData is not a complete task; define data in the class",
    "mine.py:NoRate": "NoRate has no 'lr' at scale 'mini'; give the field a default",
    "mine.py:NoTitle": "mine.py:NoTitle is not a complete task; give the class a title",
    "mine.py:Leaves": "Leaves cannot be made at scale 'mini': SystemExit: 0",
    "mine.py:Negative": "lr must be a number > 0, got -1.0",
    "leaves.py:Task": "leaves.py cannot be loaded: SystemExit: 0",
    "ends.py:Task": "ends.py cannot be loaded: GeneratorExit",
    "broken.py:Task": "broken.py cannot be loaded: SyntaxError",
    "needy.py:Task": "needy.py cannot be loaded: ModuleNotFoundError: No module named 'nothere'",
    "missing.py:Task": "there is no file 'missing.py'",
}


@pytest.mark.parametrize("command", ["compare", "run", "sweep --over=gamma=0,0.1", "overhead", "prepare"])
@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_task(command: str, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert TASKS[task] in error_message(f"{command} {task}", capsys)


OPTIMIZERS = {
    "Adamm": "no optimizer is called 'Adamm'; did you mean 'Adam'?",
    "''": "must not be empty, got ''",
    "'RADAR)'": "no optimizer is called 'RADAR)'; did you mean 'RADAR'?",
    "'RADAR(gamma=1, gamma=2)'": "cannot read the optimizer 'RADAR(gamma=1, gamma=2)'",
    "'RADAR(gamma=-1)'": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got -1",
    "'RADAR(gamma=\"a\")'": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got 'a'",
    "'RADAR(gama=1)'": "RADAR has no option 'gama'; did you mean 'gamma'?",
    "'RADAR(gamma={[]: 1})'": "cannot read the optimizer 'RADAR(gamma={[]: 1})'",
    f"'torch.optim:SGD(momentum={10**23})'": "momentum of the options of torch.optim:SGD must be made of finite",
    f"'AdamW(betas=(0.9, {10**23}))'": "betas of the options of AdamW must be made of finite numbers",
    "'torch.optim:SGD(momentum=-1, weight_decay=0)'": "cannot be made: ValueError: Invalid momentum value: -1",
    "'.:x'": "'.' is not a module name",
    "os:system": "os:system is not an optimizer; name a class that derives from torch.optim.Optimizer",
    "mine.py:factory": "mine.py:factory is not an optimizer",
    "mine.py:Raises": "mine.py:Raises cannot be made: RuntimeError: out of luck",
    "mine.py:NeedsMore": "mine.py:NeedsMore cannot be made: TypeError",
    "'Muon(rest=\"SOAP\")'": "Muon: rest='SOAP' takes only matrices, too; choose one such as AdamW",
    "'Muon(rest=\"torch.optim:SGD\")'": "Muon: rest must name an optimizer of this package, such as 'AdamW', got",
    "'Muon(rest=0.1)'": "Muon: rest must name an optimizer of this package, such as 'AdamW', got 0.1",
    "'Muon(rest=\"RADAR(gama=1)\")'": "RADAR has no option 'gama'; did you mean 'gamma'?",
    "'Muon(rest=\"RADAR(gamma={[]: 1})\")'": "cannot read the optimizer 'RADAR(gamma={[]: 1})'",
    "'Muon(rest_options=1)'": "Muon: rest_options must map names to values",
    "'Muon(rest_options={1: 2})'": "Muon: rest_options must map names to values, such as {'eps': 1e-8}, got {1: 2}",
    "'Muon(momentum=2, rest=\"RADAR\")'": "HeavyBall: momentum must be a number in [0, 1), got 2",
    "'Muon(gamma=1)'": "Muon has no option 'gamma'",
    "'AdamW(rest=\"RADAR\")'": "AdamW has no option 'rest'",
    "AIM": "AIM needs a filter; write AIM(filter='EMA(0.9)', geometry='Adaptive(0.999)')",
    '\'AIM(filter="EMA(2)", geometry="Sign")\'': "EMA: beta must be a number in [0, 1), got 2",
    '\'AIM(filter="EMA(x=2)", geometry="Sign")\'': "EMA got an unexpected keyword argument 'x'",
    '\'AIM(filter="EMA(__import__)", geometry="Sign")\'': "no filter is called '__import__'",
    '\'AIM(filter="[EMA]", geometry="Sign")\'': "cannot read the filter '[EMA]'",
    "'AIM(filter=0.9, geometry=\"Sign\")'": "AIM: filter must be the text of a part, such as 'EMA(0.9)', got 0.9",
    "leaves.py:Optimizer": "leaves.py cannot be loaded: SystemExit: 0",
}


@pytest.mark.parametrize(
    "command", ["compare digits --optimizers AdamW", "run digits --optimizer", "overhead digits --optimizers"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_wrong_optimizer(command: str, optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert OPTIMIZERS[optimizer] in error_message(f"{command} {optimizer}", capsys)


SETTINGS = {
    "''": "must be NAME=VALUE, for example gamma=0.1, got ''",
    "steps=": "must be NAME=VALUE",
    "steps=abc": "steps must be a value like 1400, got 'abc'",
    "steps=True": "steps must be a value like 1400, got True",
    "stesp=1": "Digits has no setting 'stesp'; did you mean 'steps'?",
    "lr=None": "lr must be a value like 0.01, got None",
    "lr=1e999": "lr must be a value like 0.01, got inf",
    "lr=0": "lr must be a number > 0, got 0",
    "clip=a": "clip must be float | None, for example None, got 'a'",
    "clip=-1": "clip must be a number > 0, got -1",
    "warmup_steps=-5": "warmup_steps must be a number ≥ 0, got -5",
    "precision=float8": "precision must be one of 'float32', 'bfloat16', 'float16', got 'float8'",
    "\"grid=('a','b')\"": "grid is not a setting of Digits: it belongs to the comparison",
    "\"seeds=('a',)\"": "seeds is not a setting of Digits: it belongs to the comparison; leave it out",
    f"steps={10**30}": "steps must be a value like 1400, got 1000",
    "search_steps=3": "search_steps is not a setting of Digits",
    "weight_decay=0.1": "weight_decay is not a setting of Digits: it belongs to the comparison",
    "steps=1400 --set=steps=1400": "steps is given twice, as 1400 and as 1400; give it once",
}


@pytest.mark.parametrize("command", ["compare digits", "run digits", "overhead digits"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting(command: str, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert SETTINGS[setting] in error_message(f"{command} --set {setting}", capsys)


OTHERS = {
    "compar digits": "invalid choice: 'compar'",
    "compare digits --optimisers RADAR": "unrecognized arguments: --optimisers RADAR; did you mean '--optimizers'?",
    "compare digits --optimizers RADAR 'RADAR()'": "two contenders are called 'RADAR'",
    "compare digits --optimizers RADAR --optimizers AdamW": "argument --optimizers: given twice",
    "compare digits --reference Lio": "no optimizer is called 'Lio'; did you mean 'Lion'?",
    "compare digits --optimizers RADAR AdamW --reference Lion": "'Lion' is not among the contenders RADAR, AdamW",
    "compare digits --scale ''": "argument --scale: must not be empty",
    "compare digits --scale min": "no scale 'min'; did you mean 'mini'?",
    "compare digits --seeds 0 1.5": "argument --seeds: must be a whole number from 0",
    "compare digits --seeds 0 --seeds 1": "argument --seeds: given twice",
    "compare digits --seeds 1001": "seed 1001 tunes the learning rate",
    "compare digits --protocol paper --seeds 5": "seed 5 tunes the learning rate",
    "compare digits --protocol other": "invalid choice: 'other'",
    "compare digits --tune lr": "invalid choice: 'lr'",
    "compare digits --optimizers AdamW 'RADAR(tune=5)'": "tune of RADAR(tune=5) must be 'beta1' or 'weight_decay'",
    "compare digits --optimizers AdamW 'RADAR(tune=(1,))'": "tune of RADAR(tune=(1,)) must be 'beta1' or 'weight",
    "compare digits --optimizers AdamW 'RADAR(tune=None)'": "tune of RADAR(tune=None) must be 'beta1' or 'weight",
    "compare digits --reference 'RADAR(tune=5)'": "tune of RADAR(tune=5) must be 'beta1' or 'weight_decay'",
    "compare digits --set 'steps={[]: 1}'": "steps must be a value like 1400, got '{[]: 1}'",
    f"compare digits --set steps={'-' * 20000}1": "steps must be a value like 1400, got '-----",
    "compare digits --lengths 0.5 1e308": "lengths() cannot make schedules 1e+308 times as long; give a factor",
    "compare digits --lengths 0.5 nan": "argument --lengths: must be a finite number > 0, got 'nan'",
    "compare digits --slurm partition=gpu": "the options of Slurm (partition) are for the engine slurm, not for local",
    "explore digits --rungs 3 1": "the numbers of seeds per rung must grow from at least 1, got (3, 1)",
    "explore digits --rates 1 1": "rates must be one or more different numbers, got (1.0, 1.0)",
    "explore digits --rungs 1 1000000000": "a rung may have 10000 seeds at most, got 1000000000",
    "compare digits --protocol paper --tune beta1": "tunes options, which the search on a grid cannot",
    "compare digits --grid 1 nan": "argument --grid: must be a finite number > 0, got 'nan'",
    "compare digits --workers 999999999999": "argument --workers: must be a whole number from 1 to 4096",
    "compare digits --gpus -1": "argument --gpus: must be a finite number ≥ 0, got '-1'",
    "compare digits --checkpoint-seconds inf": "argument --checkpoint-seconds: must be a finite number ≥ 0",
    "compare digits --devices cuda:7": "there is no device 'cuda:7' here",
    "compare digits --devices meta": "there is no device 'meta' here",
    "overhead digits --device nothing": "there is no device 'nothing' here",
    "compare digits --store ''": "argument --store: must not be empty",
    "compare digits --store a_file/x": "a_file' is a file, but a folder is needed",
    "compare digits --report a_file": "'a_file' is a file, but a folder is needed",
    "run digits --lr 0": "argument --lr: must be a finite number > 0, got '0'",
    "run digits --seed -1": "argument --seed: must be a whole number from 0",
    "run digits --steps 99999": "steps must be from 1 to 1400, the length of the schedule, got 99999",
    "run digits --option gamma=a": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got 'a'",
    "run digits --option lr=1": "the run passes lr and params to RADAR; leave them out",
    "run digits --option gamma=0 --option gamma=1": "gamma is given twice, as 0 and as 1; give it once",
    "run digits --optimizer 'RADAR(gamma=0)' --option gamma=1": "both set gamma; set it once",
    "run \udcff.py:Task": "argument task: must be text in UTF-8, got '\\udcff.py:Task'",
    "run digits --option delta=\udcff": "argument --option: must be text in UTF-8, got 'delta=\\udcff'",
    "run digits --store 'a\0b'": "argument --store: must be a path, got 'a\\x00b'",
    "run digits --save ''": "argument --save: must not be empty",
    "run digits --save run.txt": "run.txt must end in .toml",
    "run digits --save a_folder.toml": "a_folder.toml",
    "run a_folder.toml": "cannot read a_folder.toml: it is not a regular file",
    "run nothing.toml": "cannot read nothing.toml: No such file or directory",
    "run run.toml --seed 0": "run.toml states --seed; change it in the file",
    "run run.toml --option gamma=0": "run.toml states --option; change it in the file",
    "run study.toml": "a run lacks",
    "sweep run.toml": "a study",
    "sweep wrong.toml": "RADAR with the first: cannot be made: ValueError: RADAR: GradientDifference: gamma must be",
    "sweep digits": "give the options to sweep",
    "sweep digits --over gamma=-1,nan,a": "RADAR with gamma=-1 cannot be made: ValueError: RADAR: GradientDiff",
    "sweep digits --over gamma=0,nan": "RADAR with gamma=nan cannot be made: ValueError: RADAR: GradientDiff",
    "sweep digits --over betas=0.9,0.99": "RADAR: betas must be 2 numbers, got 0.9",
    "sweep digits --over 'gamma=a,{[]: 1}'": "RADAR with gamma=a cannot be made: ValueError: RADAR: GradientDifference",
    "sweep digits --over 'gamma=()'": "--over gamma has no values; write --over gamma=0,0.1",
    "sweep digits --over gamma=0,0.1 --over gamma=0.2": "gamma is given twice, as (0, 0.1) and as 0.2; give it once",
    "sweep digits --over gamma=0,0.1 --preset delta": "--over and --preset delta exclude each other; give only one",
    "sweep digits --preset delta --preset zeta": "argument --preset: given twice",
    "sweep digits --preset ablation --optimizer AdamW": "the preset ablation varies RADAR, not AdamW",
    "sweep digits --preset delta --optimizer AdamW": "AdamW has no option 'delta'",
    "report ''": "argument store: must not be empty",
    "report nothing": "there is no store at 'nothing'",
    "report a_file": "'a_file' is a file, but a folder is needed",
    "report store --watch --port -1": "argument --port: must be a whole number from 0 to 65535, got '-1'",
    "report store --watch --port 65536": "argument --port: must be a whole number from 0 to 65535, got '65536'",
    "report store --port 8000": "--port 8000 is for --watch",
    "bench train --quick --rounds 5": "--quick has its own rounds; leave out --rounds or --quick",
    "bench step --quick --models vit": "--quick has its own models; leave out --models or --quick",
    "bench step --models tiny,tiny": "a model is named twice in 'tiny,tiny'",
    f"bench step --json {'a' * 300}": "argument --json: 'aaa",
    f"response radar --picture {'a' * 300}.png": "argument --picture: 'aaa",
    "bench step --json a_folder.toml": "'a_folder.toml' is a folder; give the name of a file",
}  # fmt: skip


@pytest.mark.parametrize("line", OTHERS)
def test_other_mistakes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    study_files.save(Path("run.toml"), RunConfig.create("digits", "demo", optimizer="RADAR").to_dict())
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"]).to_dict()
    study_files.save(Path("study.toml"), study)
    contender = {"label": "the first:", "optimizer": "RADAR", "options": {"gamma": -1}}
    study_files.save(
        Path("wrong.toml"), {**study, "subject": "AdamW", "contenders": [contender, *study["contenders"][1:]]}
    )
    assert OTHERS[line] in error_message(line, capsys)


RUN_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "a text for names": ({"settings": "x"}, "settings of a run must be names and values, got 'x'"),
    "a list for names": ({"options": []}, "options of a run must be names and values, got []"),
    "a list for a text": ({"task": ["a"]}, "task of a run must be a text, got ['a']"),
    "true for a number": ({"lr": True}, "lr of a run must be a number, got True"),
    "a rate of zero": ({"lr": 0}, "the learning rate must be a positive number, got 0"),
    "a broken seed": ({"seed": 1.5}, "seed of a run must be a whole number from 0, got 1.5"),
    "a negative seed": ({"seed": -1}, "seed of a run must be a whole number from 0, got -1"),
    "an enormous seed": ({"seed": 10**30}, "seed of a run must be a whole number from 0, got 1000"),
    "an infinite option": ({"options": {"gamma": 1e400}}, "Infinity, which is not a JSON number"),
    "deep nesting": ({"options": {"gamma": json.loads("[" * 30 + "]" * 30)}}, "not nested too deeply"),
    "an unknown field": ({"stesp": 1}, "a run has no 'stesp'; its fields are task"),
    "an unknown setting": ({"settings": {"stesp": 1}}, "Digits has no setting 'stesp'; did you mean 'steps'?"),
    "a setting of another kind": ({"settings": {"steps": [1]}}, "steps must be a value like 140, got (1,)"),
    "an option of another kind": ({"options": {"gamma": "x"}}, "gamma must be a number in [0, ∞), got 'x'"),
    "too many steps": ({"steps": 10**6}, "steps must be from 1 to 140, the length of the schedule, got 1000000"),
}
STUDY_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "name of a study must be a text that is not empty, got ''"),
    "no label": ({"contenders": [{"label": " ", "optimizer": "RADAR"}]}, "must be a text that is not empty, got ' '"),
    "no contenders": ({"contenders": []}, "'AdamW' is not among the contenders"),
    "a contender that is a text": ({"contenders": ["RADAR"]}, "item 1 of contenders of a study must be names and val"),
    "options that are a list": (
        {"contenders": [{"label": "RADAR", "optimizer": "RADAR", "options": [1]}]},
        "options of item 1 of contenders of a study must be names and values, got [1]",
    ),
    "a number for a list": ({"seeds": 0}, "seeds of a study must be a list, got 0"),
    "a negative seed": ({"seeds": [0, -1]}, "item 2 of seeds of a study must be a whole number from 0, got -1"),
    "a negative tuning seed": ({"tuning_seed": -1}, "tuning_seed of a study must be a whole number from 0, got -1"),
    "a text in the grid": ({"grid": ["a"]}, "item 1 of grid of a study must be a number, got 'a'"),
    "an empty grid": ({"grid": []}, "grid must be one or more different numbers, got ()"),
    "a number for yes or no": ({"untuned": 1}, "untuned of a study must be true or false, got 1"),
    "an unknown axis": ({"axes": ["a"]}, "no contender has the axis 'a' among its options"),
    "an unknown reference": ({"reference": "SGD"}, "'SGD' is not among the contenders"),
    "a setting of another kind": ({"settings": {"steps": None}}, "steps must be a value like 140, got None"),
    "a setting out of range": ({"settings": {"steps": 10**30}}, "settings of a study must be made of finite numbers"),
}
TEXTS: dict[str, tuple[bytes, str]] = {
    "empty.toml": (b"", "lacks"),
    "half.toml": (b"x = ", "half.toml is not valid toml"),
    "deep.json": (b"[" * 100_000, "deep.json is not valid json: it is nested too deeply"),
    "deep.toml": (b"x = " + b"[" * 1_200, "deep.toml is nested too deeply"),
    "list.json": (b"[1]", "list.json must hold names and values at its top level, but holds list"),
    "digits.json": (b"9" * 5_000, "digits.json is not valid json"),
    "latin.toml": (b"\xe9", "latin.toml is not valid toml"),
    "code.yaml": (
        b"!!python/object/apply:os.system ['true']",
        "code.yaml is YAML, which is not supported; write it",
    ),
    "short.yml": (b"task: digits", "short.yml is YAML, which is not supported; write it as TOML"),
}


@pytest.mark.parametrize("mistake", RUN_FILES)
def test_a_wrong_file_of_a_run(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = RUN_FILES[mistake]
    run = RunConfig.create("digits", "demo", optimizer="RADAR").to_dict()
    Path("wrong.json").write_text(json.dumps({**run, **changes}))
    assert message in error_message("run wrong.json", capsys)


@pytest.mark.parametrize("mistake", STUDY_FILES)
def test_a_wrong_file_of_a_study(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = STUDY_FILES[mistake]
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"]).to_dict()
    Path("wrong.json").write_text(json.dumps({**study, **changes}))
    assert message in error_message("sweep wrong.json", capsys)


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_holds_something_else(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = TEXTS[name]
    Path(name).write_bytes(content)
    assert message in error_message(f"{command} {name}", capsys)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_file_without_an_end(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.toml")
    assert "cannot read pipe.toml: it is not a regular file" in error_message(f"{command} pipe.toml", capsys)
    Path("huge.json").touch()
    os.truncate("huge.json", 1 << 40)  # it takes no space on the disk
    assert "cannot read huge.json: it has 1,099,511,627,776 bytes" in error_message(f"{command} huge.json", capsys)


def test_an_optimizer_that_cannot_step_is_reported_when_steps_are_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aimopt.lab.execution.cost_forecast.TIMING_SECONDS", 120.0)  # it ends before
    sparse = "torch.optim:SparseAdam"
    message = error_message(
        f"compare digits --scale demo --optimizers {sparse} AdamW --reference {sparse} --dry-run", capsys
    )
    assert "cannot train digits torch.optim:SparseAdam" in message
    assert "SparseAdam does not support dense gradients" in message


def test_data_that_cannot_be_made_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aimopt.lab.execution.cost_forecast.TIMING_SECONDS", 120.0)  # it ends before
    assert main(["prepare", "mine.py:Line", "digits"]) == 1
    output = capsys.readouterr()
    assert "mine.py:Line: the data cannot be read: KeyError: 'no data'" in output.err
    assert "digits: ready" in output.out
    assert "cannot train mine.py:Line" in error_message("compare mine.py:Line --dry-run", capsys)


def test_a_process_ends_with_the_message_and_the_status() -> None:
    command = [sys.executable, "-m", "aimopt", "run", "leaves.py:Task"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 2
    assert process.stderr == "aimopt run: leaves.py cannot be loaded: SystemExit: 0\n"
    assert process.stdout == ""


def test_a_report_is_written_when_every_run_failed(capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare mine.py:Line --optimizers RADAR AdamW --grid 1 2 --seeds 0 --no-untuned --no-costs"
    assert main(shlex.split(line)) == 1
    message = capsys.readouterr().out
    assert "failed: mine.py:Line RADAR lr 0.01 seed 1001: KeyError: 'no data'" in message
    assert "report: results/report/index.html" in message


def test_correct_command_lines_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """What the checks above are near to."""
    for line in (
        "run digits --option betas=0.9,0.99 --option gamma=0 --set clip=None --option weight_decay=0",
        "run digits --optimizer 'radar(gamma=0.2)' --option delta=1.1",
        "sweep digits --over bias_correction=exact,False --over 'betas=((0.9, 0.99), (0.8, 0.9))'",
        "sweep digits --preset ablation --optimizer radar",
        "sweep digits --optimizer torch.optim:AdamW --over weight_decay=0,0.1",
        "sweep digits --preset heatmap --seeds 0 1 --grid 1",
    ):
        assert main([*shlex.split(line), "--save=new/saved.toml"]) == 0, line
        arguments = shlex.split(capsys.readouterr().out.rpartition(": aimopt ")[2])  # of the command that runs the file
        assert main([*arguments, "--save=again.toml"]) == 0, line
    assert Store("results").runs() == {}


def test_code_that_a_file_names_is_loaded_only_if_it_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    for command, saved in (("run", "run.toml"), ("sweep --over=weight_decay=0", "study.toml")):
        assert main([*shlex.split(command), "digits", "--optimizer=torch.optim:AdamW", f"--save={saved}"]) == 0
        again = f"aimopt {command.split()[0]} {saved}"
        assert capsys.readouterr().out.endswith(f" with: {again} --trust\n")
        needed = f"{saved}: it needs the code of torch.optim:AdamW; if you have read and trust it, give --trust"
        assert needed in error_message(again.removeprefix("aimopt "), capsys)
