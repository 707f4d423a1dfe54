"""Fewer passes: what is only needed once, right where it is used, becomes part of that instruction.

    product     x·s + (y·z)·t       instead of a product and a sum
    combine     x·s + y·t           where x or y was itself such a sum, of the same two
    compose     x·s + t             where x was itself such a form
    root        x/√(y·s + t), x/(√y·s + t)
    gate        x if s else t       where all elements of a tensor choose alike

An instruction reads and writes a block in the cache, so that each one saved is time saved. A rule looks at one
instruction and those that make its operands, and returns the one that does it all.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aimopt.kernels.symbols import Graph, Node, Number


class Draft(NamedTuple):
    """An instruction whose operands have no registers yet."""

    op: str
    operands: tuple[Node, ...]
    numbers: tuple[Number, ...] = ()


Drafts = dict[Node, Draft]
Rule = Callable[[Draft, Drafts, Graph], Draft | None]  # the drafts are of operands that nothing else needs


def draft(nodes: Iterable[Node], results: Iterable[Node], graph: Graph) -> Drafts:
    """What computes each node that has to be computed, with as few instructions as the rules can make it."""
    drafts = {}
    for node in nodes:
        operands = tuple(a for a in node.args if isinstance(a, Node) and a.elementwise)
        drafts[node] = Draft(node.op, operands, tuple(a for a in node.args if a not in operands))
    kept = list(results)
    single = _used_once(drafts, kept)
    for node in list(drafts):
        while better := _better(drafts[node], single, graph):
            drafts[node] = better
            _drop_unused(drafts, kept)
            single = _used_once(drafts, kept)
    return drafts


def _better(one: Draft, single: Drafts, graph: Graph) -> Draft | None:
    return next((better for rule in _RULES.get(one.op, ()) if (better := rule(one, single, graph))), None)


def _used_once(drafts: Drafts, kept: list[Node]) -> Drafts:
    uses = Counter(kept)
    for one in drafts.values():
        uses.update(one.operands)
    return {node: one for node, one in drafts.items() if uses[node] == 1 and one.op != "stream"}


def _drop_unused(drafts: Drafts, kept: list[Node]) -> None:
    while unused := drafts.keys() - {*kept, *(x for one in drafts.values() for x in one.operands)}:
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
        return None  # someone may be rounding
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
