"""Checks of models that are replicated, sharded or split, made by all ranks of a process group together.

`distributed_checks.py` runs them. Each rank also trains the model alone, on the same data, and compares its shards.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import aimopt
from aimopt import AIM
from aimopt.optimizers import NAMED
from aimopt.step.shards import place_of
from optimizer_driver import FUSED, NEEDS_MATRICES, count_paths
from process_world import begin, grid

# On CPUs the FSDP2 of torch 2.6 can shard a model, but not evaluate it. Up to 2.8 it adds up the gradients of the ranks
# where it should average them, because gloo takes the average for a sum; HSDP raises an error there.
FSDP2_AVERAGES = torch.__version__ >= "2.9"


def tiny_model(width: int = 8) -> torch.nn.Module:
    torch.manual_seed(0)
    hidden = torch.nn.Linear(width, width)
    return torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), hidden, torch.nn.Linear(width, 3))


def hybrid(model: torch.nn.Module, **options: Any) -> AIM:
    split = aimopt.groups.split(model)
    return aimopt.groups.combine(
        aimopt.Muon(split.matrices, lr=0.02, **options), aimopt.RADAR(split.rest(weight_decay=0.01), lr=0.01, **options)
    )


def three_matrix_geometries(model: torch.nn.Module) -> AIM:
    """A matrix each for Muon, NorMuon and SOAP, which keep no state, one with a shape of its own, and several."""
    weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
    return aimopt.groups.combine(
        aimopt.Muon(weights[:1], lr=0.02),
        aimopt.NorMuon(weights[1:2], lr=0.02),
        aimopt.SOAP(weights[2:], lr=0.01),
        aimopt.RADAR(biases, lr=0.01),
    )


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, first: int = 0) -> list[float]:
    """Steps on the same data on all ranks, so that the average of their gradients is exact; the gradients' norms."""
    norms = []
    for step in range(first, first + steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
    return norms


def whole_parameters(model: torch.nn.Module) -> list[Tensor]:
    params: list[Any] = list(model.parameters())
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in params]


