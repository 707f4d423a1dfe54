"""Hyperparameters: signatures, overrides by group, and an error message for every mistake."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import aimopt
from aimopt.parts.composition import Parts
from optimizer_driver import ALL, EXCEPT_MATRICES, advance, assert_same, flat, parameters, push, shapes_for

every = pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
every_element_wise = pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
Class = Any  # a named optimizer: its constructor takes more than AIM's


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def test_the_flagship_has_the_documented_signature() -> None:
    documented = dict(
        lr=1e-3, betas=(0.9, 0.999), gamma=0.1, ell=None, ell_ratio=0.01, delta=1.0, zeta=1e-16, weight_decay=0.0
    )
    documented |= dict(decoupled_weight_decay=True, bias_correction=True, maximize=False, foreach=None, fused=None)
    documented |= dict(capturable=False, differentiable=False)
    signature = inspect.signature(aimopt.RADAR)
    assert {name: signature.parameters[name].default for name in documented} == documented
    assert list(signature.parameters)[:4] == ["params", "lr", "betas", "gamma"]
    for optimizer in ALL:
        parameter_kinds = {p.kind for p in inspect.signature(optimizer).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in parameter_kinds


@every
def test_groups_override_every_hyperparameter(Optimizer: Class) -> None:
    shapes = shapes_for(Optimizer)
    other = Optimizer(parameters(shapes), lr=0.02, weight_decay=0.3).param_groups[0]
    overrides = {key: value for key, value in other.items() if key not in ("params", *Parts._fields)}
    if "betas" in overrides:
        overrides["betas"] = tuple(0.9 * beta for beta in overrides["betas"])
    if "momentum" in overrides:
        overrides["momentum"] = 0.5
    expected = parameters(shapes)
    alone = Optimizer(expected, lr=1.0)
    for key, value in overrides.items():
        alone.param_groups[0][key] = value
    advance(alone, expected, 6)
    params = parameters(shapes)
    optimizer = Optimizer([{"params": params[:1], **overrides}, {"params": params[1:], **overrides}], lr=1.0)
    assert optimizer.param_groups[1]["lr"] == 0.02
    advance(optimizer, params, 6)
    assert_same(flat(params), flat(expected))


def test_named_parameters_and_create() -> None:
    network = model()
    network[0].bias.requires_grad_(False)
    optimizer = aimopt.create("RaDaR", network, lr=0.5, gamma=0.2)
    assert isinstance(optimizer, aimopt.RADAR)
    assert optimizer.param_groups[0]["param_names"] == [n for n, p in network.named_parameters() if p.requires_grad]
    assert optimizer.param_groups[0]["gamma"] == 0.2
    assert isinstance(aimopt.create("sgd-m", network.parameters(), lr=0.1), aimopt.SGDM)
    assert {name.lower() for name in aimopt.available()} >= {"radar", "rad", "adamw", "lion", "muon", "acceleratedmuon"}
    with pytest.raises(ValueError, match=r"no optimizer is called 'radra'; did you mean 'RADAR'\?"):
        aimopt.create("radra", network)
    with pytest.raises(ValueError, match="known are RADAR, RAD"):
        aimopt.create("zzz", network)
    with pytest.raises(ValueError, match=r"takes real matrices .* parameter '2.bias' has shape \(8,\)"):
        aimopt.create("muon", network, lr=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lr=-1.0), "lr must be a finite number ≥ 0, got -1.0"),
        (dict(lr=float("nan")), "got nan"),
        (dict(lr=float("inf")), "got inf"),
        (dict(lr="1e-3"), "got '1e-3'"),
        (dict(lr=torch.ones(2)), r"1-element, got shape \(2,\)"),
        (dict(weight_decay=-0.1), "weight_decay must be a finite number"),
        (dict(weight_decay=None), "weight_decay must be a finite number"),
        (dict(lr=torch.tensor(-1.0)), "lr must be a finite number ≥ 0, got -1.0"),
        (dict(lr=torch.tensor(torch.nan)), "got nan"),
        (dict(decoupled_weight_decay="no"), r"decoupled_weight_decay must be one of \[True, False, 'proximal'\]"),
        (dict(decoupled_weight_decay=1), "got 1"),
        (dict(maximize="false"), "maximize must be one of"),
        (dict(capturable=None), "capturable must be one of"),
        (dict(differentiable=0), "differentiable must be one of"),
        (dict(skip_nonfinite="no"), "skip_nonfinite must be one of"),
        (dict(foreach="x"), "foreach must be one of"),
        (dict(fused=0), "fused must be one of"),
        (dict(betas=0.9), "betas must be 2 numbers, got 0.9"),
        (dict(betas=None), "betas must be 2 numbers, got None"),
        (dict(betas=(1.0, 0.9)), "beta must be a number in"),
        (dict(betas=(0.9, 1.0)), "beta2 must be a number in"),
        (dict(betas=(0.9,)), "betas must be 2 numbers"),
        (dict(gamma=-1.0), "gamma must be"),
        (dict(zeta=0.0), "zeta must be"),
        (dict(ell=-1.0), "ell must be"),
        (dict(bias_correction="maybe"), "bias_correction must be one of"),
        (dict(fused=True, differentiable=True), "differentiable=True takes another path; leave fused=None"),
        (dict(state_dtype="float16"), "state_dtype must be one of"),
        (dict(stochastic_rounding=1), "stochastic_rounding must be one of"),
        (dict(foreach=True, differentiable=True), "leave foreach=None"),
    ],
)
def test_an_invalid_hyperparameter_is_refused_with_a_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aimopt.RADAR(parameters(), **options)


@every
def test_the_error_for_an_unknown_keyword_names_the_called_class(Optimizer: Class) -> None:
    name, params = Optimizer.__name__, parameters(shapes_for(Optimizer))
    for keyword in ("nothing", "eps", "amsgrad", "zeta", "nus", "momentum", "weight_deacy", "params_"):
        if keyword in inspect.signature(Optimizer).parameters:
            continue
        with pytest.raises(TypeError) as caught:
            Optimizer(params, lr=0.1, **{keyword: 1})
        assert str(caught.value).startswith(f"{name}() got an unexpected keyword argument {keyword!r}; ")
    with pytest.raises(TypeError, match=rf"^{name}\(\) .* 'geometry'; the parts of {name} are fixed; .* AIM\("):
        Optimizer(params, lr=0.1, geometry=aimopt.Sign())
    with pytest.raises(TypeError, match=rf"^{name}\(\) .* 'weight_deacy'; did you mean 'weight_decay'\?"):
        Optimizer(params, lr=0.1, weight_deacy=0.1)


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("momentum", "SGDM, Nesterov, Muon, AcceleratedMuon take it, RADAR takes lr, betas, gamma"),
        ("rectify", "AdaBelief takes it, RADAR takes lr, betas, gamma"),
        ("gama", "did you mean 'gamma'?"),
        ("nothing", "known are lr, betas, gamma, ell, ell_ratio"),
    ],
)
def test_the_error_for_an_unknown_keyword_says_what_to_write_instead(keyword: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        aimopt.create("radar", parameters(), **{keyword: 1})
    assert str(caught.value).startswith(f"RADAR() got an unexpected keyword argument {keyword!r}; {hint}")


@every
def test_the_error_for_an_invalid_value_names_the_called_class(Optimizer: Class) -> None:
    """For every hyperparameter, and for the parameters themselves."""
    name, params = Optimizer.__name__, parameters(shapes_for(Optimizer))
    lenient = (
        "params",
        "betas",
        "nesterov",
        "no_prox",
        "weight_decouple",
        "decouple_weight_decay",
        "amsgrad",
        "rectify",
    )
    for keyword in inspect.signature(Optimizer).parameters:
        if keyword not in lenient:
            with pytest.raises(ValueError, match=f"^{name}: "):
                Optimizer(params, **{keyword: "nonsense"})
    with pytest.raises(ValueError, match=f"^{name}: optimizer got an empty parameter list"):
        Optimizer([])
    with pytest.raises(TypeError, match=f"^{name}: params argument"):
        Optimizer(params[0])
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 required positional argument: 'params'"):
        Optimizer()


ADAMW = inspect.signature(torch.optim.AdamW)


def test_the_swap_is_one_line() -> None:
    """Every keyword of torch.optim.AdamW, at its default and at another value, is taken by RADAR and has its effect."""
    others: dict[str, Any] = dict(
        lr=0.02, betas=(0.8, 0.9), eps=0.3, weight_decay=0.2, amsgrad=True,
        maximize=True, foreach=True, capturable=True, differentiable=True, fused=True,
    )  # fmt: skip
    defaults = {name: p.default for name, p in ADAMW.parameters.items() if name != "params"}
    assert defaults.keys() == others.keys()
    plain = aimopt.RADAR(parameters(), **{**defaults, "weight_decay": 0.0}).param_groups[0]
    of_radar = aimopt.RADAR(parameters()).param_groups[0]
    assert {k: v for k, v in plain.items() if k != "params"} == {k: v for k, v in of_radar.items() if k != "params"}
    for name, value in others.items():
        group = aimopt.RADAR(parameters(), **{name: value}).param_groups[0]
        assert group["zeta" if name == "eps" else name] == (0.3**2 if name == "eps" else value)
    params, twins = parameters(), parameters()
    advance(aimopt.RADAR(params, 0.01, eps=0.3, amsgrad=True), params, 10)
    parts: dict[str, Any] = dict(
        filter=aimopt.GradientDifference(), geometry=aimopt.Relativistic(zeta=0.09, amsgrad=True)
    )
    advance(aimopt.AIM(twins, 0.01, **parts, correction=aimopt.FixedPoint(ell_ratio=0.01)), twins, 10)
    assert_same(flat(params), flat(twins))


def test_arguments_of_adamw_by_position_are_refused_with_their_names() -> None:
    positional = [name for name, p in ADAMW.parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["params", "lr", "betas", "eps", "weight_decay", "amsgrad"]
    for Optimizer in (aimopt.RADAR, aimopt.RAD, aimopt.AdEMAMix):
        make: Any = Optimizer
        betas = (0.9, 0.999, 0.9999)[: 3 if make is aimopt.AdEMAMix else 2]
        with pytest.raises(TypeError) as caught:
            make(parameters(), 1e-3, betas, 1e-8, 0.01)
        assert str(caught.value) == (
            f"{make.__name__}() takes params, lr and betas by position, and got 5 arguments; "
            "if they are AdamW's, write eps=1e-08, weight_decay=0.01"
        )
    any_sgdm: Any = aimopt.SGDM
    with pytest.raises(
        TypeError, match=r"SGDM\(\) takes params, lr, momentum and weight_decay by position, and got 6 .*"
    ):
        any_sgdm(parameters(), 1e-3, 0.9, 0.0, True, False)
    any_aim: Any = aimopt.AIM
    with pytest.raises(
        TypeError, match=r"^AIM\(\) takes params and lr by position, and got 3 .* by name: filter, geom"
    ):
        any_aim(parameters(), 1e-3, aimopt.EMA())


def test_no_error_names_a_constructor_that_was_not_called() -> None:
    class Mine(aimopt.AIM):
        def __init__(self, params: Any, **options: Any):
            super().__init__(params, 0.1, **options)

    any_aim: Any = aimopt.AIM
    parts: dict[str, Any] = dict(filter=aimopt.EMA(), geometry=aimopt.Sign())
    for call, beginning in (
        (lambda: Mine(parameters()), r"Mine\(\) missing 2 required keyword-only arguments: 'filter' and 'geometry'"),
        (lambda: Mine(parameters(), **parts, lr_=1), r"Mine\(\) got an unexpected keyword argument 'lr_'"),
        (lambda: any_aim(parameters(), 0.1, **parts, fsed=True), r"AIM\(\) got an .* 'fsed'; did you mean 'fused'\?"),
        (lambda: any_aim(parameters(), 0.1, filter=aimopt.EMA()), r"AIM\(\) missing 1 required keyword-only"),
        (lambda: any_aim(parameters(), -1.0, **parts), "AIM: lr must be a finite number"),
        (lambda: Mine(parameters(), filter=1, geometry=aimopt.Sign()), "Mine: filter must be a Filter"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{beginning}"):
            call()
    optimizer = aimopt.RADAR(parameters())
    with pytest.raises(ValueError, match=r"^RADAR: GradientDifference: gamma must be"):
        optimizer.add_param_group({"params": parameters(seed=1), "gamma": -1})


def test_a_groups_eps_is_zeta() -> None:
    a, b, c = parameters([(2,), (3,), (4,)])
    groups: list[dict[str, Any]] = [{"params": [a], "eps": 1e-4}, {"params": [b], "zeta": 1e-3}, {"params": [c]}]
    optimizer = aimopt.RADAR(groups, eps=1e-2)
    assert [group["zeta"] for group in optimizer.param_groups] == pytest.approx([1e-8, 1e-3, 1e-4])
    assert not any("eps" in group for group in optimizer.param_groups)
    for bad, message in (
        ({"eps": 1e-4, "zeta": 1e-3}, "a group has eps=0.0001 and zeta=0.001; give zeta alone"),
        ({"eps": 0}, r"eps must be a number in \(0, ∞\), got 0; it stands for zeta = eps²"),
        ({"eps": "small"}, "eps must be a number"),
    ):
        with pytest.raises(ValueError, match=f"^RADAR: {message}"):
            aimopt.RADAR([{"params": [a], **bad}])
    with pytest.raises(ValueError, match=r"^RADAR: zeta=0.1 and eps=0.1 set the same value, zeta = eps²; give one"):
        aimopt.RADAR([a], zeta=0.1, eps=0.1)


@pytest.mark.parametrize(
    ("Optimizer", "key", "message"),
    [
        (aimopt.RADAR, {"momentum": 0.8}, r"RADAR: a group sets momentum=0.8, which nothing .* write betas=\(β1, …\)"),
        (
            aimopt.SGDM,
            {"betas": (0.8, 0.9)},
            r"SGDM: a group sets betas=\(0.8, 0.9\), which nothing .* write momentum=β1",
        ),
        (aimopt.AdamW, {"zeta": 1e-16}, "AdamW: a group sets zeta=1e-16, which nothing reads in EMA \\+ Adaptive"),
        (aimopt.Lion, {"eps": 1e-8}, "Lion: a group sets eps=1e-08, which nothing reads in Lookback"),
        (aimopt.RADAR, {"nesterov": True}, "RADAR: a group sets nesterov=True, which nothing reads"),
    ],
)
def test_a_hyperparameter_of_a_group_that_nothing_reads_is_not_ignored_in_silence(
    Optimizer: Class, key: dict[str, Any], message: str
) -> None:
    with pytest.warns(UserWarning, match=message):
        optimizer = Optimizer([{"params": parameters(), **key}])
    assert not key.keys() & optimizer.param_groups[0].keys()


@every
def test_keys_of_trainers_and_schedulers_stay_in_a_group(Optimizer: Class) -> None:
    """Without a warning, which would be an error here."""
    theirs: dict[str, Any] = dict(
        initial_lr=0.1, max_lr=1.0, min_lr=0.0, base_momentum=0.8, max_momentum=0.95, name="head", lr_scale=0.5,
        layer_id=3, apply_decay=True, use_muon=True, lr_mult=2.0, param_group_idx=0, weight_decay_multiplier=1.0,
    )  # fmt: skip
    optimizer = Optimizer([{"params": parameters(shapes_for(Optimizer)), **theirs}])
    assert {name: optimizer.param_groups[0][name] for name in theirs} == theirs
    again = Optimizer(optimizer.param_groups)  # complete groups of another optimizer
    assert {name: again.param_groups[0][name] for name in theirs} == theirs


def test_the_default_weight_decay_is_the_papers() -> None:
    """Not AdamW's 0.01: the docstring says so, and the checkpoint of an AdamW run brings its own."""
    assert aimopt.RADAR(parameters()).param_groups[0]["weight_decay"] == 0.0
    assert "torch.optim.AdamW's default is 0.01" in (aimopt.RADAR.__doc__ or "")
    radar = aimopt.RADAR(parameters())
    radar.load_state_dict(torch.optim.AdamW(parameters()).state_dict())
    assert radar.param_groups[0]["weight_decay"] == 0.01


