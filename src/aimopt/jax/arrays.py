"""JAX arrays that the arithmetic of the parts runs on: they have the methods of a tensor.

A part is written once, in tensor arithmetic. It gets `Array`s and `Number`s here, as it gets symbols when a kernel is
made. For example, traced by `jax.jit`,

    e.mul_(0.9).add_(g, alpha=0.1)        the array e now holds a new value; the old one is unchanged, as JAX requires
    c = 1 - 0.999**t                      a number: computed in double precision, also if JAX is in single precision
    x @ x.mT, torch.linalg.svd(x)         functions of torch are looked up by name in `functions.py`

Numbers need double precision: in float32, 1 − 0.999 is wrong by 1e-5 of its value. They are scalars, so that costs
little. Elements have the working precision of their parameter.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import torch
from jax import lax
from jax import numpy as jnp

from aimopt.jax.functions import FUNCTIONS, VIEWS

Raw = Any  # an array of JAX


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """The function of torch with this name. It gives an array, or a number if no argument is an array."""
    function = FUNCTIONS.get(name)
    if function is None:
        raise ValueError(f"aimopt.jax knows no function for torch's {name!r}; add it to aimopt.jax.functions.FUNCTIONS")
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Value))
    arrays = [x for x in leaves if isinstance(x, Array)]
    if arrays:
        # Conditions have no precision: a number that is combined with conditions alone has the precision of JAX.
        dtype = next((x.value.dtype for x in arrays if x.is_floating_point()), jnp.result_type(float))
        raw_args, raw_kwargs = jax.tree.unflatten(structure, [_raw(x, dtype) for x in leaves])
        result = function(*raw_args, **raw_kwargs)
        if name not in VIEWS:
            return jax.tree.map(Array, result)
        return Array(result, view_of=(args[0], lambda x: function(x, *raw_args[1:], **raw_kwargs)))
    with jax.enable_x64(True):
        raw_args, raw_kwargs = jax.tree.unflatten(structure, [_raw(x, jnp.float64) for x in leaves])
        return jax.tree.map(Number, function(*raw_args, **raw_kwargs))


def _raw(x: Any, dtype: Any) -> Any:
    """An operand as JAX takes it. Numbers get the precision of the arrays that they are combined with."""
    if isinstance(x, Number):
        return x.rounded(dtype)
    if isinstance(x, Array):
        return x.value
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: call(name, self, *others)


def _reflected(name: str) -> Callable[..., Any]:
    return lambda self, other: call(name, other, self)


def _in_place(name: str) -> Callable[..., Any]:
    return lambda self, other: self.assign(name, other)


class Value:
    """Stands for a tensor in the arithmetic of a step. Operations in place replace the value that it holds."""

    __slots__ = ("value",)
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, value: Raw):
        self.value = value

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self.assign, name[:-1]) if name.endswith("_") else partial(call, name, self)

    def assign(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """An operation in place."""
        self.value = self.like(call(name, self, *args, **kwargs))
        return self

    def like(self, result: Any) -> Raw:
        """A result with the dtype that this value has."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func.__name__, *args, **(kwargs or {}))

    def _decide(self, *_: Any) -> Any:
        raise ValueError(
            "a part branches on a value that JAX knows only when the step runs; use torch.where in that part, or name "
            "the hyperparameter in the static_args of optax.inject_hyperparams"
        )

    __bool__ = __float__ = __int__ = __index__ = _decide

    __add__, __radd__, __iadd__ = _operator("add"), _reflected("add"), _in_place("add")
    __sub__, __rsub__, __isub__ = _operator("sub"), _reflected("sub"), _in_place("sub")
    __mul__, __rmul__, __imul__ = _operator("mul"), _reflected("mul"), _in_place("mul")
    __truediv__, __rtruediv__, __itruediv__ = _operator("div"), _reflected("div"), _in_place("div")
    __pow__, __rpow__, __ipow__ = _operator("pow"), _reflected("pow"), _in_place("pow")
    __mod__, __rmod__, __imod__ = _operator("remainder"), _reflected("remainder"), _in_place("remainder")
    __matmul__, __neg__, __abs__ = _operator("matmul"), _operator("neg"), _operator("abs")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")
    __eq__, __ne__ = _operator("eq"), _operator("ne")
    __and__, __or__, __invert__ = _operator("logical_and"), _operator("logical_or"), _operator("logical_not")
    __getitem__ = _operator("getitem")


class Number(Value):
    """The same for all elements of a tensor: the step count, a learning rate, what is computed from them."""

    __slots__ = ()

    def __init__(self, value: Raw):
        super().__init__(_converted(value, jnp.float64))

    def rounded(self, dtype: Any) -> Raw:
        """This number as an array of JAX in another precision."""
        return _converted(self.value, dtype)

    def like(self, result: Any) -> Raw:
        return _converted(result.value, jnp.float64)


