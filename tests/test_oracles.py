"""Every named optimizer against the published package that defines it, in float64, over random configurations."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import adabelief_pytorch
import lion_pytorch
import pytest
import pytorch_optimizer
import qhoptim.pyt
import rad.optim
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aimopt
from optimizer_driver import MATRICES, Factory, assert_same, drive, parameters

pytestmark = pytest.mark.usefixtures("float64_scalars")
STEPS = 200
lrs = st.floats(1e-4, 3e-2)
betas = st.tuples(st.floats(0.0, 0.99), st.floats(0.5, 0.9999))
decays = st.sampled_from([0.0, 0.01, 0.1])
seeds = st.integers(0, 10_000)
booleans = st.booleans()
random_configurations = settings(max_examples=12, deadline=None)


def agree(ours: Factory, theirs: Factory, seed: int, **kwargs: Any) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the oracles' own
        reference = drive(theirs, parameters(seed=seed, **kwargs), STEPS)
    assert_same(drive(ours, parameters(seed=seed, **kwargs), STEPS), reference)


@given(lrs, betas, st.floats(0, 0.5), st.floats(0, 1), st.floats(0.3, 3), decays, booleans, seeds)
@random_configurations
def test_radar(
    lr: float, b: tuple[float, float], gamma: float, ratio: float, delta: float, wd: float, decoupled: bool, seed: int
) -> None:
    common: dict[str, Any] = dict(delta=delta, zeta=1e-6, weight_decay=wd, decoupled_weight_decay=decoupled)
    agree(
        lambda p: aimopt.RADAR(p, lr, b, gamma=gamma, ell=ratio * lr, **common),
        lambda p: rad.optim.RADAR(p, lr, b, gamma, l=ratio * lr, **common, foreach=False),
        seed,
    )


@given(lrs, betas, st.floats(0.3, 3), st.sampled_from([1, 2]), decays, st.floats(1e-16, 1.0), booleans, seeds)
@random_configurations
def test_rad(
    lr: float, b: tuple[float, float], delta: float, order: int, wd: float, zeta: float, amsgrad: bool, seed: int
) -> None:
    b = (max(b[0], 0.1), b[1])  # order 2 of pytorch-rad divides by β1
    common: dict[str, Any] = dict(delta=delta, order=order, weight_decay=wd, zeta=zeta, amsgrad=amsgrad)
    agree(
        lambda p: aimopt.RAD(p, lr, b, **common),
        lambda p: rad.optim.RAD(p, lr, b, **common),
        seed,
    )


@given(lrs, st.floats(0.3, 3), st.sampled_from([None, 0.5, 4.0]), st.integers(STEPS, 3 * STEPS), seeds)
@random_configurations
def test_rad_annealing(lr: float, delta: float, final: float | None, max_iter: int, seed: int) -> None:
    common: dict[str, Any] = dict(delta=delta, zeta=None, max_iter=max_iter, final_delta=final)
    agree(lambda p: aimopt.RAD(p, lr, **common), lambda p: rad.optim.RAD(p, lr, **common), seed)


@given(lrs, st.floats(0.0, 0.99), decays, booleans, seeds)
@random_configurations
def test_sgdm_and_nesterov(lr: float, momentum: float, wd: float, maximize: bool, seed: int) -> None:
    common: dict[str, Any] = dict(lr=lr * 0.1, momentum=momentum, weight_decay=wd, maximize=maximize)
    agree(lambda p: aimopt.SGDM(p, **common), lambda p: torch.optim.SGD(p, **common), seed)
    if momentum:
        agree(lambda p: aimopt.Nesterov(p, **common), lambda p: torch.optim.SGD(p, **common, nesterov=True), seed)


@given(lrs, betas, st.sampled_from([1e-8, 1e-3]), decays, booleans, booleans, seeds)
@random_configurations
def test_adam_and_adamw(
    lr: float, b: tuple[float, float], eps: float, wd: float, amsgrad: bool, maximize: bool, seed: int
) -> None:
    common: dict[str, Any] = dict(lr=lr, betas=b, eps=eps, weight_decay=wd, amsgrad=amsgrad, maximize=maximize)
    agree(lambda p: aimopt.Adam(p, **common), lambda p: torch.optim.Adam(p, **common), seed)
    agree(lambda p: aimopt.AdamW(p, **common), lambda p: torch.optim.AdamW(p, **common), seed)


@given(lrs, betas, decays, st.floats(0, 0.1), booleans, seeds)
@random_configurations
def test_nadam(lr: float, b: tuple[float, float], wd: float, decay: float, decoupled: bool, seed: int) -> None:
    common: dict[str, Any] = dict(
        lr=lr, betas=b, weight_decay=wd, momentum_decay=decay, decoupled_weight_decay=decoupled
    )
    agree(lambda p: aimopt.NAdam(p, **common), lambda p: torch.optim.NAdam(p, **common), seed)


@given(lrs, st.tuples(*[st.floats(0.5, 0.999)] * 3), decays, booleans, seeds)
@random_configurations
def test_adan(lr: float, b: tuple[float, float, float], wd: float, no_prox: bool, seed: int) -> None:
    agree(
        lambda p: aimopt.Adan(p, lr, b, weight_decay=wd, no_prox=no_prox),
        lambda p: pytorch_optimizer.Adan(p, lr, b, weight_decay=wd, weight_decouple=no_prox, foreach=False),
        seed,
    )


# At β1 near 0 the average is the gradient and their difference is rounding: nothing to compare.
@given(
    lrs,
    st.tuples(st.floats(0.3, 0.99), st.floats(0.5, 0.9999)),
    st.sampled_from([1e-16, 1e-8]),
    decays,
    booleans,
    booleans,
    booleans,
    seeds,
)
@random_configurations
def test_adabelief(
    lr: float, b: tuple[float, float], eps: float, wd: float, rectify: bool, amsgrad: bool, decouple: bool, seed: int
) -> None:
    common: dict[str, Any] = dict(
        lr=lr,
        betas=b,
        eps=eps,
        weight_decay=wd,
        amsgrad=amsgrad and not rectify,
        weight_decouple=decouple,
        rectify=rectify,
    )
    agree(
        lambda p: aimopt.AdaBelief(p, **common),
        lambda p: adabelief_pytorch.AdaBelief(p, **common, print_change_log=False),
        seed,
    )


@given(
    lrs,
    st.tuples(st.floats(0.01, 0.99), st.floats(0.5, 0.9999), st.floats(0.9, 0.99999)),
    st.floats(0, 10),
    st.sampled_from([None, 50, 10 * STEPS]),
    decays,
    seeds,
)
@random_configurations
def test_ademamix(
    lr: float, b: tuple[float, float, float], alpha: float, warmup: int | None, wd: float, seed: int
) -> None:
    beta1, beta2, beta3 = b
    slowest = max(beta1, beta3)  # a β3 below β1 has no sense, and the published schedule then goes on below it
    common: dict[str, Any] = dict(lr=lr, betas=(beta1, beta2, slowest), alpha=alpha, weight_decay=wd)
    theirs: dict[str, Any] = dict(t_alpha_beta3=warmup, weight_decouple=True, foreach=False)
    agree(
        lambda p: aimopt.AdEMAMix(p, **common, alpha_warmup=warmup, beta3_warmup=warmup),
        lambda p: pytorch_optimizer.AdEMAMix(p, **common, **theirs),
        seed,
    )


@pytest.fixture(scope="module")
def published_mars() -> Iterator[Any]:
    """pytorch_optimizer's MARS without the 1e-15 that it adds to v, and the authors' code does not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch_optimizer.MARS.apply_ams_bound, "__defaults__", (0.0,))
        yield pytorch_optimizer.MARS


