"""Matrix geometries: where the matrices of a tensor are, and state that has not the shape of its parameter."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aimopt
from aimopt import AIM, EMA, Eigenbasis, FixedPoint, HeavyBall, NormalizedSpectral, Spectral
from aimopt.parts.composition import Parts
from aimopt.parts.matrices import ROW_MOMENT, MatrixGeometry
from optimizer_driver import advance, assert_same, flat, parameters, push

GEOMETRIES: tuple[Any, ...] = (
    partial(Spectral, ns_dtype="float64"),
    partial(NormalizedSpectral, ns_dtype="float64"),
    Eigenbasis,
)


def optimizer_for(params: Any, geometry: Any, **options: Any) -> AIM:
    return AIM(params, 0.01, filter=EMA(), geometry=geometry, **options)


def steps(shape: tuple[int, ...], geometry: MatrixGeometry, convert: Any = lambda x: x) -> Tensor:
    """Where one parameter ends after some steps; `convert` changes its layout and that of its gradients."""
    (start,) = parameters([shape])
    p = convert(start.detach()).clone().requires_grad_()
    optimizer = optimizer_for([p], geometry)
    for step in range(5):
        push([start], step)
        p.grad = convert(start.grad).clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("Geometry", GEOMETRIES, ids=["Spectral", "NormalizedSpectral", "Eigenbasis"])
class TestLayout:
    def test_a_weight_may_be_stored_input_by_output(self, Geometry: Any) -> None:
        for shape in ((9, 4), (4, 9)):
            plain = steps(shape, Geometry())
            assert_same(steps(shape, Geometry(transposed=True), lambda x: x.mT).mT, plain)

    def test_so_may_a_transposed_convolution(self, Geometry: Any) -> None:
        plain = steps((6, 3, 2, 2), Geometry())
        stored = steps((6, 3, 2, 2), Geometry(transposed=True), lambda x: x.transpose(0, 1))
        assert_same(stored.transpose(0, 1), plain)

    def test_leading_dimensions_may_index_matrices(self, Geometry: Any) -> None:
        together = steps((3, 5, 4), Geometry(kernel="batch"))
        for i in range(3):
            assert_same(steps((3, 5, 4), Geometry(), lambda x, i=i: x[i]), together[i])

    def test_blocks_of_the_output_side_are_matrices_of_their_own(self, Geometry: Any) -> None:
        together = steps((6, 4), Geometry(row_blocks=3))
        fused = steps((6, 4), Geometry(row_blocks=3, transposed=True), lambda x: x.mT)
        for i in range(3):
            block = steps((6, 4), Geometry(), lambda x, i=i: x[2 * i : 2 * i + 2])
            assert_same(together[2 * i : 2 * i + 2], block)
            assert_same(fused[:, 2 * i : 2 * i + 2].mT, block)
        assert (together - steps((6, 4), Geometry())).abs().max() > 1e-3

    def test_experts_with_blocks(self, Geometry: Any) -> None:
        together = steps((2, 6, 4), Geometry(kernel="batch", row_blocks=2))
        assert_same(together[1, 3:], steps((2, 6, 4), Geometry(), lambda x: x[1, 3:]))

    def test_blocks_that_do_not_fit_are_refused(self, Geometry: Any) -> None:
        with pytest.raises(ValueError, match=r"parameter 0 .*7 outputs cannot be split into row_blocks=3"):
            optimizer_for(parameters([(7, 6)]), Geometry(row_blocks=3))
        with pytest.raises(ValueError, match="6 outputs cannot be split into row_blocks=4"):
            optimizer_for(parameters([(8, 6)]), Geometry(row_blocks=4, transposed=True))
        for options, message in (
            ({"row_blocks": 0}, "row_blocks must be"),
            ({"kernel": "unfold"}, "kernel must be one of"),
            ({"transposed": "yes"}, "transposed must be one of"),
        ):
            with pytest.raises(ValueError, match=message):
                Geometry(**options)

    def test_groups_may_differ_in_layout(self, Geometry: Any) -> None:
        a, b = parameters([(6, 4), (6, 4)])
        optimizer = optimizer_for([{"params": [a]}, {"params": [b], "row_blocks": 3}], Geometry())
        advance(optimizer, [a, b], 5)
        assert optimizer.state_dict()["param_groups"][1]["row_blocks"] == 3
        assert_same(a.detach(), steps_of(Geometry(), 0))
        assert_same(b.detach(), steps_of(Geometry(row_blocks=3), 1))


def steps_of(geometry: Any, i: int) -> Tensor:
    params = parameters([(6, 4), (6, 4)])
    advance(optimizer_for(params, geometry), params, 5)
    return params[i].detach()


def test_on_a_conv1d_of_gpt2_the_factor_is_that_of_its_outputs_and_inputs() -> None:
    """Hugging Face's Conv1D computes x·W with W of shape input × output, and torch's Linear x·Wᵀ."""
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    layer = pytorch_utils.Conv1D(12, 4)  # 4 inputs, 12 outputs, as a fused QKV of width 4
    linear = nn.Linear(4, 12)
    with torch.no_grad():
        linear.weight.copy_(layer.weight.mT)
    x = torch.randn(5, 4)
    assert_same(layer(x), linear(x) - linear.bias, 1e-6)
    ends = {}
    for name, weight, options in (
        ("linear", linear.weight, {}),
        ("as it is stored", nn.Parameter(layer.weight.detach().clone()), {}),
        ("transposed", layer.weight, {"transposed": True}),
        ("by block", nn.Parameter(linear.weight.mT.contiguous().detach()), {"transposed": True, "row_blocks": 3}),
    ):
        before = weight.detach().clone()
        optimizer = AIM([weight], 1.0, filter=HeavyBall(0.9, normalized=True), geometry=Spectral(**options))
        pull = torch.linspace(-1, 1, 48).view(12, 4).sin()
        weight.grad = (pull if weight.shape == (12, 4) else pull.mT).clone()
        optimizer.step()
        ends[name] = before - weight.detach()
    assert_same(ends["transposed"].mT, ends["linear"], 1e-5)
    assert_same(ends["as it is stored"].mT * math.sqrt(12 / 4), ends["linear"], 1e-5)
    q = torch.linalg.matrix_norm(ends["by block"][:, :4], 2)
    assert 0.6 < q < 1.3  # each of Q, K and V has spectral norm 1


@pytest.mark.usefixtures("float64_scalars")
@pytest.mark.parametrize("correction", [FixedPoint(ell_ratio=0.5), FixedPoint(ell_ratio=0.5, iterations=3)])
def test_row_moments_observe_one_direction_per_step(correction: Any) -> None:
    """η·P(m) + ℓ·P(g − m) maps two directions, and each iteration two again: the moments are those of m."""
    (p,) = parameters([(5, 4)])
    geometry = NormalizedSpectral(polar="exact", beta2=0.8)
    optimizer = AIM([p], 0.01, filter=EMA(0.9, bias_correction=False), geometry=geometry, correction=correction)
    m, moment = torch.zeros(5, 4, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    for step in range(4):

        def closure(step: int = step) -> Tensor:
            push([p], step)
            return p.detach().sum()

        push([p], step)
        assert p.grad is not None
        m = 0.9 * m + 0.1 * p.grad
        optimizer.step(closure)
        orthogonal = Spectral(polar="exact", adjust_lr_fn=None).apply(m.mT, None).mT  # unscaled: 4 rows, 5 columns
        moment = 0.8 * moment + 0.2 * orthogonal.square().mean(-1, keepdim=True)
        assert_same(optimizer.state[p][ROW_MOMENT], moment)


def test_rows_have_one_size_on_average() -> None:
    """Orthogonal rows of a square matrix have one size anyway; those of a tall one have not."""
    x = (
        torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * torch.logspace(0, 2, 40)[:, None]
    )
    state = {ROW_MOMENT: torch.zeros(40, 1, dtype=torch.float64)}
    geometry = NormalizedSpectral(beta2=0.0, adjust_lr_fn="match_rms_adamw")
    rows = geometry.apply(x, geometry.update(state, x, 1, 0.9)).square().mean(-1).sqrt()
    assert_same(rows, torch.full_like(rows, 0.2), 1e-6)
    plain = Spectral().apply(x, None).square().mean(-1).sqrt()
    assert plain.max() > 3 * plain.min()


@pytest.mark.parametrize("name", ["NorMuon", "SOAP"])
class TestShapedState:
    def test_it_survives_a_checkpoint(self, name: str) -> None:
        shapes = [(5, 4), (3, 2, 2, 2)]
        whole, half = parameters(shapes), parameters(shapes)
        build: Any = getattr(aimopt, name)
        first, optimizer = build(half), build(whole)
        advance(optimizer, whole, 14)
        advance(first, half, 7)
        second = build(half)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        advance(second, half, 7, 7)
        assert torch.equal(flat(half), flat(whole))

    def test_one_of_another_shape_is_refused(self, name: str) -> None:
        build: Any = getattr(aimopt, name)
        params = parameters([(5, 4)])
        optimizer = build(params)
        advance(optimizer, params, 1)
        key = ROW_MOMENT if name == "NorMuon" else "left_factor"
        saved = optimizer.state_dict()
        saved["state"][0][key] = torch.zeros(4, 4, dtype=torch.float64)
        with pytest.raises(
            ValueError, match=rf"shape \(5, 4\) and the checkpoint's '{key}' for it \(4, 4\) instead of \(5, "
        ):
            build(params).load_state_dict(saved)
        optimizer.state[params[0]][key] = torch.zeros(4, 4, dtype=torch.float64)
        with pytest.raises(RuntimeError, match=rf"the state '{key}' \(4, 4\) instead of \(5, "):
            advance(optimizer, params, 1)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_it_is_float32_beside_16_bits(self, name: str, dtype: torch.dtype) -> None:
        params = parameters([(5, 4), (4, 9)], dtype)
        before = flat(params)
        optimizer: Any = getattr(aimopt, name)(params, lr=0.01, state_dtype="bfloat16")
        advance(optimizer, params, 14)
        assert flat(params).isfinite().all()
        assert (flat(params) - before).abs().max() > 0.03
        key = ROW_MOMENT if name == "NorMuon" else "left_factor"
        assert optimizer.state[params[0]][key].dtype == torch.float32

    def test_a_fused_step_is_refused_with_the_reason(self, name: str) -> None:
        with pytest.raises(ValueError, match="does not have the shape of the parameter; leave fused=None"):
            getattr(aimopt, name)(parameters([(5, 4)]), fused=True)


def test_a_side_that_is_too_long_is_not_rotated() -> None:
    params = parameters([(5, 4)])
    optimizer = aimopt.SOAP(params, max_side=4)
    advance(optimizer, params, 3)
    state = optimizer.state[params[0]]
    assert state["left_factor"].shape == (0, 0)
    assert state["right_basis"].shape == (4, 4)


def test_without_rotations_the_eigenbasis_is_adam_that_waits_one_step() -> None:
    ours, adam = parameters([(5, 4)]), parameters([(5, 4)])
    advance(aimopt.SOAP(ours, 0.01, (0.9, 0.99), 0.0, 0.0, max_side=1, bias_correction=False), ours, 1)
    assert_same(flat(ours), flat(adam))
    m = v = torch.zeros(5, 4, dtype=torch.float64)
    (p,) = (x.detach().clone() for x in adam)
    (q,) = parameters([(5, 4)])
    optimizer = aimopt.SOAP([q], 0.01, (0.9, 0.99), 1e-8, 0.0, max_side=1, bias_correction=False)
    for step in range(6):
        push([q], step)
        assert q.grad is not None
        m = 0.9 * m + 0.1 * q.grad
        if step:
            v = 0.99 * v + 0.01 * q.grad**2
            p = p - 0.01 * m / (v.sqrt() + 1e-8)
        optimizer.step()
        assert_same(q.detach(), p)


def test_a_run_may_go_on_in_an_eigenbasis() -> None:
    """Until the basis is first brought up to date, the step is Adam's."""
    params = parameters([(5, 4)])
    optimizer = AIM(params, 0.01, filter=EMA(), geometry=aimopt.Adaptive(0.95))
    advance(optimizer, params, 3)
    (group,) = optimizer.param_groups
    group.update(Parts.from_group(group)._replace(geometry=Eigenbasis(0.95)).to_group())
    before = flat(params)
    advance(optimizer, params, 1, 3)
    assert (flat(params) - before).abs().min() > 1e-6
    state = optimizer.state[params[0]]
    assert torch.equal(state["left_basis"], torch.eye(5, dtype=torch.float64))
    advance(optimizer, params, 12, 4)
    assert (state["left_basis"] - torch.eye(5)).abs().max() > 0.1
    assert_same(state["left_basis"].mT @ state["left_basis"], torch.eye(5, dtype=torch.float64))
