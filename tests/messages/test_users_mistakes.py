"""A mistake of a user gets a sentence that names the call, the value and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt import RADAR, groups


def optimizer() -> RADAR:
    p = nn.Parameter(torch.ones(3, 2))
    made = RADAR([p], lr=1e-3)
    p.grad = torch.ones_like(p)
    made.step()
    return made


MODEL: Any = nn.Linear(2, 2)
NOT_A_MODEL: Any = [MODEL.weight]
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "watch another": (lambda: aimopt.watch(MODEL), "watch: it takes an optimizer of this package, got Linear"),
    "watch never": (lambda: aimopt.watch(optimizer(), every=0), "watch: every must be a whole number ≥ 1, got 0"),
    "watch a text": (lambda: aimopt.watch(optimizer(), every="x"), "every must be a whole number ≥ 1, got 'x'"),  # type: ignore[arg-type]
    "log to a text": (lambda: aimopt.log_to(optimizer(), "x"), r"log_to: log must be a function of \(tag, value"),  # type: ignore[arg-type]
    "no model in backward": (
        lambda: aimopt.in_backward(optimizer(), NOT_A_MODEL),
        "in_backward takes the model, .*list",
    ),
    "buckets": (lambda: aimopt.in_backward(optimizer(), MODEL, bucket_bytes=-1), "bucket_bytes must be .* ≥ 0, got -1"),
    "a number as a name": (
        lambda: aimopt.create(5, MODEL),  # type: ignore[arg-type]
        "create: the name of an optimizer must be a text such as 'radar', got 5",
    ),
    "split parameters": (
        lambda: groups.split(NOT_A_MODEL),
        "groups.split: .* so pass the model; got a list",
    ),
    "a head": (
        lambda: groups.split(nn.Sequential(MODEL), head="1"),
        "groups.split: the model has no module '1' that could be its head; known are 0",
    ),
    "layers of parameters": (
        lambda: groups.layerwise(optimizer(), NOT_A_MODEL, 0.5),
        "groups.layerwise takes the model",
    ),
    "a depth": (
        lambda: groups.layerwise(RADAR(MODEL.parameters()), MODEL, 0.5, depth=lambda _: "deep"),  # type: ignore[arg-type, return-value]
        "groups.layerwise: depth must give a number for 'weight', and gave 'deep'",
    ),
    "explain a list": (lambda: groups.explain(NOT_A_MODEL), "groups.explain: it takes an optimizer, got list"),
    "combine nothing": (groups.combine, "groups.combine: pass the optimizers to combine, .*got none"),
    "combine later": (
        lambda: groups.combine(optimizer()),
        "groups.combine: RADAR has stepped, and state is not carried over",
    ),
}


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def remove(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda group: group.pop(key)


def put(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda group: group.update(values)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        *((remove(key), f"it has no '{key}'; put it back") for key in ("filter", "geometry", "skip_nonfinite", "lr")),
        (put(filter="Nobody"), "no filter is called 'Nobody'"),
        (put(gamma=None), r"GradientDifference: gamma must be a number in \[0, ∞\), got None"),
        (put(betas="ab"), r"betas must be the 2 numbers \(beta, beta2\), got 'ab'"),
    ],
)
def test_an_edited_group_is_named_and_nothing_moves(edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    edited = optimizer()
    (p,) = edited.param_groups[0]["params"]
    before = p.detach().clone()
    edit(edited.param_groups[0])
    with pytest.raises(ValueError, match=rf"^RADAR\.step: group 0: {message}"):
        edited.step()
    assert torch.equal(p, before)
