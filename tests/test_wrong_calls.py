"""A wrong call gets a sentence: what was called, what was wrong, with what value, and what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt import AIM, EMA, Adaptive, Lion, Muon, groups

RADAR: Any = aimopt.RADAR  # called in ways that a type checker refuses


def model(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def weights() -> list[nn.Parameter]:
    return list(model().parameters())


def used_up(params: Any) -> Any:
    list(params)
    return params


shared = nn.Parameter(torch.zeros(3))
unusual: Any = aimopt  # as above

PARAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "a model": (
        lambda: RADAR(model()),
        "RADAR: params must be parameters, got the module Sequential; pass .parameters()",
    ),
    "a tensor": (
        lambda: RADAR(torch.zeros(3)),
        "RADAR: params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
        "torch.FloatTensor; write [p] for one parameter p",
    ),
    "a state dict": (
        lambda: RADAR(model().state_dict()),
        "RADAR: params must be an iterable of parameters or groups, got an OrderedDict with the keys ['0.weight', "
        "'0.bias', '2.weight', …]; pass model.parameters()",
    ),
    "one group": (
        lambda: RADAR({"params": weights()}),
        "RADAR: params must be an iterable of parameters or groups, got a dict with the keys ['params']; write [group] "
        "for one parameter group",
    ),
    "nothing": (
        lambda: RADAR(None),
        "RADAR: params must be an iterable of parameters or groups, got None; pass model.parameters()",
    ),
    "numbers": (
        lambda: RADAR([1.0]),
        "RADAR: optimizer can only optimize Tensors, but parameter 0 of its group is 1.0; pass model.parameters()",
    ),
    "a module in a group": (
        lambda: RADAR([{"params": [*weights(), nn.Linear(1, 1)]}]),
        "RADAR: optimizer can only optimize Tensors, but parameter 4 of its group is Linear(in_features=1, "
        "out_features=1, bias=True); pass model.parameters()",
    ),
    "a result": (
        lambda: RADAR([("scale", nn.Parameter(torch.zeros(3)) * 2)]),
        "RADAR: can't optimize a non-leaf Tensor: parameter 'scale' is the result of MulBackward0; pass the parameters "
        "that it was computed from, or its .detach().requires_grad_()",
    ),
    "an iterator that was used": (
        lambda: RADAR(used_up(model().parameters())),
        "RADAR: optimizer got an empty parameter list; if it came from an iterator that was used before, such as "
        "model.parameters(), make a new one; if the whole model is frozen, there is nothing to train",
    ),
    "a parameter in two groups": (
        lambda: RADAR([{"params": [shared]}, {"params": [*weights(), shared]}]),
        "RADAR: some parameters appear in more than one parameter group: parameter 4 of its group, of shape (3,), is "
        "in group 0 too; give each parameter to one group",
    ),
    "two optimizers of the same parameters": (
        lambda: groups.combine(RADAR([shared]), Lion([shared])),
        "AIM: some parameters appear in more than one parameter group: parameter 0 of its group, of shape (3,), is in "
        "group 0 too; give each parameter to one group",
    ),
    "a group without parameters": (
        lambda: RADAR([{"parameters": weights()}]),
        "RADAR: a parameter group must have the key 'params', got a dict with the keys ['parameters']; write "
        "{'params': model.parameters()}",
    ),
    "a list as a group": (
        lambda: RADAR(weights()).add_param_group([shared]),
        "RADAR: a parameter group must be a dict with the key 'params', got a list; write {'params': …}",
    ),
}

OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "a common other name": (
        lambda: RADAR(weights(), learning_rate=0.1),
        "RADAR() got an unexpected keyword argument 'learning_rate'; did you mean 'lr'?",
    ),
    "no name of an optimizer": (
        lambda: unusual.create(None, model()),
        "create: the name of an optimizer must be a text such as 'radar', got None",
    ),
    "a class as a name": (
        lambda: unusual.create(RADAR, model()),
        "create: the name of an optimizer must be a text such as 'radar', got <class 'aimopt.optimizers.relativistic."
        "RADAR'>; call RADAR(…) itself, or pass its name",
    ),
    "a class as a part": (
        lambda: unusual.AIM(weights(), 0.1, filter=EMA, geometry=Adaptive()),
        "AIM: filter must be a Filter, got the class EMA; write EMA(…)",
    ),
    "parts of other axes": (
        lambda: unusual.AIM(weights(), 0.1, filter=Adaptive(), geometry=EMA()),
        "AIM: filter must be a Filter, and Adaptive is a geometry; write geometry=Adaptive(…)",
    ),
    "no part": (
        lambda: unusual.AIM(weights(), 0.1, filter=3, geometry=Adaptive()),
        "AIM: filter must be a Filter, got 3",
    ),
    "parameters for a model": (
        lambda: unusual.groups.split(weights()),
        "groups.split: the types of layers decide what their parameters are, so pass the model; got a list",
    ),
    "no optimizers": (
        lambda: groups.combine(),
        "groups.combine: pass the optimizers to combine, as in groups.combine(Muon(…), RADAR(…)); got none",
    ),
    "an optimizer of torch": (
        lambda: unusual.groups.combine(torch.optim.AdamW(weights())),
        "groups.combine: it takes optimizers of this package, got AdamW of torch.optim; make it with aimopt.AdamW",
    ),
    "a model to combine": (
        lambda: unusual.groups.combine(model()),
        "groups.combine: it takes optimizers of this package, got Sequential; pass optimizers, as in groups.combine("
        "Muon(…), RADAR(…))",
    ),
    "a model to explain": (
        lambda: unusual.groups.explain(model()),
        "groups.explain: it takes an optimizer, got Sequential; of a model, groups.split(model).explain() says what "
        "would be done with each parameter",
    ),
    "a watch on an optimizer of torch": (
        lambda: unusual.watch(torch.optim.AdamW(weights())),
        "watch: it takes an optimizer of this package, got AdamW",
    ),
    "a folder as a log": (
        lambda: unusual.log_to(RADAR(weights()), "runs"),
        "log_to: log must be a function of (tag, value, step), such as writer.add_scalar, got 'runs'",
    ),
    "no interval": (
        lambda: unusual.watch(RADAR(weights()), every=0.5),
        "watch: every must be a whole number ≥ 1, got 0.5",
    ),
    "a loss as a closure": (
        lambda: RADAR(weights()).step(torch.zeros(())),
        "RADAR.step: closure must be a function that computes the loss and returns it, got a Tensor; after "
        "loss.backward() write step() alone",
    ),
    "a path as a checkpoint": (
        lambda: RADAR(weights()).load_state_dict("last.pt"),
        "RADAR.load_state_dict: pass what optimizer.state_dict() returned: a dict with the keys 'state' and "
        "'param_groups'; got a str; load a file with torch.load first",
    ),
    "a whole checkpoint": (
        lambda: RADAR(weights()).load_state_dict({"epoch": 3, "optimizer": RADAR(weights()).state_dict()}),
        "RADAR.load_state_dict: pass what optimizer.state_dict() returned: a dict with the keys 'state' and "
        "'param_groups'; got a dict with the keys ['epoch', 'optimizer']; pass its entry 'optimizer'",
    ),
    "other weights": (
        lambda: RADAR(weights()).load_state_dict(model().state_dict()),
        "RADAR.load_state_dict: pass what optimizer.state_dict() returned: a dict with the keys 'state' and "
        "'param_groups'; got a dict with the keys ['0.bias', '0.weight', '2.bias', '2.weight'], all of them tensors: "
        "is it the state dict of a model?",
    ),
    "another optimizer's checkpoint": (
        lambda: continue_run(Lion, RADAR),
        "RADAR.load_state_dict: the checkpoint's state of parameter number 0 has ['exp_avg', 'step'] but not "
        "'exp_avg_sq': this optimizer cannot continue the run of the optimizer that wrote it; continue with that one, "
        "or begin with the weights alone",
    ),
    "another model's checkpoint": (
        lambda: continue_run(RADAR, RADAR, width=6),
        "RADAR.load_state_dict: parameter number 0 has shape (6, 4) and the checkpoint's 'exp_avg' for it (8, 4); is "
        "it a checkpoint of another model, or are the parameters in another order?",
    ),
    "other groups": (
        lambda: RADAR(weights()).load_state_dict(RADAR(weights()[:2]).state_dict()),
        "RADAR.load_state_dict: the checkpoint has parameter groups of [2] parameters and this optimizer of [4]; build "
        "the optimizer with the groups of the run that wrote it",
    ),
}


def continue_run(First: Any, Second: Any, width: int = 8) -> None:
    network = model()
    optimizer = First(network.parameters(), lr=0.1)
    network(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    Second(model(width).parameters(), lr=0.1).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("mistake", [*PARAMS, *OTHERS])
def test_a_wrong_call_gets_a_sentence(mistake: str) -> None:
    call, sentence = (PARAMS | OTHERS)[mistake]
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(sentence)}$"):
        call()


@pytest.mark.parametrize("mistake", ["a tensor", "numbers", "a result", "an iterator that was used"])
def test_errors_about_parameters_are_those_of_torch(mistake: str) -> None:
    """Their class, so that code which expects torch's errors goes on."""
    call, _ = PARAMS[mistake]
    kind = TypeError if mistake in ("a tensor", "numbers") else ValueError
    with pytest.raises(kind):
        call()


