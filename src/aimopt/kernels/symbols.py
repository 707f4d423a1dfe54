"""Symbols: a step that runs on symbols builds the graph of its own computation.

A component is written in tensor arithmetic. If it gets a `Symbol` for every tensor, it builds the graph of its
arithmetic on one element, from which `program.py` makes the fused step. For example

    e.mul_(0.9).add_(g, alpha=0.1)      the symbol e now stands for 0.9·e + 0.1·g
    (v * 2 + 1).sqrt()                  the root of the form 2·v + 1

A symbol is a linear form Σ coefficient·node + offset. Coefficients and offset are numbers, or graphs of numbers that
are the same for all elements of a tensor (the step count, the learning rate); a symbol without terms is such a number.
A form with more than one term is computed when it is first used, and only then. An operation that is not element-wise,
or a branch on a symbol, raises `Untraceable`: such a step is not fused. Everything that Python computes without tensors
(a random number, a counter) is computed once, when the step is traced.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Union

from aimopt.kernels.layout import UNIFORM_OPS

Number = Union[float, "Node"]


class Untraceable(Exception):
    """This step cannot be fused; the message says why."""


class Node:
    """A value of the graph: an operation on other values, `elementwise` or the same for a whole tensor."""

    __slots__ = ("args", "elementwise", "op")

    def __init__(self, op: str, args: tuple[Any, ...], elementwise: bool):
        self.op, self.args, self.elementwise = op, args, elementwise


class Graph:
    """The nodes of one step. Equal nodes are the same object."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def node(self, op: str, *args: Any, elementwise: bool) -> Node:
        """The node of an operation."""
        return self._nodes.setdefault((op, args, elementwise), Node(op, args, elementwise))

    def stream(self, name: str) -> "Symbol":
        """A tensor in memory."""
        return Symbol(self, {self.node("stream", name, elementwise=True): 1.0})

    def number(self, name: str) -> "Symbol":
        """A number that is an input of the step, such as the learning rate."""
        return Symbol(self, {}, self.node("number", name, elementwise=False))

    def uniform(self, op: str, *args: Number) -> Number:
        """An operation on numbers. It is computed now if all of them are constants."""
        compute = UNIFORM_OPS[op].on_numbers
        if compute is not None and not any(isinstance(a, Node) for a in args):
            try:
                return float(compute(*args))
            except (ArithmeticError, ValueError, TypeError):  # where Python raises, the kernel gets infinity or NaN
                return self.node(op, *args, elementwise=False)
        if op == "add" and 0.0 in args:
            return args[1] if args[0] == 0.0 else args[0]
        if op == "mul" and 1.0 in args:
            return args[1] if args[0] == 1.0 else args[0]
        if op == "div" and args[1] == 1.0:
            return args[0]
        return self.node(op, *args, elementwise=False)


