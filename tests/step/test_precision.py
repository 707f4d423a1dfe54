"""16-bit parameters and state: rounded at random, equally on every path, so that small updates add up."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.step.precision import random_bits, round_stochastically
from optimizer_driver import (
    ALL,
    EXCEPT_MATRICES,
    FUSED,
    assert_same,
    count_paths,
    drive,
    flat,
    parameters,
    push,
    shapes_for,
)

HALF = [torch.bfloat16, torch.float16]
half = pytest.mark.parametrize("dtype", HALF, ids=str)


def neighbours(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The values of `dtype` next to x, in float32."""
    nearest = x.to(dtype)
    below = torch.where(nearest.float() <= x, nearest, nearest.nextafter(torch.tensor(-torch.inf, dtype=dtype)))
    above = torch.where(nearest.float() >= x, nearest, nearest.nextafter(torch.tensor(torch.inf, dtype=dtype)))
    return below.float(), above.float()


@half
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e3])
def test_rounding_is_to_a_neighbour_and_unbiased(dtype: torch.dtype, scale: float) -> None:
    x = torch.randn(300, generator=torch.Generator().manual_seed(0)) * scale
    below, above = neighbours(x, dtype)
    draws = torch.stack([round_stochastically(x, dtype, t, 3, 1).float() for t in range(4000)])
    assert ((draws == below) | (draws == above)).all()
    spacing = (above - below).clamp(min=1e-30)
    # The mean of 4000 draws of a coin with values 0 and 1 is off by 0.5/√4000 at most, times five for 300 of them.
    assert (((draws.double().mean(0) - x) / spacing).abs() < 5 * 0.5 / 4000**0.5).all()


@half
def test_exact_and_nonfinite_values_do_not_change(dtype: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    rounded = round_stochastically(every.float(), dtype, 7, 0, 0)
    torch.testing.assert_close(rounded, every, rtol=0, atol=0, equal_nan=True)
    largest = torch.finfo(dtype).max
    beyond = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38])
    expected = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.inf if largest < 1e38 else 3e38])
    got = round_stochastically(beyond, dtype, 1, 0, 0).float()
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=0, equal_nan=True)


def test_random_bits_differ_between_steps_parameters_and_buffers() -> None:
    x = torch.full((64,), 1.001)
    draws = [round_stochastically(x, torch.bfloat16, *key) for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))]
    for i, first in enumerate(draws):
        assert not any(torch.equal(first, other) for other in draws[i + 1 :])
    again = round_stochastically(x, torch.bfloat16, torch.tensor(1.0), 0, 0)
    assert torch.equal(draws[0], again)


@pytest.mark.parametrize("bits", [16, 18])
def test_random_bits_are_even_and_independent_between_elements_and_draws(bits: int) -> None:
    """Over blocks and steps, for all pairs of places in a block: no correlation above six standard deviations."""
    positions, draws = torch.arange(64 * 128), []
    for draw in (0, 1):
        steps = [random_bits(bits, positions, t, 3, draw).view(64, 128) for t in range(1, 101)]
        draws.append((torch.cat(steps).double() + 0.5) / 2**bits - 0.5)
    both = torch.cat(draws, 1) * 12**0.5
    count = both.shape[0]
    correlation = both.T @ both / count
    assert (both.mean(0).abs() < 6 / count**0.5).all()
    assert ((correlation - torch.eye(256)).abs() < 6 / count**0.5).all()
    assert (both[64:] * both[:-64]).mean().abs() < 6 / both.numel() ** 0.5


@pytest.mark.parametrize("path", [{"fused": True}, {"foreach": False}], ids=str)
def test_a_nan_with_any_bits_stays_a_nan(path: dict[str, Any]) -> None:
    p = torch.zeros(40, requires_grad=True)
    p.grad = torch.full((40,), -1, dtype=torch.int32).view(torch.float32)
    p.grad[::2] = torch.full((20,), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    optimizer = aimopt.RADAR([p], state_dtype="bfloat16", **path)
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].isnan().all()
    assert optimizer.state[p]["exp_avg_sq"].isnan().all()


@half
@pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
def test_every_path_rounds_equally(Optimizer: Any, dtype: torch.dtype) -> None:
    """To the bit, except where the float32 arithmetic differs in the last digit."""
    ends = []
    for options in ({"foreach": False}, {"foreach": True}, {}):
        params = parameters([*shapes_for(Optimizer), (17, 11)], dtype)
        optimizer = Optimizer(params, lr=0.01, weight_decay=0.1, state_dtype="bfloat16", **options)
        push(params, 0)
        with count_paths() as paths:
            optimizer.step()
        unfused = "foreach" if options.get("foreach") else "plain"
        assert set(paths) == {"fused" if not options and Optimizer in FUSED else unfused}
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for end in ends[1:]:
        for value, reference in zip(end, ends[0], strict=True):
            assert value.dtype == reference.dtype
            if value.dtype == torch.float32:  # a state that is not rounded
                assert_same(value, reference, 1e-6)
                continue
            different = int((value != reference).sum())
            assert different <= 1 + value.numel() // 50


