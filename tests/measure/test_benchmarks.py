"""The benchmarks run, and count correctly; the tests make no statement about speed."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import aimopt
from aimopt.cli import main
from aimopt.kernels.cpu.library import instruction_sets
from aimopt.measure import muon_benchmark, step_benchmark, train_benchmark
from aimopt.measure.machine import describe_machine
from aimopt.measure.model_shapes import MODELS
from aimopt.measure.timing import paired_ratio, time_in_turn


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [
        ("gpt2", 124_439_808, 148),
        ("gpt2-matrices", 84_934_656, 48),
        ("resnet50", 23_705_252, 161),
        ("vit", 6_268_810, None),
        ("tiny", None, 500),
    ],
)
def test_shapes_are_those_of_the_models(model: str, parameters: int | None, tensors: int | None) -> None:
    shapes = MODELS[model]()
    assert parameters is None or sum(map(math.prod, shapes)) == parameters
    assert tensors is None or len(shapes) == tensors


def test_functions_take_turns_and_ratios_are_paired() -> None:
    calls: list[str] = []
    times = time_in_turn({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4)  # type: ignore[misc]
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert paired_ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 1.5, 2.5)
    assert paired_ratio([3.0], [2.0]).median == 1.5


def test_the_streaming_loop_touches_everything_once() -> None:
    params = [torch.zeros(n, requires_grad=True) for n in (5, 1000, 0, 3)]
    for p in params:
        p.grad = torch.full_like(p, 2.0)
    for family in step_benchmark.families():
        optimizer = family.ours.build(params)
        optimizer.step()
        before = [p.detach().clone() for p in params]
        stream = step_benchmark.streaming_over(params, optimizer)
        if "bfloat16" in family.ours.name:
            assert stream is None  # the loop is for float32
            continue
        assert stream is not None
        stream()
        assert all(torch.equal(p, old + 2) for p, old in zip(params, before, strict=True))


def test_installed_peers_are_timed() -> None:
    names = {peer.name for family in step_benchmark.families() for peer in family.peers}
    assert {
        "torch AdamW fused",
        "pytorch-rad RADAR",
        "pytorch_optimizer Adan",
        "adabelief-pytorch",
        "lion-pytorch",
    } <= names


@pytest.mark.parametrize("instructions", [True, False])
def test_muon_is_timed_on_matrices(instructions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon_benchmark, "has_bfloat16_products", lambda: instructions)
    monkeypatch.setitem(MODELS, "gpt2-matrices", lambda: [(6, 4), (4, 6), (6, 4)])
    told: list[str] = []
    rows = step_benchmark.run(["gpt2-matrices"], 2, told.append)
    peers = ["torch Muon", "torch Muon in float32"][0 if instructions else 1 :]
    names = ("Muon", "Muon, bfloat16 parameters")
    assert [(row.ours, row.peer) for row in rows] == [(name, peer) for name in names for peer in peers]
    assert (muon_benchmark.LEFT_OUT in told) is not instructions
    assert {row.instruction_set for row in rows} == {step_benchmark.NO_KERNEL}


def test_torchs_muon_in_float32_differs_from_ours_by_rounding_alone() -> None:
    params = [torch.linspace(-1, 1, 24).view(4, 6).sin().requires_grad_() for _ in range(3)]
    for p in params:
        p.grad = torch.linspace(0, 9, 24).view(4, 6).cos()
    muon_benchmark.Float32Muon(params[:1], lr=0.1).step()
    aimopt.Muon(params[1:2], lr=0.1).step()
    torch.optim.Muon(params[2:], lr=0.1).step()
    apart = [(p - params[1]).abs().max() for p in params]
    assert apart[0] < 1e-6 < 1e-5 < apart[2]
    assert torch.equal(params[0].grad, params[1].grad)  # type: ignore[arg-type]


def test_the_step_benchmark_runs_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, web_page = tmp_path / "step.json", tmp_path / "step.html"
    assert main(["bench", "step", "--quick", "--json", str(file), "--html", str(web_page)]) == 0
    written = json.loads(file.read_text())
    rows = {(row["ours"], row["peer"]): row for row in written["rows"]}
    assert {row["instruction_set"] for row in written["rows"]} == {*instruction_sets()[1:]}
    assert web_page.read_text().count("<tr>") == 1 + len(written["rows"])
    radar = rows["RADAR", "torch AdamW fused"]
    assert radar["ours_state_bytes"] == radar["peer_state_bytes"] == 8.0
    assert rows["Lion", "lion-pytorch"]["ours_state_bytes"] == 4.0
    assert all(row["ours_ms"] > 0 and row["ratio"]["low"] <= row["ratio"]["median"] for row in rows.values())
    assert written["machine"] == describe_machine()
    assert "torch AdamW fused" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == [web_page, file]


@pytest.mark.nightly
def test_the_training_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in train_benchmark.OPTIMIZERS)


def test_the_small_gpt_learns() -> None:
    torch.manual_seed(0)
    trainer = train_benchmark.Trainer("RADAR", width=32, layers=1)

    @torch.no_grad()
    def loss() -> float:
        logits = trainer.model(trainer.batch[:, :-1])
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), trainer.batch[:, 1:].flatten()))

    before = loss()
    for _ in range(5):
        trainer.step()
    assert loss() < before - 0.1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bench", "step", "--models", "foo"], "no model is called 'foo'; known are gpt2"),
        (["bench", "step", "--rounds", "0"], "must be a whole number from 1, got '0'"),
        (["bench", "step", "--json", "/no/such/folder/x.json"], "there is no folder '/no/such/folder'"),
        (["bench", "step", "--json", "/dev/null"], "'/dev/null' is a device or a pipe; give the name of a file"),
        (["bench"], "required"),
        (["nonsense"], "invalid choice: 'nonsense'"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments: list[str], complaint: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_without_a_command_it_shows_the_active_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"fused, CPU +on: ", shown)
    assert "bench" in shown
