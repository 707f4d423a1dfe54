"""Fewer instructions: a value that is used once becomes part of the instruction that uses it.

    product     x·s + (y·z)·t       instead of a product and a sum
    combine     x·s + y·t           if x or y is itself such a sum, of the same two operands
    compose     x·s + t             if x is itself such a form
    root        x/√(y·s + t), x/(√y·s + t)
    gate        x if s else t       if the condition is the same for all elements of a tensor

An instruction reads and writes a block in the cache, so fewer instructions take less time. A rule gets one instruction
and those that compute its operands, and returns one instruction that replaces them all.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aimopt.kernels.symbols import Graph, Node, Number


class Draft(NamedTuple):
    """An instruction before its operands have registers."""

    op: str
    operands: tuple[Node, ...]
    numbers: tuple[Number, ...] = ()


Drafts = dict[Node, Draft]
Rule = Callable[[Draft, Drafts, Graph], Draft | None]  # the drafts: operands that are used once


def draft(nodes: Iterable[Node], results: Iterable[Node], graph: Graph) -> Drafts:
    """The instruction of every node that must be computed, after all rules have been applied."""
    drafts = {}
    for node in nodes:
        operands = tuple(a for a in node.args if isinstance(a, Node) and a.elementwise)
        drafts[node] = Draft(node.op, operands, tuple(a for a in node.args if a not in operands))
    outputs = list(results)
    single = _used_once(drafts, outputs)
    for node in list(drafts):
        while replacement := _replacement(drafts[node], single, graph):
            drafts[node] = replacement
            _drop_unused(drafts, outputs)
            single = _used_once(drafts, outputs)
    return drafts


def _replacement(instruction: Draft, single: Drafts, graph: Graph) -> Draft | None:
    rules = _RULES.get(instruction.op, ())
    return next((result for rule in rules if (result := rule(instruction, single, graph))), None)


def _used_once(drafts: Drafts, outputs: list[Node]) -> Drafts:
    uses = Counter(outputs)
    for instruction in drafts.values():
        uses.update(instruction.operands)
    return {node: draft for node, draft in drafts.items() if uses[node] == 1 and draft.op != "stream"}


def _drop_unused(drafts: Drafts, outputs: list[Node]) -> None:
    while unused := drafts.keys() - {*outputs, *(x for draft in drafts.values() for x in draft.operands)}:
        for node in unused:
            del drafts[node]


def _product(sum_: Draft, single: Drafts, graph: Graph) -> Draft | None:
    for (x, s), (y, t) in _both_ways(sum_):
        if x is not y and y in single and single[y].op == "mul":
            return Draft("muladd", (x, *single[y].operands), (s, t))
    return None


def _combine(sum_: Draft, single: Drafts, graph: Graph) -> Draft | None:
    for (x, s), (y, t) in _both_ways(sum_):
        if x is not y and y in single and single[y].op == "lin" and x in single[y].operands:
            factors: dict[Node, Number] = {x: s}
            for z, factor in zip(single[y].operands, single[y].numbers, strict=True):
                factors[z] = graph.uniform("add", factors.get(z, 0.0), graph.uniform("mul", t, factor))
            if len(factors) == 2:
                return Draft("lin", tuple(factors), tuple(factors.values()))
    return None


def _both_ways(sum_: Draft) -> list[tuple[tuple[Node, Number], tuple[Node, Number]]]:
    first, second = zip(sum_.operands, sum_.numbers, strict=True)
    return [(first, second), (second, first)]


def _compose(outer: Draft, single: Drafts, graph: Graph) -> Draft | None:
    inner = single.get(outer.operands[0])
    if inner is None or inner.op not in ("affine", "scale"):
        return None
    (s, t), (u, v) = (numbers if len(numbers) == 2 else (*numbers, 0.0) for numbers in (outer.numbers, inner.numbers))
    if t != 0.0 and v != 0.0:
        return None  # x + a + b may be meant to round, as in (x + 2²³) − 2²³
    offset = graph.uniform("add", graph.uniform("mul", v, s), t)
    return Draft("affine", inner.operands, (graph.uniform("mul", u, s), offset))


def _gate(choice: Draft, single: Drafts, graph: Graph) -> Draft | None:
    condition, x, otherwise = choice.operands
    if all(node in single and single[node].op == "fill" for node in (condition, otherwise)):
        return Draft("gate", (x,), (*single[condition].numbers, *single[otherwise].numbers))
    return None


def _root(quotient: Draft, single: Drafts, graph: Graph) -> Draft | None:
    x, below = quotient.operands[0], single.get(quotient.operands[1])
    if below is None:
        return None
    inner = single.get(below.operands[0]) if below.operands else None
    if below.op == "sqrt" and inner is not None and inner.op == "affine":
        return Draft("over_root", (x, *inner.operands), inner.numbers)
    if below.op == "affine" and inner is not None and inner.op == "sqrt":
        return Draft("over_shifted_root", (x, *inner.operands), below.numbers)
    return None


# The rules for an instruction, by its operation; they are tried in this order.
_RULES: dict[str, tuple[Rule, ...]] = {
    "lin": (_product, _combine),
    "affine": (_compose,),
    "scale": (_compose,),
    "div": (_root,),
    "select": (_gate,),
}
