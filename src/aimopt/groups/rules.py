"""What is decided for one parameter: by a user's rules first, then by ours; the first rule that matches decides.

    ("*.router.weight", as_rest())                       a pattern of names, with a treatment
    (re.compile("[qk]_proj"), as_matrix(row_blocks=8))   a regular expression; one block per attention head
    lambda name, p, module: as_rest() if isinstance(module, MyLayer) else None

Hidden matrices (of linear, attention, recurrent, expert and convolution layers) are for matrix geometries; embeddings,
the output layer, LoRA factors, biases and norms are not. The weights of layers are decayed; embeddings, norms, vectors
and other parameters are not.

How a layer stores its matrix does not depend on the rules. It becomes hyperparameters of the matrix geometries:
`transposed` (stored as input×output), `kernel` ("batch": the leading dimension counts matrices) and `row_blocks`
(matrices that are stored one below the other on the output side).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from aimopt.messages.spelling import suggestion

# How a layer stores its matrix, if it is nothing special.
LAYOUT: dict[str, Any] = {"transposed": False, "kernel": "flatten", "row_blocks": 1}


@dataclass(frozen=True)
class Treatment:
    """What to do with a parameter. `options` are keys of its group, such as `lr` or `row_blocks`."""

    matrix: bool
    decay: bool
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def as_matrix(*, decay: bool = True, **options: Any) -> Treatment:
    """For the matrix geometry. `options` are keys of its group: `as_matrix(row_blocks=12)`."""
    return Treatment(True, decay, options=options)


def as_rest(*, decay: bool = True, **options: Any) -> Treatment:
    """For the other optimizer. `options` are keys of its group: `as_rest(decay=False, lr=1e-4)`."""
    return Treatment(False, decay, options=options)


RuleFunction = Callable[[str, Tensor, nn.Module], Treatment | None]
Rule = tuple[str | re.Pattern[str], Treatment] | RuleFunction


@dataclass(frozen=True)
class LocatedParameter:
    """A parameter, and the layers that have it. `tensor` is its name in the layer, also under a parametrization."""

    name: str
    parameter: Tensor
    tensor: str
    layers: Sequence[tuple[str, nn.Module]]
    is_head: bool = False
    is_scale: bool = False  # the smaller tensor of a parametrization, such as the magnitudes of weight_norm
    is_factor: bool = False  # one of several matrices of which a parametrization makes the weight

    @property
    def layer(self) -> nn.Module:
        """The first layer that has the parameter."""
        return self.layers[0][1]

    def is_any(self, *types: type[nn.Module]) -> bool:
        """Whether a layer is of one of these types."""
        return any(isinstance(layer, types) for _, layer in self.layers)

    def class_names(self) -> Iterable[str]:
        """The names of the first layer's class and its bases: sharding makes subclasses with other names."""
        return (base.__name__ for base in type(self.layer).__mro__)


# The rules of a user


def own_treatment(located: LocatedParameter, rules: Iterable[Rule]) -> Treatment | None:
    """The treatment of the first of the user's rules that matches."""
    for rule in rules:
        treatment = _apply(rule, located)
        if treatment is None:
            continue
        if not isinstance(treatment, Treatment):
            raise ValueError(
                f"groups.split: {_described(rule)} must give a Treatment or None, got {treatment!r}; use "
                "groups.as_matrix() or groups.as_rest()"
            )
        if treatment.matrix and located.parameter.ndim < 2:
            raise ValueError(
                f"groups.split: {_described(rule)} makes {located.name!r} a matrix, but its shape is "
                f"{tuple(located.parameter.shape)}; use groups.as_rest() for it"
            )
        return replace(treatment, reason=treatment.reason or f"own {_described(rule)}")
    return None


def _apply(rule: Rule, located: LocatedParameter) -> Any:
    if callable(rule):
        return rule(located.name, located.parameter, located.layer)
    pattern, treatment = rule
    return treatment if matches(pattern, located.name) else None


def matches(pattern: str | re.Pattern[str], name: str) -> bool:
    """Whether a name has this pattern: `*` stands for anything, also dots. A regular expression may match anywhere."""
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern.search(name) is not None


