"""Checks of distributed tensors that all ranks of a process group make together.

`test_sharded_training.py` starts the ranks; `model_checks.py` has the checks of whole models.

Each rank makes the one-process run itself, from the same parameters and gradients, and compares its shards with it.
"""

import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.flop_counter import FlopCounterMode

import aimopt
import model_checks
from aimopt import AIM
from aimopt.optimizers import NAMED
from aimopt.parts.component import Geometry, Initial, State, StepCount, scalar, zeros
from aimopt.parts.tensor_list import each
from model_checks import assert_same_rounding
from optimizer_driver import FUSED, NEEDS_MATRICES, count_paths, parameters, push
from process_world import begin, grid

SHAPES = ((6, 4), (7,), (3, 4, 2), (1, 5), (4, 1))  # uneven, and with empty shards
MATRICES = ((6, 4), (4, 9), (3, 2, 2, 2), (8, 8), (8, 8), (1, 4))


@dataclass(frozen=True)
class RowNorm(Geometry):
    """A matrix geometry that a user could have written: rows of length one."""

    linear = False
    matrices_only = True

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        result: Tensor = each(lambda m: m / torch.linalg.vector_norm(m, dim=1, keepdim=True), x)
        return result


@dataclass(frozen=True)
class StateOfEveryKind(Geometry):
    """One with state: a number, a buffer of the matrix's shape, and one of another shape; and it reads the filter's."""

    linear = False
    matrices_only = True
    reads = ("exp_avg",)

    def buffers(self) -> dict[str, Initial]:
        columns = Initial(lambda g: g.abs().amax(0, keepdim=True).flatten(1).mT, shaped=True)
        return {"count": scalar(0.0), "sum": zeros, "columns": columns}

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        state["count"].add_(1)
        state["sum"] = state["sum"] + g - state["exp_avg"]  # a new tensor, which the step copies to the buffer
        state["columns"].mul_(0.5)
        result: Tensor = each(lambda x, c, n: x.norm() + c.sum() + n, state["sum"], state["columns"], state["count"])
        return result

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / metric


def with_row_norm(params: Any, **options: Any) -> AIM:
    return AIM(params, filter=aimopt.EMA(), geometry=RowNorm(), **options)


def with_state_of_every_kind(params: Any, **options: Any) -> AIM:
    return AIM(params, filter=aimopt.EMA(), geometry=StateOfEveryKind(), **options)


def layouts() -> dict[str, tuple[Any, list[Any]]]:
    """Ways to distribute a tensor: a mesh, and a placement per dimension of the mesh."""
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    ways: dict[str, tuple[Any, list[Any]]] = {"Shard(0)": (line, [Shard(0)])}
    if dist.get_world_size() == 2:
        return ways | {"Shard(1)": (line, [Shard(1)]), "Replicate": (line, [Replicate()])}
    return ways | {
        "Replicate, Shard(0)": (grid(), [Replicate(), Shard(0)]),
        "Shard(0), Shard(1)": (grid(), [Shard(0), Shard(1)]),
    }


def distributed(x: Any, mesh: Any, placements: list[Any]) -> Any:
    """A distributed tensor; a dimension that the tensor lacks is replicated."""
    possible = [p if getattr(p, "dim", -1) < x.ndim else Replicate() for p in placements]
    return distribute_tensor(x.detach().clone(), mesh, possible)


def push_both(whole: list[Tensor], shards: list[Any], step: int) -> None:
    """Give parameters and their distributed twins the same gradients."""
    push(whole, step)
    for p, shard in zip(whole, shards, strict=True):
        shard.grad = distributed(p.grad, shard.device_mesh, list(shard.placements))


def run_pair(Optimizer: Any, layout: Any, shapes: Any, dtype: torch.dtype, steps: int = 2, **options: Any) -> Any:
    """A one-process run and a distributed one: their parameters, their optimizers, and the paths of the latter."""
    whole = parameters(shapes, dtype)
    shards = [distributed(p, *layout).requires_grad_() for p in whole]
    reference, optimizer = Optimizer(whole, lr=0.01, **options), Optimizer(shards, lr=0.01, **options)
    for step in range(steps):
        push_both(whole, shards, step)
        reference.step()
        with count_paths() as paths:
            optimizer.step()
    return whole, shards, reference, optimizer, paths


