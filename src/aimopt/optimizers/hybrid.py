"""The recommended hybrid: Muon on hidden matrices and RADAR on the rest, with one learning rate for both.

create("hybrid", model, lr=1e-3)                                       the whole model
create("hybrid", model, lr=1e-3, weight_decay=0.01, layer_decay=0.75)  smaller learning rates near the input
create("hybrid", model, lr=1e-3, matrices="SOAP", rest="AdamW")        other optimizers
print(groups.explain(optimizer))                                       what each parameter got

Muon's step is scaled to the size of Adam's, 0.2·√max(rows, columns) (Liu et al. 2025, arXiv 2502.16982), so that a
learning rate that suits AdamW suits both sides.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from aimopt import groups
from aimopt.aim import AIM
from aimopt.groups.rules import Rule
from aimopt.optimizers.adaptive import AdamW
from aimopt.optimizers.relativistic import RADAR
from aimopt.optimizers.signatures import LR
from aimopt.optimizers.spectral import Muon
from aimopt.step.options import Keywords

MATCHED = {"adjust_lr_fn": "match_rms_adamw"}
RECOMMENDED_MATRICES, RECOMMENDED_REST = Muon, RADAR
USUAL_REST = AdamW  # of a hybrid that is named after the optimizer of its matrices, as papers about those have it


def hybrid(
    model: torch.nn.Module,
    lr: LR = 1e-3,
    *,
    matrices: type[AIM] = RECOMMENDED_MATRICES,
    rest: type[AIM] = RECOMMENDED_REST,
    weight_decay: float = 0.1,
    matrix_weight_decay: float | None = None,
    decay_all: bool = False,
    layer_decay: float | None = None,
    head: str | None = None,
    rules: Sequence[Rule] = (),
    split_fused: bool = False,
    matrix_options: Mapping[str, Any] | None = None,
    rest_options: Mapping[str, Any] | None = None,
    **keywords: Unpack[Keywords],
) -> AIM:
    """Muon on the hidden matrices of `model` and RADAR on the rest: one optimizer, one learning rate, one state_dict.

    One side may be empty: a single linear layer or LoRA factors get RADAR alone. Any other optimizer of this package
    can be chosen for either side; `create` takes their names.

    Args:
        model: the model, not its parameters: the types of its layers decide.
        lr: η of both sides, as for AdamW.
        matrices: the optimizer of the matrices. If it has an `adjust_lr_fn`, that is "match_rms_adamw" by default.
        rest: the optimizer of the rest.
        weight_decay: of both sides. Embeddings, norms and biases are not decayed.
        matrix_weight_decay: of the matrices, if it differs.
        decay_all: whether embeddings, norms and biases are decayed too, as by an optimizer of all parameters.
        layer_decay: the factor on the learning rate per block away from the output; see `groups.layerwise`.
        head: see `groups.split`.
        rules: own rules for parameters; see `groups.split`.
        split_fused: whether queries, keys and values in one tensor are orthogonalized separately.
        matrix_options: further arguments of the optimizer of the matrices, such as {"momentum": 0.9}.
        rest_options: further arguments of the optimizer of the rest, such as {"gamma": 0.05}.
        keywords: of both, such as `foreach` or `iterate`.
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"hybrid: the types of layers decide which parameters are matrices, so pass the model; got "
            f"{type(model).__name__}. Parameters alone can be given to groups.combine(Muon(…), RADAR(…))"
        )
    _check_side(matrices=matrices, matrix_options=matrix_options)
    _check_side(rest=rest, rest_options=rest_options)
    split = groups.split(model, head=head, rules=rules, split_fused=split_fused)
    if decay_all:
        split = replace(split, decisions=[replace(decision, decay=True) for decision in split.decisions])
    matrix_decay = weight_decay if matrix_weight_decay is None else matrix_weight_decay
    make_matrices: Any = matrices  # the named optimizers have different constructors
    make_rest: Any = rest
    matrix_arguments = {**matched_rms(matrices), **(matrix_options or {}), **keywords}
    # The rest first: its settings are the defaults of groups that are added later, and it takes any shape.
    optimizer = groups.combine(
        make_rest(split.rest(weight_decay=weight_decay), lr, **{**(rest_options or {}), **keywords}),
        make_matrices(split.matrices, lr, weight_decay=matrix_decay, **matrix_arguments),
    )
    if layer_decay is not None:
        groups.layerwise(optimizer, model, layer_decay)
    return optimizer


def _check_side(**arguments: Any) -> None:
    """Refuse what is no optimizer, and options of one side that are arguments of the hybrid."""
    (side, optimizer), (options_name, options) = arguments.items()
    if not (isinstance(optimizer, type) and issubclass(optimizer, AIM)):
        raise ValueError(f"hybrid: {side} must be an optimizer of this package, such as aimopt.Muon, got {optimizer!r}")
    instead = {
        "lr": "both sides have one learning rate, lr; groups of the result can have others",
        "weight_decay": "write weight_decay, and matrix_weight_decay for the matrices",
    }
    for name, hint in instead.items():
        if name in (options or {}):
            raise ValueError(f"hybrid: {options_name} has {name}={options[name]!r}; {hint}")


def matched_rms(matrices: type[AIM]) -> dict[str, str]:
    """The option that scales steps of matrices to the size of Adam's. SOAP has none: its steps have that size."""
    return {name: value for name, value in MATCHED.items() if name in inspect.signature(matrices).parameters}
