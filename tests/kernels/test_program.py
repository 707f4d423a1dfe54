"""Programs: which steps are fused, in how few instructions, and why the others are not."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, EMA, Adaptive, Euclidean, kernels
from aimopt.kernels.program import Program
from aimopt.messages.reason import Reason
from aimopt.parts.component import Geometry, State, StepCount, zeros
from aimopt.parts.composition import Parts
from optimizer_driver import ALL, FUSED, NEEDS_WHOLE_TENSORS, advance, assert_same, drive, flat, parameters


def program(optimizer: AIM) -> Program | Reason:
    (group,) = optimizer.param_groups
    return kernels.program_of(Parts.from_group(group), group)


def fused(optimizer: AIM) -> Program:
    result = program(optimizer)
    assert isinstance(result, Program), result
    return result


def test_all_optimizers_but_those_that_need_a_whole_tensor_are_fused() -> None:
    classes: list[Any] = ALL
    not_fused = [Optimizer for Optimizer in classes if isinstance(program(Optimizer(parameters([(2, 2)]))), Reason)]
    assert {Optimizer.__name__ for Optimizer in not_fused} == set(NEEDS_WHOLE_TENSORS)
    assert len(FUSED) > 10
    fused(aimopt.MARS(parameters(), clip_norm=None))
    fused(aimopt.CautiousAdamW(parameters(), rescale=False))


def test_radar_reads_and_writes_the_memory_of_adam_once() -> None:
    radar = fused(aimopt.RADAR(parameters()))
    assert radar.streams == ("param", "exp_avg", "exp_avg_sq", "grad")
    assert radar.written == {"param", "exp_avg", "exp_avg_sq"}
    assert sorted(instruction.op for instruction in radar.code) == ["lin", "lin", "lin", "muladd", "over_root"]
    assert radar.scratch == 1


@pytest.mark.parametrize("Optimizer", FUSED, ids=lambda o: o.__name__)
@pytest.mark.parametrize("decay", ["Decoupled", "Coupled", "Proximal", "CautiousDecay", "Corrected"])
def test_registers_are_filled_before_they_are_read_and_the_gradient_is_not_written(Optimizer: Any, decay: str) -> None:
    optimizer = Optimizer(parameters(), weight_decay=0.1)
    optimizer.param_groups[0].update(decay=decay, peak_lr=None)
    found = fused(optimizer)
    filled = set(range(len(found.streams)))
    for instruction in found.code:
        assert set(instruction.registers) <= filled
        filled.add(instruction.out)
    assert len(filled) == len(found.streams) + found.scratch
    assert {found.streams[i.out] for i in found.code if i.out < len(found.streams)} == found.written
    assert "grad" not in found.written


def test_equal_groups_share_a_program_and_lr_is_not_part_of_it() -> None:
    first = aimopt.RADAR(parameters(), lr=0.1)
    second = aimopt.RADAR(parameters(), lr=0.2)
    assert fused(first) is fused(second)
    assert fused(first) is not fused(aimopt.RADAR(parameters(), gamma=0.2))


@dataclass(frozen=True)
class Odd(Geometry):
    """A geometry that uses every element-wise operation of the fused step."""

    linear = False

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        scale = torch.where(t > 3, 2.0, 1.0) if not isinstance(t, float) else (2.0 if t > 3 else 1.0)
        return (g.abs().clamp(1e-3, 2.0) + 0.1).log().tanh().square().exp() * scale

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        softened = torch.where(x.abs() < 0.5, x * x.abs(), x.abs().pow(0.5) * x.sign()).lerp(x, 0.25)
        bounded = torch.maximum(torch.minimum(softened, metric), -metric)
        unlike = torch.where(bounded == metric, 0.9 * bounded, bounded)
        return (
            unlike.addcdiv(x, metric, value=0.1).addcmul(x, metric.rsqrt(), value=0.01) - x.neg() * (1 / metric) ** 1.5
        )


def test_a_users_part_is_fused_too() -> None:
    def run(**options: Any) -> Tensor:
        parts: Any = dict(filter=EMA(0.8), geometry=Odd(), weight_decay=0.1)
        return drive(lambda p: AIM(p, 0.01, **parts, **options), parameters([(300,), (4, 5)]))

    assert_same(run(fused=True), run(foreach=False))


@dataclass(frozen=True)
class Normalized(Geometry):
    """Not element-wise."""

    linear = False

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x / x.norm()


@dataclass(frozen=True)
class Branching(Geometry):
    """Not the same program at every step."""

    linear = True

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        return g.abs() if t > 3 else g.square()

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / metric


@dataclass(frozen=True)
class Masked(Geometry):
    """Uses a tensor that is not a stream."""

    linear = True

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x * torch.ones(())


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Normalized(), "it needs the 'norm' of a whole tensor"),
        (Branching(), "it branches on the value of a tensor or of the step count; use torch.where"),
        (Masked(), "it mixes a tensor of the step with a Tensor"),
    ],
)
def test_a_part_that_cannot_be_fused_steps_unfused_and_fused_true_says_why(geometry: Geometry, reason: str) -> None:
    def build(params: Any, fused: bool | None = None) -> AIM:
        return AIM(params, 0.01, filter=EMA(), geometry=geometry, fused=fused)

    assert reason in str(program(build(parameters())))
    assert torch.equal(drive(build, parameters()), drive(partial(build, fused=False), parameters()))
    with pytest.raises(ValueError, match="fused=True") as error:
        build(parameters(), fused=True)
    assert reason in str(error.value)


def test_a_correction_that_evaluates_again_is_not_fused() -> None:
    with pytest.raises(ValueError, match="FixedPoint evaluates the closure more than once per step"):
        AIM(
            parameters(), 0.1, filter=EMA(), geometry=Adaptive(), correction=aimopt.FixedPoint(iterations=2), fused=True
        )


def test_a_part_with_an_unhashable_field_steps_unfused() -> None:
    @dataclass(frozen=True)
    class Listed(Geometry):
        weights: Any = (1.0, 2.0)
        linear = True

        def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
            return None

        def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
            return x * self.weights[0]

    end = drive(lambda p: AIM(p, 0.01, filter=EMA(), geometry=Listed([1.0, 3.0])), parameters())
    assert_same(end, drive(lambda p: AIM(p, 0.01, filter=EMA(), geometry=Euclidean()), parameters()))


def geometry(update: Any, apply: Any = None, buffers: tuple[str, ...] = ()) -> Geometry:
    """A geometry of two functions, (state, g, t) → metric and (x, metric) → P(x)."""

    @dataclass(frozen=True)
    class Written(Geometry):
        linear = False

        def buffers(self) -> dict[str, Any]:
            return dict.fromkeys(buffers, zeros)

        def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Any:
            return update(state, g, t)

        def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
            return x / (metric.abs() + 1) if apply is None and metric is not None else apply(x, metric)

    return Written()


def lag(state: State, g: Tensor, t: StepCount) -> Tensor:
    state["old"].copy_(state["new"])
    state["new"].mul_(0.9).add_(g, alpha=0.1)
    return state["old"]


def swap(state: State, g: Tensor, t: StepCount) -> Tensor:
    state["new"].add_(g)
    kept = state["new"].clone()
    state["new"].copy_(state["old"])
    state["old"].copy_(kept)
    return state["old"] - 2 * state["new"]


def rotate(state: State, g: Tensor, t: StepCount) -> Tensor:
    kept = state["a"].clone()
    state["a"].copy_(state["b"])
    state["b"].copy_(state["c"])
    state["c"].copy_(kept + g)
    return state["a"] + state["b"]


def augmented(state: State, g: Tensor, t: StepCount) -> Tensor:
    e = state["new"]
    e *= 0.9
    e += g
    e -= 0.1 * g
    e /= 1.1
    return e


def rebound(state: State, g: Tensor, t: StepCount) -> Tensor:
    state["new"] = state["new"] * 0.9 + g
    return state["new"]


def compared(state: State, g: Tensor, t: StepCount) -> Tensor:
    state["old"].copy_(state["new"])
    state["new"].copy_(g)
    return torch.where(state["old"].sign() == g.sign(), 1.0, 2.0) + (g >= 0.1) * 0.5 + (g <= -0.1) * 0.25


def functional(state: State, g: Tensor, t: StepCount) -> Tensor:
    return torch.maximum(g, torch.abs(g) * 0.5) + torch.sqrt(torch.abs(g))


def counted_on_numbers(state: State, g: Tensor, t: StepCount) -> Tensor:
    return torch.zeros_like(g).log().exp() + g


@pytest.mark.parametrize(
    ("update", "buffers"),
    [
        (lag, ("new", "old")),
        (lag, ("old", "new")),
        (swap, ("new", "old")),
        (rotate, ("a", "b", "c")),
        (augmented, ("new",)),
        (rebound, ("new",)),
        (compared, ("new", "old")),
        (functional, ()),
        (counted_on_numbers, ()),
    ],
)
def test_every_path_computes_the_same_for_every_way_of_writing(update: Any, buffers: tuple[str, ...]) -> None:
    ends = []
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        params = parameters([(30,), (4, 5)])
        optimizer = AIM(params, 0.01, filter=EMA(0.8), geometry=geometry(update, buffers=buffers), **options)  # type: ignore[arg-type]
        advance(optimizer, params, 6)
        ends.append([flat(params), *(flat([optimizer.state[p][name] for p in params]) for name in buffers)])
    for end in ends[1:]:
        for value, reference in zip(end, ends[0], strict=True):
            assert_same(value, reference)


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (lambda x, _: x * ((x > 0) + (x > -1)), "adds two conditions"),
        (lambda x, _: (x.double() * 1e300).float() * 1e-300, "'double'"),
    ],
)
def test_operations_that_differ_on_symbols_are_not_fused(apply: Any, reason: str) -> None:
    optimizer = AIM(parameters(), 0.01, filter=EMA(), geometry=geometry(lambda *_: None, apply))
    assert reason in str(program(optimizer))


def test_rounding_by_adding_a_large_number_is_preserved() -> None:
    def rounded(x: Tensor, _: Any) -> Tensor:
        return (x * 10 + 12582912.0) - 12582912.0 + (x * 10).add_(12582912.0).sub_(12582912.0)

    ends = []
    for fused in (True, False):
        params = parameters([(50,)], torch.float32)
        optimizer = AIM(params, 0.01, filter=EMA(), geometry=geometry(lambda *_: None, rounded), fused=fused)
        advance(optimizer, params, 1)
        ends.append(flat(params))
    torch.testing.assert_close(*ends)


def test_a_long_program_that_reads_a_buffer_at_its_end_is_scheduled_quickly() -> None:
    """Every iteration doubles the paths from the buffer's last reader to its first: there are 2⁶⁰ of them."""

    def read_before_it_changes(state: State, g: Tensor, t: StepCount) -> Tensor:
        before = state["s"].clone()
        state["s"].add_(g)
        return before

    def iterated(x: Tensor, metric: Tensor | None) -> Tensor:
        for _ in range(60):
            x = x * (1.5 - 0.5 * x * x)
        assert metric is not None
        return x * metric

    parts = geometry(read_before_it_changes, iterated, buffers=("s",))
    assert isinstance(program(AIM(parameters(), 0.01, filter=EMA(), geometry=parts)), Program)


def test_a_program_that_needs_too_many_registers_is_refused() -> None:
    def wide(x: Tensor, _: Any) -> Tensor:
        parts = [(x + float(k)).abs() for k in range(70)]
        return sum(((a * b).sqrt() for a, b in zip(parts, parts[::-1], strict=True)), start=x)

    parts = geometry(lambda *_: None, wide)
    assert "registers" in str(program(AIM(parameters(), 0.01, filter=EMA(), geometry=parts)))


def test_after_a_change_to_an_untraceable_part_the_old_program_is_not_used() -> None:
    def failing(state: State, g: Tensor, t: StepCount) -> Tensor:
        if not isinstance(g, Tensor):
            raise ValueError("not for symbols")
        return g

    ends = []
    for fused in (None, False):
        params = parameters()
        optimizer = AIM(params, 0.01, filter=EMA(), geometry=Euclidean(), fused=fused)
        advance(optimizer, params, 2)
        geometry(failing)
        optimizer.param_groups[0]["geometry"] = "Written"
        advance(optimizer, params, 3, first=2)
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)
