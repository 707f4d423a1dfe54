"""Decays against closed forms and published packages, on every path."""

import copy
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import Tensor

import aimopt
from aimopt import (
    AIM,
    EMA,
    LAMB,
    RADAR,
    SGDM,
    AdamW,
    Adaptive,
    CautiousDecay,
    Corrected,
    Coupled,
    Decoupled,
    Euclidean,
    ExactQuadratic,
    Independent,
    Proximal,
    ScheduleFree,
    Sphere,
    TrustRatio,
    Unfiltered,
)
from optimizer_driver import advance, assert_same, count_paths, drive, flat, parameters, push

PATHS: dict[str, Any] = {"plain": dict(fused=False, foreach=False), "foreach": dict(foreach=True), "fused": {}}
ELEMENTWISE = [Decoupled(0.2), Coupled(0.2), Proximal(0.2), Independent(0.01), Corrected(0.2), CautiousDecay(0.2)]
WITH_NORMS = [TrustRatio(0.2), Sphere(), Sphere(per_row=True, relative=False)]

pytestmark = pytest.mark.usefixtures("float64_scalars")


def adam(params: Any, decay: Any, lr: float = 0.05, **options: Any) -> AIM:
    return AIM(params, lr, filter=EMA(0.8), geometry=Adaptive(0.95), decay=decay, **options)


@pytest.mark.parametrize("decay", [*ELEMENTWISE, *WITH_NORMS], ids=repr)
@pytest.mark.parametrize("path", ["foreach", "fused"])
def test_every_path_makes_the_same_steps(decay: Any, path: str) -> None:
    expected = drive(lambda p: adam(p, decay, **PATHS["plain"]), parameters())
    with count_paths() as counts:
        assert_same(drive(lambda p: adam(p, decay, **PATHS[path]), parameters()), expected)
    if path == "foreach" or decay in ELEMENTWISE:
        assert set(counts) == {path}
    else:
        assert "fused" not in counts


@pytest.mark.parametrize("decay", WITH_NORMS, ids=repr)
def test_a_decay_with_a_norm_says_why_it_is_not_fused(decay: Any) -> None:
    with pytest.raises(ValueError, match=r"has no fused step: it(s state 'radius'| uses 'linalg_vector_norm')"):
        adam(parameters(), decay, fused=True)


def without_momentum(params: list[Tensor], decay: Any, lr: float = 0.1) -> AIM:
    return AIM(params, lr, filter=Unfiltered(), geometry=Euclidean(), decay=decay)


def one_step(decay: Any, theta: list[float], g: list[float], lr: float = 0.1) -> Tensor:
    p = torch.tensor(theta, requires_grad=True)
    p.grad = torch.tensor(g)
    without_momentum([p], decay, lr).step()
    return p.detach()


def test_the_terms_of_every_decay() -> None:
    theta, g = [2.0, -3.0, 1.0], [1.0, 1.0, -1.0]
    t, u, lr = torch.tensor(theta), torch.tensor(g), 0.1
    assert_same(one_step(Decoupled(0.5), theta, g), t * (1 - lr * 0.5) - lr * u)
    assert_same(one_step(Coupled(0.5), theta, g), t - lr * (u + 0.5 * t))
    assert_same(one_step(Proximal(0.5), theta, g), (t - lr * u) / (1 + lr * 0.5))
    assert_same(one_step(Independent(0.5), theta, g), t * 0.5 - lr * u)
    assert_same(one_step(Corrected(0.5, peak_lr=0.4), theta, g), t * (1 - lr**2 / 0.4 * 0.5) - lr * u)
    # Only the first element has a step and a parameter of one sign.
    agree = torch.tensor([1.0, 0.0, 0.0])
    assert_same(one_step(CautiousDecay(0.5), theta, g), t * (1 - lr * 0.5 * agree) - lr * u)
    total = u + 0.5 * t
    assert_same(one_step(TrustRatio(0.5), theta, g), t - lr * total * t.norm() / total.norm())
    assert_same(one_step(TrustRatio(0.5, max_norm=0.7), theta, g), t - lr * total * 0.7 / total.norm())
    assert_same(one_step(TrustRatio(0.5, max_norm=None), theta, g), one_step(TrustRatio(0.5), theta, g))
    free = t - lr * t.norm() * u / u.norm()
    assert_same(one_step(Sphere(), theta, g), free / free.norm() * t.norm())
    free = t - lr * u
    assert_same(one_step(Sphere(relative=False), theta, g), free / free.norm() * t.norm())


