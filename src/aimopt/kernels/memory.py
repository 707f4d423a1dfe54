"""The memory of a step's tensors, checked before anything follows an address into it.

Users change tensors between steps: `p.data = other`, `p.untyped_storage().resize_(0)`, `p.grad = p.detach()`. What was
learned about tensors in one step is used in the next one only if it is still so:

    memory = GroupMemory()
    checked = memory.check(gathered, "RADAR")     raises a sentence for tensors that no step can work on
    checked.layout is before.layout               nothing has changed that a kernel relies on, but where gradients are

A first look at tensors is thorough (`usable.py`). Later ones compare them with what was written down (`records.py`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from aimopt.gathering import Gathered
from aimopt.kernels.records import Seen, record, touches, united
from aimopt.kernels.usable import refusal, refuse_unusable
from aimopt.storage import extent, has_storage, is_plain

MAPPINGS = Path("/proc/self/maps")
MOST_LAYOUTS = 16  # kept per group: parameters that have no gradient in some steps come and go


class Layout:
    """The memory of a group's tensors as it was seen: what a step writes stays where it was, gradients may move."""

    def __init__(self, gathered: Gathered):
        plain = [all(map(has_storage, row)) for row in gathered.rows()]
        self.members = [i for i, is_memory in enumerate(plain) if is_memory]
        self.others = [i for i, is_memory in enumerate(plain) if not is_memory]  # their tensors are no plain memory
        self.ranks = gathered.ranks
        members = gathered.only(self.members)
        self._record = record(members.params + members.state, members.grads)

    def look(self, gathered: Gathered) -> Seen | None:
        """Where the gradients of the members are now; None if anything else has changed."""
        members = gathered.only(self.members)
        return self._record.compare(members.params + members.state, members.grads)


class Checked(NamedTuple):
    """The tensors of a step as just seen."""

    gathered: Gathered  # gradients that share memory with what the step writes are copies
    layout: Layout
    members: Gathered  # those that are plain memory; of tensors spread over processes, the part of this one
    grad_addresses: list[int]  # of the members


class GroupMemory:
    """The memory of one parameter group's tensors, checked at every step."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, ...], Layout] = {}  # by the ranks of the parameters; the last used is the last
        self._last: Layout | None = None
        self._writable: set[tuple[int, int]] = set()

    def check(self, gathered: Gathered, optimizer: str) -> Checked:
        """Look at the tensors of a step, or raise `Unusable`, which names the optimizer's class."""
        local = localize(gathered)
        layout, seen = self._recognize(local)
        if layout is None or seen is None:
            layout, seen = self._look_closely(local, optimizer)
        elif layout.others:
            refuse_unusable(local.only(layout.others), optimizer)
        if seen.overlap:
            grads = [grad.clone() for grad in gathered.grads]
            return self.check(gathered._replace(grads=grads), optimizer)
        return Checked(gathered, layout, local.only(layout.members), seen.addresses)

    def _recognize(self, gathered: Gathered) -> tuple[Layout | None, Seen | None]:
        """The layout of these parameters, if they have been seen, and where the gradients are, if it still holds."""
        layout = self._last
        if layout is None or layout.ranks != gathered.ranks:
            layout = self._last = self._layouts.get(tuple(gathered.ranks))
        return layout, layout.look(gathered) if layout is not None else None

    def _look_closely(self, gathered: Gathered, optimizer: str) -> tuple[Layout, Seen]:
        """Look at tensors as if for the first time."""
        ranks = tuple(gathered.ranks)
        self._last = None
        self._layouts.pop(ranks, None)
        refuse_unusable(gathered, optimizer)
        layout = Layout(gathered)
        self._refuse_read_only(gathered.only(layout.members), optimizer)
        seen = layout.look(gathered)
        assert seen is not None
        if len(self._layouts) == MOST_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        self._last = self._layouts[ranks] = layout
        return layout, seen

    def _refuse_read_only(self, members: Gathered, optimizer: str) -> None:
        """Raise where the process may not write. Not looked for again at places that it could write to before."""
        width = len(members.state) // len(members.params) if members.params else 1
        written = [x for x in members.params + members.state if x.is_cpu and x.numel()]
        spans = set(zip(map(Tensor.data_ptr, written), map(extent, written), strict=True))
        if not spans <= self._writable:
            starts, ends = united(_read_only_mappings())
            for i, x in enumerate(members.params + members.state):
                if x.is_cpu and touches(x.data_ptr(), x.data_ptr() + extent(x), starts, ends):
                    row = i if i < len(members.params) else (i - len(members.params)) // width
                    raise refusal(members, row, optimizer, "it or its state lies in read-only memory; use .clone()")
        self._writable = spans


def _read_only_mappings() -> Iterator[tuple[int, int]]:
    """(address, bytes) of what the process may not write to, where the system tells."""
    try:
        lines = MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        span, mode = line.split(maxsplit=2)[:2]
        if "w" not in mode:
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end - start


def localize(gathered: Gathered) -> Gathered:
    """This process's part of tensors that are spread over several; what is no such tensor stays as it is."""
    if all(map(is_plain, {*map(type, gathered.grads)})):
        return gathered
    rows = [_local(row) for row in gathered.rows()]
    return gathered._replace(
        params=[row[0] for row in rows], grads=[row[1] for row in rows], state=[x for row in rows for x in row[2:]]
    )


def _local(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    spread: list[Any] = [x for x in tensors if hasattr(x, "to_local") and hasattr(x, "placements")]
    alike = len({(x.device_mesh, x.placements) for x in spread}) == 1
    if not alike or any(placement.is_partial() for placement in spread[0].placements):
        return tensors
    return tuple(x.to_local() if hasattr(x, "to_local") else x for x in tensors)
