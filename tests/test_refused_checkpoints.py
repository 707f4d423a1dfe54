"""State dicts that cannot be loaded: a sentence says why, and nothing has changed."""

import copy
from typing import Any

import pytest
import torch

import aimopt
from aimopt import RADAR
from optimizer_driver import BEGUN_SHAPES, advance, begun, parameters


def test_the_state_of_a_scalar_is_not_used_for_a_vector() -> None:
    (scalar,) = parameters([()])
    optimizer = RADAR([scalar])
    advance(optimizer, [scalar], 1)
    with pytest.raises(ValueError, match=r"has shape \(3,\) and the checkpoint's 'exp_avg' for it \(\)"):
        RADAR(parameters([(3,)])).load_state_dict(optimizer.state_dict())


def test_a_checkpoint_with_an_invalid_value_is_refused() -> None:
    radar, params = begun(RADAR)
    saved = radar.state_dict()
    for key, bad in (("decoupled_weight_decay", 1), ("zeta", -1.0), ("lr", float("nan"))):
        broken = copy.deepcopy(saved)
        broken["param_groups"][0][key] = bad
        with pytest.raises(ValueError, match=f"{key} must be"):
            RADAR(params).load_state_dict(broken)


# Values of a group or of a parameter's state, and the messages. They are made in the test, because torch warns of them.
UNUSUAL: dict[str, tuple[Any, str]] = {
    "lr": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "a tensor lr must be one real number, got a nested"),
    "amsgrad": (lambda: torch.ones(2), r"Relativistic: amsgrad must be one of \[True, False\], got tensor"),
    "params": (lambda: None, r"must have a list 'params' of numbers or names, got a NoneType$"),
    "prev_grad": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "'prev_grad' must be an ordinary dense tensor, and is not: quantized",
    ),
}


@pytest.mark.parametrize("key", UNUSUAL)
@pytest.mark.filterwarnings("ignore")
def test_unusual_values_are_refused(key: str) -> None:
    radar, params = begun(RADAR)
    make, message = UNUSUAL[key]
    broken = radar.state_dict()
    changed = broken["param_groups"][0] if key in broken["param_groups"][0] else broken["state"][0]
    changed[key] = make()
    with pytest.raises(ValueError, match=rf"^RADAR.load_state_dict: .*{message}"):
        RADAR(params).load_state_dict(broken)


def test_lion_refuses_a_run_of_adam() -> None:
    adamw, params = begun(torch.optim.AdamW)
    with pytest.raises(ValueError, match="'exp_avg_sq' has no meaning here"):
        aimopt.Lion(params).load_state_dict(adamw.state_dict())


def lion(params: Any) -> Any:
    return aimopt.Lion(params, lr=0.01)


@pytest.mark.parametrize("foreign", [lion, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), torch.optim.Adamax])
def test_a_run_that_cannot_be_continued_is_refused_and_nothing_is_loaded(foreign: Any) -> None:
    params = parameters(BEGUN_SHAPES)
    other = foreign(params)
    advance(other, params, 3)
    radar = RADAR([(f"layer{i}", p) for i, p in enumerate(params)], lr=0.3)
    advance(radar, params, 2)
    before = copy.deepcopy(radar.state_dict())
    with pytest.raises(ValueError, match=r"state of parameter layer0 has .* but not '.*': .* cannot continue"):
        radar.load_state_dict(other.state_dict())
    after = radar.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(
        torch.equal(after["state"][i][k], before["state"][i][k]) for i in before["state"] for k in before["state"][i]
    )


def test_wrong_shapes_name_the_parameter() -> None:
    radar, params = begun(RADAR)
    saved = radar.state_dict()
    transposed = RADAR([("a", params[1]), ("b", params[0])], lr=0.3)
    with pytest.raises(
        ValueError, match=r"parameter a has shape \(5,\) and the checkpoint's 'exp_avg' for it \(4, 3\)"
    ):
        transposed.load_state_dict(saved)
    assert not transposed.state
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters and this optimizer of \[1\]"):
        RADAR(params[:1]).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"pass what optimizer\.state_dict"):
        RADAR(params).load_state_dict({"model": {}})


