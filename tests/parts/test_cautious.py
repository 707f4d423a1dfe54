"""`Cautious`, a correction that wraps another: its rule, and its plain values in a group."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, EMA, Adaptive, Cautious, Direct, ExactQuadratic, FixedPoint, MixThenMap, Secant, Sign
from aimopt.parts.composition import Parts
from optimizer_driver import advance, assert_same, count_paths, drive, flat, parameters, push

pytestmark = pytest.mark.usefixtures("float64_scalars")


def composed(params: Any, correction: Any, **options: Any) -> AIM:
    return AIM(params, 0.01, filter=EMA(), geometry=Adaptive(), correction=correction, **options)


def masked(displacement: Tensor, g: Tensor, rescale: Any) -> Tensor:
    """The rule in words: an element that would not descend stays, the others move further."""
    kept = [
        float(d) if float(d) * float(h) > 0 else 0.0 for d, h in zip(displacement.flatten(), g.flatten(), strict=True)
    ]
    count, size = sum(x != 0 for x in kept), len(kept)
    factor = {"mean": size / max(count, size / 1000), "count": size / (count + 1), False: 1.0}[rescale]
    return torch.tensor(kept, dtype=torch.float64).reshape(g.shape) * factor


@pytest.mark.parametrize("rescale", ["mean", "count", False])
@pytest.mark.parametrize("inner", [Direct(), FixedPoint(ell_ratio=0.3), Secant(), MixThenMap()], ids=repr)
def test_the_rule(inner: Any, rescale: Any) -> None:
    """Against the displacements of the wrapped correction, on the same gradients."""
    params, twins = parameters(), parameters()
    cautious, plain = composed(params, Cautious(inner, rescale)), composed(twins, inner)
    for step in range(6):
        before = [p.detach().clone() for p in params]
        push(params, step)
        for p, twin in zip(params, twins, strict=True):
            twin.data.copy_(p.data)
            assert p.grad is not None
            twin.grad = p.grad.clone()
        cautious.step()
        plain.step()
        for start, p, twin in zip(before, params, twins, strict=True):
            assert p.grad is not None
            assert_same(start - p.detach(), masked(start - twin.detach(), p.grad, rescale))


def test_it_is_fused_unless_it_rescales() -> None:
    for rescale, path in ((False, "fused"), ("mean", "plain"), ("count", "plain")):
        for inner in (Direct(), FixedPoint(), Secant()):
            with count_paths() as paths:
                drive(partial(composed, correction=Cautious(inner, rescale)), parameters(), 2)
            assert set(paths) == {path}
    with pytest.raises(ValueError, match="it needs the 'sum' of a whole tensor"):
        aimopt.CautiousAdamW(parameters(), fused=True)


def test_a_group_holds_the_wrapped_part_as_plain_values() -> None:
    optimizer = composed(parameters(), Cautious(FixedPoint(ell_ratio=0.2), "count"))
    (group,) = optimizer.param_groups
    stored = {name: group[name] for name in ("correction", "inner", "rescale", "ell", "ell_ratio", "iterations")}
    assert stored == dict(
        correction="Cautious", inner="FixedPoint", rescale="count", ell=None, ell_ratio=0.2, iterations=1
    )
    assert Parts.from_group(group).correction == Cautious(FixedPoint(ell_ratio=0.2), "count")
    group["ell_ratio"] = 0.5  # as a schedule would
    assert Parts.from_group(group).correction == Cautious(FixedPoint(ell_ratio=0.5), "count")
    group["inner"] = "Nothing"
    with pytest.raises(ValueError, match="no correction is called 'Nothing'; known are"):
        Parts.from_group(group)


def test_groups_may_differ_in_the_wrapped_part() -> None:
    a, b, c = parameters([(5,), (6,), (7,)])
    groups: list[dict[str, Any]] = [
        {"params": [a]},
        {"params": [b], "correction": Cautious(Direct(), False)},
        {"params": [c], "ell_ratio": 0.7},
    ]
    optimizer = AIM(groups, 0.1, filter=EMA(), geometry=Adaptive(), correction=Cautious(FixedPoint(ell_ratio=0.2)))
    assert [Parts.from_group(group).correction for group in optimizer.param_groups] == [
        Cautious(FixedPoint(ell_ratio=0.2)),
        Cautious(Direct(), False),
        Cautious(FixedPoint(ell_ratio=0.7)),
    ]
    advance(optimizer, [a, b, c], 3)


def test_a_checkpoint_holds_it(tmp_path: Path) -> None:
    whole = drive(lambda p: composed(p, Cautious(Secant(ell_ratio=0.3))), parameters(), 10)
    params = parameters()
    first = composed(params, Cautious(Secant(ell_ratio=0.3)))
    advance(first, params, 5)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = composed(params, Cautious(Secant(ell_ratio=0.9)))
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    advance(second, params, 5, first=5)
    assert_same(flat(params), whole)
    adamw = aimopt.AdamW(parameters())
    advance(adamw, adamw.param_groups[0]["params"], 3)
    cautious = aimopt.CautiousAdamW(parameters())
    cautious.load_state_dict(adamw.state_dict())  # the state is AdamW's
    assert Parts.from_group(cautious.param_groups[0]).correction == Cautious()


def test_sign_descent_moves_only_where_it_agrees() -> None:
    (p,) = parameters([(50,)])
    optimizer = AIM([p], 1.0, filter=EMA(), geometry=Sign(), correction=Cautious(rescale=False))
    for step in range(5):
        before = p.detach().clone()
        push([p], step)
        optimizer.step()
    assert p.grad is not None
    moved = before - p.detach()
    assert_same(moved[moved != 0], p.grad[moved != 0].sign())
    assert 0 < (moved != 0).sum() < 50


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cautious(FixedPoint(iterations=2)), "evaluates the closure again; wrap Direct"),
        (lambda: Cautious(ExactQuadratic()), "evaluates the closure again"),
        (lambda: Cautious(Cautious()), "wraps another correction"),
        (lambda: Cautious(cast(Any, EMA())), r"inner must be a Correction, such as FixedPoint\(\), got EMA"),
        (lambda: Cautious(rescale="sum"), r"rescale must be one of \['mean', 'count', False\]"),
    ],
)
def test_mistakes_get_a_message(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"Cautious: .*{message}"):
        make()
