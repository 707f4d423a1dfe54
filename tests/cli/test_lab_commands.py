"""The lab on the command line, as a user meets it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from aimopt.cli import main
from aimopt.cli.lab_arguments import task_names
from aimopt.lab.protocol import study_files
from aimopt.lab.protocol.recipes import compare
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.store import Store
from short_studies import SHORT, short_study

SETTINGS = [f"--set={name}={value}" for name, value in SHORT.items()]
SMALL = ["--workers=1", "--scale=demo", "--grid", "0.5", "1", "--seeds", "0", "1", "--search-steps=6", *SETTINGS]
QUICK = [*SMALL, "--no-costs"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_compare_report_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    """With the reference at other lengths: the report then tells differences in steps. A second call trains nothing."""
    command = ["compare", "digits", "--optimizers", "RADAR", "AdamW", *SMALL, "--lengths", "0.5", "2"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert re.search(r"RADAR .* cannot tell", output)
    assert "report: results/report/index.html" in output
    page = Path("results/report/index.html").read_text()
    assert "RADAR" in page
    assert "Cost of a training step" in page
    assert "Fewer steps than AdamW" in page
    for name in ("report.md", "tables.tex", "results.csv"):
        assert "AdamW" in Path("results/report", name).read_text()
    assert main(["status"]) == 0
    assert re.search(r"compare of digits at scale demo: \d+ finished\n", capsys.readouterr().out)
    steps = {run.config.steps for run in Store("results").runs().values() if run.config.optimizer == "AdamW"}
    assert {SHORT["steps"] // 2, SHORT["steps"], 2 * SHORT["steps"]} <= steps
    assert main(command) == 0
    counts = re.search(r"(\d+) runs in .*, (\d+) of them reused", capsys.readouterr().out)
    assert counts is not None
    assert counts[1] == counts[2]
    Path("results/report/index.html").unlink()
    assert main(["report"]) == 0
    assert Path("results/report/index.html").exists()


def test_a_run_by_itself_and_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "digits", "--scale=demo", "--optimizer=Lion", "--lr=1e-3", "--option=betas=0.9,0.95", *SETTINGS]
    assert main([*arguments, "--save=run.toml"]) == 0
    assert main(["run", "run.toml"]) == 0
    output = capsys.readouterr().out
    assert "digits Lion lr 0.001 seed 0: finished" in output
    (run,) = Store("results").runs().values()
    assert run.config.options["betas"] == [0.9, 0.95]
    assert main(arguments) == 0  # the same run, from the store


def test_a_sweep_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "digits", "--over=gamma=0,0.1", "--save=study.toml", *QUICK]) == 0
    assert main(["sweep", "study.toml", "--no-costs"]) == 0
    assert "gamma=0" in capsys.readouterr().out


def test_a_sweep_over_texts() -> None:
    assert main(["sweep", "digits", "--over=bias_correction=exact,False", "--save=study.toml", *QUICK]) == 0
    study = Study.from_dict(study_files.read(Path("study.toml")))
    assert [c.options.get("bias_correction") for c in study.contenders] == [None, "exact", False]


def test_a_task_and_an_optimizer_of_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(TASK)
    optimizers = ["--optimizers", "mine.py:Slow", "AdamW"]
    few = ["--seeds", "0", "--grid", "0.5", "1", "--no-costs", "--workers=1"]
    assert main(["compare", "mine.py:Line", *optimizers, *few]) == 0
    assert "mine.py:Slow" in capsys.readouterr().out


TASK = """
from dataclasses import dataclass
import torch
from aimopt.lab import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Line(Supervised):
    title = "A line"
    lr: float = 1e-2
    steps: int = 8
    evaluate_every: int = 2
    log_every: int = 2
    batch_size: int = 8

    def data(self):
        x = torch.linspace(-1, 1, 64)[:, None]
        return Splits(*[(x, (x > 0).long().flatten())] * 3)

    def model(self):
        return torch.nn.Linear(1, 2)

class Slow(torch.optim.SGD):
    pass