def check_rules(rules: Iterable[Rule], names: Sequence[str]) -> None:
    """Refuse what is no rule, and a pattern that no parameter has: it is a typing error."""
    for rule in rules:
        if callable(rule):
            continue
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], (str, re.Pattern))):
            raise ValueError(
                f"groups.split: a rule is a pair such as ('*.router.weight', groups.as_rest()), or a function of "
                f"(name, parameter, module); got {rule!r}"
            )
        if not any(matches(rule[0], name) for name in names):
            text = _text(rule[0])
            raise ValueError(
                f"groups.split: no parameter of the model has the pattern {text!r}, which must match whole names "
                f"('*' stands for anything); {suggestion(text, names)}"
            )


def _described(rule: Rule) -> str:
    if callable(rule):
        return f"rule {getattr(rule, '__name__', type(rule).__name__)}"
    return f"rule {_text(rule[0])!r}"


def _text(pattern: str | re.Pattern[str]) -> str:
    return pattern if isinstance(pattern, str) else pattern.pattern


# The rules of this package

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
_NORM_NAME = re.compile(r"Norm(\d[dD])?$")  # LlamaRMSNorm, T5LayerNorm, FrozenBatchNorm2d, …


def default_treatment(located: LocatedParameter) -> Treatment:
    """The treatment by the types of layers, shapes and the names that are common."""
    if _is_flattened(located):
        raise ValueError(
            f"groups.split: {located.name!r} is flattened to shape {tuple(located.parameter.shape)}, as FSDP1 and "
            "DeepSpeed do; use FSDP2 (fully_shard) or DDP, or decide by names: rules=[('*.weight', groups.as_rest())]"
        )
    treatment = next(found for rule in _DEFAULT_RULES if (found := rule(located)) is not None)
    modules = {id(layer) for _, layer in located.layers}
    shared = f", shared by {len(modules)} modules" if len(modules) > 1 else ""
    return replace(treatment, reason=treatment.reason + shared)


def _is_flattened(located: LocatedParameter) -> bool:
    """Whether the weight of a layer that has a matrix is a vector, or one vector has all weights."""
    tensor = located.name.rpartition(".")[2]  # not `weight` under a parametrization, which may need vectors
    has_matrix = located.is_any(nn.Linear, nn.modules.conv._ConvNd, *_EMBEDDINGS) or "Conv1D" in located.class_names()
    return located.parameter.ndim < 2 and (tensor == "_flat_param" or (tensor == "weight" and has_matrix))


def _embedding(located: LocatedParameter) -> Treatment | None:
    return Treatment(False, False, "embedding") if located.is_any(*_EMBEDDINGS) else None


def _norm(located: LocatedParameter) -> Treatment | None:
    named_norm = located.parameter.ndim < 2 and any(map(_NORM_NAME.search, located.class_names()))
    return Treatment(False, False, "normalization") if located.is_any(*_NORMS) or named_norm else None


def _vector(located: LocatedParameter) -> Treatment | None:
    if located.parameter.ndim < 2:
        return Treatment(False, False, "a vector, such as a bias or a scale")
    if "bias" in located.tensor:
        return Treatment(False, False, "bias")
    if located.is_scale or located.tensor == "weight_g":
        return Treatment(False, False, "the scale of a parametrization")
    return None


def _factor(located: LocatedParameter) -> Treatment | None:
    # A step that is orthogonal in A and in B is not orthogonal in their product, which is the weight that is trained.
    if is_lora(located.name):
        return Treatment(False, True, "LoRA factor: the weight is the product of two, neither is a matrix of its own")
    if located.is_factor:
        return Treatment(False, True, "a factor of a parametrization, which makes the weight of several matrices")
    return None


def is_lora(name: str) -> bool:
    """Whether the name is that of a LoRA factor, as PEFT calls them: lora_A, lora_B and so on."""
    return any(component.startswith("lora_") for component in name.split("."))


def _head(located: LocatedParameter) -> Treatment | None:
    return Treatment(False, True, "output layer") if located.is_head else None


def _convolution(located: LocatedParameter) -> Treatment | None:
    layer = located.layer
    if not isinstance(layer, nn.modules.conv._ConvNd):
        return None
    outputs, inputs, *kernel = located.parameter.shape
    if is_transposed_convolution(located):
        outputs, inputs = inputs, outputs
        if layer.groups > 1:
            return Treatment(False, True, "transposed convolution in groups: no block of it is a matrix")
    elif layer.groups > 1 and inputs == 1:
        return Treatment(False, True, "depthwise convolution: every filter is on its own")
    return Treatment(True, True, f"convolution kernel, {outputs}×{inputs * math.prod(kernel)} when flattened")


