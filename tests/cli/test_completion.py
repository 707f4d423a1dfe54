"""A real bash completes commands, options and names; without torch, but for the scales of tasks."""

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import aimopt
from aimopt.cli import main
from aimopt.cli.completion import folders, optimizer_names, preset_names, scale_names, task_names
from aimopt.cli.lists import SHELLS
from aimopt.lab.protocol import presets, tasks

SOURCES = Path(aimopt.__file__).parents[1]
# What an installed script does, on a machine where every import of torch fails, unless a scale is completed.
SCRIPT = f"""#!{sys.executable}
import os, sys
if "--scale " not in os.environ.get("COMP_LINE", ""):
    sys.modules["torch"] = None
from aimopt.__main__ import main
sys.exit(main())
"""
# A package of somebody else, with a task and a preset.
MODULE = """
from dataclasses import dataclass
from aimopt.lab import Supervised

@dataclass(frozen=True, kw_only=True)
class Spirals(Supervised):
    title = "Spirals"
    scales = {"mini": {}, "huge": {}}
    lr: float = 1e-2

    def data(self): ...
    def model(self): ...

SPIRALS = Spirals
"""
ENTRY_POINTS = (
    "[aimopt.tasks]\nspirals-of-mine = my_package:SPIRALS\n[aimopt.presets]\nwarmup-of-mine = my_package:warmup\n"
)
PROMPT, END, CONTROL_U = "prompt> ", "#end", b"\x15"
SECONDS = 60.0  # until a bash that does not answer is an error


class Bash:
    """An interactive bash in a terminal of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.terminal, other_end = pty.openpty()
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(other_end)

    def run(self, command: str) -> None:
        """Run a command and wait for the next prompt: keys that bash does not read yet would not be completed."""
        os.write(self.terminal, f'{command}; echo do""ne\n'.encode())
        self.read_until(f"done\r\n{PROMPT}")

    def press(self, keys: str) -> str:
        """What the line looks like after these keys, and `END` at the cursor; then the line is deleted."""
        os.write(self.terminal, f"{keys}{END}".encode())
        output = self.read_until(END)
        os.write(self.terminal, CONTROL_U)
        self.run("true")
        return output

    def read_until(self, text: str) -> str:
        """The output up to a text."""
        output, deadline = "", time.monotonic() + SECONDS
        while text not in output:
            if not select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"bash printed no {text!r} in {SECONDS} seconds, but {output!r}")
            output += os.read(self.terminal, 1 << 16).decode()
        return output

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    folder = tmp_path_factory.mktemp("completion")
    for path in ("bin", "packages/my_package-1.0.dist-info", "work/results/studies", "work/elsewhere"):
        (folder / path).mkdir(parents=True)
    (folder / "bin/aimopt").write_text(SCRIPT)
    (folder / "bin/aimopt").chmod(0o755)
    (folder / "packages/my_package-1.0.dist-info/entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "packages/my_package-1.0.dist-info/METADATA").write_text("Name: my_package\nVersion: 1.0\n")
    (folder / "packages/my_package.py").write_text(MODULE)
    (folder / "work/study.toml").write_text("")
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(SOURCES), str(folder / "packages")]),
        "PS1": PROMPT,
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
    }
    with contextlib.closing(Bash(folder / "work", environment)) as shell:
        shell.run("bind 'set bell-style none'")
        shell.run('eval "$(aimopt completion bash)"')
        yield shell


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("aimopt compa", "aimopt compare "),
        ("aimopt compare dig", "aimopt compare digits "),
        ("aimopt compare digits spir", "aimopt compare digits spirals-of-mine "),
        ("aimopt compare digits --optim", "aimopt compare digits --optimizers "),
        ("aimopt compare digits --optimizers RADAR Nes", "aimopt compare digits --optimizers RADAR Nesterov "),
        ("aimopt compare digits --set clip=1 --reference Nes", "--reference Nesterov "),
        ("aimopt compare digits --scale d", "aimopt compare digits --scale demo "),
        ("aimopt compare spirals-of-mine --scale h", "aimopt compare spirals-of-mine --scale huge "),
        ("aimopt run --scale pa", "aimopt run --scale paper "),
        ("aimopt run digits --engine sl", "aimopt run digits --engine slurm "),
        ("aimopt sweep digits --preset abl", "aimopt sweep digits --preset ablation "),
        ("aimopt sweep digits --preset warm", "aimopt sweep digits --preset warmup-of-mine "),
        ("aimopt sweep stu", "aimopt sweep study.toml "),
        ("aimopt report res", "aimopt report results "),
        ("aimopt report else", "aimopt report elsewhere/"),
        ("aimopt run digits --store res", "aimopt run digits --store results "),
        ("aimopt response Nes", "aimopt response Nesterov "),
    ],
)
def test_bash_completes(bash: Bash, typed: str, completed: str) -> None:
    assert f"{completed}{END}" in bash.press(f"{typed}\t")


def test_bash_lists_the_matching_names(bash: Bash) -> None:
    assert "RAD    RADAR" in bash.press("aimopt compare digits --optimizers R\t\t\t")


def test_names_without_torch_are_those_of_the_package() -> None:
    assert optimizer_names() == aimopt.available()
    assert task_names() == tasks.available()
    assert preset_names() == presets.available()


def test_scales_are_those_of_the_tasks() -> None:
    assert scale_names(["digits"]) == ["demo", "mini"]
    assert scale_names(["digits", "cifar10-vit"]) == ["demo", "mini", "paper", "mini-1"]
    assert scale_names(["missing.py:Task"]) == scale_names(["unknown"]) == []
    assert set(scale_names()) == {scale for name in tasks.available() for scale in tasks.find(name).scales}


def test_folders_of_stores_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("one/studies", "two", ".hidden", "two/inside/studies"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert folders("") == ["one", "two/"]
    assert folders(".h") == [".hidden/"]
    assert folders("two/") == ["two/inside"]
    assert folders(f"{tmp_path}/o") == [f"{tmp_path}/one"]
    assert folders("missing/") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_code_for_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "aimopt" in code
    if shell in ("bash", "zsh", "fish") and shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=code, text=True, check=False).returncode == 0