@given(lrs, betas, st.floats(0, 0.2), st.sampled_from([1e-8, 1e-3]), decays, booleans, booleans, seeds)
@random_configurations
def test_mars_and_its_cautious_form(
    published_mars: Any,
    lr: float,
    b: tuple[float, float],
    gamma: float,
    eps: float,
    wd: float,
    amsgrad: bool,
    cautious: bool,
    seed: int,
) -> None:
    common: dict[str, Any] = dict(lr=lr, betas=b, gamma=gamma, eps=eps, weight_decay=wd)
    filter, geometry = aimopt.VarianceReduced(b[0], gamma, 1.0), aimopt.Adaptive(b[1], eps, amsgrad, debias_eps=True)
    correction = aimopt.Cautious(aimopt.Direct(), "count")
    ours: dict[bool, Factory] = {
        False: lambda p: aimopt.MARS(p, **common, amsgrad=amsgrad),
        True: lambda p: aimopt.AIM(p, lr, filter=filter, geometry=geometry, correction=correction, weight_decay=wd),
    }
    options: dict[str, Any] = dict(optimize_1d=True, ams_bound=amsgrad, cautious=cautious, foreach=False)
    agree(ours[cautious], lambda p: published_mars(p, **common, **options), seed)


@given(lrs, betas, st.sampled_from([1e-8, 1e-3]), decays, seeds)
@random_configurations
def test_cautious_adamw(
    published_mars: Any, lr: float, b: tuple[float, float], eps: float, wd: float, seed: int
) -> None:
    """MARS of pytorch_optimizer is cautious AdamW for vectors, apart from the bias correction of ε."""

    def ours(params: Any) -> aimopt.CautiousAdamW:
        optimizer = aimopt.CautiousAdamW(params, lr, b, eps, wd, rescale="count")
        optimizer.param_groups[0]["debias_eps"] = True
        return optimizer

    options: dict[str, Any] = dict(lr_1d=lr, betas_1d=b, weight_decay_1d=wd, eps=eps, cautious=True, foreach=False)
    agree(ours, lambda p: published_mars(p, **options), seed, shapes=[(11,), (40,)])


