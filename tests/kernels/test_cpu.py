"""The fused step on CPUs equals the plain one for all kinds of tensors, to the same bits on any number of threads."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aimopt
from aimopt import AIM, EMA, kernels
from aimopt.kernels.cpu.library import Library, library
from aimopt.kernels.program import fuse
from aimopt.parts.component import State, StepCount
from aimopt.parts.filters import Coefficients
from optimizer_driver import FUSED, advance, assert_same, count_paths, drive, flat, parameters, push

Class = Any
every = pytest.mark.parametrize("Optimizer", FUSED, ids=lambda o: o.__name__)


@pytest.fixture(autouse=True)
def _kernel_is_there() -> None:
    assert isinstance(library(), Library), "install aimopt with a C++ compiler to test its kernel"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_tensor(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A tensor of random numbers with this memory layout."""

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    if kind == "transposed" and len(shape) >= 2:
        return noise(*shape[::-1]).permute(*reversed(range(len(shape))))
    if kind == "channels_last" and len(shape) == 4:
        return noise(*shape).to(memory_format=torch.channels_last)
    if kind == "gaps":
        return noise(*shape, 2)[..., 1]
    if kind == "offset":
        size = torch.Size(shape).numel()
        return noise(size + 3)[3:].view(shape)
    return noise(*shape)


KINDS = ("plain", "transposed", "channels_last", "gaps", "offset")
SHAPE = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    st.integers(120, 400).map(lambda n: (n,)),
)


@settings(max_examples=150, deadline=None)
@given(
    optimizer=st.sampled_from(FUSED),
    layout=st.lists(st.tuples(SHAPE, st.sampled_from(KINDS), st.sampled_from(KINDS)), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
    count=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**20),
)
@pytest.mark.usefixtures("float64_scalars", "threads")
def test_the_fused_step_equals_the_plain_step(
    optimizer: Class, layout: Any, dtype: torch.dtype, decay: float, maximize: bool, count: int, seed: int
) -> None:
    torch.set_num_threads(count)
    ends = []
    for fused in (False, None):
        generator = torch.Generator().manual_seed(seed)
        params = [make_tensor(kind, shape, dtype, generator).requires_grad_() for shape, kind, _ in layout]
        options: Any = dict(weight_decay=decay, maximize=maximize, stochastic_rounding=False, fused=fused)
        stepping = optimizer(params, lr=0.01, **options)
        with count_paths() as paths:
            for _ in range(4):
                for p, (shape, _, kind) in zip(params, layout, strict=True):
                    p.grad = make_tensor(kind, shape, dtype, generator)
                stepping.step()
        dense = sum(kind != "gaps" for _, kind, _ in layout)  # one with gaps may be dense too, if it has few elements
        assert paths["fused"] >= 4 * dense if fused is None else "fused" not in paths
        ends.append([*params, *(value for state in stepping.state.values() for value in state.values())])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    for plain, fused in zip(*ends, strict=True):
        assert fused.dtype == plain.dtype
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)


