"""AIM: the one optimizer class, composed of a filter, a geometry, a correction, a decay and an iterate.

    AIM(params, 1e-3, filter=EMA(0.9), geometry=Adaptive(0.999))                              Adam
    AIM(params, 1e-3, filter=GradientDifference(), geometry=Relativistic(),
        correction=FixedPoint(ell_ratio=0.01))                                                RADAR
    AIM(params, 0.02, filter=EMA(), geometry=Spectral(), correction=Secant(),
        decay=CautiousDecay(0.1), iterate=Average(0.999))                                     a new combination

This is what torch and its schedulers, checkpoints and scalers see of an optimizer: parameter groups, state, modes.
`stepping.py` makes the step.
"""

import warnings
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from aimopt import checkpoints, checks, new_groups
from aimopt.messages.calling import naming, naming_errors, with_named_errors
from aimopt.parts.component import Correction, Decay, Filter, Geometry, Iterate
from aimopt.parts.composition import Parts, parts_of_groups
from aimopt.parts.corrections import Direct
from aimopt.parts.decays import chosen_decay
from aimopt.parts.iterates import Last
from aimopt.parts.text import part_from_text
from aimopt.step import evaluation
from aimopt.step.evaluation import TRAIN_MODE
from aimopt.step.options import Execution, documented, expanded_signature, with_defaults
from aimopt.stepping import SteppingOptimizer, any_evaluates_again

DIRECT = Direct()


class AIM(SteppingOptimizer):
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
        self.observers = []
        self._reset_caches()
        super().__init__(new_groups.listed_params(params), defaults)

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

    @property
    def needs_closure(self) -> bool:
        """Whether `step` must be given a closure, because a correction evaluates it again."""
        return any_evaluates_again(parts_of_groups(self.param_groups, f"{type(self).__name__}.needs_closure"))

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
