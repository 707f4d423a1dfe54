"""How deep in the model a parameter is, by the names of its modules, and learning rates that depend on it.

    transformer.h.3.attn.c_attn.weight     block 3 of GPT-2
    model.layers.3.mlp.up_proj.weight      block 3 of Llama
    layer2.0.conv1.weight                  block 0 of stage 2 of a ResNet
    stages.1.blocks.0.mlp.fc1.weight       block 0 of stage 1

Each stack of blocks is counted on its own, so that in a model of two towers the last block of both is next to the
output. A parameter outside of all blocks is at the input if the model has it before its first block, else at the
output.
"""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from aimopt.parts.component import is_finite

# Stages contain layers, layers contain blocks. (T5's block.3.layer.0 is a sublayer of block 3, not a layer.)
_RANKS = {
    "stage": 0, "stages": 0,
    "layer": 1, "layers": 1,
    "block": 2, "blocks": 2, "resblocks": 2, "h": 2,
}  # fmt: skip
_NUMBERED = re.compile(r"(stage|layer|block)_?(\d+)")  # layer2
_CONTAINER = re.compile(r"\d+")

Place = tuple[tuple[str, ...], tuple[int, ...]]  # (the names that lead to the stack, the indices in it)


def place_of(name: str) -> tuple[Place, int] | None:
    """The stack and the indices of the block that a name belongs to, and how many components of the name lead to it."""
    components = name.split(".")
    prefix: tuple[str, ...] = ()
    indices: list[int] = []
    rank, end, i = -1, 0, 0
    while i < len(components):
        numbered = _NUMBERED.fullmatch(components[i])
        kind = numbered[1] if numbered else components[i]
        own_index = [int(numbered[2])] if numbered else []
        j = i + 1
        while j < len(components) and _CONTAINER.fullmatch(components[j]):
            own_index.append(int(components[j]))
            j += 1
        if own_index and _RANKS.get(kind, -1) > rank:
            prefix = prefix or (*components[:i], kind)
            rank, end = _RANKS[kind], j
            indices += own_index
        i = j
    return ((prefix, tuple(indices)), end) if indices else None


def is_inside_block(module_name: str) -> bool:
    """Whether a module is a part of a numbered block, and not the block itself."""
    place = place_of(module_name)
    return place is not None and place[1] < len(module_name.split("."))


def distances_from_output(names: list[str]) -> list[int]:
    """For each parameter, in the model's order: 0 at the output, 1 in the last block, …, and most at the input."""
    places = [found and found[0] for found in map(place_of, names)]
    stacks: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for prefix, indices in {place for place in places if place is not None}:
        stacks.setdefault(prefix, []).append(indices)
    if not stacks:
        raise ValueError(
            f"groups.layerwise: no parameter is in a numbered block such as 'h.3.', 'layers.3.' or 'blocks.3.' (the "
            f"first is {names[0] if names else None!r}); pass depth=, a function from a parameter's name to its depth"
        )
    ranks = {(prefix, indices): i for prefix, stack in stacks.items() for i, indices in enumerate(sorted(stack))}
    first_block = next(i for i, place in enumerate(places) if place is not None)
    at_input = 1 + max(map(len, stacks.values()))
    return [
        len(stacks[place[0]]) - ranks[place] if place is not None else at_input if i < first_block else 0
        for i, place in enumerate(places)
    ]


def layerwise(
    optimizer: Optimizer, model: nn.Module, decay: float, *, depth: Callable[[str], int] | None = None
) -> None:
    """Multiply learning rates by decayᵏ, k the distance from the output: 0 at the output, 1 in the last block, ….

    The groups of `optimizer` are divided by depth, in place. Do it before the first step, and before a scheduler is
    made: it starts from the learning rates that it finds.

    Args:
        optimizer: any optimizer, also one of torch.optim.
        model: the model; the names and the order of its parameters say how deep they are.
        decay: the factor per block, often between 0.65 and 0.95.
        depth: a function from a parameter's name to its depth (0 at the input), for models whose names do not say it.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"groups.layerwise takes an optimizer, got {type(optimizer).__name__}")
    if not isinstance(model, nn.Module):
        raise ValueError(f"groups.layerwise takes the model, a torch.nn.Module, got {type(model).__name__}")
    if not (is_finite(decay) and 0 < decay <= 1):
        raise ValueError(f"groups.layerwise: decay must be a number in (0, 1], got {decay!r}")
    if optimizer.state:
        raise ValueError("groups.layerwise: the optimizer has stepped; call layerwise before the first step")
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise ValueError("groups.layerwise: the optimizer has a scheduler; call layerwise before the scheduler is made")
    distance = _distances(model, depth)
    groups = []
    for group in optimizer.param_groups:
        unknown = [i for i, p in enumerate(group["params"]) if id(p) not in distance]
        if unknown:
            raise ValueError(
                f"groups.layerwise: {len(unknown)} parameters of the optimizer, such as one of shape "
                f"{tuple(group['params'][unknown[0]].shape)}, are not in the model; pass the model that it trains"
            )
        groups += _divided(group, [distance[id(p)] for p in group["params"]], decay)
    optimizer.param_groups[:] = groups


def _distances(model: nn.Module, depth: Callable[[str], int] | None) -> dict[int, int]:
    named = list(model.named_parameters())
    names = [name for name, _ in named]
    if depth is None:
        distances = distances_from_output(names)
    else:
        depths = [depth(name) for name in names]
        if wrong := [(name, value) for name, value in zip(names, depths, strict=True) if not is_finite(value)]:
            raise ValueError("groups.layerwise: depth must give a number for {!r}, and gave {!r}".format(*wrong[0]))
        distances = [max(depths, default=0) - d for d in depths]
    return {id(p): distance for (_, p), distance in zip(named, distances, strict=True)}


def _divided(group: dict[str, Any], distances: list[int], decay: float) -> list[dict[str, Any]]:
    """A group per distance, with its own learning rate. The parameters keep their order."""
    divided = []
    for distance in sorted(set(distances), reverse=True):
        chosen = [i for i, d in enumerate(distances) if d == distance]
        lists: dict[str, Any] = {
            key: [group[key][i] for i in chosen] for key in ("params", "param_names") if key in group
        }
        lr: float | Tensor = group["lr"] * decay**distance
        divided.append({**group, **lists, "lr": lr})
    return divided or [group]
