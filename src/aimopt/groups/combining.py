"""One optimizer made of several, and what each of its parameters got.

combine(Muon(split.matrices, lr=0.02), RADAR(split.rest(weight_decay=0.01), lr=1e-3))
print(explain(optimizer))
"""

from typing import Any

from torch.optim import Optimizer

from aimopt.aim import AIM
from aimopt.groups.rules import LAYOUT
from aimopt.groups.splitting import shape_of
from aimopt.messages.text_table import text_table
from aimopt.new_groups import default_parts
from aimopt.step.options import OPTIONS


def combine(*optimizers: AIM) -> AIM:
    """One optimizer with the parameter groups of several. Each group has its own parts and hyperparameters.

    The given optimizers must not have stepped, and must not be used any more. Empty groups are left out. The settings
    of the first one are the defaults of groups that are added later. A scheduler that cycles momentum cycles β1 or
    `momentum`, whichever a group has; if there are both, it writes `momentum` to all groups.
    """
    if not optimizers:
        raise ValueError(
            "groups.combine: pass the optimizers to combine, as in groups.combine(Muon(…), RADAR(…)); got none"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, AIM):
            raise ValueError(f"groups.combine: it takes optimizers of this package, got {_instead_of(optimizer)}")
        if optimizer.state:
            raise ValueError(
                f"groups.combine: {type(optimizer).__name__} has stepped, and state is not carried over; combine new "
                "optimizers, before the first step"
            )
    if len({optimizer.defaults["differentiable"] for optimizer in optimizers}) > 1:
        raise ValueError(
            "groups.combine: some optimizers are differentiable=True and others are not; give all the same"
        )
    groups = [dict(group) for optimizer in optimizers for group in optimizer.param_groups if group["params"]]
    if not groups:
        raise ValueError("groups.combine: the optimizers have no parameters; is the whole model frozen?")
    for group in groups:
        if "param_names" in group:
            group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    first = optimizers[0].defaults
    parts: dict[str, Any] = default_parts(first)._asdict()
    settings = {name: first[name] for name in OPTIONS}
    combined = AIM(groups, first["lr"], **parts, **settings)
    if len({"betas" in group for group in combined.param_groups}) == 2:
        combined.let_schedulers_write_momentum()
    return combined


def _instead_of(given: Any) -> str:
    """What was given in place of an optimizer of this package, and what to do."""
    name = type(given).__name__
    if isinstance(given, Optimizer):
        ours = name in [relative.__name__ for relative in AIM.__subclasses__()]
        return f"{name} of {type(given).__module__.rpartition('.')[0]}; make it with aimopt.{name if ours else 'AIM'}"
    return f"{name}; pass optimizers, as in groups.combine(Muon(…), RADAR(…))"


def explain(optimizer: Optimizer) -> str:
    """A table of the parameters of an optimizer: shape, geometry, learning rate, weight decay and kind of matrix."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"groups.explain: it takes an optimizer, got {type(optimizer).__name__}; of a model, "
            "groups.split(model).explain() says what would be done with each parameter"
        )
    rows = [("parameter", "shape", "geometry", "lr", "decay", "stored as")]
    for index, group in enumerate(optimizer.param_groups):
        geometry = group.get("geometry", type(optimizer).__name__)
        values = f"{float(group['lr']):.4g}", f"{group.get('weight_decay', 0.0):g}"
        layout = ", ".join(f"{key}={group[key]}" for key, usual in LAYOUT.items() if group.get(key, usual) != usual)
        names = group.get("param_names") or [f"{i} of group {index}" for i in range(len(group["params"]))]
        rows += [(name, shape_of(p), geometry, *values, layout) for name, p in zip(names, group["params"], strict=True)]
    return text_table(rows)
