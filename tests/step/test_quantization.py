"""State in 8 bits: the code, the same bits on every path, its memory, and checkpoints in every direction."""

import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.parts.composition import Parts
from aimopt.step.quantization import BLOCK, SHIFT, SMALLEST, decode, encode_into, scale_shape
from memory_checks import assert_refuses
from optimizer_driver import EXCEPT_MATRICES, FUSED, advance, count_paths, flat, parameters, push

SHAPES = ((70, 60), (5, 7), (4, 4, 16, 17))
DTYPES = pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)


def stored(x: Tensor, dtype: torch.dtype, random: Tensor | None = None) -> Tensor:
    """The numbers after they were stored in 8 bits."""
    codes, scale = torch.empty_like(x, dtype=dtype), torch.empty(scale_shape(x.numel()))
    encode_into(codes, scale, x, random)
    return decode(codes, scale)


def draw(numel: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << SHIFT, (numel,), generator=generator, dtype=torch.int32)


def numbers(dtype: torch.dtype) -> Tensor:
    """Blocks of very different sizes, and elements of different sizes in each; a part of a block at the end."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=generator) * torch.logspace(-12, 6, 1000)
    return x if dtype == torch.int8 else x.square()


@DTYPES
def test_the_nearest_level_is_within_a_64th_of_number_and_scale(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    largest = torch.stack([block.abs().max() for block in x.split(BLOCK)]).repeat_interleave(BLOCK)[:1000]
    scale = largest / (14 if dtype == torch.int8 else 240)
    error, large = (stored(x, dtype) - x).abs(), x.abs() > scale / 32
    assert (error[large] <= (x.abs() + scale)[large] / 64).all()
    assert (error[~large] <= scale[~large] / (64 if dtype == torch.int8 else 32)).all()
    assert 50 < (~large).sum() < 500


@DTYPES
def test_what_was_stored_once_is_stored_again_without_an_error(dtype: torch.dtype) -> None:
    """As long as the scale stays the same: here the largest number of each block is the highest level."""
    codes, scale = torch.empty(1000, dtype=dtype), torch.empty(scale_shape(1000))
    encode_into(codes, scale, numbers(dtype), draw(1000, 0))
    codes[::BLOCK] = torch.iinfo(dtype).max
    once = decode(codes, scale)
    for random in (None, draw(1000, 1), torch.zeros(1000, dtype=torch.int32), torch.full((1000,), (1 << SHIFT) - 1)):
        assert torch.equal(stored(once, dtype, None if random is None else random.int()), once)


@DTYPES
def test_the_scale_is_the_smallest_that_holds_the_largest_number(dtype: torch.dtype) -> None:
    levels = torch.iinfo(dtype).max
    largest = torch.logspace(-30, 30, 4000)
    codes, scale = torch.empty((4000, BLOCK), dtype=dtype), torch.empty(4000)
    encode_into(codes, scale, largest[:, None].expand(4000, BLOCK))
    base = scale.view(torch.int32) >> SHIFT
    highest = [
        ((base + levels + k) << SHIFT).view(torch.float32) - ((base + k) << SHIFT).view(torch.float32) for k in (-1, 0)
    ]
    assert (highest[0] < largest).all()
    assert (largest <= highest[1]).all()


def test_stochastic_rounding_is_unbiased_also_below_the_lowest_level() -> None:
    x = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    x[1:30] = torch.linspace(-2e-3, 2e-3, 29)
    x[0] = 1.0
    draws = torch.stack([stored(x, torch.int8, draw(BLOCK, seed)) for seed in range(3000)]).double()
    spread = draws.std(0) / 3000**0.5
    assert ((draws.mean(0) - x).abs() <= 5 * spread + 1e-6 * x.abs() + 1e-9).all()
    assert (draws[:, 1] == 0).any()
    assert (draws[:, 1] != 0).any()


def test_a_second_moment_becomes_0_only_if_its_whole_block_is_0() -> None:
    x = torch.cat([torch.ones(1), torch.full((100,), 1e-30), torch.zeros(27), torch.zeros(BLOCK)])
    for random in (None, draw(2 * BLOCK, 0)):
        v = stored(x, torch.uint8, random)
        assert (v[1:BLOCK] > 0).all()
        assert (v[1:BLOCK] < 2e-4).all()
        assert not v[BLOCK:].any()


@DTYPES
@pytest.mark.parametrize("special", [torch.inf, torch.nan, 3e38])
def test_a_block_with_a_number_that_is_not_finite_is_nan_and_the_others_are_not(
    dtype: torch.dtype, special: float
) -> None:
    x = numbers(dtype)
    expected = stored(x, dtype)
    x[200] = special
    result = stored(x, dtype)
    assert result[BLOCK : 2 * BLOCK].isnan().all()
    assert torch.equal(torch.cat([result[:BLOCK], result[2 * BLOCK :]]), torch.cat([expected[:BLOCK], expected[256:]]))


@DTYPES
def test_the_largest_and_the_smallest_numbers(dtype: torch.dtype) -> None:
    limits = torch.finfo(torch.float32)
    for x in (2.0**127, limits.tiny, 1e-44, 0.0):
        block = torch.full((BLOCK,), x)
        assert stored(block, dtype, draw(BLOCK, 0)).isfinite().all()
        torch.testing.assert_close(stored(block, dtype), block, rtol=1 / 32, atol=2 * limits.tiny)


def stepped(
    Optimizer: Any, steps: int = 1, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Any, list[Tensor]]:
    params = [p.detach() for p in parameters(SHAPES, dtype)]
    params[2] = params[2].to(memory_format=torch.channels_last)
    params = [p.requires_grad_() for p in params]
    optimizer = Optimizer(params, lr=0.01, weight_decay=0.1, state_dtype="int8", **options)
    for step in range(steps):
        push(params, step)
        optimizer.step()
    return optimizer, params


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
def test_every_path_rounds_equally(Optimizer: Any, rounding: bool, dtype: torch.dtype) -> None:
    """To the bit, except where the float32 arithmetic differs in the last digit."""
    ends = []
    for options in ({"foreach": False}, {"foreach": True}, {}):
        with count_paths() as paths:
            optimizer, params = stepped(Optimizer, dtype=dtype, stochastic_rounding=rounding, **options)
        unfused = "foreach" if options.get("foreach") else "plain"
        assert set(paths) == {"fused" if not options and Optimizer in FUSED else unfused}
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for end in ends[1:]:
        for value, reference in zip(end, ends[0], strict=True):
            assert value.dtype == reference.dtype
            if value.dtype == torch.float32 and value.ndim > 1:
                torch.testing.assert_close(value, reference, rtol=1e-5, atol=1e-6)
            else:
                assert int((value != reference).sum()) <= value.numel() // 200


@pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
def test_moments_of_large_parameters_are_in_8_bits_and_nothing_else_is(Optimizer: Any) -> None:
    optimizer, params = stepped(Optimizer)
    buffers = Parts.from_group(optimizer.param_groups[0]).buffers()
    codes = {"signed": torch.int8, "unsigned": torch.uint8, None: torch.float32}
    for p in params:
        state, large = optimizer.state[p], p.numel() >= SMALLEST
        for name, initial in buffers.items():
            assert state[name].dtype == (codes[initial.code] if large and not initial.scalar else torch.float32)
            if initial.code is not None:
                assert state[f"{name}_scale"].shape == (scale_shape(p.numel()) if large else (0,))
    expected = {"exp_avg": "signed", "momentum_buffer": "signed", "exp_avg_sq": "unsigned", "exp_avg_var": "unsigned"}
    for name in ("prev_grad", "z", *expected):
        assert name not in buffers or buffers[name].code == expected.get(name)


def test_radar_has_about_two_bytes_of_state_per_parameter() -> None:
    p = torch.zeros(768, 3072, requires_grad=True)
    p.grad = torch.ones_like(p)
    optimizer = aimopt.RADAR([p], state_dtype="int8")
    optimizer.step()
    size = sum(x.nbytes for x in optimizer.state[p].values() if x.ndim) / p.numel()
    assert size == 2 * (1 + 4 / BLOCK)
    assert size <= 2.2


@pytest.mark.parametrize(
    "Optimizer", [aimopt.RADAR, aimopt.Adan, aimopt.SGDM, aimopt.AdaBelief], ids=lambda o: o.__name__
)
def test_the_end_of_a_run_is_near_that_with_float32_state(Optimizer: Any) -> None:
    ends = []
    for state_dtype in ("int8", None):
        params = parameters([(80, 60)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, state_dtype=state_dtype)
        advance(optimizer, params, 40)
        ends.append(flat(params))
    moved = ends[1] - flat(parameters([(80, 60)], torch.float32))
    assert float((ends[0] - ends[1]).norm() / moved.norm()) < 0.1


def test_a_small_second_moment_decays() -> None:
    """β2 = 0.999 removes a thousandth per step, which rounding to the nearest of 32 levels per octave would lose."""
    p = torch.zeros(8192, requires_grad=True)
    optimizer = aimopt.AdamW([p], state_dtype="int8")
    for step in range(300):
        p.grad = torch.full_like(p, 1.0 if step == 0 else 0.0)
        optimizer.step()
    v = decode(optimizer.state[p]["exp_avg_sq"], optimizer.state[p]["exp_avg_sq_scale"]).mean()
    assert float(v) == pytest.approx(1e-3 * 0.999**299, rel=0.02)


def through_a_file(state_dict: Any) -> Any:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("fused", [None, False])
def test_a_run_is_saved_and_continued_to_the_bit(fused: Any) -> None:
    optimizer, params = stepped(aimopt.RADAR, 5, fused=fused)
    others = [p.detach().clone().requires_grad_() for p in params]
    other = aimopt.RADAR(others, lr=0.01, weight_decay=0.1, state_dtype="int8", fused=fused)
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    for step in range(5, 9):
        for one, tensors in ((optimizer, params), (other, others)):
            push(tensors, step)
            one.step()
    assert torch.equal(flat(params), flat(others))
    assert other.state[others[0]]["exp_avg"].dtype == torch.int8


@pytest.mark.parametrize("first", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("second", [None, "bfloat16", "int8"])
def test_checkpoints_load_across_state_dtypes(first: Any, second: Any) -> None:
    params = parameters(SHAPES, torch.float32)
    begun = aimopt.RADAR(params, 0.01, state_dtype=first)
    advance(begun, params, 5)
    after = aimopt.RADAR(params, 0.01, state_dtype=second)
    after.load_state_dict(through_a_file(begun.state_dict()))
    assert after.param_groups[0]["state_dtype"] == second
    for p in params:
        for name in ("exp_avg", "exp_avg_sq"):
            values = []
            for optimizer in (begun, after):
                x, scale = optimizer.state[p][name], optimizer.state[p].get(f"{name}_scale")
                values.append(decode(x, scale) if x.dtype in (torch.int8, torch.uint8) else x.float())
            exact = first == second or second is None or (p.numel() < SMALLEST and second == "int8")
            torch.testing.assert_close(values[1], values[0], rtol=0 if exact else 1 / 16, atol=0 if exact else 1e-2)
        assert ("exp_avg_scale" in after.state[p]) == (second == "int8")
    with count_paths() as paths:
        advance(after, params, 2, first=5)
    assert set(paths) == {"fused"}


def test_radar_in_8_bits_continues_a_run_of_adamw_and_gives_it_back() -> None:
    params = parameters(SHAPES, torch.float32)
    adamw = torch.optim.AdamW(params, lr=0.01)
    advance(adamw, params, 5)
    radar = aimopt.RADAR(params, state_dtype="int8")
    radar.load_state_dict(through_a_file(adamw.state_dict()))
    assert radar.state[params[0]]["exp_avg_sq"].dtype == torch.uint8
    advance(radar, params, 3, first=5)
    plain = aimopt.RADAR(params)
    plain.load_state_dict(radar.state_dict())
    adamw.load_state_dict(plain.state_dict())
    assert adamw.state[params[0]]["exp_avg"].dtype == torch.float32
    advance(adamw, params, 2, first=8)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exp_avg_scale", None, "'exp_avg_scale' must be a tensor with the scales of 'exp_avg', and is a NoneType"),
        (
            "exp_avg_scale",
            torch.ones(3),
            r"shape (33,), one per block, and is a Tensor of torch.float32 and shape (3,)",
        ),
        ("exp_avg_scale", torch.ones(33).double(), "must be a tensor of torch.float32"),
        ("exp_avg_scale", -torch.ones(33), "has a negative scale"),
        ("exp_avg", torch.ones(70, 60, dtype=torch.uint8), "has dtype torch.uint8, and in 8 bits it is torch.int8"),
        ("exp_avg_sq", torch.ones(60, 70, dtype=torch.uint8), "shape (70, 60) and the checkpoint's 'exp_avg_sq'"),
        ("exp_avg", torch.ones(70, 60, dtype=torch.int32), "'exp_avg' must hold real numbers"),
    ],
)
def test_malformed_state_in_8_bits_is_refused_with_a_sentence(key: str, value: Any, message: str) -> None:
    optimizer, params = stepped(aimopt.RADAR)
    saved = optimizer.state_dict()
    saved["state"][0] = {**saved["state"][0], key: value}
    for state_dtype in ("int8", None):
        other = aimopt.RADAR(params, state_dtype=state_dtype)
        with pytest.raises(ValueError, match=re.escape(message)):
            other.load_state_dict(saved)
        assert not other.state


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exp_avg_scale", torch.ones(32), r"'exp_avg_scale' must be .* shape \(33,\)"),
        ("exp_avg_scale", torch.ones(33, dtype=torch.float64), "'exp_avg_scale' must be a tensor of torch.float32"),
        ("exp_avg_scale", torch.ones(66)[::2], "'exp_avg_scale' has gaps in memory"),
        ("exp_avg_scale", "freed", "'exp_avg_scale' needs 132 bytes of memory and its storage holds 0"),
        ("exp_avg", "freed", "'exp_avg' needs 4200 bytes of memory and its storage holds 0"),
        ("exp_avg", torch.ones(70, 60, dtype=torch.uint8), "in 8 bits it is torch.int8"),
        ("exp_avg", torch.ones(60, 70, dtype=torch.int8), "shape"),
    ],
)
def test_scales_and_codes_that_were_replaced_are_not_followed(fused: Any, key: str, value: Any, message: str) -> None:
    optimizer, params = stepped(aimopt.RADAR, 2, fused=fused)
    if isinstance(value, str):
        optimizer.state[params[0]][key].untyped_storage().resize_(0)
    else:
        optimizer.state[params[0]][key] = value
    push(params, 2)
    assert_refuses(optimizer, match=message)


def test_a_group_whose_state_dtype_was_changed() -> None:
    optimizer, params = stepped(aimopt.RADAR, 2)
    optimizer.param_groups[0]["state_dtype"] = None
    assert_refuses(optimizer, match="has dtype torch.int8, and the state_dtype of its group is not 'int8'; load")
    params = parameters(SHAPES, torch.float32)
    optimizer = aimopt.RADAR(params)
    advance(optimizer, params, 2)
    optimizer.param_groups[0]["state_dtype"] = "int8"
    with count_paths() as paths:
        advance(optimizer, params, 2, first=2)
    assert set(paths) == {"fused"}
    assert optimizer.state[params[0]]["exp_avg"].dtype == torch.float32


def test_a_gradient_in_the_memory_of_the_scales_is_copied() -> None:
    optimizer, params = stepped(aimopt.RADAR, 2)
    reference, others = stepped(aimopt.RADAR, 2)
    scale = torch.zeros(5, 7)
    optimizer.state[params[0]]["exp_avg_scale"] = scale.view(-1)[:33].copy_(optimizer.state[params[0]]["exp_avg_scale"])
    for tensors in (params, others):
        push(tensors, 2)
    params[1].grad = scale
    others[1].grad = scale.clone()
    for one in (optimizer, reference):
        one.step()
    assert torch.equal(flat(params), flat(others))


def test_parameters_in_float64_and_complex_ones() -> None:
    params = [*parameters([(70, 60)], torch.float64), *parameters([(70, 60)], torch.complex64)]
    optimizer = aimopt.RADAR(params, 0.01, state_dtype="int8")
    advance(optimizer, params, 3)
    assert [optimizer.state[p]["exp_avg"].dtype for p in params] == [torch.int8, torch.complex64]


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("Optimizer", [aimopt.Muon, aimopt.NorMuon, aimopt.SOAP], ids=lambda o: o.__name__)
def test_matrices_in_float64_with_a_smaller_state(Optimizer: Any, state_dtype: str) -> None:
    ends = []
    for dtype in (state_dtype, None):
        params = parameters([(70, 64)], torch.float64)
        advance(Optimizer(params, 0.01, state_dtype=dtype), params, 6)
        ends.append(flat(params))
    assert (ends[0] - ends[1]).norm() < 0.2 * (ends[1] - flat(parameters([(70, 64)], torch.float64))).norm()


def test_state_in_8_bits_is_not_differentiable() -> None:
    with pytest.raises(ValueError, match="state in 8 bits cannot be differentiated through"):
        aimopt.RADAR(parameters(), state_dtype="int8", differentiable=True)
