"""Programs: a step as a short list of element-wise instructions.

`fuse` runs a `Move` on symbols and puts the graph in order. For example RADAR becomes

    lin         x ← A·e + B·g                  e, g, p, v: the streams, which a kernel reads and writes once
    muladd      v ← β2·v + (1−β2)·g·g          x: scratch, which stays in the cache
    over_root   x ← x/√((δ²/c)·v + ζ)
    lin         p ← p − x
    lin         e ← β1·e + (1−β1)·g

The numbers (A, B, c, …) are expressions of the step count and the learning rate, evaluated once per tensor. No rule of
any optimizer is stated here: every element-wise component has a program, also one that a user wrote.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple, cast

from torch import Tensor

from aimopt.kernels.layout import MAX_REGISTERS, TYPES
from aimopt.kernels.peephole import Drafts, draft
from aimopt.kernels.symbols import Graph, Node, Number, Untraceable
from aimopt.parts.composition import Parts
from aimopt.step.move import GROUP_KEYS, Move
from aimopt.step.precision import draws

STEP, LR, SCALE = "step", "lr", "grad_scale"
INPUT = "(an input)"  # in a part, instead of the value of a hyperparameter
Field = tuple[str, str]  # of a part: its axis, its name


class Instruction(NamedTuple):
    """out ← op(registers; numbers)."""

    op: str
    out: int
    registers: tuple[int, ...]
    numbers: tuple[Number, ...]


class Program(NamedTuple):
    """A step. The first registers are the streams in their order, the others are scratch."""

    streams: tuple[str, ...]  # "param", the buffers, "grad"
    scalars: tuple[str, ...]  # per tensor: the step count, then the scalar buffers
    written: frozenset[str]  # the streams that change
    scratch: int
    code: tuple[Instruction, ...]
    uniforms: tuple[Node, ...]  # the computed numbers, each one after its operands
    scalar_results: tuple[tuple[str, Number], ...]  # the new value of each scalar buffer
    inputs: tuple[str, ...] = ()  # the hyperparameters that are passed at every step


class StepNumbers(NamedTuple):
    """The numbers that may change from step to step, or tensors that hold them."""

    lr: float | Tensor
    scale: Tensor | None = None  # a GradScaler's, if the gradients are still multiplied by it
    found_inf: Tensor | None = None  # a GradScaler's: nonzero skips the step, which only the device knows
    inputs: tuple[float, ...] = ()  # the values of the program's inputs


class ProgramKey(NamedTuple):
    """Everything that determines the program of a step: equal keys have equal programs."""

    parts: Parts
    group_values: tuple[Any, ...]  # of GROUP_KEYS
    scaled: bool  # whether gradients are still multiplied by a GradScaler's scale

    @classmethod
    def from_group(cls, parts: Parts, group: dict[str, Any], *, scaled: bool = False) -> "ProgramKey":
        """The key of a parameter group's step."""
        return cls(parts, tuple([group[name] for name in GROUP_KEYS]), scaled)


def changed_numbers(before: Parts, after: Parts) -> frozenset[Field]:
    """The hyperparameters that a schedule has changed: numbers of the same parts."""
    if list(map(type, before)) != list(map(type, after)):
        return frozenset()
    pairs = [(a, b, f.name) for a, b in zip(before, after, strict=True) for f in fields(a)]
    changed = [(a.axis, name) for a, b, name in pairs if getattr(a, name) != getattr(b, name)]
    return frozenset((axis, name) for axis, name in changed if type(getattr(getattr(after, axis), name)) is float)


def with_inputs(parts: Parts, inputs: Collection[Field], value_of: Callable[[Field], Any] = lambda _: INPUT) -> Parts:
    """The parts, with another value for each of these hyperparameters that they have; it need not be a number."""
    copies = parts._replace(**{axis: _copy_of_fields(getattr(parts, axis)) for axis, _ in inputs})
    for axis, name in inputs:
        if hasattr(getattr(copies, axis), name):
            object.__setattr__(getattr(copies, axis), name, value_of((axis, name)))  # its class would refuse the value
    return copies


def _copy_of_fields(part: Any) -> Any:
    """Without what a part derived from its hyperparameters and keeps: it would stay what it was."""
    copied = object.__new__(type(part))
    for f in fields(part):
        object.__setattr__(copied, f.name, getattr(part, f.name))
    return copied


def inputs_of(parts: Parts) -> list[Field]:
    """The hyperparameters that are inputs, in the order of the program's inputs."""
    return [(part.axis, f.name) for part in parts for f in fields(part) if getattr(part, f.name) is INPUT]


