"""Every filter × geometry × correction runs equally on every path, or is refused with a reason."""

import copy
import itertools
from dataclasses import dataclass, replace
from functools import partial
from inspect import isabstract
from typing import Any, cast

import pytest
import torch

import aimopt
from aimopt import (
    AIM,
    Belief,
    Cautious,
    Eigenbasis,
    ExactQuadratic,
    FixedPoint,
    HeavyBall,
    Relativistic,
    Sign,
    Spectral,
)
from aimopt.parts.component import Component, Correction, Filter, Geometry, Initial, State, StepCount, scalar, zeros
from aimopt.parts.composition import Parts
from aimopt.testing.paths import PATHS, assert_paths_agree
from optimizer_driver import MATRICES, advance, assert_same, closure_for, count_paths, drive, flat, parameters, push


def final(axis: type[Component]) -> list[Any]:
    return [part() for part in axis.registry.values() if not isabstract(part) and part.__module__.startswith("aimopt")]


FILTERS = [*final(Filter), HeavyBall(normalized=True)]
GEOMETRIES = [
    *final(Geometry),
    Relativistic(order=2, zeta=None, max_iter=50, final_delta=2.0, amsgrad=True),
    Belief(rectify=False),
    Eigenbasis(precondition_frequency=2),
]
# Not ℓ = η, which without momentum and with signs goes back to where it came from.
CORRECTIONS = [*final(Correction), FixedPoint(ell_ratio=0.3, iterations=2), Cautious(FixedPoint(), rescale=False)]
HOST_PATHS = [path for path in PATHS if "capturable" not in path]
CELLS = list(itertools.product(FILTERS, GEOMETRIES, CORRECTIONS))


def refused(filter: Any, geometry: Any, correction: Any) -> bool:
    if isinstance(geometry, Belief) and isinstance(filter, (HeavyBall, aimopt.Unfiltered)):
        return True
    if isinstance(filter, HeavyBall) and not geometry.linear and filter.gain != 1:
        return True
    return isinstance(correction, ExactQuadratic) and not geometry.linear


def name(part: Any) -> str:
    return type(part).__name__


def build(params: Any, cell: Any, **options: Any) -> AIM:
    filter, geometry, correction = cell
    return AIM(params, 0.01, filter=filter, geometry=geometry, correction=correction, **options)


def test_all_parts_are_tested() -> None:
    assert {"EMA", "HeavyBall", "GradientDifference", "Lookback", "AdanPair", "TwoSpeed", "VarianceReduced"} <= set(
        map(name, FILTERS)
    )
    assert {"Euclidean", "Adaptive", "Relativistic", "Belief", "Sign", "Spectral"} <= set(map(name, GEOMETRIES))
    assert {"Direct", "FixedPoint", "MixThenMap", "Secant", "ExactQuadratic", "Cautious"} <= set(map(name, CORRECTIONS))


@pytest.mark.parametrize("filter", FILTERS, ids=repr)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@pytest.mark.usefixtures("float64_scalars")
def test_every_composition_runs_equally_on_every_path_or_is_refused(filter: Any, geometry: Any) -> None:
    """With step counts on the device for one correction per filter and geometry: parts see them one by one."""
    turn = FILTERS.index(filter) + GEOMETRIES.index(geometry)
    if not geometry.linear and hasattr(filter, "bias_correction"):
        # At the first step a corrected m is g, and the sign of g − m is that of a rounding error.
        filter = replace(filter, bias_correction=False)
    allowed = [correction for correction in CORRECTIONS if not refused(filter, geometry, correction)]
    for correction in CORRECTIONS:
        cell = (filter, geometry, correction)
        if correction not in allowed:
            with pytest.raises(ValueError, match=r"use "):
                build(parameters(MATRICES), cell)
            continue
        whole_tensors = geometry.matrices_only or (isinstance(correction, Cautious) and correction.rescale)
        fusible = not whole_tensors and not correction.evaluates_again
        paths = PATHS if correction == allowed[turn % len(allowed)] else HOST_PATHS
        assert_paths_agree(Parts(*cell), fusible=fusible, steps=4, paths=paths)


