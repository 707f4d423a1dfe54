"""The fused step in Triton, in Triton's interpreter on tensors of the host, against the plain path."""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_design_space import CORRECTIONS, FILTERS, GEOMETRIES, build, refused
from torch import Tensor

from aimopt import RADAR, SGDM, AdamW, Lion, NAdam
from aimopt.kernels import program_of, symbols
from aimopt.kernels.addresses import Locator
from aimopt.kernels.gpu import launch as gpu
from aimopt.kernels.memory import GroupMemory
from aimopt.kernels.program import Program, StepNumbers
from aimopt.optimizers import NAMED
from aimopt.parts.composition import Parts
from aimopt.step.shards import Span
from optimizer_driver import NEEDS_WHOLE_TENSORS, advance, assert_same, count_paths, flat, parameters, push
from triton_interpreter import (  # noqa: F401 (a fixture)
    PLAIN,
    RADAR_PARTS,
    Elaborate,
    assert_all_same,
    interpreted,
    interpreter,
    program_for,
    state_of,
)

triton = pytest.importorskip("triton")


SHAPES = ((5, 4), (1030,), (0,), ())
TESTED_GEOMETRIES = [*GEOMETRIES, Elaborate()]
FEW = ((5, 4),)  # the interpreter takes its time for every block of elements


def fusible(cell: tuple[Any, Any, Any]) -> bool:
    filter, geometry, correction = cell
    whole_tensors = geometry.matrices_only or getattr(filter, "clip_norm", None) or getattr(correction, "rescale", None)
    return not whole_tensors and not correction.evaluates_again


def run(cell: Any, dtype: torch.dtype, shapes: Any = SHAPES, steps: int = 3, **options: Any) -> list[Tensor]:
    """The final parameters and state."""
    params = parameters(shapes, dtype)
    optimizer = build(params, cell, **options)
    advance(optimizer, params, steps)
    return [flat(params), *state_of(optimizer, params)]


def cells_of(filter: Any, geometry: Any) -> Iterator[tuple[Any, Any, Any]]:
    if not geometry.linear and hasattr(filter, "bias_correction"):
        filter = replace(filter, bias_correction=False)  # else the sign of g − m is that of a rounding error at first
    for correction in CORRECTIONS:
        if not refused(filter, geometry, correction):
            yield filter, geometry, correction


def float32_cells() -> Iterator[tuple[Any, Any, Any]]:
    """Every part at least once: the program of a composition is the same for all types."""
    tested: set[Any] = set()
    for pair in itertools.product(FILTERS, TESTED_GEOMETRIES):
        for cell in filter(fusible, cells_of(*pair)):
            if not tested.issuperset(cell):
                tested.update(cell)
                yield cell


@interpreted
@pytest.mark.parametrize("filter", FILTERS, ids=repr)
@pytest.mark.parametrize("geometry", TESTED_GEOMETRIES, ids=repr)
def test_every_fusible_composition_equals_the_plain_path(filter: Any, geometry: Any) -> None:
    for cell in cells_of(filter, geometry):
        group = build(parameters(), cell).param_groups[0] if fusible(cell) else None
        if group is None:
            with pytest.raises(ValueError, match="fused=True"):
                build(parameters(((3, 2),)), cell, fused=True)
            continue
        assert isinstance(program_of(Parts(*cell), group), Program)
        assert_fused_equals_plain(cell, torch.float64, 1e-12)


@interpreted
@pytest.mark.parametrize("cell", list(float32_cells()), ids=repr)
def test_every_part_equals_the_plain_path_in_float32(cell: Any) -> None:
    assert_fused_equals_plain(cell, torch.float32, 2e-6)