@pytest.mark.parametrize(
    ("name", "meant"), [("wieght_decay", "weight_decay"), ("fuse", "fused"), ("learning_rate", "lr")]
)
def test_a_misspelled_key_of_a_group_is_not_ignored_in_silence(name: str, meant: str) -> None:
    sentence = f"RADAR: a group has {name}=0.5, which nothing reads; did you mean {meant!r}?"
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        optimizer = RADAR([{"params": weights(), name: 0.5}])
    assert optimizer.param_groups[0][name] == 0.5  # it may be the user's own


@pytest.mark.parametrize("name", ["name", "lr_scale", "initial_lr", "weight_decay_mult", "lr_mult", "layer", "is_muon"])
def test_a_users_own_key_of_a_group_stays_without_a_warning(name: str) -> None:
    assert RADAR([{"params": weights(), name: 0.5}]).param_groups[0][name] == 0.5


def test_a_group_of_another_optimizer_may_be_added() -> None:
    hybrid = AIM(Muon([nn.Parameter(torch.eye(3))]).param_groups, 0.1, filter=EMA(), geometry=Adaptive())
    hybrid.add_param_group(RADAR([shared]).param_groups[0])
    assert [group["geometry"] for group in hybrid.param_groups] == ["Spectral", "Relativistic"]
