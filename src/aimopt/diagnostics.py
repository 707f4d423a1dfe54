"""Diagnostics: what an optimizer does at every step, without changing it.

    watch = aimopt.watch(optimizer)                            after a step: watch.read()
    aimopt.log_to(optimizer, writer.add_scalar, every=100)     TensorBoard, or anything that takes (tag, value, step)

Per parameter group: the residual norm ‖g−m‖, the cosine of g and m, the norm of the update Δθ (without weight decay),
the effective step ‖Δθ‖/‖m‖, the relative update ‖Δθ‖/‖θ‖ and, if the step has the form ν·e + (1−ν)·g, the weight ν of
the average. The sums stay on the device; only reading them waits for it. The figures of sharded parameters are those of
the whole tensors: the ranks add up their sums at the end of an observed step, so all ranks must observe the same steps.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.parts.composition import Parts
from aimopt.parts.filters import OnePole
from aimopt.parts.tensor_list import TensorList, inner
from aimopt.step.shards import Place, group_of, is_distributed

if TYPE_CHECKING:
    from aimopt.aim import AIM
    from aimopt.step.move import Move

Log = Callable[[str, float, int], Any]


class MoveSums(NamedTuple):
    """The sums of one move."""

    sums: Tensor
    parts: Parts
    lr: float | Tensor
    t: Any
    mesh: Any  # of ranks that each have a part of the sums; None if they are complete


class Diagnostics:
    """The sums of the last observed step, per parameter group."""

    def __init__(self, optimizer: "AIM", every: int = 1, log: Log | None = None):
        called = "watch" if log is None else "log_to"
        if not hasattr(optimizer, "observers"):
            raise TypeError(f"{called}: it takes an optimizer of this package, got {type(optimizer).__name__}")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"{called}: every must be a whole number ≥ 1, got {every!r}")
        self.optimizer, self.every, self.log = optimizer, every, log
        self.steps = 0
        self.active = False
        self._records: list[list[MoveSums]] = []
        optimizer.observers.append(self)

    def remove(self) -> None:
        """Stop observing. The last observed step can still be read."""
        if self in self.optimizer.observers:
            self.optimizer.observers.remove(self)

    def begin(self, groups: int) -> None:
        """Called by the optimizer before a step: drop the old sums if this step is observed."""
        self.steps += 1
        self.active = self.steps % self.every == 0
        if self.active:
            self._records = [[] for _ in range(groups)]

    def record(self, group: int, move: "Move", displacement: Tensor, places: Sequence[Place | None] = ()) -> None:
        """Called by the optimizer after a move; `places` are those of its tensors, if they are local parts."""
        if not self.active:
            return
        t = move.t.items[0] if isinstance(move.t, TensorList) else move.t
        with torch.no_grad():
            g, m, residual = move.g, move.m, move.g - move.m
            pairs = (residual, residual), (g, g), (m, m), (g, m), (displacement, displacement), (move.p, move.p)
            columns = [_inner_products(x, y) for x, y in pairs]
            for mesh, rows in _by_mesh(places, len(columns[0])).items():
                sums = sum(torch.stack([column[i] for column in columns]) * weight for i, weight in rows)
                self._records[group].append(MoveSums(cast(Tensor, sums), move.parts, move.lr, t, mesh))

    def end(self) -> None:
        """Called by the optimizer after a step."""
        if self.active:
            self._records = add_up_over_ranks(self._records, self.optimizer.param_groups)
        if self.active and self.log is not None:
            for index, (records, figures) in enumerate(zip(self._records, self.read(), strict=True)):
                for name, value in figures.items():
                    self.log(f"optimizer/group{index}/{name}", value, int(max(float(r.t) for r in records)))

    def read(self) -> list[dict[str, float]]:
        """The figures of the last observed step, one dict per group; it is empty if no parameter has moved."""
        moves = [[record for record in records if float(record.t) > 0] for records in self._records]
        return [_figures(records) if records else {} for records in moves]


def _inner_products(x: Any, y: Any) -> list[Tensor]:
    """The inner product of each pair of tensors; of distributed tensors as a plain tensor."""
    pairs = zip(x.items, y.items, strict=True) if isinstance(x, TensorList) else [(x, y)]
    products: list[Any] = [inner(a, b) for a, b in pairs]
    return [product.full_tensor() if is_distributed(product) else product for product in products]


def _by_mesh(places: Sequence[Place | None], count: int) -> dict[Any, list[tuple[int, float]]]:
    """Per mesh the tensors that are distributed over it, each with the weight of its sums: replicas share theirs."""
    rows: dict[Any, list[tuple[int, float]]] = {}
    for i, place in enumerate(places or [None] * count):
        weight = 1.0 if place is None else 1 / place.replicas
        rows.setdefault(place.mesh if place else None, []).append((i, weight))
    return rows


def add_up_over_ranks(records: list[list[MoveSums]], groups: Sequence[dict[str, Any]]) -> list[list[MoveSums]]:
    """The records with complete sums. One collective per mesh, also on a rank that has moved nothing."""
    complete = [[record for record in of_group if record.mesh is None] for of_group in records]
    meshes = dict.fromkeys(p.device_mesh for group in groups for p in group["params"] if is_distributed(p))
    for mesh in (mesh for mesh in meshes if mesh.get_coordinate() is not None):
        # How many moves a group takes depends on the rank: one row per group has the same shape on all of them.
        own = torch.stack([_row([r for r in of_group if r.mesh == mesh], mesh.device_type) for of_group in records])
        rows = [torch.empty_like(own) for _ in range(mesh.size())]
        torch.distributed.all_gather(rows, own, group=group_of(mesh))
        sums, steps = torch.stack(rows)[..., :-1].sum(0), torch.stack(rows)[..., -1].amax(0)
        for i, group in enumerate(groups):
            complete[i].append(MoveSums(sums[i], Parts.from_group(group), group["lr"], steps[i], None))
    return complete


def _row(records: list[MoveSums], device: str) -> Tensor:
    """The sums of these moves and the largest of their step counts; zeros if there are none."""
    rows = [torch.zeros(7, dtype=torch.float64, device=device)]
    rows += [torch.cat([r.sums.to(rows[0]), torch.as_tensor(r.t).to(rows[0]).view(1)]) for r in records]
    together = torch.stack(rows)
    return torch.cat([together[:, :-1].sum(0), together[:, -1:].amax(0)])


def _figures(records: list[MoveSums]) -> dict[str, float]:
    total = torch.stack([record.sums.double().cpu() for record in records]).sum(0).tolist()
    residual, gg, mm, gm, update, parameter = total
    figures = {
        "residual_norm": math.sqrt(residual),
        "cosine": _ratio(gm, math.sqrt(gg * mm)),
        "update_norm": math.sqrt(update),
        "effective_step": _ratio(math.sqrt(update), math.sqrt(mm)),
        "relative_update": _ratio(math.sqrt(update), math.sqrt(parameter)),
    }
    nu = _nu(records[0])
    return figures if nu is None else {**figures, "nu": nu}


def _nu(record: MoveSums) -> float | None:
    """The weight of the average, if the step is P(ν·e + (1−ν)·g)."""
    filter, geometry, correction = record.parts[:3]
    if not isinstance(filter, OnePole) or correction.evaluates_again or not correction.linear:
        return None
    if correction.prediction != (1.0,) or (correction.maps_residual and not geometry.linear):
        return None
    nu = filter.average_weight * (1 - float(correction.ratio(record.lr, filter.pole)))
    return nu if math.isfinite(nu) else math.nan  # ℓ/η at a learning rate of 0


def _ratio(x: float, y: float) -> float:
    return x / y if y else math.nan


def watch(optimizer: "AIM", every: int = 1) -> Diagnostics:
    """Let `optimizer` record the figures of every `every`-th step, until `remove` is called.

    With sharded parameters call it on all ranks.
    """
    return Diagnostics(optimizer, every)


def log_to(optimizer: "AIM", log: Log, every: int = 100) -> Diagnostics:
    """Call `log(tag, value, step)` for every figure of every `every`-th step, until `remove` is called.

    With sharded parameters call it on all ranks, and give those that do not log a function that does nothing.
    """
    if not callable(log):
        raise TypeError(f"log_to: log must be a function of (tag, value, step), such as writer.add_scalar, got {log!r}")
    return Diagnostics(optimizer, every, log)