def test_every_path_rounds_equally_for_every_memory_order() -> None:
    ends = []
    for fused in (True, False):
        p = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
        p = p.to(memory_format=torch.channels_last).requires_grad_()
        p.grad = torch.ones_like(p)
        aimopt.SGDM([p], lr=1e-3, momentum=0.0, fused=fused).step()
        ends.append(p.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("rounding", [True, False])
@half
def test_the_kernel_rounds_as_torch_does(rounding: bool, dtype: torch.dtype) -> None:
    """θ − g for all kinds of sizes, where the float32 arithmetic is one exact subtraction."""
    bits = torch.randint(-(2**15), 2**15, (2, 5000), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    p, g = (x.clone() for x in bits.view(dtype))
    ends = []
    for fused in (True, False):
        q = p.clone().requires_grad_()
        q.grad = g
        aimopt.SGDM([q], lr=1.0, momentum=0.0, stochastic_rounding=rounding, fused=fused).step()
        ends.append(q.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=0, equal_nan=True)
    if not rounding:
        torch.testing.assert_close(ends[0], (p.float() - g.float()).to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fused", [True, False])
def test_small_updates_are_lost_only_when_rounding_to_the_nearest(fused: bool) -> None:
    ends = {}
    for stochastic in (True, False):
        w = torch.ones(2000, dtype=torch.bfloat16, requires_grad=True)
        optimizer = aimopt.RADAR([w], lr=1e-4, stochastic_rounding=stochastic, fused=fused)
        for _ in range(500):
            w.grad = torch.ones_like(w)
            optimizer.step()
        ends[stochastic] = float(w.detach().float().mean())
    assert ends[False] == 1.0
    assert ends[True] == pytest.approx(1 - 500 * 1e-4, abs=2e-3)


@pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
def test_state_in_bfloat16_is_half_the_memory_and_follows_float32(Optimizer: Any) -> None:
    ends = []
    for state_dtype in ("bfloat16", torch.bfloat16, None):
        params = parameters([(40, 50)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, state_dtype=state_dtype)
        for step in range(40):
            push(params, step)
            optimizer.step()
        ends.append(flat(params))
        state = optimizer.state[params[0]]
        sizes = [x.element_size() for name, x in state.items() if x.ndim and name != "z"]  # z is a parameter
        assert set(sizes) == ({4} if state_dtype is None else {2})
        assert optimizer.param_groups[0]["state_dtype"] == (None if state_dtype is None else "bfloat16")
    assert torch.equal(ends[0], ends[1])
    moved = ends[2] - flat(parameters([(40, 50)], torch.float32))
    assert float((ends[0] - ends[2]).norm() / moved.norm()) < (0.2 if Optimizer.__name__ == "Lion" else 0.1)


def test_radar_has_eight_bytes_of_state_per_parameter_and_four_in_bfloat16() -> None:
    for state_dtype, size in ((None, 8), ("bfloat16", 4)):
        (p,) = params = parameters([(100,)], torch.float32)
        optimizer = aimopt.RADAR(params, state_dtype=state_dtype)
        push(params, 0)
        optimizer.step()
        assert sum(x.nbytes for x in optimizer.state[p].values() if x.ndim) == size * p.numel()


def test_a_small_second_moment_decays_in_bfloat16() -> None:
    """β2 = 0.999 removes a thousandth per step, which rounding to the nearest would lose."""
    p = torch.zeros(4000, requires_grad=True)
    optimizer = aimopt.AdamW([p], state_dtype="bfloat16")
    for step in range(300):
        p.grad = torch.full_like(p, 1.0 if step == 0 else 0.0)
        optimizer.step()
    v = optimizer.state[p]["exp_avg_sq"].float().mean()
    assert float(v) == pytest.approx(1e-3 * 0.999**299, rel=0.02)


def test_a_run_with_bfloat16_state_is_saved_and_continued_to_the_bit() -> None:
    def begun() -> tuple[Any, list[Tensor]]:
        params = parameters([(30,), (4, 4)], torch.bfloat16)
        return aimopt.RADAR(params, 0.01, state_dtype="bfloat16"), params

    optimizer, params = begun()
    for step in range(5):
        push(params, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "params": [p.detach() for p in params]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, others = begun()
    for p, value in zip(others, saved["params"], strict=True):
        p.data.copy_(value)
    other.load_state_dict(saved["optimizer"])
    for step in range(5, 10):
        for o, ps in ((optimizer, params), (other, others)):
            push(ps, step)
            o.step()
    assert torch.equal(flat(params), flat(others))
    assert other.state[others[0]]["exp_avg"].dtype == torch.bfloat16


def test_float64_parameters_may_have_float32_state() -> None:
    end = drive(lambda p: aimopt.RADAR(p, 0.01, state_dtype="float32"), parameters())
    assert_same(end, drive(lambda p: aimopt.RADAR(p, 0.01), parameters()), 1e-5)
