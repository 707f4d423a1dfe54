"""AIM: the one optimizer class, composed of a filter, a geometry and a correction.

    AIM(params, 1e-3, filter=EMA(0.9), geometry=Adaptive(0.999))                              Adam
    AIM(params, 1e-3, filter=GradientDifference(), geometry=Relativistic(),
        correction=FixedPoint(ell_ratio=0.01))                                                RADAR
    AIM(params, 0.02, filter=EMA(), geometry=Spectral(), correction=Secant())                 a cell nobody has named

`AIM.step` gathers the parameters of each group (`gathering.py`), lets a kernel step those it can (`kernels/`), makes
moves of the rest (`moves.py`) and lets these go; that is all.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_, itemgetter
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from aimopt import checkpoints
from aimopt.calling import explained
from aimopt.checks import SWITCHES, check_group, check_joint, check_part, check_step_values, check_tensor_lr
from aimopt.components import Correction, Filter, Geometry, Initial, Parts
from aimopt.corrections import Direct, Residual
from aimopt.diagnostics import Diagnostics
from aimopt.gathering import Gathered, begin, buckets, uncounted
from aimopt.kernels import FusedGroup, reads_found_inf
from aimopt.kernels.memory import Checked, GroupMemory
from aimopt.kernels.usable import refusal, refuse_unusable, watched
from aimopt.moves import Attempt, iterate, solve_quadratic

DIRECT = Direct()


class Execution(TypedDict, total=False):
    """How a step is carried out; see `AIM`."""

    maximize: bool
    foreach: bool | None
    fused: bool | None
    state_dtype: str | torch.dtype | None
    stochastic_rounding: bool
    capturable: bool
    differentiable: bool
    skip_nonfinite: bool


class NonFinite(Exception):
    """A later evaluation of the closure gave a gradient that `skip_nonfinite` is to skip."""


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
        fused: one pass over memory for the whole step. None fuses what can be fused, unless `foreach` is given; True
            refuses what cannot, and takes a GradScaler's scale in the same pass.
        state_dtype: "bfloat16" keeps the state in half the memory. None keeps it in the dtype of the parameter, and in
            float32 for 16-bit parameters. Complex parameters keep complex state.
        stochastic_rounding: round what is kept in 16 bits, parameters or state, up or down by chance, so that small
            updates are not lost; False rounds to the nearest.
        capturable: keep step counts on the device, so that the step can be captured in a CUDA graph.
        differentiable: let autograd record the step.
        skip_nonfinite: skip a step whole, state untouched, when any gradient is infinite or NaN; `skipped_steps` of
            the first group counts them. This reads the gradients, so it waits for the device.
    """

    _traced_parts: list[tuple[Parts, dict[str, Any]]]
    _warned_of_ell = False

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
        state_dtype: str | torch.dtype | None = None,
        stochastic_rounding: bool = True,
        capturable: bool = False,
        differentiable: bool = False,
        skip_nonfinite: bool = False,
    ):
        check_tensor_lr(lr)
        chosen = {"filter": filter, "geometry": geometry, "correction": correction}
        parts = Parts(**{axis: check_part(part, axis) for axis, part in chosen.items()})
        defaults = {
            "lr": lr,
            **parts.to_group(),
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "state_dtype": str(state_dtype).removeprefix("torch.") if state_dtype is not None else None,
            "stochastic_rounding": stochastic_rounding,
            "capturable": capturable,
            "differentiable": differentiable,
            "skip_nonfinite": skip_nonfinite,
            "skipped_steps": 0,
        }
        self.observers: list[Diagnostics] = []
        self._fused: dict[int, FusedGroup] = {}
        self._memory: dict[int, GroupMemory] = {}
        self._begun: list[tuple[Tensor, list[str]]] = []  # what this step has added to the state of parameters
        self._checked_values: dict[int, tuple[Any, ...]] = {}
        super().__init__(params, defaults)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = _spelled_out(cls)  # type: ignore[attr-defined]
        cls.__init__ = explained(cls.__init__, AIM.__subclasses__)  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it may give its own parts (`geometry=Spectral()`) and its own hyperparameters."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group must be a dict with the key 'params', got {type(param_group).__name__}")
        group = {**self.defaults, **self._parts_given(param_group).to_group()}
        group |= {name: value for name, value in param_group.items() if name not in Parts._fields}
        super().add_param_group(group)
        try:
            check_group(self.param_groups[-1], self.param_groups[:-1])
            self._warn_of_ell(self.param_groups[-1], Parts.from_group(self.param_groups[-1]))
        except BaseException:
            self.param_groups.pop()
            raise

    def _parts_given(self, group: dict[str, Any]) -> Parts:
        if all(isinstance(group.get(axis), str) for axis in Parts._fields):
            return Parts.from_group(group)  # a group of another optimizer, which says everything itself
        default = Parts.from_group(self.defaults)._asdict()
        return Parts(**{axis: check_part(group.get(axis, default[axis]), axis) for axis in Parts._fields})

    def _warn_of_ell(self, group: dict[str, Any], parts: Parts) -> None:
        if self._warned_of_ell or not isinstance(parts.correction, Residual):
            return
        if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
            return  # comparing would wait for the device
        lr = float(group["lr"].detach() if isinstance(group["lr"], Tensor) else group["lr"]) * parts.filter.gain
        ell = parts.correction.ell_at(lr, parts.filter.pole)
        if ell > lr:
            self._warned_of_ell = True
            warnings.warn(
                f"ell={ell:g} exceeds the learning rate {lr:g}; the theory needs ell ≤ lr. "
                "Use ell_ratio ≤ 1 to let ell follow a learning-rate schedule. (Said once.)",
                stacklevel=2,
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step; `closure`, if given, evaluates the model and returns the loss, which is returned."""
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._found_inf():
                return loss
            if self._must_skip():
                self.param_groups[0]["skipped_steps"] += 1
                return loss
            prepared = self._prepare()
            if _evaluates_again(group.parts for group, _ in prepared):
                self._step_through([group for group, _ in prepared], closure)
            else:
                self._step_groups(prepared)
            for observer in self.observers:
                observer.end()
            return loss

    def _prepare(self) -> "list[tuple[Gathered, FusedGroup | None]]":
        """Each group, and the kernel that takes what it can of it. Nothing has changed if this raises."""
        groups = list(enumerate(self.param_groups))
        if torch.compiler.is_compiling():
            return [(self._gather(index, group), None) for index, group in groups]
        try:
            for index, group in groups:
                self._check_values(index, group)
            checked = [self._check(self._gather(index, group)) for index, group in groups]
            for observer in self.observers:
                observer.begin(len(checked))
            if _evaluates_again(group.gathered.parts for group in checked):
                return [(group.gathered, None) for group in checked]
            return [(group.gathered, self._kernel_for(group)) for group in checked]
        except BaseException:
            for p, added in self._begun:
                kept = {name: value for name, value in self.state.pop(p, {}).items() if name not in added}
                if kept:
                    self.state[p] = kept
            for kernel in self._fused.values():
                kernel.forget()
            raise
        finally:
            self._begun.clear()

    def _check_values(self, index: int, group: dict[str, Any]) -> None:
        """Refuse values that were put into a group since it was made; quick where they are those of the last step."""
        try:
            lr, values = group["lr"], _STEP_VALUES(group)
            if isinstance(lr, Tensor):
                check_tensor_lr(lr)
            elif self._checked_values.get(index) == (lr, values):
                return
            check_step_values(group)
        except (KeyError, ValueError) as error:
            lacking = f"it has no {error}; put it back" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{type(self).__name__}.step: group {index}: {lacking}") from None
        self._checked_values[index] = lr, values

    def _check(self, gathered: Gathered) -> Checked:
        return self._memory.setdefault(gathered.position, GroupMemory()).check(gathered, type(self).__name__)

    def _gather(self, index: int, group: dict[str, Any]) -> Gathered:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        state: list[Tensor] = []
        self._init_group(group, torch.compiler.is_compiling(), params, grads, state)
        parts = self._parts_of(group, index)
        first = sum(len(before["params"]) for before in self.param_groups[:index])
        if len(params) == len(group["params"]):
            ranks = list(range(first, first + len(params)))
        else:
            ranks = [i for i, p in enumerate(group["params"], start=first) if p.grad is not None]
        return Gathered(index, first, group, parts, params, grads, ranks, state)

    def _kernel_for(self, checked: Checked) -> FusedGroup | None:
        """The kernel of a group, which has located the parameters that it can step."""
        gathered = checked.gathered
        if not self._may_fuse(gathered):
            return None
        why, first = watched(), 0
        if why is None:
            kernel = self._fused.setdefault(gathered.position, FusedGroup())
            kernel.locate(checked, scaled=getattr(self, "grad_scale", None) is not None)
            if not (gathered.group["fused"] and kernel.unreachable):
                return kernel
            why = kernel.off or "its memory has gaps, or its state or gradient is of another kind or elsewhere"
            first = kernel.unreachable[0]
        if not gathered.group["fused"]:
            return None
        name = gathered.name_of(first)
        raise RuntimeError(
            f"{type(self).__name__}.step: fused=True, but no kernel reaches {name} ({why}); leave fused=None"
        )

    def _step_groups(self, prepared: "list[tuple[Gathered, FusedGroup | None]]") -> None:
        ran_other_code = False
        for gathered, kernel in prepared:
            if kernel is not None and ran_other_code:
                # What is not fused may be a user's code, which can do anything to the tensors of later groups.
                kernel = self._kernel_for(self._check(gathered))
            others = self._run_kernel(gathered, kernel) if kernel is not None else gathered
            ran_other_code = ran_other_code or bool(others.params)
            for bucket in buckets(others, getattr(self, "grad_scale", None)):
                move = bucket.move()
                displacement = move.go()
                bucket.store_params(move)
                bucket.store_state(move)
                for observer in self.observers:
                    observer.record(others.position, move, displacement)

    def _run_kernel(self, gathered: Gathered, kernel: FusedGroup) -> Gathered:
        """Step what the kernel has located, and return the others."""
        scaling = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        refused = kernel.run(gathered.group["lr"], *scaling)
        if refused is not None:
            reason = uncounted(gathered.states()[refused]["step"])
            raise refusal(gathered, refused, type(self).__name__, reason)
        return gathered.only(kernel.unreachable)

    def _may_fuse(self, gathered: Gathered) -> bool:
        group = gathered.group
        if group["differentiable"] or not gathered.params or any(observer.active for observer in self.observers):
            return False
        return group["fused"] is True or (group["fused"] is None and group["foreach"] is None)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler may leave unscaling to the step, in `grad_scale` and `found_inf`."""
        return all(group["fused"] is True for group in self.param_groups)

    def _found_inf(self) -> bool:
        """Whether a GradScaler found a gradient that is not finite, where the kernels do not see to it themselves."""
        found = getattr(self, "found_inf", None)
        return found is not None and not self._kernels_heed_found_inf() and bool(found)

    def _kernels_heed_found_inf(self) -> bool:
        """Whether all of this step is for kernels that read `found_inf` on the device, so that nothing waits for it."""
        if self.observers:
            return False
        return all(
            group["fused"] and group["capturable"] and reads_found_inf(p) and (p in self.state or p.grad is None)
            for group in self.param_groups
            for p in group["params"]
        )

    def _parts_of(self, group: dict[str, Any], index: int) -> Parts:
        if not torch.compiler.is_compiling():
            return Parts.from_group(group)
        parts, described = self._traced_parts[index]
        # torch.compile guards what is compared: a changed hyperparameter is then a reason to trace anew.
        if not all(group[name] == value for name, value in described.items()):
            raise AssertionError("the traced parts are those of the group")
        return parts

    def _init_group(
        self,
        group: dict[str, Any],
        compiling: bool,
        params: list[Tensor],
        grads: list[Tensor],
        tensors: list[Tensor],
    ) -> None:
        """Fill the lists with the parameters of a group that have a gradient, with that, and in turn with their state.

        The name and the flat lists are what torch.compile expects: it runs this method instead of tracing it.
        """
        parts = Parts.from_group(group)
        if compiling:
            self._traced_parts = [(p, p.to_group()) for p in map(Parts.from_group, self.param_groups)]
        else:
            self._warn_of_ell(group, parts)
        buffers = parts.buffers()
        # List by list rather than parameter by parameter: with many small tensors this is most of a fused step.
        found = [p.grad for p in group["params"]]
        grads += [grad for grad in found if grad is not None]
        complete = len(grads) == len(found)
        params += group["params"] if complete else [p for p in group["params"] if p.grad is not None]
        state_of = itemgetter("step", *buffers) if buffers else lambda state: (state["step"],)
        try:
            tensors += list(chain.from_iterable(map(state_of, self._states_of(params))))
        except (KeyError, TypeError, IndexError):
            self._begin_state(group, buffers, compiling)
            tensors += list(chain.from_iterable(map(state_of, map(self.state.__getitem__, params))))

    def _states_of(self, params: list[Tensor]) -> Iterable[dict[str, Any]]:
        """The state of parameters, which is mostly there in their order, so that none needs to be looked up."""
        if len(self.state) == len(params) and all(map(is_, self.state, params)):
            return self.state.values()
        return map(self.state.__getitem__, params)

    def _begin_state(self, group: dict[str, Any], buffers: dict[str, Initial], compiling: bool) -> None:
        """Begin the state that parameters with a gradient lack."""
        index = next(i for i, own in enumerate(self.param_groups) if own is group)
        gathered = Gathered.without_state(index, group)
        for i, p in enumerate(gathered.params):
            state = self.state.setdefault(p, {})
            if not isinstance(state, dict):
                reason = f"its state is a {type(state).__name__}, not a dict; delete it (del optimizer.state[p])"
                raise refusal(gathered, i, type(self).__name__, reason)
            self._begun.append((p, [name for name in ("step", *buffers) if name not in state]))
        if not compiling:
            refuse_unusable(gathered, type(self).__name__)
        for p in gathered.params:
            scalars = p.device if group["capturable"] or compiling else torch.device("cpu")
            begin(self.state[p], p, group, buffers, scalars, getattr(self, "grad_scale", None))

    def _must_skip(self) -> bool:
        if not any(group["skip_nonfinite"] for group in self.param_groups):
            return False
        if not torch.compiler.is_compiling():
            for index, group in enumerate(self.param_groups):
                refuse_unusable(Gathered.without_state(index, group), type(self).__name__)
        finite: dict[torch.device, list[Tensor]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.numel():
                    finite.setdefault(p.device, []).append(torch.linalg.vector_norm(p.grad, math.inf).isfinite())
        return not all(bool(torch.stack(on_device).all()) for on_device in finite.values())

    def _step_through(self, gathered: list[Gathered], closure: Callable[[], Any] | None) -> None:
        """A step whose corrections evaluate the closure again; one that fails leaves everything as it was."""
        if closure is None:
            raise ValueError(
                "this correction evaluates the gradient more than once a step: call step(closure) with a closure that "
                "clears the gradients, computes the loss, calls backward and returns the loss"
            )
        check_joint([g.parts for g in gathered])

        def evaluate() -> None:
            with torch.enable_grad():
                closure()
            for group in gathered:
                present = [torch.zeros_like(p) if p.grad is None else p.grad for p in group.params]
                refuse_unusable(group._replace(grads=present), type(self).__name__)
            if self._must_skip():
                raise NonFinite

        indexed: list[tuple[int, Attempt]] = []
        try:
            indexed += [
                (group.position, Attempt(bucket))
                for group in gathered
                for bucket in buckets(group, getattr(self, "grad_scale", None))
            ]
            attempts = [attempt for _, attempt in indexed]
            for attempt in attempts:
                attempt.begin()
            if attempts:
                (solve_quadratic if gathered[0].parts.correction.joint else iterate)(attempts, evaluate)
        except BaseException as error:
            for _, attempt in indexed:
                attempt.undo()
            if not isinstance(error, NonFinite):
                raise
            self.param_groups[0]["skipped_steps"] += 1
            return
        for index, attempt in indexed:
            attempt.finish()
            for observer in self.observers:
                observer.record(index, attempt.move, attempt.displaced)

    def state_dict(self) -> dict[str, Any]:
        """torch's, readable by torch.optim.AdamW where the state is AdamW's."""
        before = self.register_state_dict_post_hook(lambda _, state_dict: checkpoints.export(state_dict), prepend=True)
        try:
            return super().state_dict()
        finally:
            before.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer, or of another one that keeps the same state (see `checkpoints`)."""
        if not isinstance(state_dict, dict):
            checkpoints.refuse_as_state_dict(state_dict)
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
        self.__dict__.setdefault("observers", [])
        self._fused, self._memory, self._begun, self._checked_values = {}, {}, [], {}
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)


_STEP_VALUES = itemgetter("weight_decay", *SWITCHES)


def _evaluates_again(of_groups: Iterable[Parts]) -> bool:
    return any(parts.correction.joint or parts.correction.evaluations > 1 for parts in of_groups)


def _spelled_out(optimizer: type[AIM]) -> inspect.Signature:
    """The signature of a named optimizer, with the keywords of `Execution` in place of **execution."""
    own = list(inspect.signature(optimizer.__init__).parameters.values())[1:]
    if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD:
        of_aim = inspect.signature(AIM.__init__).parameters
        own[-1:] = [of_aim[name] for name in Execution.__annotations__]
    return inspect.Signature(own)
