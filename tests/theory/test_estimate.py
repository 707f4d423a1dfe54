"""L, σ² and ν of real models, held to exact Hessians, to gradients sample by sample and to the step that is taken."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

import aimopt
from aimopt import AIM, EMA, Relativistic, theory

Pair = tuple[Tensor, Tensor]


def digits(count: int = 200) -> Pair:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[:count] / 16), torch.from_numpy(y[:count])


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 3), nn.Tanh(), nn.Linear(3, 10)).double()


def flat_loss(model: nn.Module, data: Pair) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The loss as a function of one vector, and the present one."""
    params = dict(model.named_parameters())
    sizes = [p.numel() for p in params.values()]

    def loss(vector: Tensor) -> Tensor:
        parts = [v.view_as(p) for v, p in zip(vector.split(sizes), params.values(), strict=True)]
        out = torch.func.functional_call(model, dict(zip(params, parts, strict=True)), (data[0],))
        return nn.functional.cross_entropy(out, data[1])

    return loss, torch.cat([p.detach().flatten() for p in params.values()])


def test_L_and_sigma2_are_exact() -> None:
    """Against the whole Hessian's largest eigenvalue and the variance of all single gradients, one by one."""
    model, data = network(), digits()
    loss, vector = flat_loss(model, data)
    constants = theory.estimate(model, nn.functional.cross_entropy, data, samples=1000)
    hessian = torch.autograd.functional.hessian(loss, vector)
    exact = torch.linalg.eigvalsh(hessian).abs().max().item()
    assert math.isclose(constants.L, exact, rel_tol=1e-3)
    singles = torch.stack(
        [torch.func.grad(flat_loss(model, (data[0][i : i + 1], data[1][i : i + 1]))[0])(vector) for i in range(200)]
    )
    assert constants.sigma2 == pytest.approx((singles - singles.mean(0)).square().sum(1).mean().item(), rel=1e-9)
    assert constants.squared_gradient == pytest.approx(singles.mean(0).square().sum().item(), rel=1e-9)
    assert constants.loss == pytest.approx(loss(vector).item())
    assert constants.samples == 200
    fewer = theory.estimate(model, nn.functional.cross_entropy, data, samples=50)
    assert fewer.sigma2 == pytest.approx(constants.sigma2, rel=0.3)


def test_the_batch_size_does_not_matter() -> None:
    model, (x, y) = network(), digits()
    whole = theory.estimate(model, nn.functional.cross_entropy, (x, y), samples=1000)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    parts = theory.estimate(model, nn.functional.cross_entropy, loader, samples=1000)
    for name in ("L", "sigma2", "loss", "squared_gradient"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-6)


def test_negative_curvature_counts_too() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    constants = theory.estimate(
        model, lambda out, _: -3 * out.square().mean(), (torch.ones(4, 1).double(), torch.ones(4))
    )
    assert math.isclose(constants.L, 6)
    linear = theory.estimate(model, lambda out, _: out.mean(), (torch.ones(4, 1).double(), torch.ones(4)))
    assert linear.L == 0


def trained(make: Callable[[Any], AIM], steps: int = 12) -> tuple[nn.Module, AIM, Pair]:
    model, data = network(), digits()
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model, optimizer, data