def assert_equal(whole: list[Tensor], shards: list[Any], tolerance: float = 0.0) -> None:
    for p, shard in zip(whole, shards, strict=True):
        torch.testing.assert_close(shard.full_tensor().detach(), p.detach(), rtol=tolerance, atol=tolerance)


def check_named_optimizers() -> None:
    for name, layout in layouts().items():
        for Optimizer in NAMED:
            takes_matrices = Optimizer.__name__ in NEEDS_MATRICES
            shapes = MATRICES if takes_matrices else SHAPES
            whole, shards, reference, optimizer, paths = run_pair(
                Optimizer, layout, shapes, torch.float32, weight_decay=0.1
            )
            fused = Optimizer in FUSED
            path = "fused" if fused else "foreach" if takes_matrices else "plain"
            assert paths == {path: len(shapes)}, (name, Optimizer, paths)
            # A norm or a mean is summed over shards in another order.
            tolerance = 0.0 if fused else 1e-5
            assert_equal(whole, shards, tolerance)
            for p, shard in zip(whole, shards, strict=True):
                for key, value in reference.state[p].items():
                    ours = optimizer.state[shard][key]
                    ours = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
                    within = 0.0 if fused or takes_matrices else 1e-5
                    torch.testing.assert_close(ours, value, rtol=within, atol=within)


def check_rounding() -> None:
    """16-bit parameters and state do not depend on the sharding, on any path."""
    for name, layout in layouts().items():
        for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
            for state_dtype in (None, "bfloat16"):
                whole, shards, _, _, paths = run_pair(
                    aimopt.RADAR, layout, SHAPES, torch.bfloat16, state_dtype=state_dtype, **options
                )
                expected = "fused" if options in ({}, {"fused": True}) else "foreach" if options["foreach"] else "plain"
                assert paths == {expected: len(SHAPES)}, (name, paths)
                assert_equal(whole, shards)
        whole, shards, *_ = run_pair(aimopt.Muon, layout, MATRICES, torch.bfloat16)
        different = sum(int((s.full_tensor() != p).sum()) for p, s in zip(whole, shards, strict=True))
        assert different <= 3, (name, different)  # an arithmetic difference of 1e-7 rarely rounds otherwise


def in_16_bits(params: list[Any], **options: Any) -> AIM:
    """Muon on a matrix and RADAR on the rest, all state in bfloat16."""
    options |= dict(lr=0.01, state_dtype="bfloat16")
    return aimopt.groups.combine(aimopt.Muon(params[:1], ns_steps=1, **options), aimopt.RADAR(params[1:], **options))


def check_compiled_steps_in_16_bits() -> None:
    """torch.compile of the step on shards rounds as the step of one process does."""
    if torch.__version__ < "2.10":
        return  # 2.6.0, 2.7.1 and 2.9.1 do not trace the step in one graph; 2.13.0 does
    sharded_twice = dist.get_world_size() == 4
    layout = layouts()["Shard(0), Shard(1)" if sharded_twice else "Shard(0)"]
    whole = parameters(((6, 4), (7,), (1, 5)), torch.bfloat16)  # uneven, and with empty shards
    shards = [distributed(p, *layout).requires_grad_() for p in whole]
    reference, optimizer = in_16_bits(whole), in_16_bits(shards, foreach=True if sharded_twice else None)
    step: Any = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    for i in range(2):
        push_both(whole, shards, i)
        reference.step()
        step()
    for p, shard in zip(whole, shards, strict=True):
        assert_same_rounding(shard.full_tensor().detach(), p.detach())