def test_table_1_of_the_paper_can_be_constructed() -> None:
    """Four geometries by three columns; the third has two approximations that every geometry takes."""
    filter = aimopt.EMA()
    columns = [aimopt.Direct(), FixedPoint(), FixedPoint(iterations=3), aimopt.Secant()]
    for geometry, correction in itertools.product((aimopt.Euclidean(), Relativistic(), Spectral(), Sign()), columns):
        build(parameters(MATRICES), (filter, geometry, correction))


def test_a_new_geometry_in_ten_lines_gets_every_path() -> None:
    from torch import Tensor

    from aimopt.parts.component import State, StepCount

    @dataclass(frozen=True)
    class Softened(Geometry):
        """Between Euclidean and Sign: P(x) = x/(|x| + width)."""

        width: float = 1.0
        linear = False

        def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
            return None

        def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
            return x / (x.abs() + self.width)

    cell = (aimopt.EMA(), Softened(0.5), FixedPoint())
    plain = drive(lambda p: build(p, cell, foreach=False), parameters(), 10)
    with count_paths() as paths:
        assert_same(drive(lambda p: build(p, cell, foreach=True), parameters(), 10), plain)
    assert set(paths) == {"foreach"}
    with count_paths() as paths:
        assert_same(drive(lambda p: build(p, cell), parameters(), 10), plain)
    assert set(paths) == {"fused"}
    optimizer = build(parameters(), cell)
    assert optimizer.param_groups[0]["geometry"] == "Softened"
    assert optimizer.param_groups[0]["width"] == 0.5

    with pytest.raises(TypeError, match="give yours another name"):
        type("Sign", (Geometry,), {})


@dataclass(frozen=True)
class Normalized(Filter):
    """An average that divides by the sum of its weights, which is a number of its own state."""

    beta: float = 0.9

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": zeros, "weight_sum": scalar(0.0)}

    def update(self, state: State, g: torch.Tensor, t: StepCount) -> tuple[torch.Tensor, torch.Tensor]:
        e = state["exp_avg"].mul_(self.beta).add_(g, alpha=1 - self.beta)
        w = state["weight_sum"].mul_(self.beta).add_(1 - self.beta)
        return e / w, g


@pytest.mark.usefixtures("float64_scalars")
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_users_part_may_store_a_number_that_starts_anywhere(options: dict[str, Any]) -> None:
    ends = []
    for filter in (Normalized(), aimopt.EMA(0.9, bias_correction=True)):
        params = parameters()
        optimizer = build(params, (filter, aimopt.Adaptive(), aimopt.Direct()), **options)
        advance(optimizer, params, 5)
        ends.append(flat(params))
        if isinstance(filter, Normalized):
            assert all(float(optimizer.state[p]["weight_sum"]) == pytest.approx(1 - 0.9**5) for p in params)
            state_dict = optimizer.state_dict()
            optimizer.load_state_dict(state_dict)
    assert_same(ends[0], ends[1])


def test_a_buffer_that_starts_as_a_number_is_refused() -> None:
    @dataclass(frozen=True)
    class Careless(Normalized):
        def buffers(self) -> dict[str, Initial]:
            return {"exp_avg": cast(Any, 0.0)}

    with pytest.raises(ValueError, match=r"Careless.*must say how 'exp_avg' starts, got 0.0"):
        build(parameters(), (Careless(), aimopt.Adaptive(), aimopt.Direct()))


def test_a_users_part_may_use_methods_without_a_multi_tensor_kernel() -> None:
    from aimopt.parts.tensor_list import TensorList

    listed = TensorList([torch.tensor([1.0, -2.0]), torch.tensor(3.0)])
    assert [x.tolist() for x in listed.tanh().items] == [
        torch.tensor([1.0, -2.0]).tanh().tolist(),
        pytest.approx(0.99505475),
    ]
    assert [x.tolist() for x in (1 / (2 - listed)).items] == [[1.0, 0.25], -1.0]
    assert [x.tolist() for x in (listed - torch.tensor(1.0)).items] == [[0.0, -3.0], 2.0]
    assert [x.tolist() for x in (abs(listed) ** 2).items] == [[1.0, 4.0], 9.0]
    assert [x.tolist() for x in (listed > 0).items] == [[True, False], True]
    assert [x.tolist() for x in (listed < torch.tensor(2.0)).items] == [[True, True], False]
    with pytest.raises(AttributeError, match="tensor by tensor"):
        listed.shape  # noqa: B018


