"""Values that a user gave to functions, or put into a group later, get a sentence; `test_wrong_calls.py` has more."""

from collections.abc import Callable
from typing import Any

import numpy as np
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
    "watch a text": (lambda: aimopt.watch(optimizer(), every="x"), "every must be a whole number ≥ 1, got 'x'"),  # type: ignore[arg-type]
    "no model in backward": (
        lambda: aimopt.in_backward(optimizer(), NOT_A_MODEL),
        "in_backward takes the model, .*list",
    ),
    "buckets": (lambda: aimopt.in_backward(optimizer(), MODEL, bucket_bytes=-1), "bucket_bytes must be .* ≥ 0, got -1"),
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
    "layers of no optimizer": (
        lambda: groups.layerwise(MODEL, MODEL, 0.5),
        "groups.layerwise takes an optimizer, got Linear",
    ),
    "a hybrid of a number": (
        lambda: aimopt.create("hybrid", MODEL, matrices=3),
        "hybrid: matrices must be an optimizer of this package, such as aimopt.Muon, got 3",
    ),
    "a hybrid's rates": (
        lambda: aimopt.create("hybrid", MODEL, matrix_options={"lr": 0.1}),
        "hybrid: matrix_options has lr=0.1; both sides have one learning rate, lr",
    ),
    "a hybrid's decay": (
        lambda: aimopt.create("hybrid", MODEL, rest_options={"weight_decay": 0.5}),
        "hybrid: rest_options has weight_decay=0.5; write weight_decay, and matrix_weight_decay for the matrices",
    ),
    "combine later": (
        lambda: groups.combine(optimizer()),
        "groups.combine: RADAR has stepped, and state is not carried over",
    ),
}


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


PAIRS = torch.ones(2), np.ones(2)  # comparing one with a number gives no truth value


def remove(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda group: group.pop(key)


def put(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda group: group.update(values)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        *((remove(key), f"it has no '{key}'; put it back") for key in ("filter", "geometry", "skip_nonfinite", "lr")),
        *((remove(key), f"it has no '{key}'; put it back") for key in ("weight_decay", "betas", "gamma", "zeta")),
        (put(filter="Nobody"), "no filter is called 'Nobody'"),
        (put(gamma=None), r"GradientDifference: gamma must be a number in \[0, ∞\), got None"),
        (put(betas="ab"), r"betas must be the 2 numbers \(beta, beta2\), got 'ab'"),
        *((put(weight_decay=pair), "weight_decay must be a finite number ≥ 0, got ") for pair in PAIRS),
        *((put(amsgrad=pair), r"Relativistic: amsgrad must be one of \[True, False\], got ") for pair in PAIRS),
        (put(amsgrad=torch.tensor(True)), r"Relativistic: amsgrad must be one of .*, got tensor\(True\)"),
        (put(correction="Cautious"), "Cautious wraps another correction; set 'inner' to its name"),
        (remove("params"), "it has no 'params'; put it back"),
        (put(params=None), "'params' must be a list of tensors, got a NoneType"),
        (put(params=iter([])), "'params' must be a list of tensors, got a list_iterator"),
    ],
)
def test_an_edited_group_is_named_and_nothing_moves(edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    edited = optimizer()
    edited.step()  # now what was checked is known
    (p,) = edited.param_groups[0]["params"]
    before = p.detach().clone()
    edit(edited.param_groups[0])
    with pytest.raises(ValueError, match=rf"^RADAR\.step: group 0: {message}"):
        edited.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (remove("gamma"), "it has no 'gamma'; put it back"),
        (remove("filter"), "it has no 'filter'; put it back"),
        (put(gamma=-1), r"GradientDifference: gamma must be a number in \[0, ∞\), got -1"),
    ],
    ids=["no gamma", "no filter", "gamma below 0"],
)
@pytest.mark.parametrize(
    ("call", "called"),
    [
        (lambda o: o.eval(), r"RADAR\.eval"),
        (lambda o: o.train(), r"RADAR\.train"),
        (lambda o: o.step(), r"RADAR\.step"),
        (lambda o: o.needs_closure, r"RADAR\.needs_closure"),
        (lambda o: o.add_param_group({"params": [nn.Parameter(torch.ones(2))]}), "RADAR"),
        (lambda o: aimopt.in_backward(o, nn.Linear(1, 1)), "in_backward"),
    ],
    ids=["eval", "train", "step that may be skipped", "needs_closure", "add_param_group", "in_backward"],
)
def test_every_call_names_an_edited_group(
    call: Callable[[Any], Any], called: str, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edited = aimopt.RADAR([nn.Parameter(torch.ones(3, 2))], skip_nonfinite=True)
    edited.step()
    edit(edited.param_groups[0])
    with pytest.raises(ValueError, match=rf"^{called}: group 0: {message}"):
        call(edited)


def test_state_of_a_parameter_that_is_in_no_group() -> None:
    """torch's error would be the number that is the parameter's id."""
    edited = optimizer()
    kept = nn.Parameter(torch.ones(2))
    edited.param_groups[0]["params"] = [kept]
    with pytest.raises(ValueError, match=r"^RADAR.state_dict: a parameter of shape \(3, 2\) has state, .* in no group"):
        edited.state_dict()