def _converted(x: Raw, dtype: Any) -> Raw:
    """A scalar in another precision; a condition stays one."""
    with jax.enable_x64(True):
        return x if jnp.issubdtype(jnp.result_type(x), jnp.bool_) else lax.convert_element_type(x, dtype)


class Hyperparameter(Number):
    """A hyperparameter that is known only when the step runs.

    Parts ask `nu2 != 1` or `weight_decay == 0` to save arithmetic. The general branch is right for all values.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__: ClassVar[None]  # type: ignore[assignment]


class Array(Value):
    """An array in the working precision of a parameter."""

    __slots__ = ("view_of",)

    def __init__(self, value: Raw, *, view_of: "tuple[Array, Callable[[Any], Any]] | None" = None):
        super().__init__(value)
        self.view_of = view_of  # the array that this one shows, and how

    def assign(self, name: str, *args: Any, **kwargs: Any) -> Any:
        super().assign(name, *args, **kwargs)
        self._write_to_viewed()
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self.value = self.value.at[index].set(_raw(value, self.value.dtype))
        self._write_to_viewed()

    def _write_to_viewed(self) -> None:
        """Write to the array of which this is a view: in torch they share memory."""
        if self.view_of is not None:
            whole, view = self.view_of
            positions = view(np.arange(whole.numel()).reshape(whole.shape))
            whole.value = whole.value.reshape(-1).at[positions].set(self.value).reshape(whole.shape)
            whole._write_to_viewed()

    def like(self, result: Any) -> Raw:
        return jnp.broadcast_to(_raw(result, self.value.dtype), self.value.shape).astype(self.value.dtype)

    @property
    def shape(self) -> torch.Size:
        """As of a tensor."""
        return torch.Size(self.value.shape)

    @property
    def ndim(self) -> int:
        """As of a tensor."""
        return int(self.value.ndim)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of torch with the same name."""
        dtype: torch.dtype = getattr(torch, str(self.value.dtype))
        return dtype

    @property
    def device(self) -> Any:
        """Only its `type`: a geometry chooses its precision by it."""
        return SimpleNamespace(type={"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend()))

    @property
    def mT(self) -> "Array":
        """The transposed matrix, or matrices."""
        transposed: Array = call("transpose", self, -2, -1)
        return transposed

    def __len__(self) -> int:
        return int(self.value.shape[0])

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one entry of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return int(np.prod(self.value.shape))

    def is_floating_point(self) -> bool:
        """Whether the elements are real numbers, not conditions or integers."""
        return bool(jnp.issubdtype(self.value.dtype, jnp.floating))

    def is_complex(self) -> bool:
        """Complex parameters are refused before a step."""
        return False


class Parameter(Array):
    """A parameter θ in a step, stored as factor·θ + shift as long as the step allows it.

    So the update of a step that does not decay is exactly −displacement, and needs no θ: optax may not pass it.
    """

    __slots__ = ("_factor", "_optimizer", "_replaced", "_shift", "_start")

    def __init__(self, start: Raw | None, gradient: Array, optimizer: str):
        self._start, self._optimizer = start, optimizer
        self._factor: Number | None = None  # None is 1
        self._shift: Array = call("zeros_like", gradient)
        self._replaced: Raw = None  # the value, once it is no longer of this form
        self.view_of = None

    @property
    def value(self) -> Raw:
        """The present point. This needs θ."""
        return self._given() + self.update() if self._replaced is None else self._replaced

    @value.setter
    def value(self, replaced: Raw) -> None:
        self._replaced = replaced

    def _given(self) -> Raw:
        if self._start is None:
            raise ValueError(
                f"{self._optimizer}: this step needs the parameters, for weight decay or for an average of them; call "
                "update(gradients, state, params)"
            )
        return self._start

    def assign(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._replaced is None and name in ("add", "sub"):
            self._shift = call(name, self._shift, *args, **kwargs)
        elif self._replaced is None and name in ("mul", "div") and isinstance(args[0], (int, float, Number)):
            factor = Number(1.0) if self._factor is None else self._factor
            self._factor, self._shift = call(name, factor, *args), call(name, self._shift, *args)
        else:
            super().assign(name, *args, **kwargs)
        return self

    def update(self) -> Raw:
        """What is to be added to θ."""
        if self._replaced is not None:
            return self._replaced - self._given()
        if self._factor is None:
            return self._shift.value
        # Rounded before 1 is subtracted, as in the fused step of torch: 0.999 in float32 is off by 1e-8, which adds up.
        theta = self._given()
        return theta * (self._factor.rounded(theta.dtype) - 1) + self._shift.value