def test_a_part_may_be_redefined_as_in_a_notebook() -> None:
    def define(step: float) -> Any:
        @dataclass(frozen=True)
        class Constant(Geometry):
            size: float  # without a default
            linear = False

            def update(self, state: Any, g: Any, t: Any, pole: float) -> None:
                return None

            def apply(self, x: torch.Tensor, metric: Any) -> torch.Tensor:
                return x * 0 + step * self.size

        return Constant

    for step in (1.0, 5.0):
        (x,) = parameters([(3,)])
        before = x.detach().clone()
        optimizer = AIM([x], 0.1, filter=aimopt.EMA(), geometry=define(step)(2.0))
        push([x], 0)
        optimizer.step()
        assert_same(before - x.detach(), torch.full_like(before, 0.1 * 2 * step))


def test_a_field_with_a_reserved_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Greedy(Geometry):
        lr: float = 7.0
        linear = True

        def update(self, state: Any, g: Any, t: Any, pole: float) -> None:
            return None

        def apply(self, x: torch.Tensor, metric: Any) -> torch.Tensor:
            return x

    with pytest.raises(ValueError, match="another use for 'lr'; rename the field"):
        AIM(parameters(), 0.1, filter=aimopt.EMA(), geometry=Greedy())


def test_a_zero_matrix_has_no_direction() -> None:
    for geometry in (Spectral(), Spectral(polar="exact")):
        assert not geometry.apply(torch.zeros(3, 3), None).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aimopt.EMA(1.0), r"EMA: beta must be a number in \[0, 1\), got 1.0"),
        (lambda: aimopt.EMA(float("nan")), "got nan"),
        (lambda: aimopt.EMA("0.9"), "got '0.9'"),  # type: ignore[arg-type]
        (lambda: aimopt.EMA(True), "got True"),
        (lambda: aimopt.EMA(bias_correction="yes"), "bias_correction must be one of"),
        (lambda: aimopt.HeavyBall(-0.1), "momentum must be"),
        (lambda: aimopt.GradientDifference(gamma=-1), r"gamma must be a number in \[0, ∞\), got -1"),
        (lambda: aimopt.GradientDifference(gamma=float("inf")), "got inf"),
        (lambda: aimopt.Lookback(0.9, 1.5), "decay must be"),
        (lambda: aimopt.QuasiHyperbolic(nu=-0.1), "nu must be"),
        (lambda: aimopt.ScheduledNesterov(momentum_decay=-1), "momentum_decay must be"),
        (lambda: aimopt.AdanPair(beta_difference=1), "beta_difference must be"),
        (lambda: aimopt.TwoSpeed(beta_slow=1.0), "beta_slow must be"),
        (lambda: aimopt.TwoSpeed(alpha=-1.0), "alpha must be"),
        (lambda: aimopt.TwoSpeed(alpha_warmup=0), r"alpha_warmup must be an integer in \[1, ∞\), got 0"),
        (lambda: aimopt.TwoSpeed(beta_slow_warmup=2.5), "beta_slow_warmup must be an integer"),  # type: ignore[arg-type]
        (lambda: aimopt.VarianceReduced(clip_norm=0.0), r"clip_norm must be a number in \(0, ∞\), got 0.0"),
        (lambda: aimopt.VarianceReduced(gamma=-1.0), "gamma must be"),
        (lambda: aimopt.Adaptive(debias_eps="no"), "debias_eps must be one of"),  # type: ignore[arg-type]
        (lambda: aimopt.Adaptive(eps=-1), "eps must be"),
        (lambda: Relativistic(zeta=0.0), r"zeta must be a number in \(0, ∞\), got 0.0"),
        (lambda: Relativistic(delta=0), "delta must be"),
        (lambda: Relativistic(order=3), r"order must be one of \[1, 2\], got 3"),
        (lambda: Relativistic(zeta=None), "needs max_iter"),
        (lambda: Relativistic(final_delta=-1.0, max_iter=5), "final_delta must be"),
        (lambda: Relativistic(max_iter=0), "max_iter must be"),
        (lambda: Belief(amsgrad=True), "pass rectify=False"),
        (lambda: Spectral(ns_steps=0), "ns_steps must be"),
        (lambda: Spectral(ns_coefficients=(1.0, 2.0)), "three numbers"),  # type: ignore[arg-type]
        (lambda: Spectral(adjust_lr_fn="best"), "adjust_lr_fn must be one of"),
        (lambda: FixedPoint(ell=-1.0), "ell must be"),
        (lambda: FixedPoint(ell_ratio=float("nan")), "ell_ratio must be"),
        (lambda: FixedPoint(iterations=0), r"iterations must be an integer in \[1, ∞\), got 0"),
        (lambda: FixedPoint(iterations=1.5), "iterations must be an integer"),  # type: ignore[arg-type]
        (lambda: Spectral(ns_steps=2.5), "ns_steps must be an integer"),  # type: ignore[arg-type]
        (lambda: Relativistic(max_iter=2.5, zeta=None), "max_iter must be an integer"),  # type: ignore[arg-type]
        (lambda: Spectral(ns_coefficients=1.0), "three numbers"),  # type: ignore[arg-type]
        (lambda: Spectral(ns_coefficients=(1.0, 2.0, float("nan"))), "three numbers"),
        (lambda: aimopt.Adaptive(nu2=1.5), r"nu2 must be a number in \[0, 1\], got 1.5"),
        (lambda: aimopt.MixThenMap(-1.0), "ell_ratio must be"),
        (lambda: ExactQuadratic(cg_iterations=0), "cg_iterations must be"),
    ],
)
def test_an_invalid_hyperparameter_is_refused_with_a_message(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_parts_that_share_a_hyperparameter_must_agree_on_it() -> None:
    with pytest.raises(ValueError, match="one bias_correction for both"):
        AIM(parameters(), 0.1, filter=aimopt.EMA(bias_correction=False), geometry=aimopt.Adaptive())


def test_a_part_of_the_wrong_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="geometry must be a Geometry"):
        AIM(parameters(), 0.1, filter=aimopt.EMA(), geometry=aimopt.EMA())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="geometry must be a Geometry"):
        AIM([{"params": parameters(), "geometry": "Sign"}], 0.1, filter=aimopt.EMA(), geometry=Sign())
    for unknown in ("Signum", "Weighted"):
        group = {"params": parameters(), "filter": "EMA", "geometry": unknown, "correction": "Direct"}
        with pytest.raises(ValueError, match=f"no geometry is called '{unknown}'; known are"):
            AIM([group], 0.1, filter=aimopt.EMA(), geometry=Sign())