class Symbol:
    """Stands for a tensor, or for a number, in the arithmetic of a step."""

    __slots__ = ("condition", "graph", "offset", "terms")
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, graph: Graph, terms: dict[Node, Number], offset: Number = 0.0, *, condition: bool = False):
        self.graph, self.terms, self.offset = graph, terms, offset
        self.condition = condition  # whether it stands for true or false, as 1 or 0

    def node(self) -> Node:
        """The value of every element. A form is computed here, and is represented by its node from now on."""
        node: Node | None = None
        scale: Number = 1.0
        for term, factor in self.terms.items():
            if node is None:
                node, scale = term, factor
            else:
                node = self.graph.node("lin", node, term, scale, factor, elementwise=True)
                scale = 1.0
        if node is None:
            return self.graph.node("fill", self.offset, elementwise=True)
        if self.offset != 0.0:
            node = self.graph.node("affine", node, scale, self.offset, elementwise=True)
        elif scale != 1.0:
            node = self.graph.node("scale", node, scale, elementwise=True)
        self.terms, self.offset = {node: 1.0}, 0.0
        return node

    def as_operand(self) -> "Symbol":
        """This symbol as an operand. It is computed first if it has more than one term."""
        if len(self.terms) + (self.terms != {} and self.offset != 0.0) > 1:
            self.node()
        return self

    def _lift(self, other: Any) -> "Symbol":
        if isinstance(other, Symbol):
            return other.as_operand()
        if isinstance(other, (int, float)):
            return Symbol(self.graph, {}, float(other))
        raise Untraceable(f"it mixes a tensor of the step with a {type(other).__name__}")

    def scaled(self, factor: Number) -> "Symbol":
        """This form times a number."""
        u = self.graph.uniform
        offset = 0.0 if self.offset == 0.0 else u("mul", self.offset, factor)
        return Symbol(self.graph, {node: u("mul", c, factor) for node, c in self.terms.items()}, offset)

    def plus(self, other: "Symbol") -> "Symbol":
        """The sum of two forms."""
        if self.condition and other.condition:
            raise Untraceable("it adds two conditions, and the sum of boolean tensors is not that of numbers")
        if self.terms and self.offset != 0.0 and other.offset != 0.0:
            self.node()  # x + a + b may be meant to round, as in (x + 2²³) − 2²³
        u, terms = self.graph.uniform, dict(self.terms)
        for node, factor in other.terms.items():
            terms[node] = u("add", terms[node], factor) if node in terms else factor
        return Symbol(self.graph, terms, u("add", self.offset, other.offset))

    def _up_to_sign(self) -> tuple[Node, float]:
        """The node, and 1 or −1. Other factors are multiplied in, since their square or quotient may overflow."""
        self.as_operand()
        ((node, factor),) = self.terms.items()
        return (node, factor) if isinstance(factor, float) and abs(factor) == 1.0 else (self.node(), 1.0)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        in_place = name.endswith("_")
        operation = _OPERATIONS.get(name.removesuffix("_"))
        if name in _REDUCTIONS:
            raise Untraceable(f"it needs the {name!r} of a whole tensor before it can move one element")
        if operation is None:
            raise Untraceable(f"it uses {name!r}, which is not element-wise or not known to the fused step")
        return partial(self._in_place if in_place else self._out_of_place, operation)

    def _out_of_place(self, operation: Callable[..., "Symbol"], *args: Any, **kwargs: Any) -> "Symbol":
        return operation(self.as_operand(), *args, **kwargs)

    def _in_place(self, operation: Callable[..., "Symbol"], *args: Any, **kwargs: Any) -> "Symbol":
        result = operation(self, *args, **kwargs)  # without `as_operand`: a chain of in-place operations is one form
        self.terms, self.offset, self.condition = dict(result.terms), result.offset, result.condition
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = func.__name__, next((a for a in args if isinstance(a, Symbol)), None)
        if first is None:
            raise Untraceable(f"it uses {name!r} in a way not known to the fused step")
        if name == "where":
            return _where(*(first._lift(a) for a in args))
        return getattr(first._lift(args[0]), name)(*args[1:], **(kwargs or {}))

    def _decide(self, *_: Any) -> Any:
        raise Untraceable("it branches on the value of a tensor or of the step count; use torch.where")

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _decide

    def __add__(self, other: Any) -> "Symbol":
        return self.as_operand().plus(self._lift(other))

    def __sub__(self, other: Any) -> "Symbol":
        return self.as_operand().plus(self._lift(other).scaled(-1.0))

    def __rsub__(self, other: Any) -> "Symbol":
        return self._lift(other).plus(self.as_operand().scaled(-1.0))

    def __mul__(self, other: Any) -> "Symbol":
        return _mul(self.as_operand(), other)

    def __truediv__(self, other: Any) -> "Symbol":
        return _div(self.as_operand(), other)

    def __rtruediv__(self, other: Any) -> "Symbol":
        return _div(self._lift(other), self)

    def __pow__(self, other: Any) -> "Symbol":
        return _pow(self.as_operand(), other)

    def __rpow__(self, other: Any) -> "Symbol":
        return _pow(self._lift(other), self)

    def __neg__(self) -> "Symbol":
        return self.as_operand().scaled(-1.0)

    def __abs__(self) -> "Symbol":
        return _pointwise("abs", self.as_operand())

    def __lt__(self, other: Any) -> "Symbol":
        return _pointwise("lt", self.as_operand(), other)

    def __le__(self, other: Any) -> "Symbol":
        return _pointwise("le", self.as_operand(), other)

    def __gt__(self, other: Any) -> "Symbol":
        return _pointwise("lt", self._lift(other), self)

    def __ge__(self, other: Any) -> "Symbol":
        return _pointwise("le", self._lift(other), self)

    def __eq__(self, other: Any) -> "Symbol":  # type: ignore[override]
        return _pointwise("eq", self.as_operand(), other)

    def __ne__(self, other: Any) -> "Symbol":  # type: ignore[override]
        return 1 - (self == other)

    def __iadd__(self, other: Any) -> "Symbol":
        return self._in_place(_OPERATIONS["add"], other)

    def __isub__(self, other: Any) -> "Symbol":
        return self._in_place(_OPERATIONS["sub"], other)

    def __imul__(self, other: Any) -> "Symbol":
        return self._in_place(_mul, other)

    def __itruediv__(self, other: Any) -> "Symbol":
        return self._in_place(_div, other)

    def __ipow__(self, other: Any) -> "Symbol":
        return self._in_place(_pow, other)

    __radd__ = __add__
    __rmul__ = __mul__


