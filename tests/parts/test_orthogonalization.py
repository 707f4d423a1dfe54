"""Newton–Schulz iterations against the exact polar factor, in every form."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aimopt.parts import orthogonalization
from aimopt.parts.orthogonalization import POLAR_EXPRESS, QUINTIC, exact_polar, newton_schulz, schedule

EPS = 1e-7


def best_quintic(low: float, high: float) -> Any:
    """The odd quintic that is nearest to 1 on an interval: its error has four extrema of one size (Remez)."""
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    for _ in range(100):
        x = np.array([low, *inner, high])
        a, b, c, _ = np.linalg.solve(np.stack([x, x**3, x**5, [1, -1, 1, -1]], 1), np.ones(4))
        extrema = np.sqrt(np.sort(np.roots([5 * c, 3 * b, a]).real))
        if np.allclose(extrema, inner, rtol=1e-14, atol=0):
            break
        inner = extrema
    return np.array([a, b, c])


def test_polar_express_is_the_best_quintic_of_each_step() -> None:
    """With the paper's guard: no polynomial is fitted below 0.024 of the largest singular value."""
    low, high, guard = 1e-3, 1.0, 0.02407327424182761
    for given in orthogonalization._BEST_QUINTICS:
        best = best_quintic(max(low, guard * high), high)
        if guard * high > low:
            best *= 2 / (evaluate([best], low) + evaluate([best], high))
        np.testing.assert_allclose(given, best, atol=1e-9)
        low = evaluate([best], low)
        high = 2 - low


def evaluate(steps: Any, x: Any) -> Any:
    for a, b, c in steps:
        x = a * x + b * x**3 + c * x**5
    return x


def test_polar_express_drives_singular_values_to_one() -> None:
    singular = np.geomspace(1e-3, 1, 10_001)
    error = {steps: np.abs(evaluate(schedule(POLAR_EXPRESS, steps), singular) - 1).max() for steps in range(1, 11)}
    assert error[5] < 0.16 < 0.5 < np.abs(evaluate(schedule(QUINTIC, 5), singular) - 1).max()
    assert error[6] < 0.03
    assert error[8] < 1e-13
    assert error[10] < 1e-13  # further steps change nothing
    assert all(error[steps + 1] < error[steps] for steps in range(1, 7))


def with_singular_values(rows: int, columns: int, power: float, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    U, S, Vh = torch.linalg.svd(x, full_matrices=False)
    return ((U * (1.0 + torch.arange(len(S))) ** -power) @ Vh if power else x).to(dtype)


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The forms that were taken, with matrices called large from a side of 32."""
    taken: list[str] = []

    def counted(name: str) -> Any:
        function = getattr(orthogonalization, name)

        def call(*args: Any) -> Any:
            taken.append(name)
            return function(*args)

        return call

    for name in ("_iterate", "_iterate_on_gram", "symmetric_product"):
        monkeypatch.setattr(orthogonalization, name, counted(name))
    monkeypatch.setattr(orthogonalization, "LARGE_SIDE", 32)
    return taken


@pytest.mark.parametrize("coefficients", [QUINTIC, POLAR_EXPRESS])
@pytest.mark.parametrize("power", [0, 1, 2])
@pytest.mark.parametrize(
    ("shape", "form"), [((64, 256), "_iterate_on_gram"), ((200, 33), "_iterate_on_gram"), ((64, 64), "_iterate")]
)
def test_every_form_is_the_direct_iteration(
    forms: list[str], shape: tuple[int, int], form: str, power: float, coefficients: Any, monkeypatch: Any
) -> None:
    steps = schedule(coefficients, 5)
    for dtype, tolerance in ((torch.float32, 3e-5 if coefficients == POLAR_EXPRESS else 1e-5), (torch.float64, 1e-12)):
        x = with_singular_values(*shape, power, dtype)
        forms.clear()
        ours = newton_schulz(x, steps, EPS)
        assert forms[0] == form
        assert "symmetric_product" in forms
        batch = newton_schulz(torch.stack([x, 3 * x]), steps, EPS)
        with monkeypatch.context() as context:
            context.setattr(orthogonalization, "LARGE_SIDE", 10**9)
            forms.clear()
            direct = newton_schulz(x.double(), steps, EPS)
            assert forms == ["_iterate"]
        for result in (ours, *batch):
            torch.testing.assert_close(result.double(), direct, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(64, 256), (256, 64), (64, 64)])
def test_it_converges_to_the_exact_polar_factor(forms: list[str], shape: tuple[int, int]) -> None:
    x = with_singular_values(*shape, 1, torch.float64)
    limit = newton_schulz(x, schedule(POLAR_EXPRESS, 12), EPS)
    torch.testing.assert_close(limit, exact_polar(x), rtol=0, atol=1e-11)
    assert "symmetric_product" in forms


def test_small_matrices_and_bfloat16_take_the_direct_form(forms: list[str]) -> None:
    for x in (torch.randn(31, 500), torch.randn(64, 256, dtype=torch.bfloat16)):
        newton_schulz(x, schedule(QUINTIC, 2), EPS)
    assert forms == ["_iterate", "_iterate"]


def test_the_gram_matrix_is_computed_anew_before_rounding_errors_grow() -> None:
    assert [len(segment) for segment in orthogonalization._segments(schedule(QUINTIC, 8))] == [3, 3, 2]
    assert [len(segment) for segment in orthogonalization._segments(schedule(POLAR_EXPRESS, 5))] == [2, 3]


@pytest.mark.parametrize("side", [1, 3, 4, 30])
def test_a_symmetric_product_is_the_product(side: int) -> None:
    x = torch.randn(2, side, 7, dtype=torch.float64)
    product = orthogonalization.symmetric_product(x, x.mT)
    torch.testing.assert_close(product, x @ x.mT, rtol=1e-13, atol=1e-13)
    assert (product - product.mT).abs().max() < 1e-13
