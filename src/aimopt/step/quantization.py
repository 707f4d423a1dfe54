"""8-bit state: one byte per element, and one scale per block of 128 elements.

A code is the upper bits of a sum: the bits of |x| + scale, down to 5 bits of mantissa, minus those of the scale. So 0
is a level, levels near 0 are scale/32 apart, and those far above the scale are floating-point numbers with 5 bits:

    exp_avg       int8      sign and 127 levels; the scale is about 1/15 of the block's largest magnitude
    exp_avg_sq    uint8     255 levels; the scale is about 1/250 of it

Reading and writing a code takes a sum, a shift and a difference, and no table. Numbers are rounded up or down at
random, and are preserved on average. Only a second moment below the lowest level becomes that level: 0 beside a first
moment would make a giant step. `benchmarks/int8_codes.py` compares codes.

    working_buffer(state, "exp_avg")            the numbers of a buffer, for the arithmetic of a step
    encode_into(codes, scale, x, random)        store them again
    stored_buffer(x, p, initial, group)         a new buffer and its scale, in the group's state dtype

Of a sharded parameter every rank stores the codes and the scales of its shard, if no shard ends within a block
(`cuts_blocks`): then a run does not depend on how it was sharded.

A block is 128 elements that are neighbours in memory. One that is all 0 stays so. One with an element that is NaN or
above 2¹²⁷ is NaN.
"""

import math
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.parts.component import Initial, State
from aimopt.parts.tensor_list import LOW_PRECISION
from aimopt.step.shards import Place, distributed_like, from_local, local_part, place_of

BLOCK = 128  # elements
SMALLEST = 4096  # elements; the buffers of smaller parameters stay in float32
MANTISSA = 5  # bits
SHIFT = 23 - MANTISSA  # from the bits of a float32 number to its level
LOWEST_BASE = 6 << MANTISSA  # the lowest level of a scale: differences between levels are normal numbers
LARGEST = 0x7F000000  # the bits of 2¹²⁷, above which a block is NaN
INT8 = "int8"  # the state dtype


class Code(NamedTuple):
    """How numbers are stored in 8 bits."""

    dtype: torch.dtype
    levels: int  # above 0


CODES = {"signed": Code(torch.int8, 127), "unsigned": Code(torch.uint8, 255)}
CODE_OF_DTYPE = {code.dtype: code for code in CODES.values()}


def scale_name(buffer: str) -> str:
    """The state key of a buffer's scales."""
    return f"{buffer}_scale"


def coded_buffers(buffers: dict[str, Initial], group: dict[str, Any]) -> dict[str, Code]:
    """The buffers that a group stores in 8 bits if their parameter is large enough, and how."""
    if group["state_dtype"] != INT8:
        return {}
    return {name: CODES[initial.code] for name, initial in buffers.items() if initial.code is not None}


def state_keys(buffers: dict[str, Initial], group: dict[str, Any]) -> tuple[str, ...]:
    """The keys of a parameter's state, in the order of `Gathered.state`: the step count first, the scales last."""
    return ("step", *buffers, *map(scale_name, coded_buffers(buffers, group)))


def state_dtype(p: Tensor, initial: Initial, group: dict[str, Any]) -> torch.dtype:
    """The dtype of one of a parameter's state buffers in this group. Only averages of gradients have few bits."""
    if initial.shaped and p.is_complex():
        return p.real.dtype
    of_gradients = not (p.is_complex() or initial.shaped or initial.of_parameter)
    if group["state_dtype"] == INT8 and of_gradients:
        if initial.code is not None and p.numel() >= SMALLEST:
            return CODES[initial.code].dtype
    elif group["state_dtype"] is not None and of_gradients:
        return cast(torch.dtype, getattr(torch, group["state_dtype"]))
    return torch.float32 if p.dtype in LOW_PRECISION else p.dtype


def scale_shape(numel: int) -> tuple[int]:
    """The shape of the scales of a buffer in 8 bits."""
    return (math.ceil(numel / BLOCK),)


