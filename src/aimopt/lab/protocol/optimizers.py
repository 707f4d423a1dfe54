"""Optimizers that a study may name: those of this package, and any torch optimizer class by its import path.

make("torch.optim:SGD", model, lr=1e-3, options={"weight_decay": 0.01})
make("file.py:Mine", model, lr=1e-3, options={})
make("AIM", model, lr=1e-3, options={"filter": "EMA(0.9)", "geometry": "Sign()"})          a composition of parts
make("AIM", model, lr=1e-3, options={"filter": "EMA(0.9)", "geometry": "Spectral()"})      a hybrid

An optimizer of this package that takes only matrices is one half of a hybrid: `groups.split` decides which parameters
are its matrices, and `rest` is the optimizer of the others. "Hybrid" is the recommended pair of `optimizers/hybrid.py`,
which also names the usual rest. Both halves have one learning rate. A weight decay is that of both, unless the rest has
its own, and both decay all of their parameters, as the other optimizers of a study do.
"""

import ast
import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aimopt.aim import AIM
from aimopt.checkpoints import restore_dtypes
from aimopt.lab.protocol import import_paths
from aimopt.lab.protocol.user_code import user_code
from aimopt.messages.spelling import suggestion
from aimopt.optimizers import available, class_of
from aimopt.optimizers.hybrid import RECOMMENDED_MATRICES, RECOMMENDED_REST, USUAL_REST, hybrid, matched_rms
from aimopt.parts.component import Geometry
from aimopt.parts.composition import AXES
from aimopt.parts.text import part_from_text

Model = nn.Module | Iterable[tuple[str, Tensor]]  # parameters with their names, if nothing else is known of the model
HYBRID = "Hybrid"
# The options that a hybrid has besides those of the optimizer of its matrices.
REST, REST_OPTIONS, SPLIT_FUSED = "rest", "rest_options", "split_fused"
HYBRID_OPTIONS = (REST, REST_OPTIONS, SPLIT_FUSED)
DECAY = "weight_decay"


class NamedOptimizer(NamedTuple):
    """An optimizer and the options that it is given."""

    name: str
    options: Mapping[str, Any]