def test_corrections_that_evaluate_again_need_a_closure() -> None:
    for correction in (FixedPoint(iterations=2), ExactQuadratic()):
        optimizer = build(parameters(), (aimopt.EMA(), aimopt.Euclidean(), correction))
        with pytest.raises(ValueError, match=r"call step\(closure\)"):
            optimizer.step()


def test_exact_quadratic_is_for_all_groups_or_none() -> None:
    a, b = parameters([(2,), (3,)])
    common: dict[str, Any] = dict(filter=aimopt.EMA(), geometry=aimopt.Euclidean(), correction=ExactQuadratic())
    with pytest.raises(ValueError, match="every parameter group"):
        AIM(cast(Any, [{"params": [a]}, {"params": [b], "correction": FixedPoint()}]), 0.1, **common)
    optimizer = AIM([{"params": [a]}, {"params": [b]}], 0.1, **common)
    optimizer.param_groups[1].update(correction="FixedPoint", iterations=1)
    with pytest.raises(ValueError, match="every parameter group"):
        optimizer.step(closure_for([a, b], 0))
    assert optimizer.state[a]["step"] == 0
    with pytest.raises(ValueError, match="Proximal moves as well"):
        AIM([a], 0.1, **common, weight_decay=0.1, decoupled_weight_decay="proximal")