"""


def test_a_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aimopt.lab.execution.cost_forecast.TIMING_SECONDS", 120.0)  # it ends before
    assert main(["compare", "digits", "--dry-run", *QUICK, "--lengths", "0.5"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"compare of digits at scale demo: 24 runs at most, 0 reused; .* ms per step", output)
    assert re.search(r"MiB of memory per run, .* MiB of disk\n- some steps of AdamW on its data were timed", output)
    assert "the reference at other lengths is not included" in output
    assert Store("results").runs() == {}


FAULTY = """
import torch
class Raises(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("out of luck")
"""


def test_a_failure_is_reported_and_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    Path("faulty.py").write_text(FAULTY)
    assert main(["run", "digits", "--scale=demo", "--optimizer=faulty.py:Raises", *SETTINGS]) == 1
    assert "failed (RuntimeError: out of luck)\n" in capsys.readouterr().out
    assert main(["status"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("in no study: 1 failed\n")
    assert "failed: digits faulty.py:Raises lr 0.01 seed 0: RuntimeError: out of luck" in told


def test_status_tells_studies_of_one_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store("results")
    for optimizers, reference, steps in ((["RADAR"], "RADAR", 12), (["AdamW"], "AdamW", 12), (["AdamW"], "AdamW", 18)):
        settings = {**SHORT, "steps": steps}
        study = compare("digits", "demo", optimizers=optimizers, reference=reference, seeds=(0,), settings=settings)
        store.save_study(study)
    assert main(["status"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "compare of digits at scale demo, steps 12, against AdamW",
        "compare of digits at scale demo, steps 12, against RADAR",
        "compare of digits at scale demo, steps 18",
    ]


def test_status_tells_interrupted_runs_from_running_ones(capsys: pytest.CaptureFixture[str]) -> None:
    store, study = Store("results"), short_study(grid=(1.0,))
    store.save_study(study)
    config = study.cells({})[0].config
    writer = store.claim_run(config)
    assert writer is not None
    writer.begin(config)

    def printed() -> str:
        assert main(["status"]) == 0
        return capsys.readouterr().out

    (claim,) = store.folder(config).glob("claim.*")
    known = json.loads(claim.read_text())
    assert printed() == "compare of digits at scale demo: 1 running, 3 missing\n"
    long_ago = time.time() - 7200
    os.utime(claim, (long_ago, long_ago))  # this process exists, but could be suspended or another one of its number
    assert "1 interrupted, 3 missing" in (told := printed())
    assert f"process {os.getpid()} of this machine has given no sign of life for 2.0 h" in told
    claim.write_text(json.dumps(known | {"host": "node7 a4f1 pid:[1]"}))  # as a process of another machine does
    assert printed() == "compare of digits at scale demo: 1 running, 3 missing\n"
    os.utime(claim, (long_ago, long_ago))
    line = (
        f"interrupted, as far as is known: {config}: process {os.getpid()} of node7 has given no sign of life for 2.0 h"
    )
    assert printed().splitlines() == ["compare of digits at scale demo: 1 interrupted, 3 missing", line]
    claim.write_text(json.dumps(known | {"pid": 2**22 + 1}))  # no process can have this number
    assert printed() == "compare of digits at scale demo: 1 interrupted, 3 missing\n"
    writer.release()
    assert printed() == "compare of digits at scale demo: 1 interrupted, 3 missing\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "digit"], "aimopt compare: no task is called 'digit'; did you mean 'digits'?"),
        (
            ["compare", "digits", "--optimizers", "Adamm"],
            "aimopt compare: no optimizer is called 'Adamm'; did you mean",
        ),
        (["compare", "digits", "--seeds", "1001"], "aimopt compare: seed 1001 tunes"),
        (["run", "digits", "--lr", "-1"], "aimopt run: argument --lr: must be a finite number > 0, got '-1'"),
        (["run", "nothing.toml"], "aimopt run: cannot read nothing.toml: No such file"),
        (["sweep", "digits"], "aimopt sweep: give the options to sweep"),
        (["report"], "aimopt report: there is no store at 'results'"),
        (["run", "digits", "--option", "gamma"], "must be NAME=VALUE, for example gamma=0.1, got 'gamma'"),
        (["compare", "digits", "--workers", "0"], "must be a whole number from 1 to 4096, got '0'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments)
    except SystemExit as error:  # argparse leaves by itself
        status = int(str(error.code))
    output = capsys.readouterr().err
    assert status == 2
    assert message in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "command",
    [
        "compare",
        "run",
        "sweep",
        "report",
        "status",
        "tasks",
        "optimizers",
        "overhead",
        "prepare",
        "bench",
        "completion",
    ],
)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"aimopt {command}" in capsys.readouterr().out.split("example:")[1]


def test_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overhead", "digits", "--scale=demo", "--optimizers", "RADAR", "Lion", "--rounds=2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    state_bytes = {row[0]: row[-1] for row in rows if row and row[0] in ("RADAR", "Lion")}
    assert state_bytes == {"RADAR": "8.0", "Lion": "4.0"}


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["optimizers"]) == 0
    assert re.search(r"RADAR +paper", capsys.readouterr().out)
    assert main(["prepare", "digits"]) == 0
    assert "digits: ready, data sha256" in capsys.readouterr().out


def test_preparing_continues_after_missing_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIMOPT_CACHE", str(tmp_path))
    monkeypatch.delenv("AIMOPT_DATA", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no proxy listens
    assert main(["prepare", "cifar100-resnet50", "digits"]) == 1
    output = capsys.readouterr()
    assert "cifar100-resnet50: cifar100 is not available" in output.err
    assert "set AIMOPT_DATA=DIRECTORY" in output.err
    assert "digits: ready" in output.out


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_all_are_the_seven_settings_of_the_paper(scale: str) -> None:
    settings = [compare(name, scale) for name in task_names(["all", "all"])]
    assert len(settings) == 7
    for study in settings:
        assert study.published is not None
        assert set(study.published.results) == {contender.label for contender in study.contenders}


def begin(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "aimopt", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore Ctrl-C
    )


def test_ctrl_c_is_clean_and_prints_how_to_continue() -> None:
    long = ["run", "digits", "--scale=demo", "--set=steps=100000", "--set=log_every=2"]
    process = begin(*long)
    while not list(Path("results").glob("*/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "stopped; nothing is lost. Continue with: aimopt run digits" in output
    assert "Traceback" not in output
    (folder,) = Path("results").glob("*/*")
    assert (folder / "checkpoint.pt").exists()
    assert not list(folder.glob("claim.*"))


def test_watching_a_report() -> None:
    assert main(["run", "digits", "--workers=1", "--scale=demo", *SETTINGS]) == 0
    process = begin("report", "--watch")
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=60) as answer:
        assert b"<html" in answer.read()
    os.killpg(process.pid, signal.SIGINT)
    assert "stopped" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_a_report_is_written_although_a_contender_fails(capsys: pytest.CaptureFixture[str]) -> None:
    Path("faulty.py").write_text(FAULTY)
    assert main(["compare", "digits", "--optimizers", "AdamW", "faulty.py:Raises", "--no-untuned", *QUICK]) == 1
    printed = capsys.readouterr()
    assert "report: results/report/index.html" in printed.out
    # The costs are those of the contender that could be trained.
    assert "cannot measure" not in printed.out + printed.err
    assert "out of luck" in Path("results/report/index.html").read_text()