@pytest.mark.parametrize(("foreach", "coupled_decay"), [(False, 0.0), (True, 0.0), (False, 0.05)])
def test_nu_is_that_of_the_next_step(foreach: bool, coupled_decay: float) -> None:
    """Without momentum a displacement is η·g/R, so that the next step shows R; coupled decay is part of g."""
    model, optimizer, data = trained(
        lambda p: AIM(
            p,
            1e-3,
            filter=EMA(0.0),
            geometry=Relativistic(zeta=1e-4),
            foreach=foreach,
            weight_decay=coupled_decay,
            decoupled_weight_decay=False,
        )
    )
    constants = theory.estimate(model, nn.functional.cross_entropy, data, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    optimizer.step()
    ratios = []
    for old, p in zip(before, model.parameters(), strict=True):
        assert p.grad is not None
        g = p.grad + coupled_decay * old
        ratios.append(((old - p.detach()) / (1e-3 * g)).flatten()[g.flatten().abs() > 1e-9])
    nu = torch.cat(ratios)
    assert constants.nu_min == pytest.approx(nu.min().item(), rel=1e-4)
    assert constants.nu_max_worst == pytest.approx(100)
    assert nu.max().item() <= constants.nu_max * (1 + 1e-4) <= 100 * (1 + 1e-3)


def test_at_the_papers_zeta_no_usual_learning_rate_is_certified() -> None:
    """ν_max = 1e8, and then no learning rate anyone would use has a certificate."""
    model, optimizer, data = trained(lambda p: aimopt.RADAR(p, 1e-3))
    constants = theory.estimate(model, nn.functional.cross_entropy, data, optimizer)
    assert constants.nu_max_worst == pytest.approx(1e8)
    certificate = constants.certificate(nu_max=constants.nu_max_worst)
    assert not certificate.feasible
    limit = theory.largest_stable_lr(L=constants.L, nu_min=constants.nu_min, nu_max=1e8, ell_ratio=0.01)
    assert limit < 1e-12
    assert "1e+08" in str(constants)


def test_parameters_state_and_buffers_are_not_changed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)).double()
    x, y = digits(50)
    optimizer = aimopt.RADAR(model.parameters())
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = {id(p): {k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()}
    model.eval()
    theory.estimate(model, nn.functional.cross_entropy, (x, y), optimizer, samples=5, iterations=3)
    model.train()
    without = theory.estimate(model, nn.functional.cross_entropy, [(x, y)], optimizer, samples=0, iterations=3)
    assert math.isnan(without.sigma2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for p in model.parameters():
        assert p.grad is None
        assert all(torch.equal(value, state[id(p)][k]) for k, value in optimizer.state[p].items())


def test_attention_can_be_differentiated_twice() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    data = torch.randn(6, 5, 8), torch.randn(6, 5, 8)
    constants = theory.estimate(model, nn.functional.mse_loss, data, samples=4, iterations=20)
    assert constants.L > 0
    assert constants.samples == 4
    assert math.isnan(constants.nu_min)


def test_a_measured_certificate_holds_in_the_run_that_follows() -> None:
    """Logistic regression on real data: the curvature is largest at zero, so that what is measured there is for all."""
    x, y = load_breast_cancer(return_X_y=True)
    data = torch.from_numpy((x - x.mean(0)) / x.std(0)), torch.from_numpy(y).double()[:, None]
    model = nn.Linear(30, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    loss = nn.functional.binary_cross_entropy_with_logits
    optimizer = aimopt.RADAR(model.parameters(), 1e-3, delta=0.1, zeta=1.0, bias_correction=False)
    constants = theory.estimate(model, loss, data, optimizer, iterations=300)
    limit = theory.largest_stable_lr(L=constants.L, nu_min=0.9, nu_max=constants.nu_max_worst, ell_ratio=0.01)
    optimizer.param_groups[0]["lr"] = limit / 2
    c = constants.certificate(nu_min=0.9, nu_max=constants.nu_max_worst, sigma2=0.0)
    assert c.feasible
    assert (c.lr, c.ell, c.beta1, c.gamma) == pytest.approx((limit / 2, limit / 200, 0.9, 0.1))
    squares = []
    for _ in range(300):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        assert model.weight.grad is not None
        squares.append(model.weight.grad.square().sum().item())
        optimizer.step()
    after = theory.estimate(model, loss, data, optimizer)
    assert after.nu_min > 0.9
    assert after.L < constants.L
    bound = c.bound(300, c.start(constants.loss, constants.squared_gradient))
    assert np.mean(squares) < bound < 40 * np.mean(squares)  # conservative, and not empty
    changed = constants.certificate(lr=1e-4, ell=0.0, sigma2=0.0)
    assert (changed.lr, changed.ell, changed.gamma) == pytest.approx((1e-4, 0.0, 0.1))


def groups_that_differ() -> theory.CurvatureEstimate:
    model = network()
    groups: list[dict[str, Any]] = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-4}]
    optimizer = aimopt.RADAR(groups, 1e-3, zeta=1e-4)
    return theory.estimate(model, nn.functional.cross_entropy, digits(20), optimizer, samples=2, iterations=2)


def estimate(optimizer: Callable[[nn.Module], AIM] | None = None, count: int = 5) -> theory.CurvatureEstimate:
    model = network()
    return theory.estimate(
        model, nn.functional.cross_entropy, digits(count), optimizer(model) if optimizer else None, iterations=1
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate(lambda m: aimopt.Lion(m.parameters())), "Sign is not linear"),
        (lambda: estimate(lambda m: aimopt.RADAR(network(1).parameters())), "pass the one that trains it"),
        (lambda: estimate(count=0), "at least one sample"),
        (lambda: estimate().certificate(), "no optimizer was given"),
        (lambda: groups_that_differ().certificate(), "the groups of the optimizer differ"),
    ],
)
def test_mistakes_get_a_message_that_says_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_groups_that_differ_need_one_setting() -> None:
    constants = groups_that_differ()
    assert constants.certificate(lr=1e-9, ell=0.0, beta1=0.9, gamma=0.1).lr == 1e-9
