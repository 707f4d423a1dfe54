"""Other parameters have gradients from step to step: known ones are compared, not checked thoroughly again."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.kernels import memory
from aimopt.step.gather import Gathered
from aimopt.step.usable import refuse_unusable
from memory_checks import assert_refuses
from optimizer_driver import assert_same, count_paths, flat, parameters

SIZES = [(5,), (700,), (30,), (2000,), (4, 6)]


def step(optimizer: Any, params: list[Tensor], order: list[int], seed: int) -> None:
    """Step some parameters in this order, as a step in backward does."""
    for i, p in enumerate(params):
        p.grad = torch.cos(torch.arange(p.numel(), dtype=p.dtype) + seed + i).view(p.shape) if i in order else None
    optimizer._step_parameters({0: order})


@contextmanager
def thorough_checks() -> Iterator[list[int]]:
    """The indices of the parameters that are checked thoroughly."""
    indices: list[int] = []

    def spy(gathered: Gathered, optimizer: str) -> None:
        indices.extend(gathered.param_indices)
        refuse_unusable(gathered, optimizer)

    with patch.object(memory, "refuse_unusable", spy):
        yield indices


def both_ways(orders: list[list[int]], Optimizer: Any = aimopt.RADAR, make: Any = None, **options: Any) -> None:
    """Fused steps of these parameters have the results of unfused ones."""
    ends = []
    for fused in (None if make else True, False):
        params = parameters(SIZES) if make is None else make()
        optimizer = Optimizer(params, lr=0.01, fused=fused, **options)
        for seed, order in enumerate(orders):
            step(optimizer, params, order, seed)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


@pytest.mark.parametrize("order", [[1, 3], [3, 1], [4, 3, 2, 1, 0], [2, 0, 3]], ids=str)
@pytest.mark.parametrize("Optimizer", [aimopt.RADAR, aimopt.Adan, aimopt.SGDM])
def test_known_parameters_in_another_order(Optimizer: Any, order: list[int]) -> None:
    """Gradients arrive in the opposite order in backward: each must meet its own parameter."""
    both_ways([[0, 1, 2, 3, 4], order, [0, 1, 2, 3, 4], order], Optimizer)


@pytest.mark.parametrize("options", [{}, {"state_dtype": "bfloat16"}, {"state_dtype": "int8"}], ids=str)
def test_random_sets_in_random_orders(options: Any) -> None:
    rng = random.Random(0)
    orders = [rng.sample(range(len(SIZES)), rng.randint(1, len(SIZES))) for _ in range(30)]
    ends = []
    for in_order in (True, False):  # a step of each parameter has the same bits, however they are ordered
        params = [p.detach().float().requires_grad_() for p in parameters([*SIZES[:-1], (64, 128)])]
        optimizer = aimopt.RADAR(params, lr=0.01, fused=True, **options)
        for seed, order in enumerate(orders):
            step(optimizer, params, sorted(order) if in_order else order, seed)
        ends.append(flat(params))
    assert torch.equal(ends[0], ends[1])


def test_only_new_parameters_are_checked_thoroughly() -> None:
    params = parameters(SIZES)
    optimizer = aimopt.RADAR(params, 0.01, fused=True)
    for order, new in [([1, 3], [1, 3]), ([3, 0], [0]), ([0, 1], []), ([2, 1, 0], [2]), ([3, 2, 1, 0], []), ([4], [4])]:
        with thorough_checks() as checked, count_paths() as paths:
            step(optimizer, params, order, 0)
        assert (checked, paths) == (new, {"fused": len(order)})


def test_what_changed_while_a_parameter_had_no_gradient_is_seen() -> None:
    ends = []
    for fused in (None, False):  # None: a matrix in another order than its state is stepped unfused
        params = parameters(SIZES)
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        step(optimizer, params, [0, 1, 2, 3, 4], 0)
        params[1].data = params[1].data.clone()
        step(optimizer, params, [2, 3], 1)
        params[4].data = params[4].data.t().contiguous().t()  # a matrix in another memory order
        step(optimizer, params, [1, 3, 0], 2)
        step(optimizer, params, [4, 1], 3)
        ends.append(flat(params))
        params[3].untyped_storage().resize_(0)
        step(optimizer, params, [0, 1], 4)
        params[3].grad = torch.ones(2000, dtype=params[3].dtype)
        assert_refuses(optimizer, match="parameter 3 of group 0 .* was the storage freed")
    assert_same(ends[0], ends[1])


def test_parameters_that_share_memory_and_were_never_stepped_together() -> None:
    def overlapping() -> list[Tensor]:
        whole = torch.sin(torch.arange(60, dtype=torch.float64))
        return [whole[:40].requires_grad_(), whole[20:].detach().requires_grad_(), *parameters([(7,)])]

    both_ways([[0], [1], [2], [0, 2], [0, 1, 2], [1, 2], [1, 0]], make=overlapping)


def test_a_gradient_in_the_memory_of_a_parameter_it_was_never_stepped_with() -> None:
    ends = []
    for fused in (True, False):
        params = parameters([(30,), (30,), (8,)])
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        for i in range(3):
            step(optimizer, params, [i], 0)
        params[0].grad, params[1].grad = params[1].detach(), torch.ones(30, dtype=torch.float64)
        optimizer._step_parameters({0: [1, 0]})
        ends.append(flat(params))
    assert_same(ends[0], ends[1])


def test_gradients_of_another_kind_in_a_new_set() -> None:
    """A gradient in another memory order, and then in the usual one again."""
    ends = []
    for fused in (True, False):
        params = parameters([(4, 6), (30,), (8,)])
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        step(optimizer, params, [0, 1, 2], 0)
        for positions in ([0, 2], [1, 0]):
            for p in params:
                p.grad = torch.ones_like(p)
            params[0].grad = torch.cos(torch.arange(24, dtype=torch.float64)).view(6, 4).t()
            optimizer._step_parameters({0: positions})
        step(optimizer, params, [2, 1, 0], 1)
        ends.append(flat(params))
    assert_same(ends[0], ends[1])
