"""Random edits of tensors between steps: the fused step and the plain one give the same result, or the same error."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor

import aimopt
from aimopt.step import storage
from optimizer_driver import count_paths

DOUBLE = torch.float64
ARENA, SHAPES = 400, ((50,), (6, 6), (40,), (4, 3, 2))
Edit = Callable[[Tensor, int], Tensor]


def readable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and storage.why_too_short("", x) is None


class Side:
    """Parameters inside a larger block of memory, and the optimizer that steps them, fused or plain."""

    def __init__(self, Optimizer: Any, fused: bool | None):
        self.arena = torch.sin(torch.arange(ARENA, dtype=DOUBLE))
        self.params = [torch.empty(0, dtype=DOUBLE).requires_grad_() for _ in SHAPES]
        for i in range(len(SHAPES)):
            self.restore(i)
        groups = [{"params": self.params[:3]}, {"params": self.params[3:]}]
        self.optimizer: Any = Optimizer(groups, lr=0.01, fused=fused)

    def restore(self, i: int) -> None:
        p, shape = self.params[i], SHAPES[i]
        p.grad = None
        p.data = self.arena[90 * i + 20 :][: torch.Size(shape).numel()].view(shape)
        if hasattr(self, "optimizer"):
            self.optimizer.state.pop(p, None)

    def gradient(self, i: int, seed: int) -> None:
        p = self.params[i]
        p.grad = None
        p.grad = torch.cos(torch.arange(p.numel(), dtype=DOUBLE) + seed).view(p.shape)

    def buffers(self, i: int) -> dict[str, Any]:
        return dict(self.optimizer.state.get(self.params[i], {}))

    def tensors(self) -> list[Tensor]:
        state = [x for i in range(len(SHAPES)) for _, x in sorted(self.buffers(i).items())]
        grads = [p.grad for p in self.params]
        return [x.detach() for x in (self.arena, *self.params, *state, *grads) if readable(x)]

    def step(self, order: Sequence[int] | None = None) -> str | None:
        """The kind of error, after which nothing has changed, or None; of some parameters only, if given an order."""
        before = [x.clone() for x in self.tensors()]
        try:
            if order is None:
                self.optimizer.step()
            else:
                self.optimizer._step_parameters(self.positions(order))
        except RuntimeError as error:
            for x, y in zip(self.tensors(), before, strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
            return str(error)
        return None

    def positions(self, order: Sequence[int]) -> dict[int, list[int]]:
        """Per group, the positions of those of these parameters that have a gradient."""
        found: dict[int, list[int]] = {}
        for i in order:
            for index, group in enumerate(self.optimizer.param_groups):
                for position, p in enumerate(group["params"]):
                    if p is self.params[i] and p.grad is not None:
                        found.setdefault(index, []).append(position)
        return found


def as_strided(x: Tensor, n: int) -> Tensor:
    size = min(n, x.untyped_storage().nbytes() // x.element_size())
    return torch.as_strided(x, (size,), (1,), 0)


def resized(x: Tensor, n: int) -> Tensor:
    x.untyped_storage().resize_(n * 8)
    return x


EDITS: dict[str, Edit] = {
    "clone": lambda x, n: x.clone(),
    "shorter": lambda x, n: x.flatten()[:n] if x.is_contiguous() else x,
    "transposed": lambda x, n: x.transpose(0, -1) if x.ndim else x,
    "other shape": lambda x, n: x.reshape(x.shape[::-1]),
    "other order in memory": lambda x, n: x.transpose(0, -1).contiguous().transpose(0, -1) if x.ndim else x,
    "gaps": lambda x, n: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "expanded": lambda x, n: x.flatten()[:1].expand(x.shape) if x.numel() else x,
    "elsewhere in its storage": as_strided,
    "one element on": lambda x, n: torch.as_strided(x, x.shape, x.stride(), x.storage_offset() + 1),
    "float32": lambda x, n: x.float(),
    "integers": lambda x, n: x.long(),
    "negated": lambda x, n: torch._neg_view(x),
}
Kinds = st.sampled_from(sorted(EDITS))
Which, Size, Seed = st.integers(0, len(SHAPES) - 1), st.integers(0, 60), st.integers(0, 1000)


class Edits(RuleBasedStateMachine):
    sides: tuple[Side, Side]

    @initialize(Optimizer=st.sampled_from([aimopt.RADAR, aimopt.Adan, aimopt.SGDM, aimopt.AdaBelief]))
    def begin(self, Optimizer: Any) -> None:
        self.sides = Side(Optimizer, None), Side(Optimizer, False)
        with count_paths() as paths:
            self.step(0, 15)
        assert paths["fused"] == len(SHAPES)

    def edit(self, change: Callable[[Side], Any]) -> None:
        """Make the same change on both sides; torch accepts or refuses it on both."""
        outcomes: list[type[Exception] | None] = []
        for side in self.sides:
            try:
                change(side)
                outcomes.append(None)
            except (RuntimeError, IndexError) as error:
                outcomes.append(type(error))
        assert outcomes[0] is outcomes[1]

    @rule(seed=Seed, mask=st.integers(1, 15))
    def step(self, seed: int, mask: int) -> None:
        for i in range(len(SHAPES)):
            if mask >> i & 1:
                self.edit(partial(Side.gradient, i=i, seed=seed + i))
        self.step_again()

    @rule(i=Which)
    def drop_gradient(self, i: int) -> None:
        def change(side: Side) -> None:
            side.params[i].grad = None

        self.edit(change)

    @rule()
    def step_again(self) -> None:
        self.step_both(None)

    @rule(order=st.permutations(range(len(SHAPES))), count=st.integers(1, len(SHAPES)))
    def step_some(self, order: list[int], count: int) -> None:
        """As a step in backward does: some parameters, in the order in which their gradients arrive."""
        self.step_both(order[:count])

    def step_both(self, order: Sequence[int] | None) -> None:
        fused, plain = (side.step(order) for side in self.sides)
        assert fused == plain, (fused, plain)
        for x, y in zip(*(side.tensors() for side in self.sides), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, equal_nan=True)

    @rule(i=Which)
    def restore(self, i: int) -> None:
        self.edit(lambda side: side.restore(i))

    @rule(i=Which, kind=Kinds, n=Size)
    def replace_data(self, i: int, kind: str, n: int) -> None:
        def change(side: Side) -> None:
            p = side.params[i]
            if readable(p) and kind not in ("integers", "float32", "negated"):
                p.data = EDITS[kind](p.data, n)

        self.edit(change)

    @rule(i=Which, kind=Kinds, n=Size)
    def replace_gradient(self, i: int, kind: str, n: int) -> None:
        def change(side: Side) -> None:
            p = side.params[i]
            if p.grad is not None and readable(p.grad):
                p.grad.data = EDITS[kind](p.grad.data, n)

        self.edit(change)

    @rule(i=Which, key=st.sampled_from(["exp_avg", "exp_avg_sq", "step", "prev_grad"]), kind=Kinds, n=Size)
    def replace_state(self, i: int, key: str, kind: str, n: int) -> None:
        def change(side: Side) -> None:
            x: Any = side.buffers(i).get(key)
            if readable(x):
                side.optimizer.state[side.params[i]][key] = EDITS[kind](x, n)

        self.edit(change)

    @rule(i=Which, what=st.sampled_from(["param", "grad", "exp_avg", "step"]), n=Size)
    def resize_storage(self, i: int, what: str, n: int) -> None:
        def change(side: Side) -> None:
            p = side.params[i]
            x = {"param": p, "grad": p.grad, **side.buffers(i)}.get(what)
            if x is not None and x.untyped_storage().nbytes() != ARENA * 8:  # the arena is for all
                x.untyped_storage().resize_(n * 8)
                if n and readable(x):
                    x.detach().fill_(0.5)  # what torch leaves in new memory is anything

        self.edit(change)

    @rule(i=Which, j=Which, offset=st.integers(-3, 3))
    def share_memory(self, i: int, j: int, offset: int) -> None:
        """A gradient in the memory of a parameter."""

        def change(side: Side) -> None:
            p, other = side.params[i], side.params[j]
            if readable(other):
                p.grad = None
                p.grad = torch.as_strided(other.detach(), p.shape, p.stride(), other.storage_offset() + offset)

        self.edit(change)

    @rule(i=Which, key=st.sampled_from(["exp_avg", "exp_avg_sq"]), j=Which)
    def share_state(self, i: int, key: str, j: int) -> None:
        """One tensor as two buffers."""

        def change(side: Side) -> None:
            x = side.buffers(i).get(key)
            if readable(x) and side.buffers(j):
                side.optimizer.state[side.params[j]]["exp_avg"] = x

        self.edit(change)

    @rule(i=Which, n=Size)
    def set_in_place(self, i: int, n: int) -> None:
        def change(side: Side) -> None:
            with torch.no_grad():
                side.params[i].set_(torch.linspace(-1, 1, n, dtype=DOUBLE))  # type: ignore[call-overload]

        self.edit(change)

    @rule()
    def swap_groups(self) -> None:
        self.edit(lambda side: side.optimizer.param_groups.reverse())

    @rule(i=Which)
    def move_group(self, i: int) -> None:
        def change(side: Side) -> None:
            group = side.optimizer.param_groups.pop(i % 2)
            side.optimizer.add_param_group(group)

        self.edit(change)

    @precondition(
        lambda self: all(readable(x) for s in self.sides for v in s.optimizer.state.values() for x in v.values())
    )
    @rule()
    def save_and_load(self) -> None:
        def change(side: Side) -> None:
            try:
                side.optimizer.load_state_dict(side.optimizer.state_dict())
            except ValueError as error:
                raise RuntimeError from error

        self.edit(change)


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
