"""AIM: the one optimizer class, composed of a filter, a geometry, a correction, a decay and an iterate.

    AIM(params, 1e-3, filter=EMA(0.9), geometry=Adaptive(0.999))                              Adam
    AIM(params, 1e-3, filter=GradientDifference(), geometry=Relativistic(),
        correction=FixedPoint(ell_ratio=0.01))                                                RADAR
    AIM(params, 0.02, filter=EMA(), geometry=Spectral(), correction=Secant(),
        decay=CautiousDecay(0.1), iterate=Average(0.999))                                     a new combination

`AIM.step` gathers the parameters of each group (`step/gather.py`), steps those that a kernel can reach with that kernel
(`kernels/`), and the others one `Move` after the other (`step/move.py`). Corrections that evaluate the closure again
are run by `step/reevaluate.py`.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from aimopt import checkpoints, checks, new_groups
from aimopt.diagnostics import Diagnostics
from aimopt.kernels import FusedGroup, reads_found_inf, why_not_sharded, works_on_shards
from aimopt.kernels.choice import GroupKernels
from aimopt.kernels.memory import CheckedGroup
from aimopt.light_optimizer import LightOptimizer
from aimopt.messages.calling import naming, naming_errors, with_named_errors
from aimopt.parts.component import Correction, Decay, Filter, Geometry, Iterate
from aimopt.parts.composition import Parts
from aimopt.parts.corrections import Direct
from aimopt.parts.decays import chosen_decay
from aimopt.parts.iterates import Last
from aimopt.parts.text import part_from_text
from aimopt.step import evaluation
from aimopt.step.begin import AddedState, begin_state, remove_state
from aimopt.step.evaluation import TRAIN_MODE
from aimopt.step.gather import Gathered, buckets, refusal
from aimopt.step.options import Execution, documented, expanded_signature, with_defaults
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

DIRECT = Direct()


class AIM(LightOptimizer):
    """A torch optimizer that composes any filter, geometry, correction, decay and iterate.

    Args:
        params: parameters, named parameters, or groups. A group may override every hyperparameter and every part.
        lr: η, a number or a one-element tensor.
        filter: the momentum filter; like every part also as a text, such as "EMA(0.9)", for config files.
        geometry: the residual geometry.
        correction: the θ-step correction.
        weight_decay: the decay coefficient, of a `decay` that has none of its own.
        decoupled_weight_decay: the kind of decay, if `decay` is None: True decays θ ← θ·(1−η·wd) before the step, False
            adds wd·θ to the gradient, "proximal" divides by 1+η·wd after the step.
        decay: the weight decay or constraint, or its name; None is what `decoupled_weight_decay` says.
        iterate: the sequence of points that the steps make, or its name; None is the parameters themselves.
    """

    # Keywords that came after runs were published. A run names one of them only if it gives it another value.
    later_keywords: ClassVar[tuple[str, ...]] = ("decay", "iterate")
    _traced_parts: list[tuple[Parts, dict[str, Any]]]
    _traced_origins: list[list[Origin | None]]
    _warned_about_ell = False
    _in_backward: "InBackward | None" = None  # if given, it steps the parameters, and `step` ends the step

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        *,
        filter: Filter | str,
        geometry: Geometry | str,
        correction: Correction | str = DIRECT,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool | str = True,
        decay: Decay | str | None = None,
        iterate: Iterate | str | None = None,
        **execution: Unpack[Execution],
    ):
        options = with_defaults(execution)
        checks.check_tensor_lr(lr)
        parts = Parts(
            _given_part(filter, "filter"),
            _given_part(geometry, "geometry"),
            _given_part(correction, "correction"),
            chosen_decay(None if decay is None else _given_part(decay, "decay"), weight_decay, decoupled_weight_decay),
            _given_part(Last() if iterate is None else iterate, "iterate"),
        )
        defaults = {"lr": lr, **parts.to_group(), **options, "skipped_steps": 0, TRAIN_MODE: True}
        self.observers: list[Diagnostics] = []
        self._reset_caches()
        super().__init__(new_groups.listed_params(params), defaults)

    def _reset_caches(self) -> None:
        self._kernels = GroupKernels(type(self).__name__)
        self._added_state: AddedState = []  # by this step
        self._group_values = checks.GroupValues(type(self).__name__)
        self._lock = RLock()  # steps of several threads take turns: they share addresses and numbers for the kernels

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = expanded_signature(cls.__init__)  # type: ignore[attr-defined]
        cls.__doc__ = documented(cls.__doc__)
        cls.__init__ = with_named_errors(cls.__init__, AIM.__subclasses__, Parts._fields)  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. It may have its own parts (`geometry=Spectral()`) and its own hyperparameters."""
        count = len(self.param_groups)
        try:
            group = new_groups.check_group_params(param_group, self.param_groups, self.defaults["differentiable"])
            group, warning = new_groups.complete_group(group, self.defaults)
            if warning:
                warnings.warn(f"{type(self).__name__}: {warning}", stacklevel=2)
            names = {*group}
            super().add_param_group(group)
            for name in self.param_groups[-1].keys() & (self.defaults.keys() - names):
                del self.param_groups[-1][name]  # torch has added the hyperparameters of the default parts
            checks.check_group(self.param_groups[-1], self.param_groups[:-1])
            self._warn_about_ell(self.param_groups[-1], Parts.from_group(self.param_groups[-1]))
        except BaseException as error:
            del self.param_groups[count:]
            if isinstance(error, (TypeError, ValueError)):
                error.args = (naming(type(self), str(error)),)
            raise

    def let_schedulers_write_momentum(self) -> None:
        """Let schedulers that cycle momentum write `momentum` to all groups, because some of them have no `betas`.

        OneCycleLR and CyclicLR look for `betas` in the defaults. If it is there, they write it to all groups.
        """
        new_groups.let_schedulers_write_momentum(self.defaults)

    def _warn_about_ell(self, group: dict[str, Any], parts: Parts) -> None:
        if not self._warned_about_ell and (warning := checks.warning_about_ell(group, parts)):
            self._warned_about_ell = True
            warnings.warn(warning, stacklevel=2)

    @property
    def needs_closure(self) -> bool:
        """Whether `step` must be given a closure, because a correction evaluates it again."""
        return _any_evaluates_again(map(Parts.from_group, self.param_groups))

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
                if _any_evaluates_again(group.parts for group, _ in prepared):
                    self._step_with_closure([group for group, _ in prepared], closure)
                else:
                    self._step_groups(prepared)
                for observer in self.observers:
                    observer.end()
            return loss

    def _params_stepped_together(self) -> Iterator[Tensor]:
        """The distributed parameters whose step needs the other ranks, to gather matrices or to add up norms."""
        for index, group in enumerate(self.param_groups):
            if any_distributed(group["params"]):
                try:
                    parts = Parts.from_group(group)
                except ValueError as error:
                    raise self._group_values.error(index, error) from None
                if parts.geometry.matrices_only or not works_on_shards(parts, group):
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
            if _any_evaluates_again(group.gathered.parts for group in checked):
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
        try:
            self._init_group(chosen, torch.compiler.is_compiling(), params, grads, state)
        except ValueError as error:  # about hyperparameters of its parts
            raise self._group_values.error(index, error) from None
        parts = self._parts_of(group, index)
        first = sum(len(before["params"]) for before in self.param_groups[:index])
        if positions is not None:
            ranks = [first + i for i in positions]
        elif len(params) == len(group["params"]):
            ranks = list(range(first, first + len(params)))
        else:
            ranks = [i for i, p in enumerate(group["params"], start=first) if p.grad is not None]
        if any_distributed(params):
            grads = list(map(with_placement_of, params, grads))
        gathered = Gathered(index, first, group, parts, params, grads, ranks, state)
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

    def _parts_of(self, group: dict[str, Any], index: int) -> Parts:
        if not torch.compiler.is_compiling():
            return Parts.from_group(group)
        parts, traced_values = self._traced_parts[index]
        # torch.compile guards every comparison: so a changed hyperparameter makes it trace again.
        if not all(group[name] == value for name, value in traced_values.items()):
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
        """Fill the lists with the parameters of a group that have a gradient, their gradients, and their state.

        torch.compile expects this name and these flat lists: it runs this method instead of tracing it.
        """
        parts = Parts.from_group(group)
        if compiling:
            self._traced_parts = [(p, p.to_group()) for p in map(Parts.from_group, self.param_groups)]
            self._traced_origins = [
                [origin_of(p) for p in g["params"] if p.grad is not None] for g in self.param_groups
            ]
        else:
            self._warn_about_ell(group, parts)
        buffers = parts.buffers()
        # List by list rather than parameter by parameter: with many small tensors this is most of a fused step.
        grads_or_none = [p.grad for p in group["params"]]
        grads += [grad for grad in grads_or_none if grad is not None]
        complete = len(grads) == len(grads_or_none)
        params += group["params"] if complete else [p for p in group["params"] if p.grad is not None]
        keys = state_keys(buffers, group)
        state_of = itemgetter(*keys) if len(keys) > 1 else lambda state: (state["step"],)
        try:
            tensors += list(chain.from_iterable(map(state_of, self._states_of(params))))
        except (KeyError, TypeError, IndexError):
            # When the step is compiled, this runs but `_prepare` is traced: it would neither clear the list nor use it.
            added: AddedState = [] if compiling else self._added_state
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

    @torch.no_grad()
    def eval(self) -> None:
        """Put the parameters where the model is to be evaluated: at an average, if the iterate keeps one."""
        evaluation.refuse_immovable(self.param_groups, self.state, f"{type(self).__name__}.eval")
        for group in self.param_groups:
            evaluation.enter(group, self.state)

    @torch.no_grad()
    def train(self) -> None:
        """Put the parameters back to where training goes on, to the bit. Call it before the next step."""
        evaluation.refuse_immovable(self.param_groups, self.state, f"{type(self).__name__}.train")
        for group in self.param_groups:
            evaluation.leave(group, self.state)

    def swap(self) -> None:
        """`eval()` if the parameters are where training goes on, otherwise `train()`."""
        if all(group[TRAIN_MODE] for group in self.param_groups):
            self.eval()
        else:
            self.train()

    def state_dict(self) -> dict[str, Any]:
        """A state dict as torch's; torch.optim.AdamW can load it if the state is AdamW's."""
        with naming_errors(f"{type(self).__name__}.state_dict"):
            checkpoints.refuse_state_without_group(self)
        with checkpoints.exporting(self):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer, or of another one with the same state (see `checkpoints`)."""
        with naming_errors(f"{type(self).__name__}.load_state_dict"):
            if not isinstance(state_dict, dict):
                checkpoints.refuse_as_state_dict(state_dict)
            with checkpoints.adapting(self):
                super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("observers", [])
        self._reset_caches()
        self.defaults = {TRAIN_MODE: True, **checkpoints.with_all_axes(self.defaults)}
        shared = {name: value for name, value in self.defaults.items() if name in checks.SHARED_KEYS}
        for i, group in enumerate(self.param_groups):
            self.param_groups[i] = {**shared, **checkpoints.with_all_axes(group)}


AIM.__init__ = with_named_errors(AIM.__init__, AIM.__subclasses__, ())  # type: ignore[method-assign]
AIM.__signature__ = expanded_signature(AIM.__init__)  # type: ignore[attr-defined]
AIM.__doc__ = documented(AIM.__doc__)


def _given_part(part: Any, axis: str) -> Any:
    """A part that was given as a keyword, or as a text."""
    return checks.check_part(part_from_text(part, axis) if isinstance(part, str) else part, axis)


def _any_evaluates_again(parts_of_groups: Iterable[Parts]) -> bool:
    return any(parts.correction.evaluates_again for parts in parts_of_groups)