@every
@pytest.mark.parametrize("decoupled", [True, False, "proximal"])
@pytest.mark.usefixtures("float64_scalars")
def test_every_kind_of_decay(Optimizer: Class, decoupled: Any) -> None:
    ends = []
    for fused in (False, True):
        optimizer = Optimizer(parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        optimizer.param_groups[0]["decoupled_weight_decay"] = decoupled
        params = optimizer.param_groups[0]["params"]
        advance(optimizer, params, 10)
        ends.append(flat(params))
    assert_same(ends[1], ends[0])


# The share of a thread does not depend on the program: each of them in one type, and RADAR in all.
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
THREADED = {*zip(FUSED, itertools.cycle(DTYPES), strict=False), *itertools.product([aimopt.RADAR], DTYPES)}


@pytest.mark.parametrize(
    ("Optimizer", "dtype"), sorted(THREADED, key=str), ids=lambda value: getattr(value, "__name__", str(value))
)
@pytest.mark.usefixtures("threads")
def test_the_same_bits_for_any_number_of_threads(Optimizer: Class, dtype: torch.dtype) -> None:
    shapes = [(70001,), (3,), (130, 257), (), (0,), (64, 64)]
    ends = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        ends.append(drive(lambda p: Optimizer(p, lr=0.01, weight_decay=0.1, fused=True), parameters(shapes, dtype), 3))
    for end in ends[1:]:
        assert torch.equal(end, ends[0])


@every
def test_instruction_sets_agree(Optimizer: Class) -> None:
    """With the baseline up to rounding, since it has no fused products; with one another to the bit."""
    lib = library()
    assert isinstance(lib, Library)
    ends = []
    for isa in range(lib.isa + 1):
        params = parameters([(1001,), (7, 9)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, fused=True)
        push(params, 0)
        optimizer.step()
        step: Any = optimizer._kernels.fused_groups[0]._step
        step.lib = lib._replace(isa=isa)
        advance(optimizer, params, 5, first=1)
        ends.append(flat(params))
    torch.testing.assert_close(ends[0], ends[-1], rtol=1e-5, atol=1e-5)
    for end in ends[2:]:
        assert torch.equal(end, ends[1])


def test_tensors_with_different_step_counts_are_stepped_together() -> None:
    ends = []
    for fused in (False, True):
        params = parameters([(5,), (6,), (7,)])
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        for step in range(6):
            push(params, step)
            params[step % 3].grad = None
            optimizer.step()
        ends.append(flat(params))
        assert [int(optimizer.state[p]["step"]) for p in params] == [4, 4, 4]
    assert_same(ends[1], ends[0])


@pytest.mark.parametrize(
    "lr", [0.01, torch.tensor(0.01, dtype=torch.float64), torch.tensor([0.01], dtype=torch.float64)]
)
def test_a_learning_rate_may_be_a_tensor_and_may_change(lr: Any) -> None:
    params = parameters()
    optimizer = aimopt.RADAR(params, lr, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    reference = parameters()
    plain = aimopt.RADAR(reference, 0.01, foreach=False)
    other = torch.optim.lr_scheduler.StepLR(plain, 2, 0.5)
    for step in range(6):
        for p, o, s in ((params, optimizer, scheduler), (reference, plain, other)):
            push(p, step)
            o.step()
            s.step()
    assert_same(flat(params), flat(reference))


@pytest.mark.parametrize("name", ["RADAR", "AdamW", "Adan", "NAdam", "Lion", "SGDM", "AdaBelief"])
def test_a_schedule_of_hyperparameters_makes_one_program_and_changes_no_bit(name: str) -> None:
    ends = []
    for scheduled in (True, False):
        params = parameters(dtype=torch.float32)
        optimizer = aimopt.create(name, params, lr=0.01, fused=True)
        for step in range(8):
            (group,) = optimizer.param_groups
            if "betas" in group:
                group["betas"] = (0.8 + 0.01 * step, *group["betas"][1:])
            for key in {"gamma", "momentum", "ell_ratio"} & group.keys():
                group[key] = 0.05 + 0.01 * step
            if not scheduled:
                optimizer._reset_caches()  # a program of its own for every step
            before = fuse.cache_info().misses
            advance(optimizer, params, 1, first=step)
            if scheduled and step > 1:
                assert fuse.cache_info().misses == before
        ends.append(flat(params))
    assert torch.equal(ends[0], ends[1])


@dataclass(frozen=True)
class Branching(EMA):
    """A filter that branches on its own decay."""

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        if self.beta > 0.85:
            return super().update(state, g, t)
        return g, g


def test_a_part_that_branches_on_a_scheduled_number_is_traced_again() -> None:
    ends = []
    for fused in (True, False):
        params = parameters(dtype=torch.float64)
        optimizer = AIM(params, 0.01, filter=Branching(), geometry=aimopt.Adaptive(), fused=fused)
        for step in range(10):
            optimizer.param_groups[0]["betas"] = (0.8 + 0.01 * step, 0.999)
            advance(optimizer, params, 1, first=step)
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Precomputing(EMA):
    """A filter that computes a number from its decay when it is made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rest", 1 - self.beta)

    def coefficients(self, t: StepCount) -> Coefficients:
        return Coefficients(self.beta, self.rest, self.beta, self.rest)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Caching(EMA):
    """A filter that computes a number from its decay once."""

    @cached_property
    def rest(self) -> float:
        return 1 - self.beta

    def coefficients(self, t: StepCount) -> Coefficients:
        return Coefficients(self.beta, self.rest, self.beta, self.rest)


@pytest.mark.parametrize("made", [Precomputing, Caching])
def test_what_a_part_derives_from_a_scheduled_number_follows_it(made: type[EMA]) -> None:
    ends = []
    for fused in (False, True):
        params = parameters(dtype=torch.float64)
        optimizer = AIM(params, 0.01, filter=made(), geometry=aimopt.Adaptive(), fused=fused)
        with count_paths() as paths:
            for step in range(6):
                optimizer.param_groups[0]["betas"] = (0.9 - 0.1 * step, 0.999)
                advance(optimizer, params, 1, first=step)
        assert set(paths) == {"fused" if fused else "plain"}
        ends.append(flat(params))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_a_schedule_of_beta1_is_followed() -> None:
    ends = []
    for fused in (False, True):
        params = parameters()
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
        for step in range(10):
            push(params, step)
            optimizer.step()
            scheduler.step()
        ends.append(flat(params))
    assert_same(ends[1], ends[0])


def test_gradients_are_not_written() -> None:
    params = parameters([(200,), (3, 3)])
    for options in ({}, {"maximize": True}, {"weight_decay": 0.1, "decoupled_weight_decay": False}):
        optimizer = aimopt.RADAR(params, fused=True, **options)
        push(params, 0)
        before = [p.grad.clone() for p in params if p.grad is not None]
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True) if p.grad is not None)


def test_several_optimizers_step_in_parallel() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def run(seed: int) -> Tensor:
        return drive(lambda p: aimopt.RADAR(p, 0.01, fused=True), parameters([(40000,)], seed=seed), 10)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    for seed, end in enumerate(together):
        assert torch.equal(end, run(seed))


def test_status_reports_the_fused_path() -> None:
    status = kernels.status()
    assert status["fused, CPU"].startswith("on: ")
    assert "torch's threads" in status["fused, CPU"]