def stored_buffer(x: Tensor, p: Tensor, initial: Initial, group: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """A buffer in the dtype of the group's state, and its scales: none in other dtypes, empty if it is not coded."""
    dtype = state_dtype(p, initial, group)
    if dtype not in CODE_OF_DTYPE:
        needs_scale = group["state_dtype"] == INT8 and initial.code is not None
        return x.to(dtype), torch.empty(0, dtype=torch.float32, device=x.device) if needs_scale else None
    local = local_part(x)
    codes = torch.empty_like(local, dtype=dtype)
    scale = torch.empty(scale_shape(local.numel()), dtype=torch.float32, device=x.device)
    encode_into(codes, scale, local)
    return distributed_like(x, codes), scale_like(x, scale)


def encode_into(codes: Tensor, scale: Tensor, x: Tensor, random: Tensor | None = None) -> None:
    """Store x. `random` has SHIFT random bits per element, in the order of memory; None rounds to the nearest level."""
    code, order = CODE_OF_DTYPE[codes.dtype], _memory_order(codes)
    flat = x.detach().float().permute(order).reshape(-1)
    bits = _blocks(flat).view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    largest = magnitude.amax(1, keepdim=True)
    base = _base(torch.where(largest <= LARGEST, largest, 0).view(torch.float32), code.levels)
    jitter = 1 << (SHIFT - 1) if random is None else _blocks(random)
    level = (((magnitude.view(torch.float32) + _number(base)).view(torch.int32) + jitter) >> SHIFT) - base
    level = level.clamp(min=1) if code.dtype == torch.uint8 else torch.where(bits < 0, -level, level)
    level = torch.where((largest > 0) & (largest <= LARGEST), level, 0)
    stored = level.to(code.dtype).view(-1)[: flat.numel()]
    codes.permute(order).copy_(stored.view([codes.shape[d] for d in order]))
    scale.copy_(torch.where(largest <= LARGEST, _number(base), math.nan).view(-1))


def _base(largest: Tensor, levels: int) -> Tensor:
    """The level of the smallest scale with which the block's largest magnitude is not above the highest level."""
    grown = largest * (1 + 2.0 ** -((levels + 1) >> MANTISSA))  # one level too few at most
    top = ((grown.view(torch.int32) + ((1 << SHIFT) - 1)) >> SHIFT).clamp(min=levels + LOWEST_BASE)
    base = top - levels
    return base + (_number(top) - _number(base) < largest).int()


def _number(level: Tensor) -> Tensor:
    return (level << SHIFT).view(torch.float32)


def decode(codes: Tensor, scale: Tensor) -> Tensor:
    """The numbers that were stored, in float32 and with the strides of the codes, if those have no gaps."""
    order = _memory_order(codes)
    signed = _blocks(codes.permute(order).reshape(-1)).to(torch.int32)
    scale = scale.view(-1, 1)
    magnitude = _number(signed.abs() + (scale.view(torch.int32) >> SHIFT)) - scale
    numbers = torch.where(signed < 0, -magnitude, magnitude)
    shaped = numbers.view(-1)[: codes.numel()].view([codes.shape[d] for d in order])
    return shaped.permute([order.index(d) for d in range(len(order))])


def decoded(codes: Tensor, scale: Tensor) -> Tensor:
    """The numbers that were stored, distributed as the codes are."""
    return distributed_like(codes, decode(local_part(codes), local_part(scale)))


def working_buffer(state: State, name: str) -> Tensor:
    """A state buffer, decoded if it is in 8 bits."""
    buffer = state[name]
    return decoded(buffer, state[scale_name(name)]) if buffer.dtype in CODE_OF_DTYPE else buffer


def scale_like(codes: Any, scale: Tensor) -> Tensor:
    """The scales of a shard, as a part of those of the whole."""
    place = place_of(codes)
    return scale if place is None else from_local(type(codes), scale, _scale_place(place))


def _scale_place(place: Place) -> Place:
    return replace(place, shape=scale_shape(prod(place.shape)), strides=(1,))


def cuts_blocks(place: Place) -> bool:
    """Whether a shard of a tensor begins or ends within a block of the whole, or its scales would not be its own."""
    sharded = [placement for placement in place.placements if not placement.is_replicate()]
    if not place.is_contiguous or any(getattr(placement, "dim", None) != 0 for placement in sharded):
        return True
    numel, row = prod(place.shape), prod(place.shape[1:])
    for coordinate in product(*map(range, place.mesh.shape)):
        block, scales = place.block_at(coordinate), _scale_place(place).block_at(coordinate)
        if block is None or scales is None:
            return True
        first, end = block[0][0] * row, sum(block[0]) * row
        if first % BLOCK or (end % BLOCK and end != numel):
            return True
        if end > first and scales[0] != (first // BLOCK, scale_shape(end - first)[0]):
            return True
    return False


def _memory_order(x: Tensor) -> list[int]:
    """The dimensions of a tensor, the one with the largest stride first."""
    return sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)


def _blocks(flat: Tensor) -> Tensor:
    """One row per block; the last one is filled up with zeros."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
