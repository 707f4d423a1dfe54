"""The examples of trainers and other libraries run, each as a script, and do what docs/trainers.md says."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt import groups
from aimopt.optimizers import class_of

ROOT = Path(__file__).parent.parent
# Per example: the packages that it needs, and what it must print.
QUICK = {
    "accelerate_loop": ("accelerate", r"loss 8.\d+ → 0.\d+, state saved and loaded"),
    "config_file": ("torch", r"RADAR from a config: .* → 0.\d+\nthe hybrid from a config: loss 7.\d+ → 1.\d+"),
    "hf_trainer": ("accelerate", r"mean loss 1.\d+\n(.*\n)*hybrid, resumed at step 6 of 12: weights differ by 0\n"),
}
NIGHTLY = {
    "deepspeed_zero": (
        "deepspeed",
        r"RADAR, ZeRO stage 0: (loss 8.\d+ → 0.\d+)\n(.*\n)*RADAR, ZeRO stage 1: \1\n(.*\n)*RADAR, ZeRO stage 2: \1\n"
        r"(.*\n)*RADAR, ZeRO stage 3: \1\n(.*\n)*hybrid, ZeRO stage 0: .*\n(.*\n)*.*Spectral takes matrices",
    ),
    "lightning_module": ("lightning", r"Automatic .* → 0.\d+\n(.*\n)*Manual .* → 0.\d+"),
    "optuna_search": ("optuna", r"best of 12: lr 0.0\d+, loss 0.\d+"),
    "ray_tune_search": ("ray", r"best learning rate: 0.1, loss 0.\d+"),
    "stable_baselines": ("stable_baselines3", "PPO with RADAR: 40 steps"),
    "training_logs": ("tensorboard wandb", "TensorBoard: 1 event file\n(.*\n)*.*offline: 7 series"),
    "trl_lora": (
        "trl peft datasets",
        r"lora_A.* Relativistic .*\n(.*\n)*LoRA factors: 8 trained, loss 1.8\d+ → 1.6\d+",
    ),
}


def run_example(name: str, packages: str, printed: str) -> None:
    for package in packages.split():
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout), done.stdout


@pytest.mark.parametrize("name", QUICK)
def test_example(name: str) -> None:
    run_example(name, *QUICK[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_example_of_a_large_library(name: str) -> None:
    run_example(name, *NIGHTLY[name])


def test_every_trainer_of_the_page_has_a_test() -> None:
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    assert {*re.findall(r"examples/(\w+)\.py", page)} == {*QUICK, *NIGHTLY}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["radar", "hybrid"])
@pytest.mark.filterwarnings("default")
def test_torchaos_offload_steps_as_the_optimizer_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao's own code, one optimizer per parameter, with the CPU in place of the GPU, which it insists on."""
    offload: Any = pytest.importorskip("torchao.optim.cpu_offload")
    stream = SimpleNamespace(
        wait_stream=lambda other: None,
        synchronize=lambda: None,
        record_event=lambda: SimpleNamespace(synchronize=lambda: None),
    )

    class FakeDevice:
        Stream = staticmethod(lambda: stream)
        current_stream = staticmethod(lambda: stream)
        stream = staticmethod(lambda used: torch.no_grad())

    class FakeTorch:
        cuda = FakeDevice

        def __getattr__(self, attribute: str) -> Any:
            return getattr(torch, attribute)

        @staticmethod
        def empty_like(tensor: torch.Tensor, **keywords: Any) -> torch.Tensor:
            return torch.empty_like(tensor)

    monkeypatch.setattr(offload, "torch", FakeTorch())
    monkeypatch.setattr(offload, "get_available_devices", lambda: ["cpu", "cuda"])
    ends = []
    for offloaded in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer: Any = aimopt.create(name, model, lr=1e-2)
        if offloaded:
            plain = [{k: v for k, v in group.items() if k != "param_names"} for group in optimizer.param_groups]
            optimizer = offload.CPUOffloadOptimizer(plain, aimopt.RADAR, minimal_size=20)
            assert len(optimizer.optim_dict) == 2  # the two large weights, each with an optimizer of its own
        x = torch.randn(32, 8)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-6, atol=1e-7)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_torchtitan_takes_our_optimizers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    components: Any = pytest.importorskip("torchtitan.components.optimizer")

    monkeypatch.setattr(components.OptimizersContainer, "_resolve_optimizer_factory", staticmethod(class_of))

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
    config = components.OptimizersContainer.Config(
        param_groups=[
            components.ParamGroupConfig(pattern=r"^2\.weight", optimizer_name="Muon", optimizer_kwargs={"lr": 1e-2}),
            components.ParamGroupConfig(pattern=".*", optimizer_name="RADAR", optimizer_kwargs={"lr": 1e-2}),
        ],
        implementation="for-loop",
    )
    container = components.OptimizersContainer(config, model_parts=[model])
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    for _ in range(2):
        container.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        container.step()
    assert [type(optimizer).__name__ for optimizer in container.optimizers] == ["Muon", "RADAR"]
    assert (nn.utils.parameters_to_vector(model.parameters()) != before).any()
    container.load_state_dict(container.state_dict())
    assert groups.explain(container.optimizers[0]).splitlines()[1].split()[:3] == ["2.weight", "8×8", "Spectral"]