def is_transposed_convolution(located: LocatedParameter) -> bool:
    """Whether the parameter is the kernel of a transposed convolution, whose first dimension is the input."""
    return isinstance(located.layer, nn.modules.conv._ConvTransposeNd)


def _batch(located: LocatedParameter) -> Treatment | None:
    if not is_batch(located):
        return None
    count, *shape = located.parameter.shape
    return Treatment(True, True, f"{count} matrices of {shape[0]}×{shape[1]}, such as those of experts")


def is_batch(located: LocatedParameter) -> bool:
    """Whether a parameter of three dimensions is a batch of matrices, such as the weights of experts."""
    shape = located.parameter.shape
    if len(shape) != 3 or 1 in shape[1:] or isinstance(located.layer, nn.modules.conv._ConvNd):
        return False
    return "weight" in located.tensor or any("Expert" in name for name in located.class_names())


def _no_matrix(located: LocatedParameter) -> Treatment | None:
    if located.parameter.ndim > 2 or "weight" not in located.tensor:
        return Treatment(False, False, "not a layer's matrix")
    return Treatment(False, True, "a row or a column") if 1 in located.parameter.shape else None


def _matrix(located: LocatedParameter) -> Treatment | None:
    return Treatment(True, True, "hidden matrix")


_DEFAULT_RULES = (_embedding, _norm, _vector, _factor, _head, _convolution, _batch, _no_matrix, _matrix)

# How layers store their matrices

_QKV = {"qkv", "Wqkv", "c_attn", "to_qkv", "queries_keys_values"}  # always three equal blocks
_GATES = {nn.LSTM: 4, nn.GRU: 3}


def layout(located: LocatedParameter, *, split_fused: bool) -> tuple[dict[str, Any], str]:
    """The keys for a matrix geometry that differ from their defaults, and what they mean in words."""
    keys: dict[str, Any] = {}
    words = ""
    if is_batch(located):
        keys["kernel"] = "batch"
    is_conv1d = located.parameter.ndim == 2 and "Conv1D" in located.class_names()
    are_experts = "kernel" in keys and _are_transposed_experts(located.layer)
    if is_conv1d or are_experts or is_transposed_convolution(located):
        keys["transposed"] = True
        words += ", stored as input×output"
    blocks = _conv_groups(located) if not split_fused else max(_conv_groups(located), _fused_blocks(located, **keys))
    if blocks > 1:
        keys["row_blocks"] = blocks
        words += f", {blocks} blocks on their own"
    return keys, words


def _are_transposed_experts(layer: nn.Module) -> bool:
    """Whether experts are stored as input×output. transformers says it of most; of Llama 4's the shapes do."""
    if hasattr(layer, "is_transposed"):
        return bool(layer.is_transposed)
    up, down = getattr(layer, "gate_up_proj", None), getattr(layer, "down_proj", None)
    if not (isinstance(up, Tensor) and isinstance(down, Tensor) and up.ndim == down.ndim == 3):
        return False
    return up.shape[1] == down.shape[2] and up.shape[2] == 2 * down.shape[1]


def _conv_groups(located: LocatedParameter) -> int:
    """The number of groups of a convolution, which are blocks of its outputs."""
    layer = located.layer
    if not isinstance(layer, nn.modules.conv._ConvNd) or is_transposed_convolution(located):
        return 1
    return layer.groups


def _fused_blocks(located: LocatedParameter, *, transposed: bool = False, kernel: str = "flatten") -> int:
    """The number of equal blocks on the output side: queries, keys and values, or gates; 1 if they are not known.

    GPT-NeoX's `query_key_value` alternates between them per head, so that no three blocks are they.
    """
    if located.parameter.ndim != (3 if kernel == "batch" else 2):
        return 1
    inputs, outputs = located.parameter.shape[-2:] if transposed else reversed(located.parameter.shape[-2:])
    if isinstance(located.layer, (nn.LSTM, nn.GRU)) and located.tensor.startswith(("weight_ih", "weight_hh")):
        return _GATES[nn.LSTM if isinstance(located.layer, nn.LSTM) else nn.GRU]
    if isinstance(located.layer, nn.MultiheadAttention) and located.tensor == "in_proj_weight":
        return 3
    layer = located.layers[0][0].rpartition(".")[2]
    if (layer in _QKV and outputs % 3 == 0) or (layer == "qkv_proj" and outputs == 3 * inputs):
        return 3
    # Where experts are stored as input×output, gate and up alternate in some models.
    return 2 if "gate_up_proj" in (layer, located.tensor) and not transposed and outputs % 2 == 0 else 1
