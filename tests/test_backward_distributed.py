"""A step in backward with sharded or replicated parameters is the usual step, to the bit: two processes, gloo."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import aimopt
from process_world import begin, run_world

pytestmark = pytest.mark.xdist_group("distributed")  # all in one worker: the processes are started once
RANKS, STEPS = 2, 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def sharded(model: nn.Sequential, **_: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def train(wrap: Any, in_backward: bool, passes: int = 1, removed_after: int = STEPS, **options: Any) -> Tensor:
    max_norm = options.pop("max_norm", None)
    model = wrap(network(), **options)
    optimizer = aimopt.RADAR(model.parameters(), lr=0.01, state_dtype="bfloat16")
    handle = aimopt.in_backward(optimizer, model, max_norm=max_norm, bucket_bytes=0) if in_backward else None
    for step in range(STEPS):
        if handle is not None and step == removed_after:
            handle.remove()
        for i in range(passes):
            generator = torch.Generator().manual_seed(100 * step + 10 * i + dist.get_rank())
            loss = model(torch.randn(4, 8, generator=generator)).square().mean()
            if handle is not None and i < passes - 1:
                with handle.accumulating():
                    loss.backward()
            else:
                loss.backward()
        present = any(p.grad is not None for p in model.parameters())
        assert present != (in_backward and step < removed_after)
        optimizer.step()
        optimizer.zero_grad()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])


CASES: list[tuple[Any, dict[str, Any]]] = [
    (sharded, {}),
    (sharded, {"passes": 2}),
    (DistributedDataParallel, {}),
    (DistributedDataParallel, {"gradient_as_bucket_view": True, "passes": 2}),
    (DistributedDataParallel, {"removed_after": 2}),
]


def one_process() -> str:
    begin()
    for wrap, options in CASES:
        assert torch.equal(train(wrap, True, **options), train(wrap, False, **options)), (wrap, options)
    clipped = train(sharded, True, max_norm=1e-3)
    everywhere = [torch.empty_like(clipped) for _ in range(RANKS)]
    dist.all_gather(everywhere, clipped)
    assert torch.equal(everywhere[0], everywhere[1])
    for options, message in (
        ({"max_norm": 1.0}, "leave out max_norm"),
        ({"find_unused_parameters": True}, "set it to"),
    ):
        with pytest.raises(ValueError, match=message):
            train(DistributedDataParallel, True, **options)
    return "done"


@pytest.mark.skipif(os.name == "nt" or not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_two_processes() -> None:
    assert run_world(RANKS, one_process) == ["done"] * RANKS
