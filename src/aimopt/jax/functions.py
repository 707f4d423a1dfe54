"""The functions and methods of torch that parts use, in JAX: their only statement.

    FUNCTIONS["lerp"]        x.lerp(y, weight), x.lerp_(y, weight), torch.lerp(x, y, weight)
    FUNCTIONS["addmm"]       torch.addmm(x, a, b, beta=…, alpha=…)

They take arrays of JAX and the argument names of torch. A part that needs another function needs one more line here.
"""

from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import numpy as jnp

Axes = int | tuple[int, ...] | None


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduction(x: Any, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return function(x if dtype is None else _to(x, dtype), axis=dim, keepdims=keepdim)

    return reduction


def _vector_norm(x: Any, ord: float = 2, dim: Axes = None, keepdim: bool = False) -> Any:
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=dim, keepdims=keepdim))
    return jnp.sum(jnp.abs(x) ** ord, axis=dim, keepdims=keepdim) ** (1 / ord)


def _to(x: Any, dtype: Any) -> Any:
    name = str(dtype).removeprefix("torch.")
    if name == "float64" and not jax.config.jax_enable_x64:
        raise ValueError(
            'a part works in float64: call jax.config.update("jax_enable_x64", True), or choose another dtype'
        )
    return x.astype(name)


def _double(x: Any) -> Any:
    return x if jnp.ndim(x) == 0 and x.dtype == jnp.float64 else _to(x, torch.float64)


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:first], -1, *x.shape[last + 1 :])


def _unflatten(x: Any, dim: int, sizes: tuple[int, ...]) -> Any:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return jnp.clip(x, min, max)


def _shape(*shape: Any) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape


def _add_product(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return x * beta + (a @ b) * alpha


def _copy(x: Any, y: Any) -> Any:
    return y


def _full(value: float) -> Callable[..., Any]:
    return lambda x, **_: jnp.full_like(x, value)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, alpha=1: x + y * alpha,
    "sub": lambda x, y, alpha=1: x - y * alpha,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "neg": lambda x: -x,
    "addcmul": lambda x, a, b, value=1: x + a * value * b,
    "addcdiv": lambda x, a, b, value=1: x + a * value / b,
    "lerp": lambda x, y, weight: x + (y - x) * weight,
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "clamp": _clamp,
    "clamp_min": lambda x, min: jnp.maximum(x, min),
    "where": jnp.where,
    "masked_fill": lambda x, mask, value: jnp.where(mask, value, x),
    "copy": _copy,
    "clone": lambda x, **_: x,
    "detach": lambda x: x,
    "contiguous": lambda x, **_: x,
    "zeros_like": _full(0.0),
    "ones_like": _full(1.0),
    "empty_like": _full(0.0),
    "new_zeros": lambda x, size: jnp.zeros(size, x.dtype),
    "new_empty": lambda x, size: jnp.zeros(size, x.dtype),
    "zero": _full(0.0),
    "fill": lambda x, value: jnp.full_like(x, value),
    "full_like": lambda x, value, **_: jnp.full_like(x, value),
    "double": _double,
    "float": lambda x: x.astype("float32"),
    "to": _to,
    "type_as": lambda x, y: x.astype(y.dtype),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}
# The functions with the same name and arguments in JAX.
_ELEMENTWISE |= {
    name: getattr(jnp, name)
    for name in (
        *("abs", "sign", "exp", "expm1", "log", "log1p", "tanh", "sqrt", "square", "maximum", "minimum", "round"),
        *("floor", "remainder", "isfinite", "isnan", "logical_and", "logical_or", "logical_not"),
    )
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _reduction(jnp.sum),
    "mean": _reduction(jnp.mean),
    "amax": _reduction(jnp.max),
    "amin": _reduction(jnp.min),
    "any": _reduction(jnp.any),
    "all": _reduction(jnp.all),
    "linalg_vector_norm": _vector_norm,
    "norm": lambda x, p=2, dim=None, keepdim=False: _vector_norm(x, p, dim, keepdim),
}
_MATRICES: dict[str, Callable[..., Any]] = {
    "matmul": jnp.matmul,
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "addmm": _add_product,
    "baddbmm": _add_product,
    "linalg_svd": jnp.linalg.svd,
    "linalg_qr": jnp.linalg.qr,
    "linalg_eigh": jnp.linalg.eigh,
    "argsort": lambda x, dim=-1, descending=False: jnp.argsort(x, axis=dim, descending=descending),
    "take_along_dim": lambda x, indices, dim: jnp.take_along_axis(x, indices, axis=dim),
    "flip": lambda x, dims: jnp.flip(x, dims),
    "stack": lambda tensors, dim=0: jnp.stack(tensors, axis=dim),
    "cat": lambda tensors, dim=0: jnp.concatenate(tensors, axis=dim),
}
_VIEWS: dict[str, Callable[..., Any]] = {
    "getitem": lambda x, index: x[index],
    "flatten": _flatten,
    "unflatten": _unflatten,
    "reshape": lambda x, *shape: x.reshape(_shape(*shape)),
    "view": lambda x, *shape: x.reshape(_shape(*shape)),
    "view_as": lambda x, y: x.reshape(y.shape),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "unsqueeze": lambda x, dim: jnp.expand_dims(x, dim),
    "squeeze": lambda x, dim=None: jnp.squeeze(x, dim),
    "transpose": jnp.swapaxes,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: jnp.diagonal(x, offset, dim1, dim2),
}
FUNCTIONS = {**_ELEMENTWISE, **_REDUCTIONS, **_MATRICES, **_VIEWS}
VIEWS = frozenset(_VIEWS)