def test_only_the_corrections_in_use_need_a_closure() -> None:
    params = parameters()
    group = {"params": params, "correction": aimopt.Direct()}
    common: Any = dict(filter=aimopt.EMA(), geometry=aimopt.Euclidean(), correction=FixedPoint(iterations=3))
    optimizer = AIM([group], 0.1, **common)
    push(params, 0)
    optimizer.step()


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("correction", "dtype"),
    [
        (FixedPoint(iterations=3), torch.float64),
        (FixedPoint(iterations=3), torch.bfloat16),
        (ExactQuadratic(), torch.float64),
    ],
)
def test_a_step_with_a_failing_second_evaluation_changes_nothing(
    correction: Any, foreach: bool, dtype: torch.dtype
) -> None:
    params = parameters(MATRICES, dtype)
    optimizer = build(
        params,
        (aimopt.AdanPair(), aimopt.Adaptive(), correction),
        foreach=foreach,
        weight_decay=0.1,
        skip_nonfinite=True,
    )
    optimizer.step(closure_for(params, 0))
    before, state = flat(params), copy.deepcopy(optimizer.state_dict()["state"])
    calls = []

    def interrupted() -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return closure_for(params, 1)()

    def overflowing() -> torch.Tensor:
        loss = closure_for(params, 1)()
        calls.append(1)
        if len(calls) == 2:
            assert params[0].grad is not None
            params[0].grad[0] = torch.inf
        return loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupted)
    calls.clear()
    optimizer.step(overflowing)
    assert torch.equal(flat(params), before)
    after = optimizer.state_dict()
    assert after["param_groups"][0]["skipped_steps"] == 1
    assert all(torch.equal(after["state"][i][key], state[i][key]) for i in state for key in state[i])


def test_exact_quadratic_raises_an_error_if_there_is_no_minimum() -> None:
    (x,) = parameters([(3,)])
    before = x.detach().clone()
    optimizer = AIM([x], 1.0, filter=aimopt.EMA(), geometry=aimopt.Euclidean(), correction=ExactQuadratic(ell=1.0))

    def closure() -> torch.Tensor:
        x.grad = -10 * x.detach()  # a hill
        return x.detach().square().sum()

    with pytest.raises(RuntimeError, match="negative curvature"):
        optimizer.step(closure)
    assert_same(x.detach(), before)


@pytest.mark.parametrize("polar", ["newton-schulz", "exact"])
def test_matrices_of_one_shape_are_orthogonalized_together_up_to_a_size(
    polar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(6, 4), (4, 6), (6, 4), (6, 4), (6, 2, 2), (6, 4)]
    batches: list[int] = []
    together = Spectral._orthogonalize

    def counted(self: Spectral, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        batches.append(len(tensors))
        return together(self, tensors)

    monkeypatch.setattr(Spectral, "_orthogonalize", counted)
    monkeypatch.setattr(Spectral, "batch_elements", 3 * 6 * 4)
    cell = (aimopt.EMA(), Spectral(polar=polar, ns_dtype="float64"), aimopt.FixedPoint())
    batched, apart = (drive(partial(build, cell=cell, foreach=f), parameters(shapes), 1) for f in (True, False))
    assert_same(batched, apart, 1e-10)
    assert batches[:4] == [3, 1, 1, 1]  # four of 6×4 in batches of at most three, then 4×6 and the kernel


def test_a_step_that_fails_for_one_parameter_changes_none() -> None:
    @dataclass(frozen=True)
    class Picky(Geometry):
        linear = True

        def update(self, state: Any, g: torch.Tensor, t: Any, pole: float) -> None:
            if g.numel() == 7:
                raise ArithmeticError("seven")

        def apply(self, x: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
            return x

    params = parameters([(5,), (7,), (9,)])
    optimizer = build(params, (aimopt.EMA(), Picky(), FixedPoint(iterations=2)))
    before = flat(params)
    with pytest.raises(ArithmeticError, match="seven"):
        optimizer.step(closure_for(params, 0))
    assert torch.equal(flat(params), before)
    for state in optimizer.state.values():
        assert state["step"] == 0
        assert not state["exp_avg"].any()