def test_corrected_decay_knows_the_largest_learning_rate_so_far() -> None:
    p = torch.tensor([1.0], requires_grad=True)
    optimizer = without_momentum([p], Corrected(0.5))
    expected = 1.0
    for lr, peak in ((0.0, 0.0), (0.1, 0.1), (0.4, 0.4), (0.2, 0.4)):
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.zeros(1)
        optimizer.step()
        expected *= 1 - (lr * lr / peak * 0.5 if peak else 0.0)
        assert_same(p.detach(), torch.tensor([expected]))


@pytest.mark.parametrize("per_row", [True, False])
def test_a_sphere_holds_the_norm_also_in_16_bits(per_row: bool) -> None:
    p = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    dims = 1 if per_row else None
    before = torch.linalg.vector_norm(p.detach().float(), dim=dims)
    optimizer = RADAR([p], 0.1, decay=Sphere(per_row=per_row))
    advance(optimizer, [p], 200)
    after = torch.linalg.vector_norm(p.detach().float(), dim=dims)
    torch.testing.assert_close(after, before, rtol=5e-3, atol=0)
    assert optimizer.state[p]["radius"].dtype == torch.float32


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("foreach", [True, False])
def test_lamb_is_that_of_pytorch_optimizer(wd: float, foreach: bool) -> None:
    options: dict[str, Any] = dict(betas=(0.8, 0.95), weight_decay=wd)
    theirs = drive(
        lambda p: pytorch_optimizer.Lamb(
            p, lr=0.01, eps=0.0, weight_decouple=False, pre_norm=False, foreach=False, adam_debias=True, **options
        ),
        parameters(),
    )
    ours = drive(lambda p: LAMB(p, 0.01, eps=0.0, bias_correction=False, foreach=foreach, **options), parameters())
    assert_same(ours, theirs)


def test_cautious_decay_is_that_of_pytorch_optimizer_style_loops() -> None:
    """The rule of Chen et al. (2025), Algorithm 1, written out for AdamW."""
    params, expected = parameters(), parameters()
    optimizer = AdamW(params, 0.02, betas=(0.8, 0.9), weight_decay=0.3, decay="CautiousDecay")
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    for t in range(1, 11):
        push(params, t)
        push(expected, t)
        optimizer.step()
        for p, (m, v) in zip(expected, moments, strict=True):
            g = p.grad
            assert g is not None
            m.mul_(0.8).add_(0.2 * g)
            v.mul_(0.9).add_(0.1 * g * g)
            u = (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)).sqrt() + 1e-8)
            p.data -= 0.02 * (u + 0.3 * (u * p >= 0) * p.detach())
    assert_same(flat(params), flat(expected))


@pytest.mark.parametrize("path", PATHS)
def test_cautious_decay_has_the_precision_of_the_parameter(path: str) -> None:
    torch.set_default_dtype(torch.float32)
    p = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    p.grad = torch.zeros_like(p)
    AIM([p], 0.1, filter=Unfiltered(), geometry=Euclidean(), decay=CautiousDecay(0.3), **PATHS[path]).step()
    assert float(p.detach()) == pytest.approx(1 - 0.1 * 0.3, abs=1e-15)


def test_a_schedule_of_weight_decay_traces_once() -> None:
    params, expected = parameters(), parameters()
    optimizers = [adam(params, Decoupled(0.1)), adam(expected, Decoupled(0.1), fused=False)]
    with count_paths() as counts:
        for step in range(12):
            for optimizer, values in zip(optimizers, (params, expected), strict=True):
                optimizer.param_groups[0]["weight_decay"] = 0.1 * (step + 1)
                push(values, step)
                optimizer.step()
    assert counts["fused"] == 12 * len(params)
    assert_same(flat(params), flat(expected))
    assert optimizers[0]._kernels.fused_groups[0]._inputs == frozenset({("decay", "weight_decay")})


@pytest.mark.parametrize(
    ("keywords", "kind", "coefficient"),
    [
        ({}, "Decoupled", 0.01),
        (dict(weight_decay=0.3, decay=CautiousDecay()), "CautiousDecay", 0.3),
        (dict(decay=Independent(0.2)), "Independent", 0.2),
        (dict(weight_decay=0.3, decay="Corrected"), "Corrected", 0.3),
        (dict(decay=Sphere()), "Sphere", 0.0),
    ],
)
def test_the_keywords_of_a_named_optimizer(keywords: Any, kind: str, coefficient: float) -> None:
    (group,) = AdamW(parameters(), **keywords).param_groups
    assert (group["decay"], group["weight_decay"]) == (kind, coefficient)


