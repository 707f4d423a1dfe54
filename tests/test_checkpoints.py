"""Runs that another optimizer continues: torch's Adam family and pytorch-rad to RADAR, RADAR to torch."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import rad.optim
import torch

import aimopt
from aimopt import AIM, RADAR
from optimizer_driver import BEGUN_SHAPES, advance, assert_same, begun, drive, flat, parameters


def through_a_file(state_dict: Any) -> Any:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("torchs", [torch.optim.AdamW, torch.optim.Adam], ids=lambda c: c.__name__)
def test_radar_continues_an_adam_run_exactly(torchs: Any, fused: bool) -> None:
    """γ = ℓ = 0 and a tiny ζ make RADAR the same rule, so that the whole path can be compared."""
    options: Any = dict(betas=(0.8, 0.95), weight_decay=0.1)
    uninterrupted = drive(lambda p: torchs(p, lr=0.01, eps=0.0, **options), parameters(BEGUN_SHAPES), 25)
    optimizer, params = begun(torchs, eps=0.0, fused=fused, **options)
    radar = RADAR(params, lr=0.7, gamma=0.0, ell_ratio=0.0, zeta=1e-30)
    radar.load_state_dict(through_a_file(optimizer.state_dict()))
    group = radar.param_groups[0]
    assert group["lr"] == 0.01
    assert group["betas"] == (0.8, 0.95)
    assert group["weight_decay"] == 0.1
    assert group["decay"] == ("Decoupled" if torchs is torch.optim.AdamW else "Coupled")
    assert "decoupled_weight_decay" not in group
    assert group["zeta"] == 1e-30
    assert group["fused"] is None
    assert "eps" not in group
    advance(radar, params, 15, first=10)
    assert_same(flat(params), uninterrupted)


def test_radar_continues_with_its_own_gamma() -> None:
    optimizer, params = begun(torch.optim.AdamW)
    radar = RADAR(params, gamma=0.3)
    radar.load_state_dict(optimizer.state_dict())
    assert radar.param_groups[0]["gamma"] == 0.3
    assert all(torch.equal(radar.state[p]["exp_avg"], optimizer.state[p]["exp_avg"]) for p in params)
    advance(radar, params, 5, first=10)


def test_an_amsgrad_run_keeps_its_maximum() -> None:
    optimizer, params = begun(torch.optim.AdamW, amsgrad=True, eps=0.0)
    radar = RADAR(params, gamma=0.0, ell_ratio=0.0, zeta=1e-30)
    radar.load_state_dict(optimizer.state_dict())
    advance(radar, params, 15, first=10)
    straight = drive(lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, eps=0.0), parameters(BEGUN_SHAPES), 25)
    assert_same(flat(params), straight)


def without_rectification(params: Any, lr: float = 1e-3, amsgrad: bool = False) -> Any:
    return aimopt.AdaBelief(params, lr, rectify=False, amsgrad=amsgrad)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (RADAR, RADAR),
        (without_rectification, without_rectification),
        (torch.optim.AdamW, aimopt.AdamW),
        (aimopt.AdamW, torch.optim.AdamW),
    ],
    ids=["RADAR", "AdaBelief", "from torch", "to torch"],
)
def test_a_run_whose_amsgrad_was_turned_off_is_continued(writer: Any, reader: Any) -> None:
    optimizer, params = begun(writer, amsgrad=True)
    optimizer.param_groups[0]["amsgrad"] = False
    advance(optimizer, params, 2, first=10)
    copies = [p.detach().clone().requires_grad_() for p in params]
    other = reader(copies)
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    advance(optimizer, params, 3, first=12)
    advance(other, copies, 3, first=12)
    assert_same(flat(copies), flat(params))


def test_a_run_whose_iterate_was_replaced_is_continued() -> None:
    optimizer, params = begun(aimopt.Adam, iterate=aimopt.Average())
    optimizer.param_groups[0]["iterate"] = "Last"
    aimopt.Adam(params).load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="'exp_avg_sq' has no meaning here"):
        aimopt.Lion(params).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("ours", [aimopt.AdamW, aimopt.Adam])
def test_our_adam_and_torchs_load_each_others_checkpoints(ours: Any) -> None:
    theirs = getattr(torch.optim, ours.__name__)
    straight = drive(lambda p: theirs(p, lr=0.01, weight_decay=0.1), parameters(BEGUN_SHAPES), 25)
    for first, second in ((ours, theirs), (theirs, ours)):
        optimizer, params = begun(first, weight_decay=0.1)
        other = second(params, lr=0.5)
        other.load_state_dict(through_a_file(optimizer.state_dict()))
        advance(other, params, 15, first=10)
        assert_same(flat(params), straight)


def test_torchs_adamw_continues_a_radar_run() -> None:
    radar, params = begun(RADAR, zeta=1e-14, weight_decay=0.1)
    adamw = torch.optim.AdamW(params, lr=0.5)
    adamw.load_state_dict(through_a_file(radar.state_dict()))
    group = adamw.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
    assert group["eps"] == pytest.approx(1e-7)
    for p in params:
        assert set(adamw.state[p]) == {"step", "exp_avg", "exp_avg_sq"}
        assert torch.equal(adamw.state[p]["exp_avg"], radar.state[p]["exp_avg"])
    advance(adamw, params, 3, first=10)
    # And back again: what torch added is not taken for ours.
    radar.load_state_dict(through_a_file(adamw.state_dict()))
    assert "eps" not in radar.param_groups[0]
    assert radar.param_groups[0]["gamma"] == 0.1


def test_the_state_has_eight_bytes_per_float32_parameter() -> None:
    params = parameters(BEGUN_SHAPES, torch.float32)
    radar = RADAR(params)
    advance(radar, params, 1)
    count = sum(p.numel() for p in params)
    held = sum(s.numel() * s.element_size() for state in radar.state.values() for k, s in state.items() if k != "step")
    assert held == 8 * count


@pytest.mark.parametrize("decoupled", [True, False])
def test_radar_continues_pytorch_rad_0_2_1_exactly(decoupled: bool) -> None:
    options: Any = dict(gamma=0.05, delta=1.3, zeta=1e-6, weight_decay=0.1, decoupled_weight_decay=decoupled)
    straight = drive(lambda p: rad.optim.RADAR(p, lr=0.01, **options), parameters(BEGUN_SHAPES), 25)
    optimizer, params = begun(rad.optim.RADAR, **options)
    radar = RADAR(params)
    radar.load_state_dict(through_a_file(optimizer.state_dict()))
    assert radar.param_groups[0]["ell"] == pytest.approx(1e-4)
    assert radar.param_groups[0]["gamma"] == 0.05
    advance(radar, params, 15, first=10)
    assert_same(flat(params), straight)


def test_radar_continues_pytorch_rad_0_2_0_exactly() -> None:
    saved = torch.load(Path(__file__).parent / "data" / "pytorch_rad_0_2_0.pt", weights_only=True)
    assert "prev_grad" in saved["state_dict"]["state"][0]
    params = [p.clone().requires_grad_() for p in saved["params"]]
    radar = RADAR(params)
    radar.load_state_dict(saved["state_dict"])
    assert all("prev_grad" not in state for state in radar.state.values())
    advance(radar, params, 15, first=10)
    assert_same(flat(params), flat(saved["after"]))


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.9])
def test_the_plain_average_is_computed_from_the_filtered_one(gamma: float) -> None:
    """With the recursions themselves. If γ = β1, the average has no effect."""
    from aimopt.checkpoints import _plain_average

    beta, generator = 0.9, torch.Generator().manual_seed(0)
    e, m, previous = (torch.zeros(4, dtype=torch.float64) for _ in range(3))
    for _ in range(20):
        g = torch.randn(4, dtype=torch.float64, generator=generator)
        e = beta * e + (1 - beta) * g
        m = beta * m + (1 - beta) * g + gamma * (g - previous)
        previous = g
    recovered = _plain_average(m, previous, {"betas": (beta, 0.999), "gamma": gamma})
    if gamma != beta:
        assert_same(recovered, e)
    # Whatever was recovered, the next m is right.
    assert_same((beta - gamma) * recovered, (beta - gamma) * e)


def test_state_keeps_its_dtype_on_load() -> None:
    params = parameters(BEGUN_SHAPES, torch.bfloat16)
    radar = RADAR(params, 0.01)
    advance(radar, params, 4)
    other = RADAR(params, 0.01)
    other.load_state_dict(through_a_file(radar.state_dict()))
    for p in params:
        for key in ("exp_avg", "exp_avg_sq"):
            assert other.state[p][key].dtype == torch.float32
            assert torch.equal(other.state[p][key], radar.state[p][key])
            assert other.state[p][key] is not radar.state[p][key]


def test_half_precision_state_of_torch_becomes_float32() -> None:
    params = parameters(BEGUN_SHAPES, torch.bfloat16)
    adamw = torch.optim.AdamW(params)
    advance(adamw, params, 4)
    radar = RADAR(params, 0.01)
    radar.load_state_dict(adamw.state_dict())
    assert all(value.dtype == torch.float32 for state in radar.state.values() for value in state.values())
    advance(radar, params, 4, first=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_count_in_16_bits_goes_on_counting(dtype: torch.dtype) -> None:
    params = parameters([(3,)])
    optimizer = RADAR(params)
    advance(optimizer, params, 1)
    saved = optimizer.state_dict()
    saved["state"][0]["step"] = torch.tensor(2048.0, dtype=dtype)
    optimizer.load_state_dict(saved)
    advance(optimizer, params, 2)
    assert optimizer.state[params[0]]["step"] == 2050


def test_older_checkpoints_that_lack_a_key() -> None:
    radar, params = begun(RADAR)
    saved = radar.state_dict()
    for key in ("gamma", "ell_ratio", "skip_nonfinite", "skipped_steps", "decoupled_weight_decay"):
        del saved["param_groups"][0][key]
    other = RADAR(params, gamma=0.2)
    other.load_state_dict(saved)
    assert other.param_groups[0]["gamma"] == 0.2
    advance(other, params, 2, first=10)
    del radar.param_groups[0]["maximize"]
    assert copy.deepcopy(radar).param_groups[0]["maximize"] is False


def test_scheduler_keys_survive() -> None:
    adamw, params = begun(torch.optim.AdamW)
    torch.optim.lr_scheduler.CosineAnnealingLR(adamw, 10)
    radar = RADAR(params)
    radar.load_state_dict(adamw.state_dict())
    assert radar.param_groups[0]["initial_lr"] == 0.01


def test_parameters_without_state_start_from_zero() -> None:
    radar, params = begun(RADAR)
    saved = radar.state_dict()
    del saved["state"][1]
    other = RADAR(params)
    other.load_state_dict(saved)
    assert list(other.state) == params[:1]


def test_user_hooks_run_before_and_after_the_conversion() -> None:
    params = parameters(BEGUN_SHAPES, torch.bfloat16)
    radar = RADAR(params, 0.01)
    advance(radar, params, 2)
    renamed = radar.state_dict()
    renamed["optimizer_state"] = renamed.pop("state")
    other, seen = RADAR(params), []
    other.register_load_state_dict_pre_hook(lambda _, given: {**given, "state": given["optimizer_state"]})
    other.register_load_state_dict_post_hook(lambda o: seen.append(o.state[params[0]]["exp_avg"].dtype))
    other.load_state_dict(renamed)
    assert seen == [torch.float32]
    with pytest.raises(KeyError):
        other.load_state_dict({})  # the user's hook, and ours is gone again
    assert len(other._optimizer_load_state_dict_pre_hooks) == 1


def test_user_hooks_may_wrap_the_state_dict() -> None:
    radar, _ = begun(RADAR)
    radar.register_state_dict_post_hook(lambda _, state_dict: {"wrapped": state_dict})
    assert radar.state_dict()["wrapped"]["param_groups"][0]["eps"] == 1e-8


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_runs_are_continued(nesterov: bool) -> None:
    common: Any = dict(momentum=0.8, weight_decay=0.1)
    straight = drive(lambda p: torch.optim.SGD(p, lr=0.01, nesterov=nesterov, **common), parameters(BEGUN_SHAPES), 25)
    optimizer, params = begun(torch.optim.SGD, nesterov=nesterov, **common)
    ours = (aimopt.Nesterov if nesterov else aimopt.SGDM)(params)
    ours.load_state_dict(through_a_file(optimizer.state_dict()))
    advance(ours, params, 15, first=10)
    assert_same(flat(params), straight)
    damped, _ = begun(torch.optim.SGD, momentum=0.8, dampening=0.5)
    with pytest.raises(ValueError, match="cannot continue"):
        ours.load_state_dict(damped.state_dict())


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_torch_muon_runs_are_continued() -> None:
    def torchs(params: Any) -> Any:
        return torch.optim.Muon(params, lr=0.01)

    straight = drive(torchs, parameters(BEGUN_SHAPES[:1]), 25)
    params = parameters(BEGUN_SHAPES[:1])
    optimizer = torchs(params)
    advance(optimizer, params, 10)
    ours = aimopt.Muon(params, lr=0.5)
    ours.param_groups[0]["ns_dtype"] = "bfloat16"  # torch's, on a CPU too
    ours.load_state_dict(through_a_file(optimizer.state_dict()))
    advance(ours, params, 15, first=10)
    assert_same(flat(params), straight)


def test_betas_of_another_meaning_are_not_adopted() -> None:
    lion_run, params = begun(aimopt.Lion, betas=(0.5, 0.6))
    averaging = AIM(params, 0.1, filter=aimopt.EMA(0.9), geometry=aimopt.Sign())
    averaging.load_state_dict(lion_run.state_dict())
    assert averaging.param_groups[0]["betas"] == (0.9,)
    assert averaging.param_groups[0]["lr"] == 0.01


def test_a_checkpoint_does_not_change_our_parts() -> None:
    """An EMA/Adaptive run is not turned back into one when RADAR loads it."""
    ours, params = begun(aimopt.AdamW)
    radar = RADAR(params)
    radar.load_state_dict(ours.state_dict())
    assert radar.param_groups[0]["geometry"] == "Relativistic"
    assert radar.param_groups[0]["filter"] == "GradientDifference"


def test_changing_a_part_during_a_run_makes_only_the_missing_state() -> None:
    params = parameters(BEGUN_SHAPES)
    optimizer = AIM(params, 0.01, filter=aimopt.EMA(), geometry=aimopt.Adaptive())
    advance(optimizer, params, 3)
    average = optimizer.state[params[0]]["exp_avg"].clone()
    optimizer.param_groups[0]["amsgrad"] = True
    optimizer.param_groups[0].update(correction="Secant", ell=None, ell_ratio=0.01)
    advance(optimizer, params, 1, first=3)
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "prev_grad"}
    assert optimizer.state[params[0]]["step"] == 4
    assert not torch.equal(optimizer.state[params[0]]["exp_avg"], average)


def test_loaded_state_gets_the_precision_of_the_model() -> None:
    single, double = parameters(dtype=torch.float32), parameters()
    writer, reader = aimopt.RADAR(single), aimopt.RADAR(double, fused=True)
    advance(writer, single, 2)
    saved = writer.state_dict()
    for state in saved["state"].values():
        state["step"] = state["step"].to(torch.int64)
    reader.load_state_dict(saved)
    for p in double:
        assert reader.state[p]["exp_avg"].dtype == torch.float64
        assert reader.state[p]["step"].dtype.is_floating_point
    advance(reader, double, 1)


def test_a_run_whose_schedule_lowered_the_learning_rate_below_zero() -> None:
    """A linear schedule does so if a run goes on after its end. Steps are made, so the run can be continued too."""
    params = parameters()
    optimizer = RADAR(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 3)
    for step in range(4):
        advance(optimizer, params, 1, step)
        schedule.step()
    lr = optimizer.param_groups[0]["lr"]
    assert lr < 0
    others = [p.detach().clone().requires_grad_() for p in params]
    continued = RADAR(others)
    continued.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert continued.param_groups[0]["lr"] == lr
    advance(optimizer, params, 1)
    advance(continued, others, 1)
    assert torch.equal(flat(params), flat(others))