def _pointwise(op: str, x: Symbol, *others: Any) -> Symbol:
    operands = [x, *(x._lift(other) for other in others)]
    condition = op in ("lt", "le", "eq")
    if any(operand.terms for operand in operands):
        node = x.graph.node(op, *(o.node() for o in operands), elementwise=True)
        return Symbol(x.graph, {node: 1.0}, condition=condition)
    return Symbol(x.graph, {}, x.graph.uniform(op, *(o.offset for o in operands)), condition=condition)


def _mul(x: Symbol, other: Any) -> Symbol:
    y = x._lift(other)
    if not (x.terms and y.terms):
        return x.scaled(y.offset) if x.terms else y.scaled(x.offset)
    (a, s), (b, t) = x._up_to_sign(), y._up_to_sign()
    return Symbol(x.graph, {x.graph.node("mul", a, b, elementwise=True): s * t})


def _div(x: Symbol, other: Any) -> Symbol:
    y = x._lift(other)
    u = x.graph.uniform
    if not y.terms:
        if not x.terms:
            return Symbol(x.graph, {}, u("div", x.offset, y.offset))
        return x.scaled(u("div", 1.0, y.offset))
    b, t = y._up_to_sign()
    if not x.terms:
        return Symbol(x.graph, {x.graph.node("reciprocal", b, elementwise=True): u("mul", x.offset, t)})
    a, s = x._up_to_sign()
    return Symbol(x.graph, {x.graph.node("div", a, b, elementwise=True): s * t})


def _pow(x: Symbol, exponent: Any) -> Symbol:
    if isinstance(exponent, (int, float)) and x.terms:
        if exponent == 2:
            return _mul(x, x)
        if exponent == 0.5:
            return _pointwise("sqrt", x)
    return _pointwise("pow", x, exponent)


def _where(condition: Symbol, x: Symbol, y: Symbol) -> Symbol:
    return _pointwise("select", condition, x, y)


def _clamp(x: Symbol, min: Any = None, max: Any = None) -> Symbol:
    if min is not None:
        x = _pointwise("maximum", x, min)
    return x if max is None else _pointwise("minimum", x, max)


def _double(x: Symbol) -> Symbol:
    if x.terms:
        raise Untraceable("it uses 'double', and the fused step has one precision for all elements")
    return Symbol(x.graph, {}, x.offset)  # numbers are in double precision already


def _constant(value: float) -> Callable[[Symbol], Symbol]:
    return lambda x: Symbol(x.graph, {}, value)


_REDUCTIONS = frozenset(["norm", "mean", "sum", "prod", "std", "var", "amax", "amin", "count_nonzero", "any", "all"])
# The tensor methods that a step may call; with a trailing underscore, in place.
_OPERATIONS: dict[str, Callable[..., Symbol]] = {
    "add": lambda x, y, alpha=1: x.plus(_mul(x._lift(y), alpha)),
    "sub": lambda x, y, alpha=1: x.plus(_mul(x._lift(y), -alpha)),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "neg": lambda x: x.scaled(-1.0),
    "square": lambda x: _mul(x, x),
    "reciprocal": lambda x: _div(x._lift(1.0), x),
    "rsqrt": lambda x: _div(x._lift(1.0), _pointwise("sqrt", x)),
    "addcmul": lambda x, a, b, value=1: x.plus(_mul(_mul(x._lift(a), b), value)),
    "addcdiv": lambda x, a, b, value=1: x.plus(_mul(_div(x._lift(a), b), value)),
    "lerp": lambda x, y, weight: x.scaled(1.0).plus(_mul(x._lift(y) - x, weight)),
    "clamp": _clamp,
    "copy": lambda x, y: x._lift(y),
    "clone": lambda x: Symbol(x.graph, dict(x.terms), x.offset),
    "double": _double,
    "zeros_like": _constant(0.0),
    "ones_like": _constant(1.0),
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
# The others have the names of torch's methods, except `select`, which is torch.where.
_OPERATIONS |= {op: partial(_pointwise, op) for op in UNIFORM_OPS if op not in (*_OPERATIONS, "select")}
