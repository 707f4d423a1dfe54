"""The memory of a step's tensors, checked before a kernel follows an address into it.

Users change tensors between steps: `p.data = other`, `p.untyped_storage().resize_(0)`, `p.grad = p.detach()`. What one
step has found out about tensors is used in the next step only if it is still true:

    memory = GroupMemory()
    checked = memory.check(gathered, "RADAR")     raises an error for tensors that no step can work on
    checked.snapshot is earlier.snapshot          nothing has changed that a kernel relies on, except gradient addresses

The first check is thorough (`step/usable.py`). Later checks compare the tensors with a record of the first
(`records.py`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aimopt.kernels.records import Gradients, merge_spans, overlaps, record
from aimopt.messages.reason import Reason
from aimopt.step.gather import Gathered
from aimopt.step.storage import extent, has_storage
from aimopt.step.usable import refusal, refuse_unusable

MAPPINGS = Path("/proc/self/maps")
MAX_SNAPSHOTS = 16  # of a whole group: which parameters are stepped together may change from step to step


class MemorySnapshot:
    """A record of the memory of a group's tensors. It is valid while only gradients have moved."""

    def __init__(self, gathered: Gathered):
        is_plain_row = [all(map(has_storage, row)) for row in gathered.rows()]
        self.plain_indices = [i for i, plain in enumerate(is_plain_row) if plain]
        self.other_indices = [i for i, plain in enumerate(is_plain_row) if not plain]
        self.ranks, self._places = gathered.ranks, (gathered.places, gathered.buffer_places)
        plain = gathered.select(self.plain_indices)
        self._record = record(plain.params + plain.state, plain.grads)

    def compare(self, gathered: Gathered) -> Gradients | None:
        """The present gradients of the parameters that are plain memory; None if anything else has changed."""
        if (gathered.places, gathered.buffer_places) != self._places:
            return None
        plain = gathered.select(self.plain_indices)
        return self._record.compare(plain.params + plain.state, plain.grads)


class CheckedGroup(NamedTuple):
    """The tensors of a step, just checked."""

    gathered: Gathered  # a gradient that overlaps memory that the step writes is a copy
    snapshot: MemorySnapshot
    plain: Gathered  # the parameters that are plain memory; of distributed tensors, the local part
    grad_addresses: list[int]  # of `plain`


class GroupMemory:
    """The memory of one parameter group's tensors, checked at every step."""

    def __init__(self) -> None:
        self._snapshots: dict[tuple[int, ...], MemorySnapshot] = {}  # by the ranks of the parameters, newest last
        self._last: MemorySnapshot | None = None
        self._writable: set[tuple[int, int]] = set()

    def check(self, gathered: Gathered, optimizer: str) -> CheckedGroup:
        """Check the tensors of a step, or raise `Unusable`, which names the optimizer's class."""
        local = gathered.localize()
        snapshot, gradients = self._compare_with_snapshot(local)
        if snapshot is None or gradients is None:
            snapshot, gradients = self._check_thoroughly(local, optimizer)
        elif snapshot.other_indices:
            refuse_unusable(local.select(snapshot.other_indices), optimizer)
        if gradients.overlap:
            copies = [grad.clone() for grad in gathered.grads]
            return self.check(gathered._replace(grads=copies), optimizer)
        return CheckedGroup(gathered, snapshot, local.select(snapshot.plain_indices), gradients.addresses)

    def _compare_with_snapshot(self, gathered: Gathered) -> tuple[MemorySnapshot | None, Gradients | None]:
        """The snapshot of these parameters, if there is one, and the present gradients, if it is still valid."""
        snapshot = self._last
        if snapshot is None or snapshot.ranks != gathered.ranks:
            snapshot = self._last = self._snapshots.get(tuple(gathered.ranks))
        return snapshot, snapshot.compare(gathered) if snapshot is not None else None

    def _check_thoroughly(self, gathered: Gathered, optimizer: str) -> tuple[MemorySnapshot, Gradients]:
        """Check tensors as if for the first time, and record them."""
        ranks = tuple(gathered.ranks)
        self._last = None
        self._snapshots.pop(ranks, None)
        refuse_unusable(gathered, optimizer)
        snapshot = MemorySnapshot(gathered)
        self._refuse_read_only(gathered.select(snapshot.plain_indices), optimizer)
        gradients = snapshot.compare(gathered)
        assert gradients is not None
        self._last = self._snapshots[ranks] = snapshot
        rows = sum(map(len, self._snapshots))
        while rows > MAX_SNAPSHOTS * len(gathered.group["params"]):
            oldest = next(iter(self._snapshots))
            del self._snapshots[oldest]
            rows -= len(oldest)
        return snapshot, gradients

    def _refuse_read_only(self, plain: Gathered, optimizer: str) -> None:
        """Raise if the process may not write to a tensor. Memory that was writable before is not checked again."""
        width = len(plain.state) // len(plain.params) if plain.params else 1
        written = plain.params + plain.state
        spans = [(x.data_ptr(), extent(x)) if x.is_cpu else (0, 0) for x in written]
        unknown = [i for i, span in enumerate(spans) if span[1] and span not in self._writable]
        if unknown:
            starts, ends = merge_spans(_read_only_mappings())
            for i in unknown:
                if overlaps(spans[i][0], sum(spans[i]), starts, ends):
                    row = i if i < len(plain.params) else (i - len(plain.params)) // width
                    reason = Reason("it or its state is in read-only memory; use .clone()")
                    raise refusal(plain, row, optimizer, reason)
        self._writable = {*spans}


def _read_only_mappings() -> Iterator[tuple[int, int]]:
    """(address, bytes) of all memory that the process may not write to, where the operating system lists it."""
    try:
        lines = MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        span, mode = line.split(maxsplit=2)[:2]
        if "w" not in mode:
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end - start