def check_state_in_8_bits() -> None:
    """As in one process, to the bit, on any path, if no shard cuts a block; otherwise it is refused."""
    shapes = ((128, 64), (64, 80, 2), (7,))  # the last one is too small for 8 bits
    for name, layout in layouts().items():
        if any(getattr(placement, "dim", 0) == 1 for placement in layout[1]):
            with pytest.raises(RuntimeError, match=r"parameter 0 of group 0 .* 128 elements .* would span two shards"):
                run_pair(aimopt.RADAR, layout, shapes, torch.float32, state_dtype="int8")
            continue
        for options in ({}, {"foreach": True}):
            whole, shards, reference, optimizer, paths = run_pair(
                aimopt.RADAR, layout, shapes, torch.float32, steps=3, state_dtype="int8", **options
            )
            assert paths == {"foreach" if options else "fused": 3}, (name, paths)
            assert_equal(whole, shards)
            for p, shard in zip(whole, shards, strict=True):
                for key, value in reference.state[p].items():
                    ours = optimizer.state[shard][key]
                    assert torch.equal(ours.full_tensor() if hasattr(ours, "full_tensor") else ours, value), (name, key)
    line = layouts()["Shard(0)"]
    with pytest.raises(RuntimeError, match="would span two shards"):
        run_pair(aimopt.RADAR, line, ((129, 33),), torch.float32, state_dtype="int8")
    p = distributed(torch.ones(129, 33), *line).requires_grad_()
    p.grad = torch.ones_like(p)
    optimizer = aimopt.RADAR([p], lr=0.01, state_dtype="int8")
    with pytest.raises(Exception, match=r"parameter 0 of group 0 .* would span two shards"):  # torch wraps the error
        torch.compile(optimizer.step, backend="aot_eager")()
    assert not optimizer.state


def check_few_collectives_and_shared_work() -> None:
    """Per step of Muon: one agreement, one gather, one scatter; and each matrix is orthogonalized by one rank."""
    world, mesh = dist.get_world_size(), init_device_mesh("cpu", (dist.get_world_size(),))
    shards = [distributed(p, mesh, [Shard(0)]).requires_grad_() for p in parameters([(16, 8)] * 8, torch.float32)]
    optimizer = aimopt.Muon(shards, lr=0.01)
    for p in shards:
        p.grad = torch.randn_like(p)
    with count_collectives() as collectives, FlopCounterMode(display=False) as flops:
        optimizer.step()
    assert collectives == {"all_reduce": 1, "all_to_all_single": 2}
    assert count_collectives_with_state() == {"all_reduce": 1, "all_to_all_single": 2}
    alone = torch.nn.Parameter(torch.randn(16, 8))
    alone.grad = torch.randn(16, 8)
    with FlopCounterMode(display=False) as flops_of_one:
        aimopt.Muon([alone]).step()
    assert flops.get_total_flops() == flops_of_one.get_total_flops() * 8 // world > 0


