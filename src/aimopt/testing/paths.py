"""The ways to carry out a step, compared: a composition must end at the same point on each of them.

    assert_paths_agree(parts)               plain, foreach, fused; with step counts on the device or not
    assert_schedule_agrees(parts, axis)     plain, fused, while a hyperparameter of the axis changes
    assert_compiled_agrees(parts)           torch.compile, in one graph
    assert_checkpoint_continues(parts)      a run that was saved and loaded, to the bit
    assert_dtypes_agree(parts)              float16 to complex128, on shapes from a number to a convolution kernel

Each raises an AssertionError that says what differs. Call them inside `driving.float64_scalars()`.
"""

import io
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from aimopt.kernels import program_of
from aimopt.messages.reason import Reason
from aimopt.parts.composition import Parts
from aimopt.testing.driving import (
    MATRICES,
    SHAPES,
    advance,
    assert_same,
    closure_for,
    compose,
    count_paths,
    flat,
    parameters,
    push,
)

PATHS: tuple[dict[str, Any], ...] = (
    {"foreach": False},
    {"foreach": True},
    {"capturable": True, "foreach": False},
    {"capturable": True, "foreach": True},
    {"fused": None},
    {"fused": None, "capturable": True},
)
# Relative and absolute tolerance of two paths: a few roundings of the arithmetic, or one of stored 16-bit numbers.
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 2e-4,
    torch.bfloat16: 6e-2,
    torch.float16: 1e-2,
    torch.complex64: 2e-4,
    torch.complex128: 1e-11,
}
ODD_SHAPES = (*SHAPES, (1,), (0, 3), (2, 3, 1, 2))


def shapes_for(parts: Parts) -> tuple[tuple[int, ...], ...]:
    """Shapes that these parts can step."""
    return MATRICES if parts.geometry.matrices_only else SHAPES


def why_not_fused(parts: Parts) -> Reason | None:
    """Why no kernel is made for these parts."""
    params = parameters(shapes_for(parts))
    (group,) = compose(params, parts).param_groups
    program = program_of(parts, group)
    return program if isinstance(program, Reason) else None


def assert_paths_agree(parts: Parts, *, fusible: bool, steps: int = 8, paths: Sequence[dict[str, Any]] = PATHS) -> None:
    """Refuse parts that end elsewhere on one of the paths, or take another path than they should."""
    shapes = MATRICES  # they suit every geometry
    ends = []
    for options in paths:
        params = parameters(shapes)
        optimizer = compose(params, parts, **options)
        with count_paths() as taken:
            for step in range(steps):
                optimizer.step(closure_for(params, step))
        expected = ("foreach" if options["foreach"] else "plain") if "foreach" in options else "fused"
        if expected == "fused" and not fusible:
            assert "fused" not in taken, f"{options}: a kernel made a step that cannot be fused"
        else:
            assert set(taken) == {expected}, f"{options}: steps were {dict(taken)}, expected all {expected}"
        ends.append(flat(params))
    assert ends[0].isfinite().all(), "the parameters are not finite after a few steps"
    assert (ends[0] - flat(parameters(shapes))).abs().max() > 1e-3, "the parameters hardly move"
    for options, end in zip(paths[1:], ends[1:], strict=True):
        difference = float((end - ends[0]).abs().max())
        assert torch.allclose(end, ends[0], 1e-12, 1e-12), f"{options} ends {difference:.2g} away from plain steps"


def assert_schedule_agrees(parts: Parts, axis: str, steps: int = 5) -> None:
    """Refuse parts whose fused step ends elsewhere when a schedule changes a hyperparameter of this axis."""
    for f in fields(getattr(parts, axis)):
        groups = _schedule(parts, axis, f.name, steps)
        ends = []
        for fused in (False, None) if groups else ():
            params = parameters(shapes_for(parts))
            optimizer = compose(params, parts, fused=fused)
            for step, group in enumerate(groups):
                optimizer.param_groups[0].update(group)
                optimizer.step(closure_for(params, step))
            ends.append(flat(params))
        if groups and not torch.allclose(ends[1], ends[0], 1e-12, 1e-12):
            difference = float((ends[1] - ends[0]).abs().max())
            raise AssertionError(f"with a schedule of {f.name}, fused steps end {difference:.2g} away from plain ones")


