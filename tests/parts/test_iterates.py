"""Iterates against published packages, on every path, and the way to the point of evaluation and back."""

import copy
import io
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, EMA, RADAR, AdamW, Adaptive, Average, FixedPoint, Lookahead, ScheduleFree, ScheduleFreeAdamW
from optimizer_driver import advance, assert_same, count_paths, drive, flat, parameters, push

ITERATES = [Average(0.9), ScheduleFree(warmup_steps=4, r=0.5), Lookahead(3, 0.4)]

pytestmark = pytest.mark.usefixtures("float64_scalars")


def adam(params: Any, iterate: Any, **options: Any) -> AIM:
    return AIM(params, 0.05, filter=EMA(0.8), geometry=Adaptive(0.95), iterate=iterate, weight_decay=0.1, **options)


@pytest.mark.parametrize("iterate", ITERATES, ids=repr)
@pytest.mark.parametrize(
    "options", [dict(foreach=True), dict(fused=True), dict(capturable=True, foreach=False)], ids=str
)
def test_every_path_makes_the_same_steps(iterate: Any, options: Any) -> None:
    plain, params = parameters(), parameters()
    expected = adam(plain, iterate, fused=False, foreach=False)
    ours = adam(params, iterate, **options)
    with count_paths() as counts:
        advance(ours, params, 11)
    advance(expected, plain, 11)
    assert counts["fused"] > 0 if "fused" in options else "fused" not in counts or "capturable" in options
    assert_same(flat(params), flat(plain))
    for p, q in zip(params, plain, strict=True):
        for name, value in expected.state[q].items():
            assert_same(ours.state[p][name], value)
    ours.eval()
    expected.eval()
    assert_same(flat(params), flat(plain))


def loop_of_schedulefree(steps: int, **options: Any) -> tuple[Tensor, Tensor]:
    params = parameters()
    optimizer = schedulefree.AdamWScheduleFree(params, foreach=False, **options)
    optimizer.train()
    advance(optimizer, params, steps)
    training = flat(params)
    optimizer.eval()
    return training, flat(params)


@pytest.mark.parametrize("wd", [0.0, 0.2])
@pytest.mark.parametrize("warmup", [0, 6])
@pytest.mark.parametrize("fused", [True, False])
def test_schedule_free_adamw_is_the_authors(wd: float, warmup: int, fused: bool) -> None:
    options: dict[str, Any] = dict(
        lr=0.03, betas=(0.85, 0.97), weight_decay=wd, warmup_steps=warmup, r=0.5, weight_lr_power=1.5
    )
    training, evaluation = loop_of_schedulefree(20, **options)
    params = parameters()
    optimizer = ScheduleFreeAdamW(params, fused=fused, **options)
    with count_paths() as counts:
        advance(optimizer, params, 20)
    assert set(counts) <= ({"fused"} if fused else {"plain", "foreach"})
    assert_same(flat(params), training)
    optimizer.eval()
    assert_same(flat(params), evaluation)


def test_the_average_is_that_of_torch() -> None:
    model = torch.nn.Linear(4, 3).double()
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=False
    )
    averaged.update_parameters(model)  # its first call copies
    params = list(model.parameters())
    optimizer = RADAR(params, 0.05, iterate=Average(0.9))
    for step in range(8):
        push(params, step)
        optimizer.step()
        averaged.update_parameters(model)
    training = flat(params)
    optimizer.swap()
    assert_same(flat(params), flat(list(averaged.module.parameters())))
    optimizer.swap()
    assert torch.equal(flat(params), training)


@pytest.mark.parametrize("k", [1, 4])
def test_lookahead_is_that_of_pytorch_optimizer(k: int) -> None:
    def theirs(params: Any) -> Any:
        return pytorch_optimizer.Lookahead(torch.optim.AdamW(params, 0.05, weight_decay=0.1), k=k, alpha=0.3)

    expected = drive(theirs, parameters(), 11)
    ours = drive(lambda p: AdamW(p, 0.05, weight_decay=0.1, iterate=Lookahead(k, 0.3)), parameters(), 11)
    assert_same(ours, expected)