def count_collectives_with_state() -> Counter[str]:
    """Those of a step of SOAP after the first, which gathers whole gradients to make the state."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = [distributed(p, mesh, [Shard(0)]).requires_grad_() for p in parameters([(16, 8)] * 3, torch.float32)]
    optimizer = aimopt.SOAP(shards, lr=0.01)
    for _ in range(2):
        for p in shards:
            p.grad = torch.randn_like(p)
        with count_collectives() as collectives:
            optimizer.step()
    return collectives


@contextmanager
def count_collectives() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    names = ("all_reduce", "all_gather", "all_to_all_single", "broadcast", "reduce_scatter_tensor")

    def counted(name: str) -> Any:
        collective = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return collective(*args, **kwargs)

        return patch.object(dist, name, call)

    with ExitStack() as stack, CommDebugMode() as functional:
        for name in names:
            stack.enter_context(counted(name))
        yield counts
    for name, count in functional.get_comm_counts().items():
        if "c10d_functional" in str(name):
            counts[str(name)] += count


def check_a_geometry_of_a_user_has_owners() -> None:
    for layout in layouts().values():
        for build in (with_row_norm, with_state_of_every_kind):
            whole, shards, *_ = run_pair(build, layout, MATRICES[:2] + MATRICES[3:], torch.float32, steps=3)
            assert_equal(whole, shards, 1e-6)


def check_groups_of_one_matrix_share_the_ranks() -> None:
    """As with a learning rate per layer, and as in `in_backward`, where every matrix is stepped alone."""
    world = dist.get_world_size()
    whole = parameters(((6, 4),) * world, torch.float32)
    shards = [distributed(p, *layouts()["Shard(0)"]).requires_grad_() for p in whole]
    optimizer = aimopt.Muon([{"params": [shard]} for shard in shards], lr=0.01)
    push_both(whole, shards, 0)
    mapped = 0
    apply = aimopt.Spectral.apply

    def counted(geometry: aimopt.Spectral, x: Any, metric: Any) -> Any:
        nonlocal mapped
        mapped += len(x.items)
        return apply(geometry, x, metric)

    with patch.object(aimopt.Spectral, "apply", counted):
        optimizer.step()
    assert mapped == 1


def with_sphere(params: Any, per_row: bool, **options: Any) -> AIM:
    decay = aimopt.Sphere(per_row=per_row)
    return AIM(params, filter=aimopt.EMA(), geometry=aimopt.Adaptive(), decay=decay, **options)


def check_parts_that_need_norms() -> None:
    """Of several shapes one after the other: torch 2.7 may divide a pending sum by the size of an earlier one."""
    for layout in layouts().values():
        for build in (aimopt.CautiousAdamW, aimopt.LAMB, aimopt.MARS):
            whole, shards, *_ = run_pair(build, layout, SHAPES, torch.float32)
            assert_equal(whole, shards, 1e-5)
        for per_row in (False, True):
            # torch itself refuses tensors with fewer rows than ranks here.
            whole, shards, *_ = run_pair(with_sphere, layout, SHAPES[:2], torch.float32, per_row=per_row)
            assert_equal(whole, shards, 1e-5)


def check_recorded_steps_of_sharded_matrix_state_are_refused() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    p = distributed(torch.ones(4, 4), mesh, [Shard(0)]).requires_grad_()
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="differentiable=True StateOfEveryKind would need its state as a whole"):
        with_state_of_every_kind([p], lr=0.1, differentiable=True).step()


def check_one_decision_about_nonfinite_gradients() -> None:
    """Also where a rank has an empty shard, no gradient, or no parameter; in one collective."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world,))
    whole = parameters(((1, 4), (6, 4)), torch.float32)
    shards = [distributed(p, mesh, [Shard(0)]).requires_grad_() for p in whole]
    optimizer = aimopt.RADAR(shards, lr=0.01, skip_nonfinite=True)
    before = [p.full_tensor() for p in shards]
    push_both(whole, shards, 0)
    shards[0].grad = distributed(torch.full((1, 4), torch.nan), mesh, [Shard(0)])  # rank 0 alone holds it
    with count_collectives() as collectives:
        optimizer.step()
    assert collectives == {"all_reduce": 1}
    assert optimizer.param_groups[0]["skipped_steps"] == 1
    assert all(torch.equal(p.full_tensor(), b) for p, b in zip(shards, before, strict=True))
    own = torch.nn.Parameter(torch.ones(3))  # as under ZeRO: each rank has parameters of its own, the last one none
    optimizer = aimopt.RADAR([own] if rank < world - 1 else [], lr=0.01, skip_nonfinite=True)
    own.grad = torch.full((3,), torch.inf if rank == 0 else 1.0)
    optimizer.step()
    assert torch.equal(own.detach(), torch.ones(3))
    own.grad = None if rank == 0 else torch.ones(3)
    optimizer.step()
    assert torch.equal(own.detach(), torch.ones(3)) == (rank in (0, world - 1))


