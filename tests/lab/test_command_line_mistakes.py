"""Wrong command lines: one sentence that says what was wrong and what to do, status 2, and never a traceback."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aimopt.cli import main
from aimopt.lab import files
from aimopt.lab.config import RunConfig
from aimopt.lab.store import Store
from aimopt.lab.study import compare

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


def complaint(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a wrong command line is answered with."""
    try:
        status = main(shlex.split(line))
    except SystemExit as error:  # argparse leaves by itself
        status = int(str(error.code))
    said = capsys.readouterr().err
    assert status == 2, line
    assert said.count("\n") == 1, said
    assert said.startswith("aimopt"), said
    assert not list(Path().glob("results/*")), "nothing is trained"
    return said


TASKS = {
    "digit": "no task is called 'digit'; did you mean 'digits'?",
    "''": "must not be empty, got ''",
    "'.:x'": "'.' cannot be a module; write package.module:Name or file.py:Name",
    "os:system": "os:system is no task; derive the class from",
    "mine.py:Lin": "mine.py has no 'Lin'; did you mean 'Line'?",
    "mine.py:NoData": "mine.py:NoData is no complete task; define data in the class",
    "mine.py:NoRate": "NoRate has no 'lr' at scale 'mini'; give the field a default",
    "mine.py:NoTitle": "mine.py:NoTitle is no complete task; give the class a title",
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
    assert TASKS[task] in complaint(f"{command} {task}", capsys)


OPTIMIZERS = {
    "Adamm": "no optimizer is called 'Adamm'; did you mean 'Adam'?",
    "''": "must not be empty, got ''",
    "'RADAR)'": "no optimizer is called 'RADAR)'; did you mean 'RADAR'?",
    "'RADAR(gamma=1, gamma=2)'": "cannot read the optimizer 'RADAR(gamma=1, gamma=2)'",
    "'RADAR(gamma=-1)'": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got -1",
    "'RADAR(gamma=\"a\")'": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got 'a'",
    "'RADAR(gama=1)'": "RADAR has no option 'gama'; did you mean 'gamma'?",
    "'torch.optim:SGD(momentum=-1, weight_decay=0)'": "cannot be made: ValueError: Invalid momentum value: -1",
    "'.:x'": "'.' cannot be a module",
    "os:system": "os:system is no optimizer; name a class that derives from torch.optim.Optimizer",
    "mine.py:factory": "mine.py:factory is no optimizer",
    "mine.py:Raises": "mine.py:Raises cannot be made: RuntimeError: out of luck",
    "mine.py:NeedsMore": "mine.py:NeedsMore cannot be made: TypeError",
    "torch.optim:LBFGS": "torch.optim:LBFGS needs a closure for every step",
    "leaves.py:Optimizer": "leaves.py cannot be loaded: SystemExit: 0",
}


@pytest.mark.parametrize(
    "command", ["compare digits --optimizers AdamW", "run digits --optimizer", "overhead digits --optimizers"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_wrong_optimizer(command: str, optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert OPTIMIZERS[optimizer] in complaint(f"{command} {optimizer}", capsys)


SETTINGS = {
    "''": "must be NAME=VALUE, such as gamma=0.1, got ''",
    "steps=": "must be NAME=VALUE",
    "steps=abc": "steps must be such as 1400, got 'abc'",
    "steps=True": "steps must be such as 1400, got True",
    "stesp=1": "Digits has no setting 'stesp'; did you mean 'steps'?",
    "lr=None": "lr must be such as 0.01, got None",
    "lr=1e999": "lr must be such as 0.01, got inf",
    "lr=0": "lr must be a number > 0, got 0",
    "clip=a": "clip must be float | None, such as None, got 'a'",
    "clip=-1": "clip must be a number > 0, got -1",
    "warmup_steps=-5": "warmup_steps must be a number ≥ 0, got -5",
    "precision=float8": "precision must be one of 'float32', 'bfloat16', 'float16', got 'float8'",
    "\"grid=('a','b')\"": "grid must be such as (0.1, 0.5, 1.0, 5.0, 10.0), got ('a', 'b')",
    "'grid=(1, 1)'": "grid must be different numbers",
    "'grid=(-1, 1)'": "grid must be positive numbers",
    "\"seeds=('a',)\"": "seeds must be such as (0, 1, 2, 3, 4), got ('a',)",
    "'seeds=(-1,)'": "seeds must be whole numbers from 0, got (-1,)",
    f"steps={10**30}": "steps must be such as 1400, got 1000",
    "'seeds=(1.5,)'": "seeds must be such as (0, 1, 2, 3, 4), got (1.5,)",
    "steps=1400 --set=steps=1400": "steps is given twice, as 1400 and as 1400; give it once",
}


@pytest.mark.parametrize("command", ["compare digits", "run digits", "overhead digits"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting(command: str, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert SETTINGS[setting] in complaint(f"{command} --set {setting}", capsys)


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
    "compare digits --seeds 5": "seed 5 tunes the learning rate",
    "compare digits --grid 1 nan": "argument --grid: must be a finite number > 0, got 'nan'",
    "compare digits --workers 999999999999": "argument --workers: must be a whole number from 1 to 4096",
    "compare digits --gpu-share -1": "argument --gpu-share: must be a finite number ≥ 0, got '-1'",
    "compare digits --checkpoint-seconds inf": "argument --checkpoint-seconds: must be a finite number ≥ 0",
    "compare digits --devices cuda:7": "there is no device 'cuda:7' here",
    "compare digits --devices meta": "there is no device 'meta' here",
    "overhead digits --device nothing": "there is no device 'nothing' here",
    "compare digits --store ''": "argument --store: must not be empty",
    "compare digits --store a_file/x": "a_file' is a file, where a folder is needed",
    "compare digits --report a_file": "'a_file' is a file, where a folder is needed",
    "run digits --lr 0": "argument --lr: must be a finite number > 0, got '0'",
    "run digits --seed -1": "argument --seed: must be a whole number from 0",
    "run digits --steps 99999": "steps must be from 1 to 1400, the length of the schedule, got 99999",
    "run digits --option gamma=a": "RADAR: GradientDifference: gamma must be a number in [0, ∞), got 'a'",
    "run digits --option lr=1": "RADAR is given its learning rate and parameters by the run",
    "run digits --option gamma=0 --option gamma=1": "gamma is given twice, as 0 and as 1; give it once",
    "run digits --optimizer 'RADAR(gamma=0)' --option gamma=1": "both say what gamma is; say it once",
    "run \udcff.py:Task": "argument task: must be text in UTF-8, got '\\udcff.py:Task'",
    "run digits --option delta=\udcff": "argument --option: must be text in UTF-8, got 'delta=\\udcff'",
    "run digits --store 'a\0b'": "argument --store: must be a path, got 'a\\x00b'",
    "run digits --save ''": "argument --save: must not be empty",
    "run digits --save run.txt": "run.txt must end in .toml",
    "run digits --save a_folder.toml": "a_folder.toml",
    "run a_folder.toml": "cannot read a_folder.toml: Is a directory",
    "run run.toml --seed 0": "run.toml says what --seed is",
    "run run.toml --option gamma=0": "run.toml says what --option is",
    "run study.toml": "a run lacks",
    "sweep run.toml": "a study",
    "sweep wrong.toml": "RADAR with the first: cannot be made: ValueError: RADAR: GradientDifference: gamma must be",
    "sweep digits": "say what to sweep",
    "sweep digits --over gamma=-1,nan,a": "RADAR with gamma=-1 cannot be made: ValueError: RADAR: GradientDiff",
    "sweep digits --over gamma=0,nan": "RADAR with gamma=nan cannot be made: ValueError: RADAR: GradientDiff",
    "sweep digits --over betas=0.9,0.99": "RADAR: betas must be 2 numbers, got 0.9",
    "sweep digits --over 'gamma=()'": "--over gamma has no values; write --over gamma=0,0.1",
    "sweep digits --over gamma=0,0.1 --over gamma=0.2": "gamma is given twice, as (0, 0.1) and as 0.2; give it once",
    "sweep digits --over gamma=0,0.1 --preset delta": "--over and --preset delta say two different things",
    "sweep digits --preset delta --preset zeta": "argument --preset: given twice",
    "sweep digits --preset ablation --optimizer AdamW": "--preset ablation takes RADAR apart, not AdamW",
    "sweep digits --preset delta --optimizer AdamW": "AdamW has no option 'delta'",
    "report ''": "argument store: must not be empty",
    "report nothing": "there is no store at 'nothing'",
    "report a_file": "'a_file' is a file, where a folder is needed",
    "report store --watch --port -1": "argument --port: must be a whole number from 0 to 65535, got '-1'",
    "report store --watch --port 65536": "argument --port: must be a whole number from 0 to 65535, got '65536'",
    "report store --port 8000": "--port 8000 is for --watch",
    "bench step --models tiny,tiny": "a model is named twice in 'tiny,tiny'",
    "bench step --json a_folder.toml": "'a_folder.toml' is a folder; give the name of a file",
}  # fmt: skip


@pytest.mark.parametrize("line", OTHERS)
def test_another_mistake(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(Path("run.toml"), RunConfig.of("digits", "demo", optimizer="RADAR").to_dict())
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"]).to_dict()
    files.save(Path("study.toml"), study)
    contender = {"label": "the first:", "optimizer": "RADAR", "options": {"gamma": -1}}
    files.save(Path("wrong.toml"), {**study, "contenders": [contender, *study["contenders"][1:]]})
    assert OTHERS[line] in complaint(line, capsys)


RUN_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "a text for names": ({"settings": "x"}, "settings of a run must be names and values, got 'x'"),
    "a list for names": ({"options": []}, "options of a run must be names and values, got []"),
    "a list for a text": ({"task": ["a"]}, "task of a run must be a text, got ['a']"),
    "true for a number": ({"lr": True}, "lr of a run must be a number, got True"),
    "a rate of zero": ({"lr": 0}, "the learning rate must be a positive number, got 0"),
    "a broken seed": ({"seed": 1.5}, "seed of a run must be a whole number from 0, got 1.5"),
    "a negative seed": ({"seed": -1}, "seed of a run must be a whole number from 0, got -1"),
    "an enormous seed": ({"seed": 10**30}, "seed of a run must be a whole number from 0, got 1000"),
    "an infinite option": ({"options": {"gamma": 1e400}}, "Infinity, which is not a number of JSON"),
    "deep nesting": ({"options": {"gamma": json.loads("[" * 30 + "]" * 30)}}, "not nested too deeply"),
    "an unknown field": ({"stesp": 1}, "a run has no 'stesp'; its fields are task"),
    "an unknown setting": ({"settings": {"stesp": 1}}, "Digits has no setting 'stesp'; did you mean 'steps'?"),
    "a setting of another kind": ({"settings": {"steps": [1]}}, "steps must be such as 140, got (1,)"),
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
    "an empty grid": ({"grid": []}, "grid must be different numbers, at least one; got ()"),
    "a number for yes or no": ({"untuned": 1}, "untuned of a study must be true or false, got 1"),
    "an unknown axis": ({"axes": ["a"]}, "no contender has the axis 'a' among its options"),
    "an unknown reference": ({"reference": "SGD"}, "'SGD' is not among the contenders"),
    "a setting of another kind": ({"settings": {"steps": None}}, "steps must be such as 140, got None"),
    "a setting out of range": ({"settings": {"steps": 10**30}}, "settings of a study must be made of finite numbers"),
}
TEXTS: dict[str, tuple[bytes, str]] = {
    "empty.toml": (b"", "lacks"),
    "half.toml": (b"x = ", "half.toml is not valid toml"),
    "deep.json": (b"[" * 100_000, "deep.json is not valid json: it is nested too deeply"),
    "deep.yaml": (b"[" * 1_200, "deep.yaml is nested too deeply"),
    "list.json": (b"[1]", "list.json must hold names and values at its top, but holds list"),
    "digits.json": (b"9" * 5_000, "digits.json is not valid json"),
    "latin.yaml": (b"\xe9", "latin.yaml is not valid yaml"),
    "code.yaml": (b"!!python/object/apply:os.system ['true']", "code.yaml is not valid yaml: could not determine"),
    "numbers.yaml": (b"1: 2", "must be names and values, got {1: 2}"),
}


@pytest.mark.parametrize("mistake", RUN_FILES)
def test_a_wrong_file_of_a_run(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = RUN_FILES[mistake]
    files.save(Path("wrong.json"), {**RunConfig.of("digits", "demo", optimizer="RADAR").to_dict(), **changes})
    assert message in complaint("run wrong.json", capsys)


@pytest.mark.parametrize("mistake", STUDY_FILES)
def test_a_wrong_file_of_a_study(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = STUDY_FILES[mistake]
    study = compare("digits", "demo", optimizers=["RADAR", "AdamW"]).to_dict()
    files.save(Path("wrong.json"), {**study, **changes})
    assert message in complaint("sweep wrong.json", capsys)


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_holds_something_else(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = TEXTS[name]
    Path(name).write_bytes(content)
    assert message in complaint(f"{command} {name}", capsys)


def test_an_optimizer_that_cannot_step_is_told_when_steps_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    sparse = "torch.optim:SparseAdam"
    said = complaint(f"compare digits --scale demo --optimizers {sparse} AdamW --reference {sparse} --dry-run", capsys)
    assert "cannot train digits torch.optim:SparseAdam" in said
    assert "SparseAdam does not support dense gradients" in said


def test_data_that_cannot_be_made_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "mine.py:Line", "digits"]) == 1
    said = capsys.readouterr()
    assert "mine.py:Line: the data cannot be read: KeyError: 'no data'" in said.err
    assert "digits: ready" in said.out
    assert "cannot train mine.py:Line" in complaint("compare mine.py:Line --dry-run", capsys)


def test_a_process_ends_with_the_sentence_and_the_status() -> None:
    command = [sys.executable, "-m", "aimopt", "run", "leaves.py:Task"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert process.returncode == 2
    assert process.stderr == "aimopt run: leaves.py cannot be loaded: SystemExit: 0\n"
    assert process.stdout == ""


def test_a_report_can_be_had_when_every_run_failed(capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare mine.py:Line --optimizers RADAR AdamW --grid 1 2 --seeds 0 --no-untuned --no-costs"
    assert main(shlex.split(line)) == 1
    said = capsys.readouterr().out
    assert "failed: mine.py:Line RADAR lr 0.01 seed 5: KeyError: 'no data'" in said
    assert "report: results/report/index.html" in said


def test_what_is_right_stays_right(capsys: pytest.CaptureFixture[str]) -> None:
    """What the checks above are near to."""
    for line in (
        "run digits --option betas=0.9,0.99 --option gamma=0 --set clip=None --set weight_decay=0",
        "run digits --optimizer 'radar(gamma=0.2)' --option delta=1.1",
        "sweep digits --over bias_correction=exact,False --over 'betas=((0.9, 0.99), (0.8, 0.9))'",
        "sweep digits --preset ablation --optimizer radar",
        "sweep digits --optimizer torch.optim:AdamW --over weight_decay=0,0.1",
        "sweep digits --preset heatmap --seeds 0 1 --grid 1",
    ):
        assert main([*shlex.split(line), "--save=new/saved.toml"]) == 0, line
        told = shlex.split(capsys.readouterr().out.rpartition(": aimopt ")[2])  # how to carry it out
        assert main([*told, "--save=again.json"]) == 0, line
    assert Store("results").runs() == {}


def test_code_that_a_file_names_is_loaded_only_if_it_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    for command, saved in (("run", "run.toml"), ("sweep --over=weight_decay=0", "study.toml")):
        assert main([*shlex.split(command), "digits", "--optimizer=torch.optim:AdamW", f"--save={saved}"]) == 0
        again = f"aimopt {command.split()[0]} {saved}"
        assert capsys.readouterr().out.endswith(f" with: {again} --trust\n")
        needed = f"{saved}: it needs the code of torch.optim:AdamW; if you have read and trust it, give --trust"
        assert needed in complaint(again.removeprefix("aimopt "), capsys)