def damaged(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A state dict of RADAR with one value replaced."""
    optimizer, _ = begun(RADAR)
    state_dict = copy.deepcopy(optimizer.state_dict())
    place = state_dict
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return state_dict


MOMENT, COUNT, POINT = ("state", 0, "exp_avg"), ("state", 0, "step"), ("state", 0, "training_point")


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("state",), 3, "'state' must be a dict"),
        (("state",), [], "'state' must be a dict"),
        (("param_groups",), None, "'param_groups' must be a list of dicts"),
        (("param_groups",), {}, "'param_groups' must be a list of dicts"),
        (("param_groups", 0), 7, "'param_groups' must be a list of dicts"),
        (("param_groups", 0, "params"), None, "must have a list 'params'"),
        (("param_groups", 0, "params"), [[], {}], "must have a list 'params'"),
        (("param_groups", 0, "param_names"), ["one"], "'param_names' is \\['one'\\]"),
        (("param_groups", 0, "betas"), 3, "'betas' of group 0"),
        (("param_groups", 0, "betas"), ("a", "b"), "beta"),
        (("param_groups", 0, "lr"), float("nan"), "lr must be a finite number"),
        (
            ("param_groups", 0, "lr"),
            None,
            "RADAR.load_state_dict: group 0 of the checkpoint: lr must be a finite",
        ),
        (("param_groups", 0, "train_mode"), "no", "'train_mode' of group 0 of the checkpoint must be True or False"),
        (("param_groups", 0, "weight_decay"), "much", "weight_decay must be a finite number"),
        (("param_groups", 0, "filter"), "Nobody", "no filter is called 'Nobody'"),
        (("param_groups", 0, "filter"), [], "filter"),
        (("param_groups", 0, "gamma"), torch.ones(3), "gamma must be a number"),
        (("param_groups", 0, "params"), [0, 0], r"list a parameter twice: \[0\]"),
        (("param_groups", 0, "params"), [True, 1], "must have a list 'params' of numbers or names"),
        (("param_groups", 0, "skipped_steps"), "x", "'skipped_steps' of group 0"),
        (("param_groups", 0, "maximize"), torch.ones(2), "maximize must be one of"),
        (("param_groups", 0, "gamma"), 10**400, "gamma must be a number"),
        (("state", "0"), {}, "state of parameter '0', but its groups list only"),
        (("state", 0), [1], "state of parameter 0 must be a dict"),
        (("state", 0, "spare"), range(2), "'spare' is a range, which is no state"),
        (("state", 0, "spare"), torch.zeros(2, device="meta"), "'spare' must be an ordinary dense tensor"),
        (COUNT, -1, "parameter number 0: the checkpoint's 'step' must be a whole number ≥ 0, got -1"),
        (COUNT, torch.tensor(-1.0), "'step' must be a whole number ≥ 0"),
        (COUNT, torch.tensor(float("nan")), "'step' must be a whole number ≥ 0, got nan"),
        (COUNT, float("inf"), "'step' must be one real number, got inf"),
        (COUNT, 10**400, "'step' must be one real number"),
        (COUNT, torch.zeros((), device="meta"), "'step' must be an ordinary dense tensor, and is not: on the meta"),
        (COUNT, torch.ones(1).to_sparse(), "'step' must be an ordinary dense tensor"),
        (COUNT, torch.zeros(()).to(torch.float8_e4m3fn), "'step' must be one real number"),
        (COUNT, 1.5, "'step' must be a whole number ≥ 0"),
        (COUNT, torch.ones(3), "'step' must be one real number, got torch.float32 of shape"),
        (COUNT, torch.ones((), dtype=torch.complex64), "'step' must be one real number"),
        (COUNT, "ten", "'step' must be one real number, got 'ten'"),
        (COUNT, True, "'step' must be one real number"),
        (MOMENT, [0.0], "'exp_avg' must be a tensor, and is a list"),
        (MOMENT, "x", "'exp_avg' must be a tensor"),
        (MOMENT, torch.zeros(4, 3).to_sparse(), "'exp_avg' must be an ordinary dense tensor"),
        (MOMENT, torch.zeros(1).expand(4, 3), "'exp_avg' must be an ordinary dense tensor, and is not: expanded"),
        (MOMENT, torch.zeros(4, 3, device="meta"), "ordinary dense tensor, and is not: on the meta device"),
        (MOMENT, torch.zeros(4, 3, dtype=torch.complex128), "'exp_avg' must hold real numbers, .* torch.complex128"),
        (MOMENT, torch.zeros(4, 3, dtype=torch.int64), "'exp_avg' must hold real numbers"),
        (MOMENT, torch.zeros(4, 3, dtype=torch.cfloat).conj().imag, "and is not: a lazily negated or conjugated view"),
        (POINT, torch.zeros(3), r"has shape \(4, 3\) and the checkpoint's 'training_point' for it \(3,\)"),
        (POINT, "x", "'training_point' must be a tensor, and is a str"),
        (MOMENT, torch.zeros(3, 4), r"has shape \(4, 3\) and the checkpoint's 'exp_avg' for it \(3, 4\)"),
    ],
)
def test_a_malformed_checkpoint_is_refused_and_changes_nothing(path: Any, value: Any, match: str) -> None:
    optimizer, params = begun(RADAR)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=match):
        optimizer.load_state_dict(damaged(path, value))
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for state, old in zip(after["state"].values(), before["state"].values(), strict=True):
        assert all(torch.equal(state[name], old[name]) for name in old)
    advance(optimizer, params, 1)


@pytest.mark.parametrize("given", [None, "checkpoint.pt", torch.zeros(3), (1, 2), {}, {"state": {}}])
def test_a_value_that_is_not_a_state_dict_is_refused(given: Any) -> None:
    optimizer, _ = begun(RADAR)
    with pytest.raises(ValueError, match=r"pass what optimizer.state_dict\(\) returned: .* got a"):
        optimizer.load_state_dict(given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    optimizer, _ = begun(RADAR)
    with pytest.raises(ValueError, match=r"load_state_dict: parameter .* 'exp_avg' is a nested tensor"):
        optimizer.load_state_dict(damaged(MOMENT, torch.nested.nested_tensor([torch.zeros(3)])))


@pytest.mark.parametrize("key", ["exp_avg", "step"])
def test_a_buffer_whose_memory_was_freed_is_refused(key: str) -> None:
    optimizer, _ = begun(RADAR)
    state_dict = copy.deepcopy(optimizer.state_dict())
    state_dict["state"][0][key] = state_dict["state"][0][key].float()
    state_dict["state"][0][key].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"'{key}' must be an ordinary dense tensor, .* its storage holds 0"):
        optimizer.load_state_dict(state_dict)


def test_a_real_buffer_is_refused_for_a_complex_parameter() -> None:
    params = parameters(((3,),), torch.complex128)
    optimizer = RADAR(params)
    advance(optimizer, params, 2)
    state_dict = copy.deepcopy(optimizer.state_dict())
    state_dict["state"][0]["exp_avg"] = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="'exp_avg' must hold complex numbers"):
        optimizer.load_state_dict(state_dict)


def test_the_state_of_pytorch_rad_0_2_0_is_checked_before_it_is_converted() -> None:
    optimizer, _ = begun(RADAR)
    state_dict = copy.deepcopy(optimizer.state_dict())
    state_dict["param_groups"][0]["l"] = 1e-4
    state_dict["state"][0]["prev_grad"] = "gone"
    with pytest.raises(ValueError, match="'prev_grad' must be a tensor"):
        optimizer.load_state_dict(state_dict)
    state_dict["state"][0]["prev_grad"] = torch.zeros(4, 3)
    del state_dict["param_groups"][0]["gamma"]
    with pytest.raises(ValueError, match="has a 'prev_grad' but not the betas and gamma"):
        optimizer.load_state_dict(state_dict)
