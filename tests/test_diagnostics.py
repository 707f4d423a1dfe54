"""Diagnostics: the figures are correct, and observing does not change the run."""

import math
from typing import Any

import pytest
import torch

import aimopt
from aimopt import RADAR
from optimizer_driver import ALL, advance, assert_same, flat, parameters, push, shapes_for


@pytest.mark.parametrize("foreach", [False, True])
def test_the_figures_of_a_step(foreach: bool) -> None:
    params = parameters()
    optimizer = RADAR(params, 0.01, gamma=0.2, ell_ratio=0.05, bias_correction=False, foreach=foreach)
    watch = aimopt.watch(optimizer)
    assert watch.read() == []
    advance(optimizer, params, 5)
    before = flat(params)
    averages = torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in params])
    push(params, 5)
    g = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
    assert optimizer.step() is None
    m = 0.7 * averages + 0.3 * g
    (figures,) = watch.read()
    after = flat(params)
    assert figures["residual_norm"] == pytest.approx(float((g - m).norm()))
    assert figures["cosine"] == pytest.approx(float(g @ m / g.norm() / m.norm()))
    assert figures["update_norm"] == pytest.approx(float((after - before).norm()))
    assert figures["effective_step"] == pytest.approx(float((after - before).norm() / m.norm()))
    assert figures["relative_update"] == pytest.approx(float((after - before).norm() / after.norm()))
    assert figures["nu"] == pytest.approx((1 - 0.05) * (1 - 0.2 / 0.9))


@pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
def test_observing_does_not_change_the_run(Optimizer: Any) -> None:
    ends = []
    for watched in (False, True):
        params = parameters(shapes_for(Optimizer))
        optimizer = Optimizer(params, lr=0.01, foreach=False)
        if watched:
            observed = aimopt.watch(optimizer)
        advance(optimizer, params, 5)
        ends.append(flat(params))
    assert torch.equal(*ends)
    (figures,) = observed.read()
    assert all(math.isfinite(value) for value in figures.values())
    observed.remove()
    advance(optimizer, params, 1)
    assert observed.steps == 5


def test_only_read_waits_for_the_device() -> None:
    p = torch.zeros(3, device="meta", requires_grad=True)
    p.grad = torch.zeros_like(p)
    optimizer = RADAR([p], capturable=True)
    aimopt.watch(optimizer)
    optimizer.step()  # on the meta device a read of any value would raise


def test_a_logger_in_one_line() -> None:
    params = parameters()
    groups: list[dict[str, Any]] = [{"params": params[:2]}, {"params": params[2:], "gamma": 0.0, "ell_ratio": 0.0}]
    optimizer = RADAR(groups, 0.01)
    logged: list[tuple[str, float, int]] = []
    handle = aimopt.log_to(optimizer, lambda tag, value, step: logged.append((tag, value, step)), every=3)
    advance(optimizer, params, 7)
    assert {step for *_, step in logged} == {3, 6}
    assert {tag for tag, *_ in logged} >= {"optimizer/group0/cosine", "optimizer/group1/nu"}
    assert [value for tag, value, _ in logged if tag == "optimizer/group1/nu"] == [1.0, 1.0]
    handle.remove()
    advance(optimizer, params, 3)
    assert {step for *_, step in logged} == {3, 6}
    with pytest.raises(ValueError, match="every must be a whole number ≥ 1"):
        aimopt.watch(optimizer, every=0)
    handle.remove()  # twice is once


def test_observers_do_not_disturb_each_other_and_a_skipped_step_is_not_logged_again() -> None:
    params = parameters()
    optimizer = RADAR(params, 0.01, skip_nonfinite=True)
    logged: list[int] = []
    aimopt.log_to(optimizer, lambda tag, value, step: logged.append(step), every=2)
    watch = aimopt.watch(optimizer)
    advance(optimizer, params, 2)
    assert watch.read()[0]
    count = len(logged)
    push(params, 2)
    assert params[0].grad is not None
    params[0].grad.fill_(torch.nan)
    optimizer.step()
    assert len(logged) == count


def test_after_a_resume_the_logged_step_continues() -> None:
    params = parameters()
    optimizer = RADAR(params, 0.01)
    advance(optimizer, params, 7)
    resumed = RADAR(params, 0.01, foreach=True, capturable=True)
    resumed.load_state_dict(optimizer.state_dict())
    logged: set[int] = set()
    aimopt.log_to(resumed, lambda tag, value, step: logged.add(step), every=2)
    advance(resumed, params, 4, first=7)
    assert logged == {9, 11}


@pytest.mark.parametrize("ell", [None, 0.001])
def test_nu_under_a_tensor_learning_rate(ell: float | None) -> None:
    params = parameters()
    optimizer = RADAR(params, torch.tensor(0.01), gamma=0.0, ell=ell, ell_ratio=0.1)
    watch = aimopt.watch(optimizer)
    advance(optimizer, params, 1)
    assert watch.read()[0]["nu"] == pytest.approx(0.9)


def test_a_learning_rate_of_zero_with_a_fixed_ell() -> None:
    params = parameters()
    with pytest.warns(UserWarning, match="ell exceeds the learning rate: ell/lr is inf at lr=0"):
        optimizer = RADAR(params, 0.0, ell=0.001)
    watch = aimopt.watch(optimizer)
    logged: list[str] = []
    aimopt.log_to(optimizer, lambda tag, value, step: logged.append(tag), every=1)
    advance(optimizer, params, 1)
    assert math.isnan(watch.read()[0]["nu"])
    assert logged
    optimizer.param_groups[0]["lr"] = 0.01
    advance(optimizer, params, 1, first=1)
    assert watch.read()[0]["nu"] == pytest.approx((1 - 0.1) * (1 - 0.1 / 0.9))


def test_nu_is_reported_only_if_the_step_has_that_form() -> None:
    for correction, has in ((aimopt.MixThenMap(0.2), True), (aimopt.FixedPoint(), False), (aimopt.Secant(), False)):
        params = parameters()
        optimizer = aimopt.AIM(params, 0.01, filter=aimopt.EMA(), geometry=aimopt.Sign(), correction=correction)
        watch = aimopt.watch(optimizer)
        advance(optimizer, params, 1)
        assert ("nu" in watch.read()[0]) is has


def test_groups_that_did_not_move_have_no_figures() -> None:
    params = parameters()
    optimizer = RADAR([{"params": params[:1]}, {"params": params[1:]}], 0.01)
    watch = aimopt.watch(optimizer)
    params[0].grad = torch.zeros_like(params[0])
    optimizer.step()
    still, nothing = watch.read()
    assert nothing == {}
    assert math.isnan(still["cosine"])


def test_corrections_that_evaluate_again_are_observed_too() -> None:
    params = parameters()
    optimizer = aimopt.AIM(
        params,
        0.01,
        filter=aimopt.AdanPair(),
        geometry=aimopt.Euclidean(),
        correction=aimopt.FixedPoint(iterations=2),
    )
    watch = aimopt.watch(optimizer)
    before = flat(params)

    def closure() -> float:
        push(params, 0)
        return 0.0

    optimizer.step(closure)
    (figures,) = watch.read()
    assert figures["update_norm"] == pytest.approx(float((flat(params) - before).norm()))
    assert "nu" not in figures
    assert_same(torch.tensor(figures["residual_norm"]), torch.tensor(0.0), 1e-6)