def test_a_keyword_that_a_users_optimizer_passes_on_is_checked() -> None:
    class Mine(aimopt.AIM):
        def __init__(self, params: Any, lr: float = 0.1, **options: Any):
            gamma = options.pop("gamma", 0.1)
            parts: dict[str, Any] = dict(filter=aimopt.GradientDifference(0.9, gamma), geometry=aimopt.Relativistic())
            super().__init__(params, lr, **parts, **options)

    assert Mine(parameters(), gamma=0.2).param_groups[0]["gamma"] == 0.2
    with pytest.raises(TypeError, match=r"^Mine\(\) got an unexpected keyword argument 'delta'; "):
        Mine(parameters(), delta=1)


def test_an_invalid_value_that_is_set_later_is_refused_at_the_next_step() -> None:
    params = parameters()
    optimizer = aimopt.RADAR(params)
    for key, bad, good in (("betas", (1.0, 0.9), (0.9, 0.99)), ("zeta", -1.0, 1e-16), ("betas", (0.9,), [0.9, 0.99])):
        before = flat(params)
        optimizer.param_groups[0][key] = bad
        push(params, 0)
        with pytest.raises(ValueError, match="must be"):
            optimizer.step()
        assert torch.equal(flat(params), before)
        optimizer.param_groups[0][key] = good
        optimizer.step()


