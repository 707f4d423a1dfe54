"""`import aimopt` is quick, because it imports torch only when an optimizer is used; nothing else changes by that."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aimopt
from aimopt import AIM, EMA, Spectral
from aimopt.parts.component import Correction, Filter, Geometry


def in_new_process(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torch_is_imported_at_the_first_use_of_a_name() -> None:
    code = """
import sys
import aimopt, aimopt.cli
aimopt.__version__, dir(aimopt)
aimopt.cli.program()
print("torch" in sys.modules)
aimopt.RADAR
print("torch" in sys.modules)
"""
    assert in_new_process(code).split() == ["False", "True"]


def test_training_without_compiling_does_not_import_the_compiler() -> None:
    code = """
import sys
import torch, aimopt
model = torch.nn.Linear(3, 2)
optimizer = aimopt.create("hybrid", model, lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
for _ in range(2):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""
    assert in_new_process(code) == "False"


def test_every_public_name_is_there_and_stays_the_same_object() -> None:
    for name in aimopt.__all__:
        assert getattr(aimopt, name) is getattr(aimopt, name)
        assert name in vars(aimopt)  # found without another call of __getattr__
    assert set(aimopt.__all__) <= set(dir(aimopt))
    assert len(set(aimopt.__all__)) == len(aimopt.__all__)


def test_stars_and_submodules_import_as_before() -> None:
    code = """
from aimopt import *
print(RADAR.__name__, groups.split.__name__)
import aimopt
print(aimopt.kernels.__name__, aimopt.theory.__name__, hasattr(aimopt, "nothing"), hasattr(aimopt, "__nothing__"))
"""
    assert in_new_process(code).split() == ["RADAR", "split", "aimopt.kernels", "aimopt.theory", "False", "False"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'aimopt' has no attribute 'RADR'"):
        aimopt.RADR  # type: ignore[attr-defined]  # noqa: B018


def test_an_optimizer_from_a_pickle_finds_its_parts(tmp_path: Path) -> None:
    """Groups name their parts, so that the parts must be registered in a process that imported only AIM."""
    p = torch.ones(2, 2, requires_grad=True)
    p.grad = torch.eye(2)
    optimizer = AIM([p], 0.5, filter=EMA(), geometry=Spectral())
    file = tmp_path / "optimizer.pickle"
    file.write_bytes(pickle.dumps(optimizer))
    code = """
import pickle, sys
optimizer = pickle.load(open(sys.argv[1], "rb"))
(p,) = optimizer.param_groups[0]["params"]
p.grad = p.detach().clone()
before = p.detach().clone()
optimizer.step()
print(bool((p != before).any()))
"""
    assert in_new_process(code, str(file)) == "True"


def test_importing_one_part_registers_all() -> None:
    names = ["EMA", "Spectral", "Secant"]
    assert [name in axis.registry for name, axis in zip(names, (Filter, Geometry, Correction), strict=True)] == [
        True
    ] * 3
    code = """
from aimopt.parts.component import Correction, Filter, Geometry
print("EMA" in Filter.registry, "Spectral" in Geometry.registry, "Secant" in Correction.registry)
"""
    assert in_new_process(code).split() == ["True"] * 3
