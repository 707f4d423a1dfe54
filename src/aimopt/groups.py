"""Parameter groups: which parameters are decayed, which are matrices, and one optimizer for both.

    split = groups.split(model)                      print(split.explain()) shows each decision and its reason
    optimizer = groups.combine(
        Muon(split.matrices, lr=0.02, weight_decay=0.01),
        RADAR(split.rest(weight_decay=0.01), lr=1e-3),
    )                                                one param_groups, one state_dict

Hidden matrices (of linear, attention, recurrent and convolution layers) are for matrix geometries; embeddings, the
output layer, biases and norms are not. The weights of layers are decayed; embeddings, norms, vectors and other
parameters are not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from aimopt.aim import AIM
from aimopt.messages.text_table import text_table
from aimopt.parts.composition import Parts
from aimopt.step.options import OPTIONS

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


@dataclass(frozen=True)
class Decision:
    """What was decided for one parameter, and why."""

    name: str
    parameter: Tensor
    matrix: bool
    decay: bool
    reason: str


@dataclass(frozen=True)
class Split:
    """The parameters of a model, with a decision for each."""

    decisions: list[Decision]
    frozen: list[str] = field(default_factory=list)

    @property
    def matrices(self) -> list[tuple[str, Tensor]]:
        """The hidden matrices, with their names."""
        return [(c.name, c.parameter) for c in self.decisions if c.matrix]

    def rest(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """All other parameters as two groups, one decayed and one not; an empty group is left out."""
        return self._by_decay([c for c in self.decisions if not c.matrix], weight_decay)

    def all(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """All parameters as two groups, one decayed and one not, for an optimizer that takes any shape."""
        return self._by_decay(self.decisions, weight_decay)

    @staticmethod
    def _by_decay(decisions: Iterable[Decision], weight_decay: float) -> list[dict[str, Any]]:
        groups = [
            {"params": [(c.name, c.parameter) for c in decisions if c.decay is decay], "weight_decay": value}
            for decay, value in ((True, weight_decay), (False, 0.0))
        ]
        return [group for group in groups if group["params"]]

    def explain(self) -> str:
        """The decisions as a table."""
        rows = [("parameter", "shape", "matrix", "decay", "reason")]
        rows += [
            (c.name, "×".join(map(str, c.parameter.shape)) or "scalar", _yes(c.matrix), _yes(c.decay), c.reason)
            for c in self.decisions
        ]
        rows += [(name, "", "", "", "frozen: left out") for name in self.frozen]
        return text_table(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def split(model: nn.Module, *, head: str | None = None) -> Split:
    """Decide for each parameter of `model` by the type of its module and by its shape.

    A weight that several modules share appears once, and is an embedding if any of them is one. The output layer is the
    last linear layer of the model, or the module named `head`. A parameter of two dimensions is a layer's matrix if its
    name contains "weight", as in `weight` or `in_proj_weight`; others are treated as tokens, positions and so on.
    """
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module_name, module))
    if head is None:
        linear = [name for name, module in model.named_modules() if _may_be_head(module)]
        head = linear[-1] if linear else None
    elif head not in dict(model.named_modules(remove_duplicate=False)):
        raise ValueError(f"the model has no module named {head!r}; pass one of model.named_modules() as head")
    result = Split([])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            result.decisions.append(_decide(name, parameter, owners[id(parameter)], head))
        else:
            result.frozen.append(name)
    return result


def _may_be_head(module: nn.Module) -> bool:
    attention_output = nn.modules.linear.NonDynamicallyQuantizableLinear
    return isinstance(module, nn.Linear) and not isinstance(module, attention_output)


def _decide(name: str, p: Tensor, owners: list[tuple[str, nn.Module]], head: str | None) -> Decision:
    modules = {id(module): module for _, module in owners}.values()
    tied = f", shared by {len(modules)} modules" if len(modules) > 1 else ""
    if any(isinstance(module, _EMBEDDINGS) for module in modules):
        return Decision(name, p, False, False, f"embedding{tied}")
    if any(isinstance(module, _NORMS) for module in modules):
        return Decision(name, p, False, False, f"normalization{tied}")
    if p.ndim < 2:
        return Decision(name, p, False, False, f"a vector, such as a bias or a scale{tied}")
    if head is not None and any(owner == head or owner.startswith(f"{head}.") for owner, _ in owners):
        return Decision(name, p, False, True, f"output layer{tied}")
    if isinstance(owners[0][1], nn.modules.conv._ConvTransposeNd):
        return Decision(name, p, False, True, f"transposed convolution: its rows are inputs{tied}")
    if isinstance(owners[0][1], nn.modules.conv._ConvNd):
        return Decision(name, p, True, True, f"convolution kernel, {p.size(0)}×{p[0].numel()} when flattened{tied}")
    if p.ndim > 2 or "weight" not in name.rpartition(".")[2]:
        return Decision(name, p, False, False, f"not a layer's matrix{tied}")
    if 1 in p.shape:
        return Decision(name, p, False, True, f"a row or a column{tied}")
    return Decision(name, p, True, True, f"hidden matrix{tied}")


def combine(*optimizers: AIM) -> AIM:
    """One optimizer with the parameter groups of several. Each group has its own parts and hyperparameters.

    The given optimizers must not have stepped, and must not be used any more. The settings of the first one are the
    defaults of groups that are added later. A scheduler that cycles momentum cycles β1 or `momentum`, whichever a group
    has; if there are both, it writes `momentum` to all groups.
    """
    if not optimizers:
        raise ValueError("combine needs at least one optimizer")
    for optimizer in optimizers:
        if not isinstance(optimizer, AIM):
            raise ValueError(f"combine takes optimizers of this package, got {type(optimizer).__name__}")
        if optimizer.state:
            raise ValueError("combine before the first step: state is not carried over")
    if len({optimizer.defaults["differentiable"] for optimizer in optimizers}) > 1:
        raise ValueError("combine takes optimizers that are all differentiable, or none")
    groups = [dict(group) for optimizer in optimizers for group in optimizer.param_groups]
    for group in groups:
        if "param_names" in group:
            group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
    first = optimizers[0].defaults
    parts: dict[str, Any] = Parts.from_group(first)._asdict()
    settings = {name: first[name] for name in OPTIONS}
    combined = AIM(groups, first["lr"], **parts, **settings)
    if len({"betas" in group for group in combined.param_groups}) == 2:
        combined.let_schedulers_write_momentum()
    return combined