def check_models() -> None:
    """DDP, FSDP2 and HSDP on a model: the parameters and the clipped gradients' norms of one process."""
    world = dist.get_world_size()
    meshes = {"FSDP2": init_device_mesh("cpu", (world,)), "HSDP": grid()} if FSDP2_AVERAGES else {}
    builders: dict[str, Any] = {o.__name__: o for o in NAMED if o.__name__ not in NEEDS_MATRICES} | {"hybrid": hybrid}
    for name, build in builders.items():
        for scheme in ("DDP", *meshes):
            alone, model = tiny_model(), tiny_model()
            if scheme == "DDP":
                model = torch.nn.parallel.DistributedDataParallel(model)
            else:
                fully_shard(model, mesh=meshes[scheme])
            make = build if name == "hybrid" else lambda m, build=build: build(m.parameters(), lr=0.01)
            optimizer = make(model)
            with count_paths() as paths:
                norms = train(model, optimizer)
            if name == "hybrid" or build in FUSED:
                assert paths["fused"] == (3 * 4 if name == "hybrid" else 3 * 6), (scheme, name, paths)
            expected = train(alone, make(alone))
            torch.testing.assert_close(norms, expected, rtol=1e-6, atol=0)
            for p, q in zip(whole_parameters(model), whole_parameters(alone), strict=True):
                # The norm's sum over shards is rounded otherwise, and scales all gradients.
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def check_tensor_parallel() -> None:
    """Also with FSDP2 on the other dimension of the mesh, which shards some dimensions of parameters twice."""
    for with_fsdp in (False, True):
        for build in (hybrid, lambda m: aimopt.RADAR(m.parameters(), lr=0.01, state_dtype="bfloat16")):
            alone, model, mesh = tiny_model(), tiny_model(), grid()
            tensor_mesh = mesh["inner"] if with_fsdp else init_device_mesh("cpu", (dist.get_world_size(),))
            split_layers(model, tensor_mesh)
            if with_fsdp:
                fully_shard(model, mesh=mesh["outer"])
            for m in (model, alone):
                step_with_given_gradients(m, build(m), range(3))
            for p, q in zip(whole_parameters(model), whole_parameters(alone), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def split_layers(model: torch.nn.Module, mesh: Any) -> None:
    """Tensor parallel: the first layer by columns, the hidden one by rows."""
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def check_hybrids_in_16_bits() -> None:
    """bfloat16 parameters, state, or both, under FSDP2 and tensor parallel: the bits of one process."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for shard in (lambda model: fully_shard(model, mesh=mesh), lambda model: split_layers(model, mesh)):
        for dtype, state_dtype in ((torch.bfloat16, None), (torch.float32, "bfloat16"), (torch.bfloat16, "bfloat16")):
            for foreach in (None, True, False):
                alone, model = tiny_model().to(dtype), tiny_model().to(dtype)
                shard(model)
                for m in (model, alone):
                    optimizer = hybrid(m, state_dtype=state_dtype, foreach=foreach)
                    step_with_given_gradients(m, optimizer, range(3))
                for p, q in zip(whole_parameters(model), whole_parameters(alone), strict=True):
                    assert_same_rounding(p, q)


def assert_same_rounding(p: Tensor, q: Tensor) -> None:
    """Equal up to the last digits of float32, which rarely round to another 16-bit number."""
    if p.dtype == torch.float32:
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    else:
        assert p.dtype == q.dtype
        assert int((p != q).sum()) <= 1, (p, q)


def step_with_given_gradients(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Steps with random gradients of full rank: SOAP's bases follow the last digits of others."""
    for step in steps:
        give_gradients(model, step)
        optimizer.step()


def give_gradients(model: torch.nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    params: list[Any] = list(model.parameters())
    for p in params:
        g = torch.randn(p.shape, generator=generator).to(p.dtype)
        if not hasattr(p, "placements"):
            p.grad = g
            continue
        p.grad = torch.zeros_like(p)
        block = place_of(p).block  # type: ignore[union-attr]
        p.grad.to_local().copy_(g[tuple(slice(first, first + size) for first, size in block)])  # type: ignore[union-attr]


def check_zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its module warns when it is imported

    optimizers: list[Any] = list(NAMED)
    for Optimizer in optimizers:
        model, alone = tiny_model(), tiny_model()
        if Optimizer.__name__ in NEEDS_MATRICES:
            for m in (model, alone):
                for i in (0, 2, 3):
                    m[i].bias = None  # type: ignore[index]
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Optimizer, lr=0.01)
        train(model, optimizer)
        train(alone, Optimizer(alone.parameters(), lr=0.01))
        assert all(map(torch.equal, whole_parameters(model), whole_parameters(alone))), Optimizer.__name__


def check_flattened_parameters_are_refused() -> None:
    for use_orig_params in (True, False):
        model = FullyShardedDataParallel(
            torch.nn.Linear(6, 6, bias=False), use_orig_params=use_orig_params, device_id=torch.device("cpu")
        )
        with pytest.raises((ValueError, RuntimeError), match="FSDP1 flatten"):
            train_flattened(model)
        with pytest.raises(ValueError, match=r"groups.split: .* is flattened .* FSDP1 .* rules="):
            aimopt.groups.split(model)  # all would be vectors, which are not decayed
        split = aimopt.groups.split(model, rules=[("*", aimopt.groups.as_rest())])
        assert [d.decay for d in split.decisions] == [True]


def train_flattened(model: torch.nn.Module) -> None:
    optimizer = aimopt.Muon(model.parameters())
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()


def continue_from_checkpoint(folder: str, build: Any, width: int, steps: int, first: int, fresh: bool) -> list[Any]:
    """Load a checkpoint of any number of ranks unless `fresh`, train on, save it again; the parameters as lists."""
    begin()
    model: Any = tiny_model(width)
    if dist.get_world_size() > 1:
        fully_shard(model)
    optimizer = build(model)
    state: dict[str, Any]
    if not fresh:
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
        state_dict_loader.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    step_with_given_gradients(model, optimizer, range(first, first + steps))
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_saver.save(state, checkpoint_id=folder)
    return [p.tolist() for p in whole_parameters(model)]