def test_groups_choose_their_decay() -> None:
    params = parameters([(3,), (4,), (5,), (6,)])
    groups: Any = [
        {"params": [params[0]]},
        {"params": [params[1]], "decay": CautiousDecay()},
        {"params": [params[2]], "decoupled_weight_decay": False, "weight_decay": 0.5},
        {"params": [params[3]], "decay": Sphere(), "weight_decay": 0.0},
    ]
    optimizer = RADAR(groups, 0.01, weight_decay=0.1)
    described = [(group["decay"], group["weight_decay"]) for group in optimizer.param_groups]
    assert described == [("Decoupled", 0.1), ("CautiousDecay", 0.1), ("Coupled", 0.5), ("Sphere", 0.0)]
    assert all("decoupled_weight_decay" not in group for group in optimizer.param_groups)


def test_the_key_of_torch_in_a_group_still_chooses_the_decay() -> None:
    params, expected = parameters(), parameters()
    ours, other = SGDM(params, 0.1, weight_decay=0.1), SGDM(expected, 0.1, weight_decay=0.1, decay=Decoupled())
    ours.param_groups[0]["decoupled_weight_decay"] = True
    advance(ours, params, 3)
    advance(other, expected, 3)
    assert torch.equal(flat(params), flat(expected))


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        (dict(decay=Euclidean()), "decay must be a Decay"),
        (dict(decay="Decoupeld"), "no decay is called 'Decoupeld'"),
        (dict(iterate=ScheduleFree(), decay=Proximal(0.1)), "Proximal moves the parameters after the step"),
        (dict(correction=ExactQuadratic(), decay=Sphere()), "cannot solve for a point that Sphere moves as well"),
    ],
)
def test_mistakes_get_a_sentence(keywords: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        AIM(parameters(), 0.1, filter=EMA(), geometry=Euclidean(), **keywords)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Sphere(0.1), "nothing to decay"),
        (lambda: Decoupled(-1.0), "weight_decay must be a finite number ≥ 0, got -1.0"),
        (lambda: Corrected(0.1, peak_lr=0.0), "peak_lr must be a number in"),
        (lambda: TrustRatio(0.1, max_norm=-1.0), "max_norm must be a number in"),
    ],
)
def test_invalid_fields_are_refused(build: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build()


def test_a_buffer_of_another_shape_is_checked() -> None:
    params = parameters([(4, 3)])
    optimizer = RADAR(params, 0.1, decay=Sphere(per_row=True))
    advance(optimizer, params, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    other = RADAR(params, 0.1, decay=Sphere(per_row=True))
    other.load_state_dict(saved)
    advance(other, params, 1)
    saved["state"][0]["radius"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"'radius' for it \(3,\) instead of \(4, 1\)"):
        RADAR(params, 0.1, decay=Sphere(per_row=True)).load_state_dict(saved)
    optimizer.state[params[0]]["radius"] = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"the state 'radius' \(1,\) instead of \(4, 1\)"):
        optimizer.step()


def test_checkpoints_of_a_version_without_these_axes() -> None:
    params = parameters()
    optimizer = RADAR(params, 0.1, weight_decay=0.1, decoupled_weight_decay=False)
    advance(optimizer, params, 3)
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        assert group["decoupled_weight_decay"] is False  # torch.optim.Adam reads it
        for key in ("decay", "iterate", "train_mode"):
            del group[key]
    other = RADAR(params, 0.1)
    other.load_state_dict(old)
    assert other.param_groups[0]["decay"] == "Coupled"
    assert other.param_groups[0]["weight_decay"] == 0.1
    unpickled = RADAR(params, 0.1)
    unpickled.__setstate__({"state": optimizer.state, "param_groups": [{**old["param_groups"][0], "params": params}]})
    assert unpickled.param_groups[0]["decay"] == "Coupled"
    advance(unpickled, params, 1, first=3)


def test_torch_continues_with_the_same_decay() -> None:
    for decoupled in (True, False):
        params = parameters()
        ours = aimopt.Adam(params, 0.05, weight_decay=0.2, decoupled_weight_decay=decoupled)
        advance(ours, params, 5)
        expected = parameters()
        advance(torch.optim.Adam(expected, 0.05, weight_decay=0.2, decoupled_weight_decay=decoupled), expected, 10)
        theirs = torch.optim.Adam(params, 0.9)
        theirs.load_state_dict(ours.state_dict())
        advance(theirs, params, 5, first=5)
        assert_same(flat(params), flat(expected))
