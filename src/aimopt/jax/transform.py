"""A transformation: the step of an optimizer as `optax.GradientTransformation`.

    rule = Rule.create(RADAR, learning_rate, gamma=0.05)      the parts and values, checked by the class RADAR itself
    rule.init(params)                                         AIMState(step=0, exp_avg=…, exp_avg_sq=…)
    rule.update(grads, state, params)                         a `Move` per leaf, on the arrays of `arrays.py`
    rule.evaluation_params(state, params)                     where the model is evaluated, if the iterate is an average

The state has torch's names: `step`, and one tree per buffer. A hyperparameter may be an array, as it is under
`optax.inject_hyperparams`. The class then checks a placeholder, and the array takes the place of that in the parts.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import optax
import torch
from jax import numpy as jnp
from torch import Tensor

from aimopt.aim import AIM
from aimopt.jax.arrays import Array, Hyperparameter, Number, Parameter, Raw, Value
from aimopt.kernels.program import with_inputs
from aimopt.parts.component import Initial, State
from aimopt.parts.composition import Parts
from aimopt.step.move import Move, gradient
from aimopt.step.options import OPTIONS

# Execution options that have another name in optax, or no meaning there.
_INSTEAD = {
    "skip_nonfinite": "wrap the transformation in optax.apply_if_finite",
    "state_dtype": "the state is in float32, or in float64 for such parameters",
    "stochastic_rounding": "keep parameters in float32 and convert them to bfloat16 where the model is evaluated",
}
Tree = Any
# Of a parameter that every optimizer accepts: a matrix, whose sides can be split into any number of blocks up to 16.
EXEMPLARY_SHAPE = (720720, 720720)


@lru_cache
def state_class(buffers: tuple[str, ...]) -> Any:
    """The class of a state with these buffers."""
    make_class: Any = namedtuple  # the names of its fields are known only now
    members = {"__slots__": (), "__reduce__": lambda state: (_unpickle, (buffers, tuple(state)))}
    return type("AIMState", (make_class("AIMState", ("step", *buffers)),), members)


def _unpickle(buffers: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return state_class(buffers)(*values)


class Rule(NamedTuple):
    """Everything that a transformation is made of."""

    optimizer: Callable[[Any], AIM]  # the class with its hyperparameters: checks the parameters that it gets
    name: str
    parts: Parts
    group: Mapping[str, Any]
    learning_rate: Any  # a number, an array, or a schedule: a function of the number of steps made

    @classmethod
    def create(cls, optimizer: type[AIM], learning_rate: Any, **hyperparameters: Any) -> "Rule":
        """The rule of this class with these hyperparameters, which may be arrays."""
        _refuse_options(optimizer.__name__, hyperparameters)
        arrays: dict[float, _NamedArray] = {}
        plain = {name: _plain(name, value, arrays) for name, value in hyperparameters.items()}
        # The class warns of an ℓ above the learning rate. It cannot compare them if it does not know both.
        lr = UNKNOWN_RATE if arrays or callable(learning_rate) or _is_array(learning_rate) else learning_rate

        def checked(params: Any) -> AIM:
            return cast(Any, optimizer)(params, lr, **plain)

        try:
            (group,) = checked([torch.empty(EXEMPLARY_SHAPE, device="meta")]).param_groups
        except ValueError as error:
            for placeholder, array in arrays.items():
                if repr(placeholder) in str(error):
                    raise _must_be_plain(optimizer.__name__, array) from None
            raise
        parts = Parts.from_group(group)
        if parts.correction.evaluates_again:
            raise ValueError(
                f"{optimizer.__name__}: {type(parts.correction).__name__} evaluates the gradient more than once per "
                "step, and optax passes one gradient; use FixedPoint(iterations=1) or Secant"
            )
        rule = cls(checked, optimizer.__name__, parts, group, learning_rate)
        return rule._replace(**_with_arrays(rule, arrays)) if arrays else rule

    def init(self, params: Tree) -> Any:
        """The state before the first step."""
        leaves, structure = jax.tree.flatten(params)
        if leaves:
            self._check(params)
        buffers = self.parts.buffers()
        rows = [_first_buffers(buffers, Array(jnp.zeros_like(_working(p))), Array(_working(p))) for p in leaves]
        columns = [structure.unflatten([row[name] for row in rows]) for name in buffers]
        return state_class(tuple(buffers))(jnp.zeros((), jnp.int32), *columns)

    def _check(self, params: Tree) -> None:
        """Refuse parameters that this optimizer cannot step: the class checks tensors of the same shapes and names."""
        tensors = []
        for path, p in jax.tree.leaves_with_path(params):
            name = f"params{jax.tree_util.keystr(path)}"
            if not jnp.issubdtype(jnp.result_type(p), jnp.floating):
                raise ValueError(
                    f"{self.name}: {name} has dtype {jnp.result_type(p)}; only real floating-point parameters are "
                    "stepped: wrap the transformation in optax.masked, or in optax.contrib.split_real_and_imaginary"
                )
            tensors.append((name, torch.empty(jnp.shape(p), device="meta")))
        try:
            self.optimizer(tensors)
        except ValueError as error:
            raise ValueError(f"{error} (in JAX: with optax.multi_transform)") from None

    def update(self, grads: Tree, state: Any, params: Tree | None = None) -> tuple[Tree, Any]:
        """What is to be added to the parameters, and the next state."""
        leaves, structure = jax.tree.flatten(grads)
        if not isinstance(state, state_class(tuple(self.parts.buffers()))):
            raise ValueError(
                f"{self.name}: update needs a state with step and {list(self.parts.buffers())}, as init makes it, got "
                f"a {type(state).__name__}"
            )
        names = state._fields[1:]
        columns = [structure.flatten_up_to(getattr(state, name)) for name in names]
        params_of = [None] * len(leaves) if params is None else structure.flatten_up_to(params)
        rate = self.learning_rate(state.step) if callable(self.learning_rate) else self.learning_rate
        group = {**self.group, "lr": rate if isinstance(rate, (int, float)) else Hyperparameter(rate)}
        results = [
            self._step(group, state.step, g, p, dict(zip(names, row, strict=True)))
            for g, p, *row in zip(leaves, params_of, *columns, strict=True)
        ]
        updates = structure.unflatten([update for update, _ in results])
        columns = [structure.unflatten([row[name] for _, row in results]) for name in names]
        return updates, type(state)(optax.safe_increment(state.step), *columns)

    def evaluation_params(self, state: Any, params: Tree) -> Tree:
        """The point at which the model is to be evaluated: an average, if the iterate is one."""
        leaves, structure = jax.tree.flatten(params)
        names = state._fields[1:]
        columns = [structure.flatten_up_to(getattr(state, name)) for name in names]
        points = []
        for p, *row in zip(leaves, *columns, strict=True):
            buffers = self._values(dict(zip(names, row, strict=True)), _working(p).dtype)
            point: Any = self.parts.iterate.evaluation_point(cast(State, buffers), cast(Tensor, Array(_working(p))))
            points.append(p if point is None else point.value.astype(jnp.result_type(p)))
        return structure.unflatten(points)

    def _values(self, stored: Mapping[str, Raw], dtype: Any) -> dict[str, Value]:
        """The buffers as a step works on them."""
        initials = self.parts.buffers()
        return {n: Number(x) if initials[n].scalar else Array(x.astype(dtype)) for n, x in stored.items()}

    def _step(
        self, group: dict[str, Any], step: Raw, grad: Raw, p: Raw | None, stored: dict[str, Raw]
    ) -> tuple[Raw, dict[str, Raw]]:
        """The update of one leaf, and its buffers after the step."""
        raw = Array(_working(grad) if p is None else jnp.asarray(grad).astype(_working(p).dtype))
        parameter = Parameter(None if p is None else _working(p), raw, self.name)
        stored |= self._first_values(group, step, raw, parameter, stored)
        state, t = self._values(stored, raw.value.dtype), Number(step) + 1
        # These values behave like tensors in the arithmetic of a move.
        move = Move(self.parts, group, cast(Tensor, parameter), cast(Tensor, raw), cast(State, state), cast(float, t))
        move.go()
        after = {name: _stored(state[name], value.dtype) for name, value in stored.items()}
        return parameter.update().astype(jnp.result_type(grad)), after

    def _first_values(
        self, group: dict[str, Any], step: Raw, raw: Array, p: Parameter, stored: dict[str, Raw]
    ) -> dict[str, Raw]:
        """The buffers that start from the first gradient, which `init` does not know."""
        waiting = {name: initial for name, initial in self.parts.buffers().items() if _reads_gradient(initial, raw)}
        if not waiting:
            return {}
        g: Any = gradient(cast(Tensor, p), cast(Tensor, raw), group, self.parts)
        first = _first_buffers(waiting, g, p)
        return {name: jnp.where(step == 0, first[name].astype(stored[name].dtype), stored[name]) for name in waiting}


def _first_buffers(buffers: Mapping[str, Initial], g: Array, p: Array) -> dict[str, Raw]:
    # Copies: a training loop may donate both the parameters and a buffer that starts from them.
    return {name: jnp.array(_first_value(initial, g, p)) for name, initial in buffers.items()}


def _first_value(initial: Initial, g: Array, p: Array) -> Raw:
    value: Any = initial.start(cast(Tensor, g), cast(Tensor, p))
    return value.value if isinstance(value, Value) else value.numpy()


def _reads_gradient(initial: Initial, g: Array) -> bool:
    """Whether a buffer starts from the values of the first gradient, and not only from its shape."""
    if initial.scalar or initial.of_parameter:
        return False
    traced = jax.make_jaxpr(lambda x: _first_value(initial, Array(x), g))(g.value).jaxpr
    needed = {id(variable) for variable in traced.outvars}
    for equation in reversed(traced.eqns):
        if any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    return id(traced.invars[0]) in needed


def _working(x: Any) -> Raw:
    """In the precision of the arithmetic: that of the array, but at least float32."""
    return jnp.asarray(x).astype(jnp.promote_types(jnp.result_type(x), jnp.float32))


def _stored(x: Value, dtype: Any) -> Raw:
    return x.rounded(dtype) if isinstance(x, Number) else x.value.astype(dtype)


def _refuse_options(name: str, hyperparameters: dict[str, Any]) -> None:
    for option in hyperparameters.keys() & OPTIONS.keys():
        if not OPTIONS[option].in_arithmetic:
            instead = _INSTEAD.get(option, "it is for torch; leave it out")
            raise ValueError(f"{name}: {option} is not an option of aimopt.jax: {instead}")


# Hyperparameters that are arrays. A placeholder is a valid value of most hyperparameters, and no usual one.
UNKNOWN_RATE = 1e9
_PLACEHOLDERS = tuple(float(f"0.37{k:03d}1") for k in range(1000))  # none is the beginning of another


class _NamedArray(NamedTuple):
    name: str  # of the hyperparameter
    value: Hyperparameter


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def _plain(name: str, value: Any, arrays: dict[float, _NamedArray]) -> Any:
    """A hyperparameter as torch's class takes it; arrays are entered in `arrays` under their placeholders."""
    if isinstance(value, (tuple, list)) or (_is_array(value) and value.ndim):
        return tuple(_plain(name, item, arrays) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if not _is_array(value):
        return value
    placeholder = _PLACEHOLDERS[len(arrays)]
    arrays[placeholder] = _NamedArray(name, Hyperparameter(jnp.asarray(value)))
    return placeholder


def _with_arrays(rule: Rule, arrays: dict[float, _NamedArray]) -> dict[str, Any]:
    """The parts and the group, with every array in the place of its placeholder."""

    def replaced(values: dict[Any, Any]) -> dict[Any, Any]:
        return {key: arrays[v].value for key, v in values.items() if isinstance(v, float) and v in arrays}

    inputs = replaced({(part.axis, f.name): getattr(part, f.name) for part in rule.parts for f in fields(part)})
    keys = replaced(dict(rule.group))
    for array in arrays.values():
        if not any(array.value is value for value in (*inputs.values(), *keys.values())):
            raise _must_be_plain(rule.name, array)
    return {"parts": with_inputs(rule.parts, inputs, inputs.__getitem__), "group": {**rule.group, **keys}}


def _must_be_plain(optimizer: str, array: _NamedArray) -> ValueError:
    return ValueError(
        f"{optimizer}: {array.name} must be a plain number, and is an array; under optax.inject_hyperparams, pass "
        f"static_args=[{array.name!r}]"
    )