@given(lrs, betas, decays, seeds)
@random_configurations
def test_cautious_lion(lr: float, b: tuple[float, float], wd: float, seed: int) -> None:
    parts: dict[str, Any] = dict(
        filter=aimopt.Lookback(*b), geometry=aimopt.Sign(), correction=aimopt.Cautious(rescale="count")
    )
    theirs: dict[str, Any] = dict(weight_decay=wd, weight_decouple=True, cautious=True, foreach=False)
    agree(
        lambda p: aimopt.AIM(p, lr, **parts, weight_decay=wd),
        lambda p: pytorch_optimizer.Lion(p, lr, b, **theirs),
        seed,
    )


@given(lrs, betas, decays, seeds)
@random_configurations
def test_lion(lr: float, b: tuple[float, float], wd: float, seed: int) -> None:
    agree(lambda p: aimopt.Lion(p, lr, b, wd), lambda p: lion_pytorch.Lion(p, lr, b, wd), seed)


# At ν2 near 0 the step divides by single gradients, and rounding of a small one decides where it ends.
@given(lrs, betas, st.tuples(st.floats(0, 1.2), st.floats(0.3, 1)), decays, seeds)
@random_configurations
def test_qhadam(lr: float, b: tuple[float, float], nus: tuple[float, float], wd: float, seed: int) -> None:
    common: dict[str, Any] = dict(lr=lr, betas=b, nus=nus, weight_decay=wd, decouple_weight_decay=True)
    agree(lambda p: aimopt.QHAdam(p, **common), lambda p: qhoptim.pyt.QHAdam(p, **common), seed)


def bfloat16_muon(params: Any, **options: Any) -> Any:
    """Muon with torch's Newton–Schulz: in bfloat16, on a CPU too."""
    optimizer = aimopt.Muon(params, **options)
    optimizer.param_groups[0]["ns_dtype"] = "bfloat16"
    return optimizer


@given(lrs, st.floats(0, 0.99), booleans, st.sampled_from([None, "original", "match_rms_adamw"]), decays, seeds)
@random_configurations
def test_muon(lr: float, momentum: float, nesterov: bool, adjust: str | None, wd: float, seed: int) -> None:
    common: dict[str, Any] = dict(lr=lr, momentum=momentum, nesterov=nesterov, adjust_lr_fn=adjust, weight_decay=wd)

    agree(
        lambda p: bfloat16_muon(p, **common),
        lambda p: torch.optim.Muon(p, **common),
        seed,
        shapes=[(5, 4), (4, 9), (6, 6)],
    )