def from_text(text: str) -> NamedOptimizer:
    """An optimizer from a text: `Mine`, `Mine(weight_decay=0.1)`, `torch.optim:AdamW(betas=(0.9, 0.95))`."""
    name, bracket, rest = text.partition("(")
    try:
        call = ast.parse(f"f({rest if bracket else ')'}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        assert len(options) == len(call.keywords)  # no option is given twice, and there is no **
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        raise ValueError(f"cannot read the optimizer {text!r}; write it as Name or Name(option=0.05)") from None
    return NamedOptimizer(canonical(name.strip()), options)


def canonical(name: str) -> str:
    """The name as tables print it; refuses an unknown name."""
    if name.lower() == HYBRID.lower():
        return HYBRID
    if ":" not in name:
        return class_of(name).__name__
    _class(name)
    return name


def known_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that an optimizer has; the others are left out."""
    parameters = inspect.signature(_class(name)).parameters
    return {option: value for option, value in options.items() if option in parameters}


def rest_of(name: str, options: Mapping[str, Any]) -> NamedOptimizer | None:
    """The optimizer of all that is no matrix, if the named one takes only matrices; otherwise None."""
    if not _takes_only_matrices(name, options):
        return None
    usual = RECOMMENDED_REST if name == HYBRID else USUAL_REST
    text = options.get(REST, usual.__name__)
    # No import path: options come from files as well, and a file runs code only if the user trusts it.
    if not isinstance(text, str) or ":" in text.partition("(")[0]:
        raise ValueError(
            f"{name}: rest must name an optimizer of this package, such as {usual.__name__!r}, got {text!r}"
        )
    rest = from_text(text)
    further = options.get(REST_OPTIONS, {})
    if not isinstance(further, Mapping) or not all(isinstance(option, str) for option in further):
        raise ValueError(f"{name}: rest_options must map names to values, such as {{'eps': 1e-8}}, got {further!r}")
    chosen = {**rest.options, **further}
    if _takes_only_matrices(rest.name, chosen):
        raise ValueError(f"{name}: rest={rest.name!r} takes only matrices, too; choose one such as {usual.__name__}")
    return NamedOptimizer(rest.name, chosen)


def with_usual(name: str, usual: Callable[[str], Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and those of the usual ones that the optimizer has; `usual` maps a name to them.

    The rest of a hybrid gets its own usual options, and the weight decay of the matrices.
    """
    rest = rest_of(name, options)
    complete = {**known_options(name, usual(name)), **options}
    if rest is not None:
        shared = {DECAY: complete[DECAY]} if DECAY in complete else {}
        complete[REST] = rest.name
        complete[REST_OPTIONS] = {**known_options(rest.name, {**usual(rest.name), **shared}), **rest.options}
    return complete


def takes_any(name: str, candidates: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether the optimizer with these options, or the rest of the hybrid that it is, has one of the candidates."""
    rest = rest_of(name, options)
    return bool(known_options(name, candidates) or (rest and known_options(rest.name, candidates)))


def resolved(name: str, usual: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimizer: the given value of each, else the usual value on the task, else the default.

    Default values are included because they determine the result, and a later version may have other defaults. Left out
    are those of a class's `later_keywords`: runs that were made before these keywords existed keep their identity.
    Options that name parts are written with all hyperparameters of the part. Of a hybrid, `rest_options` are all
    options of the rest.
    """
    given = with_usual(name, lambda _: usual, options)
    rest = rest_of(name, given)
    if rest is None:
        return _with_defaults(name, given)
    own_options = {option: value for option, value in given.items() if option not in HYBRID_OPTIONS}
    complete = _with_defaults(name, {**matched_rms(_class(name)), **own_options})
    shared = {DECAY: complete[DECAY]} if DECAY in complete else {}
    return {
        **complete,
        REST: rest.name,
        REST_OPTIONS: _with_defaults(rest.name, {**known_options(rest.name, shared), **rest.options}),
        SPLIT_FUSED: given.get(SPLIT_FUSED, False),
    }


def _with_defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one class, and the default values of those that are not given."""
    parameters = inspect.signature(_class(name)).parameters
    accepts_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "lr" in options or "params" in options:
        raise ValueError(f"the run passes lr and params to {name}; leave them out of its options")
    unknown = [option for option in options if option not in parameters]
    if unknown and not accepts_any:
        known = [option for option in parameters if option not in ("self", "params", "lr")]
        raise ValueError(f"{name} has no option {unknown[0]!r}; {suggestion(unknown[0], known)}")
    defaults = {option: p.default for option, p in parameters.items() if _plain(p.default) and option != "lr"}
    chosen = {**defaults, **options}
    later = getattr(_class(name), "later_keywords", ())
    chosen = {o: value for o, value in chosen.items() if o not in later or value != defaults.get(o)}
    floats = {option for option, value in defaults.items() if isinstance(value, float)}
    complete = {
        option: float(value) if option in floats and type(value) is int else value for option, value in chosen.items()
    }
    return {**complete, **_complete_parts(complete)} if _class(name) is AIM else complete


def _complete_parts(options: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a composition as texts that state all of their hyperparameters."""
    texts = {"correction": "Direct", **{axis: options[axis] for axis in AXES if options.get(axis) is not None}}
    for axis, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"AIM: {axis} must be the text of a part, such as 'EMA(0.9)', got {text!r}")
    return {axis: repr(part_from_text(text, axis)) for axis, text in texts.items()}


def make(name: str, model: Model, *, lr: float, options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Build an optimizer; a class that does not accept named parameters gets the parameters without names."""
    optimizer = _class(name)
    chosen = _with_tuples(options)
    rest = rest_of(name, options)
    if rest is not None:
        return _make_hybrid(name, model, rest, lr, chosen)
    if isinstance(model, nn.Module):
        model = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
    named = list(model)
    try:
        built = optimizer(named, lr=lr, **chosen)
    except (TypeError, AttributeError):
        built = optimizer([parameter for _, parameter in named], lr=lr, **chosen)
    return built


def _make_hybrid(name: str, model: Model, rest: NamedOptimizer, lr: float, options: Mapping[str, Any]) -> AIM:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{name} takes only matrices, and the types of layers decide which parameters are matrices; let the task "
            "call make_optimizer with the model instead of its parameters"
        )
    rest_options = _with_tuples(rest.options)
    matrix_decay = options.get(DECAY, 0.0)
    return hybrid(
        model,
        lr,
        matrices=_class(name),
        rest=_class(rest.name),
        weight_decay=rest_options.pop(DECAY, matrix_decay),
        matrix_weight_decay=matrix_decay,
        decay_all=True,
        split_fused=options.get(SPLIT_FUSED, False),
        matrix_options={option: value for option, value in options.items() if option not in (DECAY, *HYBRID_OPTIONS)},
        rest_options=rest_options,
    )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every step of this optimizer needs a closure."""
    if isinstance(optimizer, AIM):
        return optimizer.needs_closure
    step = inspect.signature(type(optimizer).step).parameters
    return "closure" in step and step["closure"].default is inspect.Parameter.empty


@contextlib.contextmanager
def evaluating(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Parameters are where their model is to be evaluated: at an average, if an optimizer keeps one."""
    averaging = [optimizer for optimizer in optimizers if isinstance(optimizer, AIM)]
    for optimizer in averaging:
        optimizer.eval()
    try:
        yield
    finally:
        for optimizer in averaging:
            optimizer.train()


def check(name: str, *, lr: float, options: Mapping[str, Any], label: str, closures: bool = False) -> None:
    """Refuse options that the optimizer refuses, before anything is trained; messages call it `label`.

    `closures` says whether the task gives its optimizers a closure.
    """
    missing = [axis for axis in ("filter", "geometry") if axis not in options] if _class(name) is AIM else []
    if missing:
        raise ValueError(f"{label} needs a {missing[0]}; write AIM(filter='EMA(0.9)', geometry='Adaptive(0.999)')")
    with warnings.catch_warnings(), user_code(f"{label} cannot be made"):
        warnings.simplefilter("ignore")  # training shows the same warnings
        # One matrix: some optimizers accept nothing else. A hybrid has a layer that is not the last, and a rest.
        matrix = nn.Linear(2, 2, bias=False)
        small_model = nn.Sequential(nn.Linear(2, 2), matrix) if rest_of(name, options) is not None else matrix
        built = make(name, small_model, lr=lr, options=options)
    if needs_closure(built) and not closures:
        raise ValueError(f"{label} needs a closure for every step, but the task gives none; choose another optimizer")


def load_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state without rounding: `load_state_dict` casts tensors to the type of the parameter."""
    optimizer.load_state_dict(dict(saved))
    restore_dtypes(optimizer, saved)


def describe() -> list[tuple[str, str]]:
    """Every optimizer of the package, with the first line of its documentation."""
    named = [(name, (class_of(name).__doc__ or "").strip().splitlines()[0]) for name in available()]
    return [
        *named,
        (HYBRID, f"{RECOMMENDED_MATRICES.__name__} for hidden matrices, and {RECOMMENDED_REST.__name__} for the rest."),
        ("AIM", "Any composition of parts: AIM(filter='EMA(0.9)', geometry='Sign()', correction='FixedPoint()')."),
    ]


def _plain(value: Any) -> bool:
    """Whether a default can be part of an identity."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _class(name: str) -> Any:
    if ":" not in name:
        return RECOMMENDED_MATRICES if name == HYBRID else class_of(name)
    optimizer = import_paths.load(name)
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise ValueError(f"{name} is not an optimizer; name a class that derives from torch.optim.Optimizer")
    return optimizer


def _takes_only_matrices(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the geometry is one of matrices, so that the optimizer cannot take a whole model."""
    optimizer = _class(name)
    if not issubclass(optimizer, AIM):
        return False
    own_options = {option: value for option, value in _with_tuples(options).items() if option not in HYBRID_OPTIONS}
    for attempt in (own_options, {}):  # building the optimizer later says what is wrong with the options
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # this learning rate is not the run's
                empty = optimizer([], lr=1e-3, **attempt)
        except (TypeError, ValueError):
            continue
        return Geometry.lookup(empty.defaults["geometry"]).matrices_only
    return False


def _with_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as constructors take them: a file has lists in place of tuples."""
    return {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