def check_a_rank_without_a_gradient() -> None:
    """The others do not wait for it; its part of the gradient counts as zero."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for Optimizer in (aimopt.Muon, aimopt.RADAR, aimopt.LAMB, aimopt.CautiousAdamW, aimopt.MARS):
        shards = [
            distributed(p, mesh, [Shard(0)]).requires_grad_() for p in parameters([(8, 4), (8, 4)], torch.float32)
        ]
        for i, p in enumerate(shards):
            p.grad = None if dist.get_rank() == 0 and i == 0 else torch.ones_like(p)
        before = shards[0].full_tensor()
        Optimizer(shards, lr=0.01).step()
        assert not torch.equal(shards[0].full_tensor(), before)


def check_diagnostics_of_a_rank_without_a_gradient() -> None:
    """All ranks read the figures of the whole; one has no gradient, and its parameters have made fewer steps."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = [distributed(p, mesh, [Shard(0)]).requires_grad_() for p in parameters([(8, 4), (8, 4)], torch.float32)]
    optimizer = aimopt.RADAR([{"params": shards[:1]}, {"params": shards[1:]}], lr=0.01)
    logged: list[tuple[str, float, int]] = []
    aimopt.log_to(optimizer, lambda *figure: logged.append(figure), every=1)
    for missing in (1, 0):
        for i, p in enumerate(shards):
            p.grad = None if dist.get_rank() == 0 and i < missing else torch.ones_like(p)
        optimizer.step()
    figures_of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(figures_of_ranks, logged)
    assert all(figures == logged for figures in figures_of_ranks)
    assert {(tag.split("/")[1], step) for tag, _, step in logged} == {
        (f"group{group}", step) for group in (0, 1) for step in (1, 2)
    }


def check_diagnostics() -> None:
    for layout in layouts().values():
        for Optimizer in (aimopt.RADAR, aimopt.Muon):
            whole = parameters(MATRICES[:2], torch.float32)
            shards = [distributed(p, *layout).requires_grad_() for p in whole]
            push_both(whole, shards, 0)
            watches = []
            for params in (whole, shards):
                optimizer = Optimizer(params, lr=0.01)
                watches.append(aimopt.watch(optimizer))
                optimizer.step()
            ((expected,), (figures,)) = [watch.read() for watch in watches]
            assert figures.keys() == expected.keys()
            for name, value in figures.items():
                assert abs(value - expected[name]) <= 1e-5 * abs(expected[name]), (name, value, expected[name])


def check_mixed_lists() -> None:
    """Distributed and plain parameters in one group, as a list."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for Optimizer in (aimopt.RADAR, aimopt.Muon):
        whole = parameters(((6, 4), (4, 4)), torch.float32)
        mixed = [distributed(whole[0], mesh, [Shard(0)]).requires_grad_(), whole[1].detach().clone().requires_grad_()]
        reference, optimizer = Optimizer(whole, lr=0.01), Optimizer(mixed, lr=0.01, foreach=True)
        for step in range(2):
            push(whole, step)
            mixed[0].grad, mixed[1].grad = distributed(whole[0].grad, mesh, [Shard(0)]), whole[1].grad
            reference.step()
            optimizer.step()
        assert_equal(whole[:1], mixed[:1], 1e-5)
        torch.testing.assert_close(mixed[1], whole[1], rtol=1e-5, atol=1e-5)


def check_corrections_that_evaluate_again() -> None:
    for layout in layouts().values():
        for options in (dict(iterations=2, ell_ratio=0.5), dict(iterations=3)):
            whole = parameters(((6, 4),), torch.float32)
            shards = [distributed(p, *layout).requires_grad_() for p in whole]
            for params in (whole, shards):
                for geometry in (aimopt.Adaptive(), aimopt.Spectral()):
                    optimizer = AIM(
                        params, 0.01, filter=aimopt.EMA(), geometry=geometry, correction=aimopt.FixedPoint(**options)
                    )

                    def closure(params: list[Any] = params) -> Any:
                        for p in params:
                            p.grad = p.detach() * 2
                        return None

                    optimizer.step(closure)
            assert_equal(whole, shards, 1e-5)


CHECKS = {
    name.removeprefix("check_"): check
    for module in (sys.modules[__name__], model_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


def run_checks() -> dict[str, str | None]:
    """Run all checks; per check None, or what went wrong on this rank."""
    begin()
    outcomes: dict[str, str | None] = {}
    for name, check in CHECKS.items():
        try:
            check()
            outcomes[name] = None
        except Exception:
            outcomes[name] = traceback.format_exc()
        dist.barrier()
    return outcomes
