"""The source that is printed for GPUs: it matches the program, and compiles without a GPU."""

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_design_space import build

import aimopt
from aimopt import AdamW, Adaptive, Belief, Direct, FixedPoint, Relativistic, kernels
from aimopt.kernels.gpu import launch as gpu
from aimopt.kernels.gpu.triton_source import passed_uniforms, source
from aimopt.kernels.layout import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8
from optimizer_driver import advance, parameters
from triton_interpreter import RADAR_PARTS, Elaborate, forget, interpreted, interpreter, program_for  # noqa: F401 (a fixture)

triton = pytest.importorskip("triton")

COMPILED = {
    "RADAR, float32": (RADAR_PARTS, [FLOAT32] * 4, [FLOAT32]),
    "RADAR, float64": (RADAR_PARTS, [FLOAT64] * 4, [FLOAT64]),
    "RADAR, bfloat16 parameters": (RADAR_PARTS, [BFLOAT16, FLOAT32, FLOAT32, BFLOAT16], [FLOAT32]),
    "RADAR, all in 16 bits": (RADAR_PARTS, [FLOAT16, BFLOAT16, BFLOAT16, FLOAT16], [FLOAT32]),
    "RADAR, state in 8 bits": (RADAR_PARTS, [FLOAT32, INT8, UINT8, FLOAT32], [FLOAT32]),
    "NAdam": ((aimopt.ScheduledNesterov(), Adaptive(), Direct()), [FLOAT32] * 4, [FLOAT32, FLOAT64]),
    "Belief": ((aimopt.EMA(), Belief(), Direct()), [FLOAT32] * 4, [FLOAT32]),
    "annealed": (
        (aimopt.EMA(), Relativistic(order=2, zeta=None, max_iter=50, final_delta=2.0, amsgrad=True), Direct()),
        [FLOAT32] * 5,
        [FLOAT32],
    ),
    "elaborate, float32": ((aimopt.Lookback(), Elaborate(), FixedPoint()), [FLOAT32] * 3, [FLOAT32]),
    "elaborate, float64": ((aimopt.Lookback(), Elaborate(), FixedPoint()), [FLOAT64] * 3, [FLOAT64]),
}


@pytest.mark.parametrize("name", COMPILED)
def test_the_printed_source_compiles_for_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Down to GPU assembly, in which loads take 16 bytes at once; no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    forget()
    cell, types, scalar_types = COMPILED[name]
    program = program_for(build(parameters(), cell))
    made = gpu.make_kernels(program, tuple(types), tuple(scalar_types), True)
    number = "fp64" if FLOAT64 in types else "fp32"
    kinds = dict(rows="*i64", gradients="*i64", chunks="*i64", uniforms=f"*{number}", keys="*i32", tensors="i32")
    kinds |= dict(found_inf="*fp32", lr_pointer="*fp64", grad_scale_pointer="*fp32", constants="*fp64")
    assembly = []
    for kernel, constants in (
        (made.prepare, dict(LANES=gpu.LANES)),
        (made.step, dict(WHOLE=True, BLOCK=gpu.BLOCK, CHUNK=gpu.CHUNK)),
        (made.step, dict(WHOLE=False, BLOCK=gpu.BLOCK, CHUNK=gpu.CHUNK)),
    ):
        signature = {x: "constexpr" if x in constants else kinds[x] for x in kernel.arg_names}
        text = ASTSource(kernel, signature=signature, constexprs=constants)
        result = triton.compile(text, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, **gpu.OPTIONS})
        assembly.append(result.asm["ptx"])
    forget()
    _, whole, ragged = assembly
    wide = "ld.global.v2.b64" if number == "fp64" else "ld.global.v4.b32"
    assert wide in whole
    assert wide not in ragged
    assert "div.full" not in whole
    assert "approx" not in whole or "elaborate" in name


def test_the_source_of_a_kernel_matches_the_program() -> None:
    program = program_for(build(parameters(), RADAR_PARTS))
    printed = source(program, (FLOAT32,) * 4, (FLOAT32,), False)
    assert "exp_avg_sq_2 = tl.fma(grad_3 * c" in printed
    assert "0.999" not in printed
    assert printed.count("tl.store(") == len(passed_uniforms(program)) + 1 + 3  # numbers, the step count, streams
    assert "scramble" not in printed


@interpreted
def test_a_schedule_of_a_hyperparameter_needs_no_new_kernel() -> None:
    made = {
        gpu.make_kernels(program_for(aimopt.RADAR(parameters(), betas=(beta, 0.99))), (FLOAT32,) * 4, (FLOAT32,), False)
        for beta in (0.8, 0.85, 0.9)
    }
    assert len(made) == 1


@interpreted
def test_a_kernel_can_be_inspected() -> None:
    made = gpu.make_kernels(program_for(build(parameters(), RADAR_PARTS)), (FLOAT32,) * 4, (FLOAT32,), False)
    assert inspect.getsource(made.step.fn).startswith("@triton.jit\ndef step(")


def test_without_a_gpu_importing_does_not_import_triton() -> None:
    forget()
    if not torch.cuda.is_available():
        assert kernels.status()["fused, CUDA"] == "off: torch finds no CUDA device"
    code = "import sys, aimopt; aimopt.kernels.status(); assert 'triton' not in sys.modules"
    if not torch.cuda.is_available():
        subprocess.run([sys.executable, "-c", code], check=True)
    forget()


def test_without_triton_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setitem(sys.modules, "triton", None)
    forget()
    assert kernels.status()["fused, CUDA"].startswith("off: Triton could not be imported")
    with pytest.raises(ValueError, match=r"fused=True: Triton could not be imported"):
        AdamW(parameters(), fused=True)
    params = parameters()
    advance(AdamW(params), params, 1)  # takes another path
    forget()


@interpreted
def test_status_reports_that_it_is_on() -> None:
    assert kernels.status()["fused, CUDA"] == "on: Triton"
