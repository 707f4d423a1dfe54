"""The step of all parameter groups, in the order in which it happens.

    gather     the parameters of each group that have a gradient, and their state (`step/gather.py`)
    check      the memory of all these tensors (`kernels/memory.py`); nothing has changed yet if the step is refused
    locate     the parameters that a kernel can reach (`kernels/choice.py`)
    step       those with their kernel, and the others one `Move` after the other (`step/move.py`)

A step count is checked with its memory when the tensor is new. If a user changes one in place, it is found when its
group is stepped, after earlier groups have moved: to read all counts at every step would make small steps slower.

Corrections that evaluate the closure again are run by `step/reevaluate.py`.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aimopt import checks
from aimopt.diagnostics import Diagnostics
from aimopt.kernels import FusedGroup, reads_found_inf, why_not_sharded, works_on_shards
from aimopt.kernels.choice import GroupKernels
from aimopt.kernels.memory import CheckedGroup
from aimopt.light_optimizer import LightOptimizer
from aimopt.parts.composition import Parts, parts_of_groups
from aimopt.step.begin import AddedState, begin_state, remove_state
from aimopt.step.gather import Gathered, buckets, refusal
from aimopt.step.quantization import state_keys
from aimopt.step.reevaluate import NonFinite, reevaluate
from aimopt.step.shards import (
    Origin,
    agree_on_gradients,
    any_distributed,
    is_distributed,
    origin_of,
    trains_together,
    with_placement_of,
)
from aimopt.step.usable import has_nonfinite_gradient, refuse_unusable

if TYPE_CHECKING:
    from aimopt.backward import InBackward


class SteppingOptimizer(LightOptimizer):
    """An optimizer whose parameter groups describe their parts, and how it steps them; `AIM` makes the groups."""

    observers: list[Diagnostics]
    _traced_parts: list[tuple[Parts, dict[str, Any]]]
    _traced_origins: list[list[Origin | None]]
    _warned_about_ell = False
    _in_backward: "InBackward | None" = None  # if given, it steps the parameters, and `step` ends the step

    def _reset_caches(self) -> None:
        self._kernels = GroupKernels(type(self).__name__)
        self._added_state: AddedState = []  # by this step
        self._group_values = checks.GroupValues(type(self).__name__)
        self._lock = RLock()  # steps of several threads take turns: they share addresses and numbers for the kernels

    def _warn_about_ell(self, group: dict[str, Any], parts: Parts) -> None:
        if not self._warned_about_ell and (warning := checks.warning_about_ell(group, parts)):
            self._warned_about_ell = True
            warnings.warn(warning, stacklevel=2)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step. `closure`, if given, evaluates the model and returns the loss, which is returned here."""
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            loss = None
            if closure is not None:
                checks.check_callable(closure, type(self).__name__)
                with torch.enable_grad():
                    loss = closure()
            if self._in_backward is not None:
                self._in_backward.complete()
                return loss
            if self._found_inf():
                return loss
            if not torch.compiler.is_compiling():
                self._group_values.check(self.param_groups)
                if trains_together():
                    agree_on_gradients(self._params_stepped_together())
            if self._must_skip():
                self.param_groups[0]["skipped_steps"] += 1
                return loss
            with contextlib.nullcontext() if torch.compiler.is_compiling() else self._lock:
                prepared = self._prepare()
                if any_evaluates_again(group.parts for group, _ in prepared):
                    self._step_with_closure([group for group, _ in prepared], closure)
                else:
                    self._step_groups(prepared)
                for observer in self.observers:
                    observer.end()
            return loss

    def _params_stepped_together(self) -> Iterator[Tensor]:
        """The distributed parameters whose step needs the other ranks, to gather matrices or to add up norms."""
        all_parts = parts_of_groups(self.param_groups, f"{type(self).__name__}.step")
        for group, parts in zip(self.param_groups, all_parts, strict=True):
            if any_distributed(group["params"]) and (parts.geometry.matrices_only or not works_on_shards(parts, group)):
                yield from filter(is_distributed, group["params"])

    def _step_parameters(self, positions: Mapping[int, Sequence[int]]) -> None:
        """Step the parameters at these positions, per group, while others still wait for their gradients.

        The caller tells the observers where a step begins and ends.
        """
        with torch.no_grad(), self._lock:
            self._group_values.check(self.param_groups, positions)
            self._step_groups(self._prepare(positions))

    def _prepare(
        self, positions: Mapping[int, Sequence[int]] | None = None
    ) -> "list[tuple[Gathered, FusedGroup | None]]":
        """Each group, and the kernel for the parameters that it can reach. Nothing has changed if this raises."""
        groups = [(i, group) for i, group in enumerate(self.param_groups) if positions is None or i in positions]
        if torch.compiler.is_compiling():
            return [(self._gather(index, group), None) for index, group in groups]
        try:
            chosen = {} if positions is None else positions
            checked = [self._kernels.check(self._gather(index, group, chosen.get(index))) for index, group in groups]
            if positions is None:
                for observer in self.observers:
                    observer.begin(len(checked))
            if any_evaluates_again(group.gathered.parts for group in checked):
                return [(group.gathered, None) for group in checked]
            return [(group.gathered, self._kernel_for(group)) for group in checked]
        except BaseException:
            remove_state(self.state, self._added_state)
            self._kernels.release_tensors()
            raise
        finally:
            self._added_state.clear()

    def _gather(self, index: int, group: dict[str, Any], positions: Sequence[int] | None = None) -> Gathered:
        """The parameters of a group that have a gradient, or of those at `positions`, which all have one."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        state: list[Tensor] = []
        chosen = group if positions is None else {**group, "params": [group["params"][i] for i in positions]}
        if torch.compiler.is_compiling():
            self._init_group(chosen, params, grads, state)
            parts = self._traced_parts_of(group, index)
        else:
            try:
                parts = Parts.from_group(group)
                self._warn_about_ell(group, parts)
                self._collect(chosen, parts, params, grads, state, self._added_state)
            except ValueError as error:  # about hyperparameters of its parts
                raise self._group_values.error(index, error) from None
        first = sum(len(before["params"]) for before in self.param_groups[:index])
        if positions is not None:
            indices = [first + i for i in positions]
        elif len(params) == len(group["params"]):
            indices = list(range(first, first + len(params)))
        else:
            indices = [i for i, p in enumerate(group["params"], start=first) if p.grad is not None]
        if any_distributed(params):
            grads = list(map(with_placement_of, params, grads))
        gathered = Gathered(index, first, group, parts, params, grads, indices, state)
        if torch.compiler.is_compiling():
            return gathered._replace(origins=self._traced_origins[index])
        if parts.geometry.matrices_only and any_distributed(params) and (reason := why_not_sharded(parts, group)):
            raise refusal(gathered, 0, type(self).__name__, reason)
        return gathered

    def _kernel_for(self, checked: CheckedGroup) -> FusedGroup | None:
        if any(observer.active for observer in self.observers):
            return None
        return self._kernels.locate(checked, scaled=getattr(self, "grad_scale", None) is not None)

    def _step_groups(self, prepared: "list[tuple[Gathered, FusedGroup | None]]") -> None:
        if torch.compiler.is_compiling():
            for gathered, _ in prepared:
                self._step_unfused(gathered)
            return
        ran_other_code = False
        scaling = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        try:
            for gathered, kernel in prepared:
                if kernel is not None and ran_other_code:
                    # The unfused step may run a user's code, which can do anything to the tensors of later groups.
                    kernel = self._kernel_for(self._kernels.check(gathered))
                unfused = self._kernels.run(gathered, kernel, *scaling) if kernel is not None else gathered
                if unfused is not None:
                    self._step_unfused(unfused)
                    ran_other_code = ran_other_code or bool(unfused.params)
        finally:
            self._kernels.release_tensors()  # of the groups after one that failed

    def _step_unfused(self, gathered: Gathered) -> None:
        """Step parameters that no kernel steps, one `Move` after the other."""
        if any_distributed(gathered.params) and not torch.compiler.is_compiling():
            gathered = gathered.localize() if works_on_shards(gathered.parts, gathered.group) else gathered
        for bucket in buckets(gathered, type(self).__name__, getattr(self, "grad_scale", None)):
            move = bucket.move()
            displacement = move.go()
            bucket.store_params(move)
            bucket.store_state(move)
            for observer in self.observers:
                observer.record(gathered.group_index, move, displacement, bucket.places)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler may leave unscaling to the step: it then sets `grad_scale` and `found_inf`."""
        if self._in_backward is not None:
            self._in_backward.refuse_scaler()
        return all(group["fused"] is True for group in self.param_groups)

    def _found_inf(self) -> bool:
        """Whether a GradScaler found an infinite gradient, and the kernels do not check that themselves."""
        found_inf = getattr(self, "found_inf", None)
        return found_inf is not None and not self._kernels_check_found_inf() and bool(found_inf)

    def _kernels_check_found_inf(self) -> bool:
        """Whether kernels make the whole step and read `found_inf` on the device, so that nothing waits for it."""
        if self.observers:
            return False
        return all(
            group["fused"] and group["capturable"] and reads_found_inf(p) and (p in self.state or p.grad is None)
            for group in self.param_groups
            for p in group["params"]
        )

    def _traced_parts_of(self, group: dict[str, Any], index: int) -> Parts:
        parts, traced_values = self._traced_parts[index]
        # torch.compile guards every comparison: so a changed hyperparameter makes it trace again.
        if not all(group[name] == value for name, value in traced_values.items()):
            raise AssertionError("the traced parts are those of the group")
        return parts

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], tensors: list[Tensor]
    ) -> None:
        """`_collect` under torch.compile, which expects this name and these flat lists, and runs it without tracing."""
        self._traced_parts = [(p, p.to_group()) for p in map(Parts.from_group, self.param_groups)]
        self._traced_origins = [[origin_of(p) for p in g["params"] if p.grad is not None] for g in self.param_groups]
        # `_prepare` is traced: it neither clears a list of added state nor uses it.
        self._collect(group, Parts.from_group(group), params, grads, tensors, [], compiling=True)

    def _collect(
        self,
        group: dict[str, Any],
        parts: Parts,
        params: list[Tensor],
        grads: list[Tensor],
        tensors: list[Tensor],
        added: AddedState,
        *,
        compiling: bool = False,
    ) -> None:
        """Fill the lists with the parameters of a group that have a gradient, their gradients, and their state."""
        # List by list rather than parameter by parameter: with many small tensors this is most of a fused step.
        grads_or_none = [p.grad for p in group["params"]]
        grads += [grad for grad in grads_or_none if grad is not None]
        complete = len(grads) == len(grads_or_none)
        params += group["params"] if complete else [p for p in group["params"] if p.grad is not None]
        keys = state_keys(parts.buffers(), group)
        state_of = itemgetter(*keys) if len(keys) > 1 else lambda state: (state["step"],)
        try:
            tensors += list(chain.from_iterable(map(state_of, self._states_of(params))))
        except (KeyError, TypeError, IndexError):
            try:
                begin_state(
                    self.param_groups,
                    params,
                    self.state,
                    added,
                    optimizer=type(self).__name__,
                    grad_scale=getattr(self, "grad_scale", None),
                    compiling=compiling,
                )
            except BaseException:
                remove_state(self.state, added)
                raise
            tensors += list(chain.from_iterable(map(state_of, map(self.state.__getitem__, params))))

    def _states_of(self, params: list[Tensor]) -> Iterable[dict[str, Any]]:
        """The state of each parameter. It is usually stored in their order, so that no lookup is needed."""
        if len(self.state) == len(params) and all(map(is_, self.state, params)):
            return self.state.values()
        return map(self.state.__getitem__, params)

    def _must_skip(self) -> bool:
        if not any(group["skip_nonfinite"] for group in self.param_groups):
            return False
        if not torch.compiler.is_compiling():
            parts_of_groups(self.param_groups, f"{type(self).__name__}.step")  # refuses an invalid group
            for index, group in enumerate(self.param_groups):
                refuse_unusable(Gathered.gradients_only(index, group), type(self).__name__)
        return has_nonfinite_gradient(self.param_groups)

    def _step_with_closure(self, gathered: list[Gathered], closure: Callable[[], Any] | None) -> None:
        """A step with corrections that evaluate the closure again. If it fails, everything is as before."""
        closure = checks.check_closure(closure, gathered, type(self).__name__)
        checks.check_joint([g.parts for g in gathered])

        def evaluate() -> None:
            with torch.enable_grad():
                closure()
            for group in gathered:
                present = [torch.zeros_like(p) if p.grad is None else p.grad for p in group.params]
                refuse_unusable(group._replace(grads=present), type(self).__name__)
            if self._must_skip():
                raise NonFinite

        name, grad_scale = type(self).__name__, getattr(self, "grad_scale", None)
        try:
            attempts = reevaluate(
                ((g.group_index, bucket) for g in gathered for bucket in buckets(g, name, grad_scale)), evaluate
            )
        except NonFinite:
            self.param_groups[0]["skipped_steps"] += 1
            return
        for index, attempt in attempts:
            for observer in self.observers:
                observer.record(index, attempt.move, attempt.displacement)


def any_evaluates_again(parts_of_groups: Iterable[Parts]) -> bool:
    """Whether one of these has a correction that evaluates the closure again."""
    return any(parts.correction.evaluates_again for parts in parts_of_groups)