@given(lrs, st.floats(0, 0.99), st.floats(0, 0.99), booleans, booleans, decays, seeds)
@settings(max_examples=6, deadline=None)
def test_normuon(
    lr: float, momentum: float, beta2: float, nesterov: bool, constant_rms: bool, wd: float, seed: int
) -> None:
    common: dict[str, Any] = dict(lr=lr, momentum=momentum, beta2=beta2, nesterov=nesterov, weight_decay=wd)
    adjust, scale = ("match_rms_adamw", "match_rms") if constant_rms else (None, "preserve_norm")

    def theirs(params: Any) -> Any:
        group = {"params": params, "use_muon": True}
        return pytorch_optimizer.NorMuon([group], **common, update_scale=scale, foreach=False)

    def ours(params: Any) -> Any:
        optimizer = aimopt.NorMuon(params, **common, adjust_lr_fn=adjust)
        optimizer.param_groups[0]["ns_dtype"] = "bfloat16"
        return optimizer

    agree(ours, theirs, seed, shapes=[(5, 4), (4, 9), (6, 6), (3, 2, 2, 2)])


class Float64Torch:
    """torch for a package that computes in float32 what we compute in the dtype of the parameter."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class PublishedSOAP(pytorch_optimizer.SOAP):
    """The published SOAP, with the first gradient in its average and in that average's bias correction."""

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        lr, beta1, step = group["lr"], group["betas"][0], group.get("step", 0)
        if step and group["correct_bias"]:
            group["lr"] = lr * (1 - beta1**step) / (1 - beta1 ** (step + 1))
        first = [p.grad.clone() for p in group["params"]]
        super().step()
        group["lr"] = lr
        if not step:
            for p, grad in zip(group["params"], first, strict=True):
                self.state[p]["exp_avg"].add_(grad, alpha=1 - beta1)


# A factor of low rank has any basis of its null space, by rounding: so no side is much longer than the other, and the
# basis is not refreshed before the factors have seen three gradients.
@given(
    lrs,
    st.tuples(st.floats(0.0, 0.99), st.floats(0.8, 0.99)),
    st.sampled_from([1e-8, 1e-3]),
    st.sampled_from([None, 0.8, 0.95]),
    st.sampled_from([2, 5, 10]),
    st.sampled_from([3, 5, 10_000]),
    booleans,
    seeds,
)
@settings(max_examples=8, deadline=None)
def test_soap(
    lr: float,
    b: tuple[float, float],
    eps: float,
    shampoo_beta: float | None,
    frequency: int,
    max_side: int,
    correct: bool,
    seed: int,
) -> None:
    common: dict[str, Any] = dict(
        lr=lr, betas=b, eps=eps, weight_decay=0.0, shampoo_beta=shampoo_beta, precondition_frequency=frequency
    )
    shapes = [(5, 4), (4, 5), (6, 6)]
    with patch.object(pytorch_optimizer.optimizer.soap, "torch", Float64Torch()):
        reference = drive(
            lambda p: PublishedSOAP(p, **common, max_precondition_dim=max_side, correct_bias=correct),
            parameters(shapes, seed=seed),
            40,
        )
    ours = drive(
        lambda p: aimopt.SOAP(p, **common, max_side=max_side, bias_correction=correct),
        parameters(shapes, seed=seed),
        40,
    )
    assert_same(ours, reference, 1e-8)


def test_convolution_kernels_are_flattened_for_muon() -> None:
    kernels = [shape for shape in MATRICES if len(shape) > 2]
    flattened = [(shape[0], int(torch.tensor(shape[1:]).prod())) for shape in kernels]
    ours = drive(lambda p: bfloat16_muon(p, lr=0.01), parameters(kernels), 50)
    assert_same(ours, drive(lambda p: torch.optim.Muon(p, 0.01), parameters(flattened), 50))