@pytest.mark.parametrize("iterate", [Average(0.9), ScheduleFree()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_the_way_back_from_evaluation_is_exact(iterate: Any, dtype: torch.dtype) -> None:
    params = parameters(dtype=dtype)
    optimizer = RADAR(params, 0.1, iterate=iterate)
    optimizer.eval()  # before the first step there is nothing to do
    advance(optimizer, params, 6)
    training = flat(params)
    optimizer.eval()
    evaluation = flat(params)
    assert not torch.equal(evaluation, training)
    optimizer.eval()
    assert torch.equal(flat(params), evaluation)
    with pytest.raises(ValueError, match=r"RADAR.step: group 0: its parameters are where .* call optimizer.train\(\)"):
        optimizer.step()
    assert torch.equal(flat(params), evaluation)
    optimizer.train()
    assert torch.equal(flat(params), training)
    advance(optimizer, params, 2)


# What is done to a parameter, its state and the buffer that is copied, and the message.
SPOILED: dict[str, tuple[Any, str]] = {
    "parameter freed": (lambda p, state, key: p.untyped_storage().resize_(0), "it needs .* its storage holds 0"),
    "point freed": (lambda p, state, key: state[key].untyped_storage().resize_(0), "its state .* storage holds 0"),
    "other shape": (
        lambda p, state, key: p.__setattr__("data", torch.zeros(2, *p.shape)),
        r"it has shape \(2, 5, 4\) and the state",
    ),
    "no tensor": (lambda p, state, key: state.__setitem__(key, None), "its state .* is a NoneType, not a tensor"),
}


@pytest.mark.parametrize("iterate", [Average(0.9), ScheduleFree()], ids=repr)
@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("method", ["eval", "train"])
def test_a_point_that_cannot_be_copied_is_refused_before_any_parameter_moves(
    iterate: Any, spoiled: str, method: str
) -> None:
    """torch would read freed memory, and would fill a larger shape with copies."""
    params = parameters()
    optimizer = RADAR(params[::-1], 0.1, iterate=iterate)
    advance(optimizer, params, 3)
    if method == "train":
        optimizer.eval()
    before, (spoil, message) = flat(params[1:]), SPOILED[spoiled]
    key = "training_point" if method == "train" else next(iter(iterate.buffers()))
    spoil(params[0], optimizer.state[params[0]], key)
    with pytest.raises(RuntimeError, match=rf"RADAR\.{method}: parameter 3 of group 0 cannot be moved: {message}"):
        getattr(optimizer, method)()
    assert torch.equal(flat(params[1:]), before)


@pytest.mark.parametrize("iterate", ITERATES, ids=repr)
@pytest.mark.parametrize("evaluating", [True, False])
def test_a_checkpoint_holds_the_iterate(iterate: Any, evaluating: bool) -> None:
    params = parameters()
    optimizer = RADAR(params, 0.1, iterate=iterate)
    advance(optimizer, params, 5)
    if evaluating:
        optimizer.eval()
    file = io.BytesIO()
    torch.save({"model": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    optimizer.train()
    advance(optimizer, params, 5, first=5)
    others = [value.clone().requires_grad_() for value in saved["model"]]
    other = RADAR(others, 0.1, iterate=copy.copy(iterate))
    other.load_state_dict(saved["optimizer"])
    other.train()
    advance(other, others, 5, first=5)
    assert torch.equal(flat(others), flat(params))


def test_an_average_can_begin_in_the_middle_of_a_run() -> None:
    params = parameters()
    before = RADAR(params, 0.1)
    advance(before, params, 3)
    optimizer = RADAR(params, 0.1)
    optimizer.load_state_dict(before.state_dict())
    optimizer.param_groups[0] |= {"iterate": "Average", "average_decay": 0.5}
    start = [p.detach().clone() for p in params]
    advance(optimizer, params, 1, first=3)
    for p, first in zip(params, start, strict=True):
        assert_same(optimizer.state[p]["average"], 0.5 * first + 0.5 * p.detach())


def test_an_iterate_that_moves_another_point_is_refused_where_it_cannot_work() -> None:
    with pytest.raises(ValueError, match="ScheduleFree moves another"):
        adam(parameters(), ScheduleFree(), correction=FixedPoint(iterations=2))


def test_an_average_observes_a_step_with_several_evaluations_once() -> None:
    (p,) = params = parameters([(5,)])
    optimizer = adam(params, Average(0.5), correction=FixedPoint(iterations=3))
    start = p.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_same(optimizer.state[p]["average"], 0.5 * start + 0.5 * p.detach())


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Average(1.0), "average_decay must be a number in"),
        (lambda: ScheduleFree(interpolation=0.0), "interpolation must be a number in"),
        (lambda: ScheduleFree(warmup_steps=1.5), "warmup_steps must be an integer"),  # type: ignore[arg-type]
        (lambda: Lookahead(sync_steps=0), "sync_steps must be an integer"),
        (lambda: Lookahead(slow_step=0.0), "slow_step must be a number in"),
        (lambda: aimopt.RADAR(parameters(), iterate="Avarage"), "RADAR: no iterate is called 'Avarage'"),
    ],
)
def test_mistakes_get_a_sentence(build: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build()