def assert_fused_equals_plain(cell: Any, dtype: torch.dtype, tolerance: float) -> None:
    """A first step and a later one."""
    expected = run(cell, dtype, FEW, 2, **PLAIN)
    assert_all_same(run(cell, dtype, FEW, 2, fused=True), expected, tolerance)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        dict(weight_decay=0.1),
        dict(weight_decay=0.1, decoupled_weight_decay=False),
        dict(weight_decay=0.1, decoupled_weight_decay="proximal", maximize=True),
        dict(state_dtype="float32"),
    ],
    ids=repr,
)
def test_weight_decay_and_maximize(options: dict[str, Any], dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    with count_paths() as paths:
        fused = run(RADAR_PARTS, dtype, **options, fused=None)
    # No kernel takes float64 parameters with float32 state.
    assert set(paths) == {"plain" if dtype == torch.float64 and "state_dtype" in options else "fused"}
    assert_all_same(fused, run(RADAR_PARTS, dtype, **options, **PLAIN), tolerance)


@interpreted
@pytest.mark.parametrize(
    "optimizer", [o for o in NAMED if o.__name__ not in NEEDS_WHOLE_TENSORS], ids=lambda o: o.__name__
)
@pytest.mark.usefixtures("float64_scalars")
def test_every_named_optimizer_is_fused_and_takes_step_counts_on_the_device(optimizer: Any) -> None:
    ends = []
    for options in (PLAIN, dict(fused=True, capturable=True)):
        params = parameters()
        built = optimizer(params, **options)
        advance(built, params, 3)
        ends.append([flat(params), *state_of(built, params)])
    assert_all_same(ends[1], ends[0], 1e-12)


@interpreted
@pytest.mark.parametrize("on_device", [True, False])
def test_each_tensor_has_its_own_step_count(on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if counts are stored on the host: then they are copied to the device, and advanced on the host."""
    if not on_device:
        scalars_on_the_host(monkeypatch)
    ends = []
    for options in (PLAIN, dict(fused=True)):
        params = parameters(SHAPES)
        optimizer = NAdam(params, 0.1, weight_decay=0.1, **options)
        for step in range(5):
            push(params, step)
            for p in params[step % 3 :: 2]:
                p.grad = None
            optimizer.step()
        ends.append([flat(params), *state_of(optimizer, params)])
    assert len({float(x) for x in ends[1] if x.numel() == 1}) > 3
    assert_all_same(ends[1], ends[0], 1e-7)  # the scalars are float32, and so is what they lose
    assert_same(ends[1][0], ends[0][0])


def scalars_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests all scalars are on the device of the parameters: let the tables say otherwise."""
    launch = gpu.TableLaunch.__init__

    def elsewhere(self: gpu.TableLaunch, table: Any, *args: Any) -> None:
        launch(self, table._replace(scalar_device=torch.device("meta")), *args)

    monkeypatch.setattr(gpu.TableLaunch, "__init__", elsewhere)


@interpreted
def test_a_scalar_on_the_host_may_depend_on_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def value_of(name: str) -> float:
        read.append(name)
        return {"lr": 0.25, "step": 2.0}[name]

    graph = symbols.Graph()
    lr, t = graph.number("lr"), graph.number("step")
    value = torch.where(lr < t, lr * t + 1, -lr).offset  # type: ignore[call-overload]
    assert gpu.evaluate(value, value_of) == 1.5
    assert {"lr", "step"} == set(read)
    assert gpu.evaluate(2.0, value_of) == 2


@interpreted
def test_a_tensor_as_learning_rate_and_a_schedule() -> None:
    ends = []
    for options in (PLAIN, dict(fused=True), dict(fused=True, capturable=True)):
        params = parameters()
        lr = torch.tensor(0.1, dtype=torch.float64) if options is not PLAIN else 0.1
        optimizer = RADAR(params, lr, **options)
        for step in range(3):
            push(params, step)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.5
        ends.append(flat(params))
    assert_same(ends[1], ends[0])
    assert_same(ends[2], ends[0])


@interpreted
@pytest.mark.parametrize("capturable", [True, False])
def test_a_grad_scaler_s_scale_and_overflow(capturable: bool) -> None:
    """The kernel divides by the scale. After an overflow nothing changes; with counts on the device nothing waits."""

    class Silent(Tensor):
        """A number that only kernels may read."""

        def __bool__(self) -> bool:
            raise AssertionError("this waits for the device")

    plain, ours = parameters(SHAPES), parameters(SHAPES)
    expected = AdamW(plain, 0.1, **PLAIN)
    optimizer: Any = AdamW(ours, 0.1, fused=True, capturable=capturable)
    for step in range(4):
        overflow = step == 2
        push(ours, step)
        if not overflow:
            push(plain, step)
            expected.step()
        for p in ours:
            assert p.grad is not None
            p.grad *= torch.inf if overflow else 1024.0
        found = torch.tensor([float(overflow)])
        optimizer.grad_scale = torch.tensor(1024.0)
        optimizer.found_inf = found.as_subclass(Silent) if capturable and step else found
        optimizer.step()
    assert_all_same([flat(ours), *state_of(optimizer, ours)], [flat(plain), *state_of(expected, plain)], 1e-12)
    optimizer.found_inf = None
    assert not optimizer._found_inf()


@interpreted
@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("state_dtype", [None, "bfloat16"])
def test_16_bits_are_rounded_as_on_the_plain_path(dtype: torch.dtype, state_dtype: Any, stochastic: bool) -> None:
    """To the same bits, because the arithmetic is the same: Lion's has only one fused product."""
    options = dict(state_dtype=state_dtype, stochastic_rounding=stochastic, lr=2.0**-9, betas=(0.5, 0.75))
    ends = []
    for path in (PLAIN, dict(fused=True)):
        params = [(p * 2.0**-6).detach().requires_grad_() for p in parameters(((3000,), (7, 5)), dtype)]
        optimizer = Lion(params, weight_decay=0, **options, **path)
        advance(optimizer, params, 4)
        ends.append([flat(params), *state_of(optimizer, params)])
    for ours, theirs in zip(*ends, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@interpreted
@pytest.mark.parametrize(
    ("dtype", "Optimizer", "stochastic"),
    [(torch.float32, RADAR, True), (torch.bfloat16, RADAR, True), (torch.float32, Lion, False)],
)
def test_state_in_8_bits_is_rounded_as_on_the_plain_path(dtype: torch.dtype, Optimizer: Any, stochastic: bool) -> None:
    """To the same bits at the first step; then the last digits of float32 differ, and with them a few codes."""
    ends = []
    for path in (PLAIN, dict(fused=True)):
        params = parameters(((4200,), (7, 5)), dtype)
        optimizer = Optimizer(params, 2.0**-9, state_dtype="int8", stochastic_rounding=stochastic, **path)
        with count_paths() as paths:
            advance(optimizer, params, 1)
        assert set(paths) == {"plain" if path is PLAIN else "fused"}
        first_state = [x.clone() for x in state_of(optimizer, params)]
        assert params[0].grad is not None
        params[0].grad[130] = torch.nan  # a block that is not finite
        optimizer.step()
        ends.append((first_state, flat(params), state_of(optimizer, params)))
    for ours, theirs in zip(ends[0][0], ends[1][0], strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-2, atol=2.0**-9, equal_nan=True)
    for ours, theirs in zip(ends[0][2], ends[1][2], strict=True):
        assert int(((ours != theirs) & ~(ours.isnan() & theirs.isnan())).sum()) <= 1 + ours.numel() // 50


@interpreted
def test_nonfinite_and_subnormal_values_are_rounded_equally() -> None:
    special = [0.0, -0.0, 1e-8, -3e-6, 6.1e-5, 65519.0, 65520.0, -7e4, 3.4e38, torch.inf, -torch.inf, torch.nan]
    for dtype in (torch.bfloat16, torch.float16):
        ends = []
        for path in (PLAIN, dict(fused=True)):
            p = torch.tensor(special).to(dtype).requires_grad_()
            p.grad = torch.zeros_like(p)
            SGDM([p], 0.1, momentum=0.0, state_dtype="bfloat16", **path).step()
            ends.append(p.detach().clone())
        torch.testing.assert_close(*ends, rtol=0, atol=0, equal_nan=True)


@interpreted
def test_every_kind_of_memory_is_stepped_or_left_to_the_plain_path() -> None:
    """Views with an offset, dimensions in another order, complex numbers, and views with gaps."""

    def make() -> list[Tensor]:
        base = parameters(((41,), (2, 3, 4, 5), (6, 6)), torch.float32)
        shifted = base[0].detach()[1:]
        last = base[1].detach().to(memory_format=torch.channels_last)
        transposed = parameters(((8, 3),), torch.float32)[0].detach().T
        spread = base[2].detach()[:, ::2]
        complex_ones = parameters(((5,),), torch.complex64)[0].detach()
        return [x.requires_grad_() for x in (shifted, last, transposed, complex_ones, spread)]

    ends = []
    for path in (PLAIN, dict(fused=None)):
        params = make()
        optimizer = AdamW(params, 0.1, weight_decay=0.1, **path)
        with count_paths() as paths:
            advance(optimizer, params, 3)
        assert paths["fused"] == (0 if path is PLAIN else 3 * 4)
        ends.append(
            [flat([torch.view_as_real(p) if p.is_complex() else p for p in params]), *state_of(optimizer, params)]
        )
    assert_all_same(ends[1], ends[0], 2e-6)
    params = make()
    for p in params:
        p.grad = torch.zeros_like(p, memory_format=torch.contiguous_format)
    optimizer = AdamW(params)
    program = program_for(optimizer)
    checked = GroupMemory().check(optimizer._gather(0, optimizer.param_groups[0]), "AdamW")
    located = Locator(program, ("step", "exp_avg", "exp_avg_sq"), gpu.DEVICE).locate(checked)
    assert located.coverage.unreachable == [4]
    gpu.GpuStep(program, True).run(located, StepNumbers(0.1))


@interpreted
def test_only_changed_data_is_sent_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.Size] = []
    send = gpu.HostToDevice.send

    def noted(self: gpu.HostToDevice, host: Tensor) -> Tensor:
        sent.append(host.shape)
        return send(self, host)

    monkeypatch.setattr(gpu.HostToDevice, "send", noted)
    params = parameters(((2048,), (3,)), torch.float32)
    optimizer = RADAR(params, fused=True)
    storage = torch.zeros(2048 + 4)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    rows, constants, *others = sent
    assert rows == (2, 5 + 4)  # numel, parameter index and span, one scalar, three streams
    assert len(constants) == 1
    assert others == [(2,), (1, 2), (1, 2)]  # gradients, chunks of whole blocks, and the others
    sent.clear()
    optimizer.step()
    assert sent == []
    kept = params[0].grad  # else the next may get its memory
    params[0].grad = storage[:2048]
    optimizer.step()
    assert sent == [(2,)]
    sent.clear()
    params[0].grad = storage[1 : 1 + 2048]  # no longer aligned
    optimizer.step()
    assert sent == [(2,), (0, 2), (2, 2)]
    assert kept is not None
    assert params[0].isfinite().all()


@interpreted
def test_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BLOCK", 32)
    monkeypatch.setattr(gpu, "CHUNK", 64)
    monkeypatch.setattr(gpu, "LANES", 2)
    shapes = ((64,), (65,), (0,), (128,), (200,))
    ends = []
    for path in (PLAIN, dict(fused=True)):
        params = parameters(shapes, torch.bfloat16)
        optimizer = Lion(params, 2.0**-9, betas=(0.5, 0.75), weight_decay=0, **path)
        advance(optimizer, params, 2)
        ends.append(flat(params))
    assert torch.equal(*ends)


@interpreted
def test_a_copy_of_an_optimizer_has_its_own_fused_step() -> None:
    params = parameters(SHAPES)
    optimizer = RADAR(params, fused=True)
    advance(optimizer, params, 2)
    other = parameters(SHAPES, seed=0)
    with torch.no_grad():
        for p, q in zip(params, other, strict=True):
            q.copy_(p)
    again = RADAR(other, fused=True)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for o, ps in ((optimizer, params), (again, other)):
        advance(o, ps, 2, first=2)
    assert torch.equal(flat(params), flat(other))


@interpreted
def test_a_captured_step_keeps_the_tensors_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph refers by address to tensors that it reads at every replay: none may be freed or overwritten."""
    params = parameters(((3,), (4,)), torch.float32)
    optimizer = RADAR(params, fused=True, capturable=True)
    advance(optimizer, params, 1)
    plan: Any = optimizer._kernels.fused_groups[0]._step
    monkeypatch.setattr(gpu, "_capturing", lambda: True)
    kept = [p.grad for p in params]
    advance(optimizer, params, 1, first=1)
    ((own, (launch, gradients, *_)),) = plan._captured
    assert any(x is params[0] for x in own)
    assert gradients.tolist() == [p.grad.data_ptr() for p in params if p.grad is not None]
    kept += [p.grad for p in params]
    with pytest.raises(RuntimeError, match="take a step before you capture one"):
        advance(optimizer, params, 1, first=2)
    monkeypatch.setattr(gpu, "_capturing", lambda: False)
    advance(optimizer, params, 1, first=2)
    assert len(plan._captured) == 1
    assert launch.gradients is not gradients
    assert len(kept) == 4


@interpreted
def test_counts_on_the_host_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars_on_the_host(monkeypatch)
    params = parameters()
    optimizer = RADAR(params, fused=True)
    push(params, 0)
    optimizer.step()
    monkeypatch.setattr(gpu, "_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="only with capturable=True"):
        optimizer.step()


@interpreted
def test_shards_are_rounded_by_their_place_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for device in ("cpu", "none"):  # the Triton kernel, then the C++ kernel
        monkeypatch.setattr(gpu, "DEVICE", device)
        for span in (Span(5, 3, 2), Span(0, 40, 0)):
            monkeypatch.setattr("aimopt.kernels.addresses._span", lambda written, place, span=span: span)
            p = torch.linspace(-1, 1, 40).to(torch.bfloat16).requires_grad_()
            p.grad = torch.ones_like(p)
            SGDM([p], lr=1e-3, momentum=0.0, fused=True).step()
            ends.append(p.detach())
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[3])
    assert not torch.equal(ends[0], ends[1])
