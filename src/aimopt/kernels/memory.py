"""The memory of a step's tensors, checked before a kernel follows an address into it.

Users change tensors between steps: `p.data = other`, `p.untyped_storage().resize_(0)`, `p.grad = p.detach()`. What one
step has found out about tensors is used in the next step only if it is still true:

    memory = GroupMemory()
    checked = memory.check(gathered, "RADAR")     raises an error for tensors that no step can work on
    checked.snapshot is earlier.snapshot          nothing has changed that a kernel relies on, except gradient addresses

The first check of a parameter is thorough (`step/usable.py`), and what it found is kept as a row. If other parameters
have gradients than before, a record is put together from the rows of those that do. Every step compares all of its
tensors with its record (`records.py`), whether that is new or not, before an address is followed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aimopt.kernels.records import Gradients, ListRow, NativeRow, describe, overlaps, record
from aimopt.messages.reason import Reason
from aimopt.step.gather import Gathered, refusal
from aimopt.step.shards import Place
from aimopt.step.storage import extent, has_storage
from aimopt.step.usable import refuse_unusable

MAPPINGS = Path("/proc/self/maps")
Places = tuple[Place | None, Mapping[str, Place]]  # of a parameter and of its state
MAX_SNAPSHOTS = 16  # of a whole group: which parameters are stepped together may change from step to step


class MemoryRow(NamedTuple):
    """The memory of one parameter's tensors, as it was when they were checked thoroughly."""

    record: NativeRow | ListRow | None  # None if a tensor is not plain memory
    places: Places


class MemorySnapshot:
    """A record of the memory of a group's tensors. It is valid while only gradients have moved."""

    def __init__(self, gathered: Gathered, rows: list[MemoryRow]):
        self.plain_rows = [row for row in rows if row.record is not None]
        self.plain_indices = [i for i, row in enumerate(rows) if row.record is not None]
        self.other_indices = [i for i, row in enumerate(rows) if row.record is None]
        self.param_indices, self._places = gathered.param_indices, (gathered.places, gathered.buffer_places)
        self._record = record([row.record for row in rows if row.record is not None])
        self.is_disjoint = self._record.is_disjoint  # no memory that the step writes is in two of these tensors

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
        self._rows: dict[int, MemoryRow] = {}  # by the index of the parameter
        self._snapshots: dict[tuple[int, ...], MemorySnapshot] = {}  # by the indices of the parameters, newest last
        self._last: MemorySnapshot | None = None
        self._writable: set[tuple[int, int]] = set()

    def check(self, gathered: Gathered, optimizer: str) -> CheckedGroup:
        """Check the tensors of a step, or raise `Unusable`, which names the optimizer's class."""
        local = gathered.localize()
        snapshot = self._snapshot_of(local, optimizer)
        gradients = snapshot.compare(local)
        if gradients is None:
            self._forget(local.param_indices)
            snapshot = self._snapshot_of(local, optimizer)
            gradients = snapshot.compare(local)
            assert gradients is not None, "tensors that were just recorded have not changed"
        if snapshot.other_indices:
            refuse_unusable(local.select(snapshot.other_indices), optimizer)
        if gradients.overlap:
            copies = [grad.clone() for grad in gathered.grads]
            return self.check(gathered._replace(grads=copies), optimizer)
        return CheckedGroup(gathered, snapshot, local.select(snapshot.plain_indices), gradients.addresses)

    def _snapshot_of(self, gathered: Gathered, optimizer: str) -> MemorySnapshot:
        """The snapshot of these parameters, to be compared with them. New ones are checked thoroughly first."""
        if self._last is not None and self._last.param_indices == gathered.param_indices:
            return self._last
        indices = tuple(gathered.param_indices)
        snapshot = self._snapshots.get(indices)
        if snapshot is None:
            pairs = zip(map(self._rows.get, indices), _places(gathered), strict=True)
            new = [i for i, (known, places) in enumerate(pairs) if known is None or known.places != places]
            if new:
                self._check_thoroughly(gathered.select(new), optimizer)
            snapshot = self._snapshots[indices] = MemorySnapshot(gathered, [self._rows[index] for index in indices])
            self._limit_snapshots(MAX_SNAPSHOTS * len(gathered.group["params"]))
        self._last = snapshot
        return snapshot

    def _check_thoroughly(self, gathered: Gathered, optimizer: str) -> None:
        """Check tensors as if for the first time, and record them."""
        refuse_unusable(gathered, optimizer)
        rows = gathered.rows()
        is_plain = [all(map(has_storage, row)) for row in rows]
        self._refuse_read_only(gathered.select([i for i, plain in enumerate(is_plain) if plain]), optimizer)
        indices = gathered.param_indices
        for index, row, plain, places in zip(indices, rows, is_plain, _places(gathered), strict=True):
            p, grad, *state = row
            self._rows[index] = MemoryRow(describe((p, *state), grad) if plain else None, places)

    def _forget(self, indices: list[int]) -> None:
        self._last = None
        self._snapshots.pop(tuple(indices), None)
        for index in indices:
            self._rows.pop(index, None)

    def _limit_snapshots(self, max_rows: int) -> None:
        rows = sum(map(len, self._snapshots))
        while rows > max_rows:
            oldest = next(iter(self._snapshots))
            del self._snapshots[oldest]
            rows -= len(oldest)

    def _refuse_read_only(self, plain: Gathered, optimizer: str) -> None:
        """Raise if the process may not write to a tensor. Memory that was writable before is not checked again."""
        width = len(plain.state) // len(plain.params) if plain.params else 1
        written = plain.params + plain.state
        spans = [(x.data_ptr(), x.data_ptr() + extent(x)) if x.is_cpu else (0, 0) for x in written]
        unknown = [i for i, (start, end) in enumerate(spans) if start < end and (start, end) not in self._writable]
        if unknown:
            mappings = list(_read_only_mappings())
            starts, ends = sorted(start for start, _ in mappings), sorted(end for _, end in mappings)
            for i in unknown:
                if overlaps(*spans[i], starts, ends):
                    row = i if i < len(plain.params) else (i - len(plain.params)) // width
                    reason = Reason("it or its state is in read-only memory; use .clone()")
                    raise refusal(plain, row, optimizer, reason)
        self._writable = {*spans}


def _read_only_mappings() -> Iterator[tuple[int, int]]:
    """(start, end) of all memory that the process may not write to, where the operating system lists it."""
    try:
        lines = MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        span, mode = line.split(maxsplit=2)[:2]
        if "w" not in mode:
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end


def _places(gathered: Gathered) -> list[Places]:
    """Where the parts of each parameter and of its state are."""
    if not gathered.places:
        return [(None, {})] * len(gathered.params)
    return list(zip(gathered.places, gathered.buffer_places, strict=True))