def test_the_warning_for_ell_above_lr_is_shown_once() -> None:
    with pytest.warns(UserWarning, match=r"ell exceeds the learning rate: ell/lr is 5 at lr=0.1"):
        optimizer = aimopt.RADAR(parameters(), lr=0.1, ell=0.5)
    advance(optimizer, optimizer.param_groups[0]["params"], 2)  # a second warning would be an error
    with pytest.warns(UserWarning, match=r"ell exceeds the learning rate: ell/lr is 2 at lr=0.1"):
        aimopt.RADAR(parameters(), lr=0.1, ell_ratio=2.0)
    with pytest.warns(UserWarning, match=r"ell exceeds the learning rate: ell/lr is 5 at lr=0.1"):
        aimopt.RADAR(parameters(), lr=torch.tensor(0.1), ell=0.5)
    params = parameters()
    optimizer = aimopt.RADAR(params, lr=0.1, ell=0.05)
    advance(optimizer, params, 1)
    optimizer.param_groups[0]["lr"] = 0.01  # as a scheduler does
    with pytest.warns(UserWarning, match="ell_ratio"):
        advance(optimizer, params, 1)
    advance(optimizer, params, 2)


def test_the_parts_of_a_named_optimizer_are_fixed() -> None:
    named: list[Any] = EXCEPT_MATRICES
    for optimizer in named:
        with pytest.raises(TypeError, match="correction"):
            optimizer(parameters(), lr=0.1, correction=aimopt.Secant())
    with pytest.raises(ValueError, match=r"nus must be 2 numbers, got 0.7"):
        aimopt.QHAdam(parameters(), nus=0.7)  # type: ignore[arg-type]


def test_an_invalid_group_is_not_added() -> None:
    optimizer = aimopt.RADAR(parameters(), 0.1)
    nonsense: list[Any] = [{}, [1], None, "x"]
    for bad in nonsense:
        with pytest.raises(ValueError, match="gamma must be a number"):
            optimizer.add_param_group({"params": parameters(seed=1), "gamma": bad})
    assert len(optimizer.param_groups) == 1


def test_by_default_ell_follows_the_learning_rate_and_a_zero_rate_moves_nothing() -> None:
    params = parameters()
    before = flat(params)
    advance(aimopt.RADAR(params, lr=0.0, weight_decay=0.1), params, 3)
    assert torch.equal(flat(params), before)
