"""Programs: a step as a short list of element-wise instructions.

`fuse` runs a `Move` on symbols and puts the graph in order. For example RADAR becomes

    lin         x ← A·e + B·g                  e, g, p, v: the streams, memory that a kernel passes over once
    muladd      v ← β2·v + (1−β2)·g·g          x: scratch, which never leaves the cache
    over_root   x ← x/√((δ²/c)·v + ζ)
    lin         p ← p − x
    lin         e ← β1·e + (1−β1)·g

The numbers (A, B, c, …) are expressions of the step count and the learning rate, evaluated once a tensor. No rule
is stated here: whatever a component computes element by element is a program, also one that a user wrote.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

from torch import Tensor

from aimopt.components import Parts, scalar_one
from aimopt.kernels.peephole import Drafts, draft
from aimopt.kernels.symbols import Graph, Node, Number, Untraceable
from aimopt.moves import Move

MAX_REGISTERS = 64
STEP, LR, SCALE = "step", "lr", "grad_scale"


class Instruction(NamedTuple):
    """out ← op(registers; numbers)."""

    op: str
    out: int
    registers: tuple[int, ...]
    numbers: tuple[Number, ...]


class Program(NamedTuple):
    """A step. Registers 0, 1, … are the streams in their order, those from there on scratch."""

    streams: tuple[str, ...]  # "param", the buffers, "grad"
    scalars: tuple[str, ...]  # read from the state of each tensor: the step count, then scalar buffers
    written: frozenset[str]  # the streams that change
    scratch: int
    code: tuple[Instruction, ...]
    uniforms: tuple[Node, ...]  # the numbers that are computed, each after those it needs
    scalar_results: tuple[tuple[str, Number], ...]  # what scalar buffers become


class Numbers(NamedTuple):
    """What a step is told beside its tensors: numbers that may change from step to step, or tensors that hold them."""

    lr: float | Tensor
    scale: Tensor | None = None  # a GradScaler's, which the gradients are still multiplied by
    found_inf: Tensor | None = None  # whether to leave everything as it is, where only the device knows


class Fusible(NamedTuple):
    """What decides the arithmetic of a step, apart from the numbers that change with it."""

    parts: Parts
    weight_decay: float
    decoupled_weight_decay: bool | str
    maximize: bool
    scaled: bool  # whether gradients are still multiplied by a GradScaler's scale

    @classmethod
    def of(cls, parts: Parts, group: dict[str, Any], *, scaled: bool = False) -> "Fusible":
        """The step of a parameter group."""
        return cls(parts, group["weight_decay"], group["decoupled_weight_decay"], group["maximize"], scaled)


@lru_cache(maxsize=1024)
def fuse(step: Fusible) -> Program:
    """The program of a step, or `Untraceable`."""
    if step.parts.correction.evaluations > 1 or step.parts.correction.joint:
        raise Untraceable(f"{type(step.parts.correction).__name__} evaluates the closure more than once a step")
    graph, buffers = Graph(), step.parts.buffers()
    scalars = [name for name, initial in buffers.items() if initial is scalar_one]
    state = {name: graph.number(name) if name in scalars else graph.stream(name) for name in buffers}
    p, g, t = graph.stream("param"), graph.stream("grad"), graph.number(STEP)
    group = {**step._asdict(), "lr": graph.number(LR)}
    raw = g / graph.number(SCALE) if step.scaled else g
    raw.node()  # unscaled once and for all: the square of a large scale is no number
    # A `Symbol` passes for a tensor in the arithmetic of a move.
    Move(step.parts, group, cast(Tensor, p), cast(Tensor, raw), cast(dict[str, Tensor], state), cast(float, t)).go()
    after = {"param": p, **{name: state[name] for name in buffers if name not in scalars}}
    streams = (*after, "grad")
    code, scratch = _schedule(graph, streams, [symbol.node() for symbol in after.values()])
    results = tuple((name, state[name].offset) for name in scalars)
    numbers = [*(n for i in code for n in i.numbers), *(value for _, value in results)]
    return Program(
        streams,
        (STEP, *scalars),
        frozenset(streams[i.out] for i in code if i.out < len(streams)),
        scratch,
        code,
        tuple(n for n in _in_order(numbers) if n.op != "number"),
        results,
    )


def _in_order(wanted: Iterable[Any]) -> list[Node]:
    """The nodes that `wanted` are made of, each after those it needs."""
    order: dict[Node, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, Node) and node not in order:
            for arg in node.args:
                visit(arg)
            order[node] = None

    for node in wanted:
        visit(node)
    return list(order)


def _schedule(graph: Graph, streams: tuple[str, ...], results: list[Node]) -> tuple[tuple[Instruction, ...], int]:
    """Order the graph so that what a stream becomes can be written over it, and give every value a register."""
    olds = [graph.node("stream", name, elementwise=True) for name in streams]
    # What another stream was has to be copied before that one is overwritten, like anything that is computed from it.
    results = [
        graph.node("copy", result, elementwise=True) if result in olds and result is not old else result
        for result, old in zip(results, olds, strict=False)
    ]
    drafts = draft([node for node in _in_order(results) if node.elementwise], results, graph)
    before = {node: set(made.operands) for node, made in drafts.items()}
    register = {node: streams.index(node.args[0]) for node in drafts if node.op == "stream"}
    copies = []
    for stream, result in enumerate(results):
        old = olds[stream]
        readers = [node for node, made in drafts.items() if old in made.operands and node is not result]
        if result is old:
            continue
        if result in register or any(_needs(reader, result, before) for reader in readers):
            copies.append((stream, result))
        else:
            register[result] = stream
            before[result].update(readers)
    order = [node for node in _topological(before) if node.op != "stream"]
    scratch = _allocate(order, drafts, register, {node for _, node in copies}, len(streams))
    code = [
        Instruction(op, register[node], tuple(register[arg] for arg in operands), numbers)
        for node, (op, operands, numbers) in ((node, drafts[node]) for node in order)
    ]
    return (*code, *(Instruction("copy", stream, (register[node],), ()) for stream, node in copies)), scratch


def _needs(node: Node, wanted: Node, before: dict[Node, set[Node]]) -> bool:
    """Whether `wanted` must come before `node`."""
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        if node is wanted:
            return True
        waiting += before[node] - seen
        seen |= before[node]
    return False


def _topological(before: dict[Node, set[Node]]) -> list[Node]:
    place = {node: i for i, node in enumerate(before)}
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in order:
            for earlier in sorted(before[node], key=place.__getitem__):
                visit(earlier)
            order[node] = None

    for node in before:
        visit(node)
    return list(order)


def _allocate(order: list[Node], drafts: Drafts, register: dict[Node, int], kept: set[Node], streams: int) -> int:
    """Give the nodes that are no stream a scratch register each, used again after the last use; return how many."""
    last_use = {arg: i for i, node in enumerate(order) for arg in drafts[node].operands}
    free: list[int] = []
    used = streams
    for i, node in enumerate(order):
        free += {register[arg] for arg in drafts[node].operands if last_use[arg] == i and arg not in kept} - {
            *range(streams)
        }
        if node not in register:
            register[node] = free.pop() if free else used
            used = max(used, register[node] + 1)
    needed = used + streams  # streams of 16 bits are widened into scratch
    if needed > MAX_REGISTERS:
        raise Untraceable(f"it needs {needed} registers, and the fused step has {MAX_REGISTERS}")
    return used - streams
