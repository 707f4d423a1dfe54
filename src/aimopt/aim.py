"""AIM: the one optimizer class, composed of a filter, a geometry and a correction.

    AIM(params, 1e-3, filter=EMA(0.9), geometry=Adaptive(0.999))                              Adam
    AIM(params, 1e-3, filter=GradientDifference(), geometry=Relativistic(),
        correction=FixedPoint(ell_ratio=0.01))                                                RADAR
    AIM(params, 0.02, filter=EMA(), geometry=Spectral(), correction=Secant())                 a cell nobody has named

`AIM.step` collects the parameters of each group into moves (`moves.py`) and lets them go; that is all it does.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _default_to_fused_or_foreach

from aimopt import checkpoints
from aimopt.components import Correction, Filter, Geometry, Initial, Parts, Step, scalar_dtype, scalar_one
from aimopt.corrections import Direct, ExactQuadratic, Residual
from aimopt.diagnostics import Diagnostics
from aimopt.moves import Move, gradient, iterate, solve_quadratic, working
from aimopt.tensors import TensorList

DIRECT = Direct()


class AIM(Optimizer):
    """A torch optimizer that composes any filter, geometry and correction.

    Args:
        params: parameters, named parameters, or groups. A group may override every hyperparameter and every part.
        lr: η, a number or a one-element tensor.
        filter, geometry, correction: the three parts.
        weight_decay: the decay coefficient.
        decoupled_weight_decay: True decays θ ← θ·(1−η·wd) before the step, False adds wd·θ to the gradient, "proximal"
            divides by 1+η·wd after the step.
        maximize: ascend instead of descend.
        foreach: all tensors of a group at once. None picks it where torch would.
        fused: one kernel for the whole step. None picks it where there is one.
        capturable: keep step counts on the device, so that the step can be captured in a CUDA graph.
        differentiable: let autograd record the step.
        skip_nonfinite: skip a step whole, state untouched, when any gradient is infinite or NaN; `skipped_steps` of
            the first group counts them. This reads the gradients, so it waits for the device.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        *,
        filter: Filter,
        geometry: Geometry,
        correction: Correction = DIRECT,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool | str = True,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        skip_nonfinite: bool = False,
    ):
        parts = Parts(*(_chosen(p, a, {}) for a, p in zip(Parts._fields, (filter, geometry, correction), strict=True)))
        defaults = {
            "lr": lr,
            **parts.to_group(),
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
            "differentiable": differentiable,
            "skip_nonfinite": skip_nonfinite,
            "skipped_steps": 0,
        }
        super().__init__(params, defaults)

    _traced_parts: list[tuple[Parts, dict[str, Any]]]
    diagnostics: Diagnostics | None = None
    _warned_of_ell: bool = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it may give its own parts (`geometry=Spectral()`) and its own hyperparameters."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group must be a dict with the key 'params', got {type(param_group).__name__}")
        given = dict(param_group)
        parts = Parts(
            *(_chosen(given.pop(part.axis, part), type(part).axis, given) for part in Parts.from_group(self.defaults))
        )
        super().add_param_group({**self.defaults, **parts.to_group(), **given})
        try:
            self._validate(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def _validate(self, group: dict[str, Any]) -> None:
        parts = Parts.from_group(group)
        parts.validate()
        lr = group["lr"]
        if isinstance(lr, Tensor):
            if lr.numel() != 1:
                raise ValueError(f"a tensor lr must have one element, got shape {tuple(lr.shape)}")
        else:
            _check_number("lr", lr)
        _check_number("weight_decay", group["weight_decay"])
        decoupled = group["decoupled_weight_decay"]
        if not (isinstance(decoupled, bool) or decoupled == "proximal"):
            raise ValueError(f"decoupled_weight_decay must be True, False or 'proximal', got {decoupled!r}")
        if group["fused"]:
            raise ValueError("fused=True: no fused kernel covers this optimizer yet; leave fused=None")
        if group["foreach"] and group["differentiable"]:
            raise ValueError("foreach=True cannot be differentiated through; leave foreach=None")
        if parts.geometry.matrices_only:
            for i, p in enumerate(group["params"]):
                if p.ndim < 2 or p.is_complex():
                    raise ValueError(
                        f"{type(parts.geometry).__name__} takes real matrices and convolution kernels, but "
                        f"{_name(group, i)} has shape {tuple(p.shape)} and dtype {p.dtype}; give such parameters to "
                        "another optimizer: see aimopt.groups.split and aimopt.groups.combine"
                    )
        self._warn_of_ell(group, parts)

    def _warn_of_ell(self, group: dict[str, Any], parts: Parts) -> None:
        ell = parts.correction.ell if isinstance(parts.correction, Residual) else None
        if self._warned_of_ell or ell is None or isinstance(group["lr"], Tensor) or torch.compiler.is_compiling():
            return
        lr = group["lr"] * parts.filter.gain
        if ell > lr:
            self._warned_of_ell = True
            warnings.warn(
                f"ell={ell:g} exceeds the learning rate {lr:g}; the theory needs ell ≤ lr. "
                "Use ell_ratio to let ell follow a learning-rate schedule. (Said once.)",
                stacklevel=2,
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step; `closure`, if given, evaluates the model and returns the loss, which is returned."""
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._must_skip():
                self.param_groups[0]["skipped_steps"] += 1
                return loss
            if self.diagnostics is not None:
                self.diagnostics.begin(len(self.param_groups))
            if self._evaluates_again():
                self._step_through(closure)
            else:
                for index, move in self._moves():
                    displacement = move.go()
                    if self.diagnostics is not None:
                        self.diagnostics.record(index, move, displacement)
            return loss

    def _moves(self) -> Iterator[tuple[int, Move]]:
        for index, group in enumerate(self.param_groups):
            params: list[Tensor] = []
            tensors: list[Tensor] = []
            self._init_group(group, torch.compiler.is_compiling(), params, tensors)
            if not params:
                continue
            parts = self._parts_of(group, index)
            names = ("step", *parts.buffers())
            states = [
                dict(zip(names, tensors[i : i + len(names)], strict=True)) for i in range(0, len(tensors), len(names))
            ]
            for same, t, many in _buckets(group, params, states):
                yield index, Move(parts, group, [params[i] for i in same], [states[i] for i in same], t, many=many)

    def _parts_of(self, group: dict[str, Any], index: int) -> Parts:
        if not torch.compiler.is_compiling():
            return Parts.from_group(group)
        parts, described = self._traced_parts[index]
        # torch.compile guards what is compared: a changed hyperparameter is then a reason to trace anew.
        assert all(group[name] == value for name, value in described.items())
        return parts

    def _init_group(self, group: dict[str, Any], compiling: bool, params: list[Tensor], tensors: list[Tensor]) -> None:
        """Fill the lists with the parameters of a group that have a gradient and, in turn, with their state.

        The name and the flat lists are what torch.compile expects: it runs this method instead of tracing it.
        """
        if compiling:
            self._traced_parts = [(p, p.to_group()) for p in map(Parts.from_group, self.param_groups)]
        parts = Parts.from_group(group)
        self._warn_of_ell(group, parts)
        buffers = parts.buffers()
        on_device = group["capturable"] or compiling
        for i, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients, and {_name(group, i)} has one; "
                    "make its layer with sparse=False or give it to torch.optim.SparseAdam"
                )
            state = self.state[p]
            if not buffers.keys() <= state.keys() or "step" not in state:
                with torch.no_grad():
                    self._fill(state, p, group, buffers, on_device)
            params.append(p)
            tensors.append(state["step"])
            tensors.extend(state[name] for name in buffers)

    @staticmethod
    def _fill(
        state: dict[str, Tensor], p: Tensor, group: dict[str, Any], buffers: dict[str, Initial], on_device: bool
    ) -> None:
        """Begin the state a parameter lacks: all of it at first, or what a part chosen later needs."""
        device = p.device if on_device else "cpu"
        state.setdefault("step", torch.zeros((), dtype=scalar_dtype(), device=device))
        assert p.grad is not None
        seen = gradient(working(p), working(p.grad), group)
        for name, initial in buffers.items():
            if name not in state:
                value = initial(seen)
                scalar = initial is scalar_one
                state[name] = value.to(device) if scalar else torch.view_as_complex(value) if p.is_complex() else value

    def _must_skip(self) -> bool:
        if not any(group["skip_nonfinite"] for group in self.param_groups):
            return False
        finite: dict[torch.device, list[Tensor]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.numel():
                    finite.setdefault(p.device, []).append(torch.linalg.vector_norm(p.grad, math.inf).isfinite())
        return not all(bool(torch.stack(on_device).all()) for on_device in finite.values())

    def _evaluates_again(self) -> bool:
        return any(
            group["correction"] == ExactQuadratic.__name__ or group.get("iterations", 1) > 1
            for group in self.param_groups
        )

    def _step_through(self, closure: Callable[[], Any] | None) -> None:
        if closure is None:
            raise ValueError(
                "this correction evaluates the gradient more than once a step: call step(closure) with a closure that "
                "clears the gradients, computes the loss, calls backward and returns the loss"
            )
        indexed = list(self._moves())
        moves = [move for _, move in indexed]
        exact = [isinstance(move.parts.correction, ExactQuadratic) for move in moves]
        if any(exact) and not all(exact):
            raise ValueError("ExactQuadratic solves for all parameters at once: give it to every parameter group")

        def evaluate() -> None:
            with torch.enable_grad():
                closure()

        if moves:
            (solve_quadratic if all(exact) else iterate)(moves, evaluate)
        for index, move in indexed:
            move.remember_gradient()
            if self.diagnostics is not None:
                assert move.start is not None
                self.diagnostics.record(index, move, move.start - move.p)

    def state_dict(self) -> dict[str, Any]:
        """torch's, readable by torch.optim.AdamW where the state is AdamW's."""
        return checkpoints.export(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer, or of another one that keeps the same state (see `checkpoints`)."""
        adapted: dict[str, Any] = {}

        def adapt(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            adapted.update(checkpoints.adapt(self, given))
            return adapted

        # Between the user's own hooks and torch's loading.
        before = self.register_load_state_dict_pre_hook(adapt)
        after = self.register_load_state_dict_post_hook(
            lambda _: checkpoints.restore_dtypes(self, adapted), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)


def _buckets(
    group: dict[str, Any], params: list[Tensor], states: list[dict[str, Tensor]]
) -> Iterator[tuple[list[int], Step, bool]]:
    """Count the step, and split a group into what can move together: (indices, step count, whether as a list)."""
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1)
    compiling = torch.compiler.is_compiling()
    on_device = group["capturable"] or compiling
    many = group["foreach"]
    if many is None:
        _, many = _default_to_fused_or_foreach(params, group["differentiable"] or compiling)
    if not many:
        for i, step in enumerate(steps):
            yield [i], step if on_device else step.item(), False
        return
    alike: dict[Any, list[int]] = {}
    for i, (p, step) in enumerate(zip(params, steps, strict=True)):
        alike.setdefault((p.device, p.dtype, None if on_device else step.item()), []).append(i)
    for (_, _, t), same in alike.items():
        yield same, cast(Tensor, TensorList([steps[i] for i in same])) if on_device else t, True


def _chosen(part: Any, axis: str, group: dict[str, Any]) -> Any:
    """A part as a group gives it: an object, or the name of one whose fields are in the group."""
    known = {"filter": Filter, "geometry": Geometry, "correction": Correction}[axis]
    if isinstance(part, str):
        return known.named(part, group)
    if not isinstance(part, known):
        raise ValueError(f"{axis} must be a {known.__name__}, such as those in aimopt, got {part!r}")
    return part


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number ≥ 0, got {value!r}")


def _name(group: dict[str, Any], i: int) -> str:
    names = group.get("param_names")
    return f"parameter {names[i]!r}" if names else f"parameter {i} of its group"