def _schedule(parts: Parts, axis: str, name: str, steps: int) -> list[dict[str, Any]]:
    """Groups in which this hyperparameter falls from step to step; none if it is no number or must not fall."""
    part = getattr(parts, axis)
    if not isinstance(value := getattr(part, name), float):
        return []
    try:
        fallen = [parts._replace(**{axis: replace(part, **{name: value * 0.95**step})}) for step in range(steps)]
        return [scheduled.to_group() for scheduled in fallen]
    except ValueError:
        return []


def assert_compiled_agrees(parts: Parts, steps: int = 4) -> None:
    """Refuse parts that torch.compile cannot trace in one graph, or whose compiled step differs."""
    torch._dynamo.reset()
    shapes = [shape for shape in shapes_for(parts) if shape]
    ends = []
    for compiled in (False, True):
        params = parameters(shapes)
        optimizer = compose(params, parts, lr=torch.tensor(0.01, dtype=torch.float64))
        step: Any = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager") if compiled else optimizer.step
        for i in range(steps):
            push(params, i)
            step()
        ends.append(flat(params))
    assert_same(ends[1], ends[0], 1e-5)  # compiled step counts are float32 tensors, as in torch


def assert_checkpoint_continues(parts: Parts, steps: int = 4) -> None:
    """Refuse parts whose run does not go on to the bit after its checkpoint was loaded with `weights_only=True`."""
    whole, params = parameters(shapes_for(parts)), parameters(shapes_for(parts))
    uninterrupted, first = compose(whole, parts), compose(params, parts)
    for step in range(2 * steps):
        uninterrupted.step(closure_for(whole, step))
    for step in range(steps):
        first.step(closure_for(params, step))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = compose(params, parts)
    second.load_state_dict(torch.load(file, weights_only=True))
    for step in range(steps, 2 * steps):
        second.step(closure_for(params, step))
    (group,) = second.param_groups
    assert Parts.from_group(group) == parts, f"the group describes {Parts.from_group(group)}, not {parts}"
    assert torch.equal(flat(params), flat(whole)), "a run from a checkpoint ends elsewhere"


def assert_dtypes_agree(parts: Parts, steps: int = 3) -> None:
    """Refuse parts whose paths differ in some dtype or shape, or that write into a gradient."""
    for dtype, tolerance in TOLERANCES.items():
        matrices_only = parts.geometry.matrices_only
        if matrices_only and dtype.is_complex:
            continue
        ends = []
        for options in ({"foreach": False}, {"foreach": True}, {}):
            params = parameters(MATRICES if matrices_only else ODD_SHAPES, dtype)
            optimizer = compose(params, parts, **options)
            for step in range(steps):
                push(params, step)
                gradients = [p.grad.clone() for p in params if p.grad is not None]
                optimizer.step(None if not parts.correction.evaluates_again else closure_for(params, step))
                for p, g in zip(params, gradients, strict=True):
                    assert p.grad is not None and torch.equal(p.grad, g), f"{dtype}: the step writes into p.grad"  # noqa: PT018
            ends.append(flat(params))
        for end in ends:
            assert end.isfinite().all(), f"{dtype}: the parameters are not finite after a few steps"
            same = torch.allclose(end, ends[0], tolerance, tolerance)
            assert same, f"{dtype}: two paths end {float((end - ends[0]).abs().max()):.2g} apart"


def assert_evaluation_is_undone(parts: Parts) -> None:
    """Refuse an iterate from whose point of evaluation the parameters do not come back to the bit."""
    params, twins = parameters(shapes_for(parts)), parameters(shapes_for(parts))
    optimizer, plain = compose(params, parts), compose(twins, parts)
    for step in range(6):
        advance(optimizer, params, 1, step)
        advance(plain, twins, 1, step)
        before = flat(params)
        optimizer.eval()
        assert flat(params).isfinite().all(), "the point of evaluation is not finite"
        optimizer.train()
        assert torch.equal(flat(params), before), "train() does not undo eval()"
    assert torch.equal(flat(params), flat(twins)), "an evaluation changes the run"
