"""Execution options: one table, and every place that knows an option follows from it."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aimopt
from aimopt import AIM, EMA, Euclidean
from aimopt.checks import RESERVED_KEYS, SWITCHES
from aimopt.step.options import OPTIONS, Execution
from optimizer_driver import ALL, parameters

PACKAGE = Path(aimopt.__file__).parent


def test_the_table_has_the_options_that_users_know() -> None:
    defaults = {name: option.default for name, option in OPTIONS.items()}
    assert defaults == {
        "maximize": False,
        "foreach": None,
        "fused": None,
        "state_dtype": None,
        "stochastic_rounding": True,
        "capturable": False,
        "differentiable": False,
        "skip_nonfinite": False,
    }
    assert list(Execution.__annotations__) == list(OPTIONS)
    assert all(option.default in option.choices for option in OPTIONS.values())


@pytest.mark.parametrize("Optimizer", [AIM, *ALL], ids=lambda o: o.__name__)
def test_signature_and_help_list_every_option(Optimizer: Any) -> None:
    listed = inspect.signature(Optimizer).parameters
    for name, option in OPTIONS.items():
        assert listed[name].default == option.default
        assert listed[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert re.search(rf"^ +{name}: \w", inspect.getdoc(Optimizer) or "", re.MULTILINE)


def test_group_check_and_reserved_names_follow_from_the_table() -> None:
    optimizer = AIM(parameters(), 0.1, filter=EMA(), geometry=Euclidean())
    for name, option in OPTIONS.items():
        assert optimizer.defaults[name] == optimizer.param_groups[0][name] == option.default
        assert SWITCHES[name] == option.choices
        assert name in RESERVED_KEYS


def test_an_unknown_option_of_the_general_optimizer_is_refused() -> None:
    options: Any = dict(forech=True)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'forech'; did you mean 'foreach'\?"):
        AIM(parameters(), 0.1, filter=EMA(), geometry=Euclidean(), **options)


CODE = """
import inspect, torch, aimopt
from dataclasses import dataclass

def parameters():
    return [torch.ones(3, requires_grad=True)]

def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("accepted")

radar = aimopt.RADAR(parameters(), verbosity="low")
assert inspect.signature(aimopt.RADAR).parameters["verbosity"].default == "none"
assert "verbosity: How much to print." in aimopt.RADAR.__doc__
assert radar.param_groups[0]["verbosity"] == "low"
assert aimopt.RADAR(parameters()).param_groups[0]["verbosity"] == "none"
message = refused(lambda: aimopt.RADAR(parameters(), verbosity="high"))
assert "verbosity must be one of ['none', 'low'], got 'high'" in message
radar.param_groups[0]["verbosity"] = "high"
radar.param_groups[0]["params"][0].grad = torch.ones(3)
assert "verbosity must be one of" in refused(radar.step)
radar.param_groups[0]["verbosity"] = "low"

@dataclass(frozen=True)
class Loud(aimopt.parts.component.Geometry):
    verbosity: float = 1.0
    linear = True
    def update(self, state, g, t, pole): return None
    def apply(self, x, metric): return x

message = refused(lambda: aimopt.AIM(parameters(), 0.1, filter=aimopt.EMA(), geometry=Loud()))
assert "another use for 'verbosity'" in message
other = aimopt.RADAR(parameters())
other.load_state_dict(radar.state_dict())
assert other.param_groups[0]["verbosity"] == "none"  # adopted_from="none"
assert aimopt.groups.combine(aimopt.RADAR(parameters(), verbosity="low")).defaults["verbosity"] == "low"

def end(**options):
    (p,) = parameters()
    p.grad = torch.ones(3)
    aimopt.AIM([p], 0.5, filter=aimopt.EMA(0.0), geometry=aimopt.Euclidean(), **options).step()
    return p.tolist()

for fused in (True, False):
    assert end(halved=True, fused=fused) == [0.75] * 3 and end(fused=fused) == [0.5] * 3
assert aimopt.theory.response(aimopt.EMA(0.9)).first_steps(2).gain[0] == 1
print("all places know the new options")
"""


def test_adding_one_line_to_the_table_is_enough(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "lab", "paper", "cli", "measure")
    package = shutil.copytree(PACKAGE, tmp_path / "aimopt", ignore=ignored)
    table = package / "step" / "options.py"
    option = 'Option("none", "How much to print.", choices=("none", "low"), adopted_from="none")'
    line = f"    verbosity: Annotated[str, {option}]\n"
    line += '    halved: Annotated[bool, Option(False, "Halve the gradient.", in_arithmetic=True)]\n'
    text = table.read_text()
    head, declaration, rest = text.rpartition("    maximize: Annotated[bool, Option(False")
    assert declaration
    table.write_text(head + line + declaration + rest)
    move = package / "step" / "move.py"
    arithmetic = 'g = -raw if group["maximize"] else raw\n'
    assert arithmetic in move.read_text()
    move.write_text(move.read_text().replace(arithmetic, f'{arithmetic}    g = g * 0.5 if group["halved"] else g\n'))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.stdout == "all places know the new options\n", done.stderr
