"""The split of a model: a decision per parameter, and the parameter groups that follow from them.

split(model)                                                by our rules
split(model, head="classifier")                             the output layer is named
split(model, rules=[("*.router.weight", as_rest())])        own rules come first
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from aimopt.groups.depth import is_inside_block
from aimopt.groups.rules import (
    LAYOUT,
    LocatedParameter,
    Rule,
    Treatment,
    check_rules,
    default_treatment,
    is_lora,
    layout,
    own_treatment,
)
from aimopt.messages.spelling import suggestion
from aimopt.messages.text_table import text_table


@dataclass(frozen=True)
class Decision:
    """What was decided for one parameter, and why. `options` are keys of its group, `layout` those of a matrix."""

    name: str
    parameter: Tensor
    matrix: bool
    decay: bool
    reason: str
    options: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """The parameters of a model, with a decision for each.

    There is always at least one group, which may be empty: then the same lines work for a model without matrices.
    """

    decisions: list[Decision]
    frozen: list[str] = field(default_factory=list)

    @property
    def matrices(self) -> list[dict[str, Any]]:
        """The hidden matrices, as one group per way in which a layer stores its matrix."""
        matrices = [d for d in self.decisions if d.matrix]
        return _grouped((d, {**({} if d.decay else {"weight_decay": 0.0}), **d.layout, **d.options}) for d in matrices)

    def rest(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """All other parameters as two groups, one decayed and one not; more if own rules have options."""
        return _by_decay([d for d in self.decisions if not d.matrix], weight_decay)

    def all(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """All parameters as two groups, one decayed and one not, for an optimizer that takes any shape."""
        return _by_decay(self.decisions, weight_decay)

    def explain(self) -> str:
        """The decisions as a table."""
        rows = [("parameter", "shape", "matrix", "decay", "reason")]
        rows += [(d.name, shape_of(d.parameter), _yes(d.matrix), _yes(d.decay), d.reason) for d in self.decisions]
        rows += [(name, "", "", "", "frozen: left out") for name in self.frozen]
        return text_table(rows)


def _by_decay(decisions: Sequence[Decision], weight_decay: float) -> list[dict[str, Any]]:
    decayed_first = sorted(decisions, key=lambda d: not d.decay)
    groups = _grouped((d, {"weight_decay": weight_decay if d.decay else 0.0, **d.options}) for d in decayed_first)
    return groups if decisions else [{"params": [], "weight_decay": weight_decay}]


def _grouped(decisions: Iterable[tuple[Decision, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One group per set of options, in the order in which they appear; an empty group if there is no parameter."""
    groups: list[dict[str, Any]] = []
    for decision, options in decisions:
        group = next((g for g in groups if {k: v for k, v in g.items() if k != "params"} == options), None)
        if group is None:
            groups.append(group := {"params": [], **options})
        group["params"].append((decision.name, decision.parameter))
    return groups or [{"params": []}]


def shape_of(p: Tensor) -> str:
    """The shape of a parameter; of a sharded one, that of the whole."""
    return "×".join(map(str, p.shape)) or "scalar"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def split(model: nn.Module, *, head: str | None = None, rules: Sequence[Rule] = (), split_fused: bool = False) -> Split:
    """Decide for each parameter of `model` by own rules, the type of its module, its shape and its name.

    A weight that several modules share appears once, and is an embedding if any of them is one. A parameter of two
    dimensions is a layer's matrix if its name contains "weight", as in `weight` or `in_proj_weight`; others are
    treated as tokens, positions and so on.

    Args:
        model: the model; sharded, compiled or wrapped models are fine.
        head: the name of the output layer. None means the last linear layer, unless that is part of a numbered block.
        rules: own rules, before ours. The first that matches decides.
        split_fused: whether matrices that a layer keeps in one tensor (queries, keys and values; the gates of an LSTM;
            gate and up projections) are orthogonalized separately.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            "groups.split: the types of layers decide what their parameters are, so pass the model; got a "
            f"{type(model).__name__}"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for module_name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module_name, module))
    if head is None:
        linear = [name for name, module in model.named_modules() if _may_be_head(name, module)]
        head = linear[-1] if linear else None
    elif head not in modules:
        hint = suggestion(head, [name for name in modules if name])
        raise ValueError(f"groups.split: the model has no module {head!r} that could be its head; {hint}")
    named = list(model.named_parameters())
    check_rules(rules, [name for name, _ in named])
    result = Split([])
    for name, parameter in named:
        if not parameter.requires_grad:
            result.frozen.append(name)
            continue
        located = _locate(name, parameter, owners[id(parameter)], modules, head)
        treatment = own_treatment(located, rules) or default_treatment(located)
        result.decisions.append(_decide(located, treatment, split_fused))
    return result


def _may_be_head(name: str, module: nn.Module) -> bool:
    attention_output = nn.modules.linear.NonDynamicallyQuantizableLinear
    if not isinstance(module, nn.Linear) or isinstance(module, attention_output):
        return False
    return not is_lora(name) and not is_inside_block(name)


def _locate(
    name: str, p: Tensor, owners: list[tuple[str, nn.Module]], modules: dict[str, nn.Module], head: str | None
) -> LocatedParameter:
    tensor = name.rpartition(".")[2]
    is_scale = is_factor = False
    layers = list(owners)
    for i, (owner, module) in enumerate(owners):
        if isinstance(module, ParametrizationList):
            layer, _, tensor = f".{owner}".rpartition(".parametrizations.")
            layers[i] = layer.removeprefix("."), modules[layer.removeprefix(".")]
            originals = list(module.parameters(recurse=False))
            is_scale = not _is_matrix(p) and p.numel() < max(original.numel() for original in originals)
            is_factor = _is_matrix(p) and sum(map(_is_matrix, originals)) > 1
    is_head = head is not None and any(owner == head or owner.startswith(f"{head}.") for owner, _ in owners)
    return LocatedParameter(name, p, tensor, layers, is_head, is_scale, is_factor)


def _is_matrix(p: Tensor) -> bool:
    """Whether a tensor has at least two sides that are longer than one."""
    return sum(size > 1 for size in p.shape) > 1


def _decide(located: LocatedParameter, treatment: Treatment, split_fused: bool) -> Decision:
    keys, words = layout(located, split_fused=split_fused) if treatment.matrix else ({}, "")
    keys |= {name: value for name, value in treatment.options.items() if name in LAYOUT}
    options = {name: value for name, value in treatment.options.items() if name not in LAYOUT}
    return Decision(
        located.name, located.parameter, treatment.matrix, treatment.decay, treatment.reason + words, options, keys
    )