@lru_cache(maxsize=1024)
def fuse(key: ProgramKey) -> Program:
    """The program of a step; raises `Untraceable` if it has none."""
    if key.parts.correction.evaluates_again:
        raise Untraceable(f"{type(key.parts.correction).__name__} evaluates the closure more than once per step")
    graph, inputs = Graph(), inputs_of(key.parts)
    parts = with_inputs(key.parts, inputs, lambda field: graph.number(".".join(field)))
    buffers = parts.buffers()
    scalars = [name for name, initial in buffers.items() if initial.scalar]
    if shaped := [name for name, initial in buffers.items() if initial.shaped]:
        raise Untraceable(f"its state {shaped[0]!r} does not have the shape of the parameter")
    state = {name: graph.number(name) if name in scalars else graph.stream(name) for name in buffers}
    p, g, t = graph.stream("param"), graph.stream("grad"), graph.number(STEP)
    group = {**dict(zip(GROUP_KEYS, key.group_values, strict=True)), "lr": graph.number(LR), "differentiable": False}
    raw = g / graph.number(SCALE) if key.scaled else g
    raw.node()  # unscale before any other arithmetic: the square of a large scale overflows
    # A `Symbol` behaves like a tensor in the arithmetic of a move.
    Move(parts, group, cast(Tensor, p), cast(Tensor, raw), cast(dict[str, Tensor], state), cast(float, t)).go()
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
        tuple(n for n in _operands_first(numbers) if n.op != "number"),
        results,
        tuple(map(".".join, inputs)),
    )


def draw_indices(stream_types: Sequence[int]) -> dict[int, int]:
    """Which draw of random bits rounds which stream, by its position. The gradient, the last one, is not rounded."""
    return draws([TYPES[kind].size for kind in stream_types[:-1]])


def _operands_first(wanted: Iterable[Any]) -> list[Node]:
    """The nodes from which `wanted` are computed, each one after its operands."""
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
    """Order the graph so that the new value of a stream can overwrite the old one, and give every value a register."""
    olds = [graph.node("stream", name, elementwise=True) for name in streams]
    # If a stream becomes the old value of another stream, that is a copy, which must precede the overwriting.
    results = [
        graph.node("copy", result, elementwise=True) if result in olds and result is not old else result
        for result, old in zip(results, olds, strict=False)
    ]
    drafts = draft([node for node in _operands_first(results) if node.elementwise], results, graph)
    before = {node: set(instruction.operands) for node, instruction in drafts.items()}
    register = {node: streams.index(node.args[0]) for node in drafts if node.op == "stream"}
    copies = _overwrite_streams(olds, results, drafts, before, register)
    order = [node for node in _topological(before) if node.op != "stream"]
    scratch = _allocate(order, drafts, register, {node for _, node in copies}, len(streams))
    code = [
        Instruction(op, register[node], tuple(register[arg] for arg in operands), numbers)
        for node, (op, operands, numbers) in ((node, drafts[node]) for node in order)
    ]
    return (*code, *(Instruction("copy", stream, (register[node],), ()) for stream, node in copies)), scratch


def _overwrite_streams(
    olds: list[Node], results: list[Node], drafts: Drafts, before: dict[Node, set[Node]], register: dict[Node, int]
) -> list[tuple[int, Node]]:
    """Let results overwrite their streams, after all readers of the old value; return those that need a copy."""
    copies = []
    for stream, result in enumerate(results):
        old = olds[stream]
        if result is old:
            continue
        readers = [node for node, instruction in drafts.items() if old in instruction.operands and node is not result]
        if result in register or any(_must_follow(reader, result, before) for reader in readers):
            copies.append((stream, result))
        else:
            register[result] = stream
            before[result].update(readers)
    return copies


def _must_follow(node: Node, wanted: Node, before: dict[Node, set[Node]]) -> bool:
    """Whether `node` must come after `wanted`."""
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        if node is wanted:
            return True
        waiting += before[node] - seen
        seen |= before[node]
    return False


def _topological(before: dict[Node, set[Node]]) -> list[Node]:
    position = {node: i for i, node in enumerate(before)}
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in order:
            for earlier in sorted(before[node], key=position.__getitem__):
                visit(earlier)
            order[node] = None

    for node in before:
        visit(node)
    return list(order)


def _allocate(order: list[Node], drafts: Drafts, register: dict[Node, int], reserved: set[Node], streams: int) -> int:
    """Give every other node a scratch register, which is free again after its last use; return their number.

    The registers of `reserved` nodes are never freed, because copies read them at the end.
    """
    last_use = {arg: i for i, node in enumerate(order) for arg in drafts[node].operands}
    free: list[int] = []
    used = streams
    for i, node in enumerate(order):
        unused = {register[arg] for arg in drafts[node].operands if last_use[arg] == i and arg not in reserved}
        free += unused - {*range(streams)}
        if node not in register:
            register[node] = free.pop() if free else used
            used = max(used, register[node] + 1)
    needed = used + streams  # narrow streams are converted into scratch
    if needed > MAX_REGISTERS:
        raise Untraceable(f"it needs {needed} registers, and the fused step has {MAX_REGISTERS}")
    return used - streams
