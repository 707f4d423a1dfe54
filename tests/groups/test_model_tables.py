"""What goes where in models that people train, against tables that were checked by hand.

`matrix` is for the matrix geometry and decayed, `rest` is decayed, `undecayed` is not. `row_blocks` is asked for.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaModel,
    MixtralConfig,
    Qwen2Config,
)

import aimopt
from aimopt import groups
from aimopt.paper.models.resnet import small_resnet
from aimopt.paper.models.vit import ViT

TINY: dict[str, Any] = {
    "vocab_size": 17,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def causal(config: Any) -> nn.Module:
    make: Any = AutoModelForCausalLM.from_config
    return make(config)


class TimmBlock(nn.Module):
    """A block of timm's vision transformer, with its names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(8)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8)})
        self.ls1 = nn.ParameterDict({"gamma": torch.ones(8)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(8, 16), "fc2": nn.Linear(16, 8)})


class TimmTransformer(nn.Module):
    """timm's vision transformer, with its names."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, 8, 4, 4)})
        self.blocks = nn.Sequential(TimmBlock(), TimmBlock())
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: ViT(image=8, width=8, layers=2, heads=2, hidden=16),
    "timm": TimmTransformer,
    "ResNet": lambda: small_resnet(8, 10),
    "GPT-2": lambda: causal(
        GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    ),
    "Llama": lambda: causal(LlamaConfig(**TINY)),
    "Llama without a head": lambda: LlamaModel(LlamaConfig(**TINY)),
    "Qwen2": lambda: causal(Qwen2Config(**TINY, tie_word_embeddings=True)),
    "Mixtral": lambda: causal(MixtralConfig(**TINY, num_local_experts=3)),
    "Llama 4": lambda: causal(Llama4TextConfig(**TINY, head_dim=4, intermediate_size_mlp=12, num_local_experts=3)),
    "GPT-OSS": lambda: causal(GptOssConfig(**TINY, head_dim=4, num_local_experts=3)),
}


def kinds(split: groups.Split) -> dict[str, str]:
    """The kind of each parameter. The blocks of a model are all alike, so that their numbers are left out."""
    kinds: dict[str, str] = {}
    for decision in split.decisions:
        kind = "matrix" if decision.matrix else "rest" if decision.decay else "undecayed"
        kind += "".join(f" {key}={value}" for key, value in decision.layout.items())
        name = re.sub(r"\b(h|layers|blocks)\.\d+\.", r"\1.*.", decision.name)
        assert kinds.setdefault(name, kind) == kind, f"{decision.name} differs from its like in other blocks"
    return kinds


# All parameters that are not in a table are undecayed vectors, norms, biases, embeddings, tokens and positions.
LLAMA_BLOCK = """
    self_attn.q_proj.weight  matrix
    self_attn.k_proj.weight  matrix
    self_attn.v_proj.weight  matrix
    self_attn.o_proj.weight  matrix
    mlp.gate_proj.weight     matrix
    mlp.up_proj.weight       matrix
    mlp.down_proj.weight     matrix
"""
TABLES = {
    "ViT": """
        embed.weight                         matrix
        blocks.*.queries_keys_values.weight  matrix row_blocks=3
        blocks.*.attended.weight             matrix
        blocks.*.rise.weight                 matrix
        blocks.*.fall.weight                 matrix
        head.weight                          rest
    """,
    "timm": """
        patch_embed.proj.weight    matrix
        blocks.*.attn.qkv.weight   matrix row_blocks=3
        blocks.*.attn.proj.weight  matrix
        blocks.*.mlp.fc1.weight    matrix
        blocks.*.mlp.fc2.weight    matrix
        head.weight                rest
    """,
    "ResNet": """
        0.weight         matrix
        3.body.0.weight  matrix
        3.body.3.weight  matrix
        4.body.0.weight  matrix
        4.body.3.weight  matrix
        4.past.0.weight  matrix
        5.body.0.weight  matrix
        5.body.3.weight  matrix
        5.past.0.weight  matrix
        8.weight         rest
    """,
    "GPT-2": """
        transformer.h.*.attn.c_attn.weight  matrix transposed=True row_blocks=3
        transformer.h.*.attn.c_proj.weight  matrix transposed=True
        transformer.h.*.mlp.c_fc.weight     matrix transposed=True
        transformer.h.*.mlp.c_proj.weight   matrix transposed=True
    """,
    "Llama": LLAMA_BLOCK.replace("\n    ", "\nmodel.layers.*.") + "lm_head.weight rest",
    "Llama without a head": LLAMA_BLOCK.replace("\n    ", "\nlayers.*."),
    "Qwen2": LLAMA_BLOCK.replace("\n    ", "\nmodel.layers.*."),
    "Mixtral": """
        model.layers.*.self_attn.q_proj.weight   matrix
        model.layers.*.self_attn.k_proj.weight   matrix
        model.layers.*.self_attn.v_proj.weight   matrix
        model.layers.*.self_attn.o_proj.weight   matrix
        model.layers.*.mlp.gate.weight           matrix
        model.layers.*.mlp.experts.gate_up_proj  matrix kernel=batch row_blocks=2
        model.layers.*.mlp.experts.down_proj     matrix kernel=batch
        lm_head.weight                           rest
    """,
    "Llama 4": """
        model.layers.*.self_attn.q_proj.weight                   matrix
        model.layers.*.self_attn.k_proj.weight                   matrix
        model.layers.*.self_attn.v_proj.weight                   matrix
        model.layers.*.self_attn.o_proj.weight                   matrix
        model.layers.*.feed_forward.router.weight                matrix
        model.layers.*.feed_forward.experts.gate_up_proj         matrix kernel=batch transposed=True
        model.layers.*.feed_forward.experts.down_proj            matrix kernel=batch transposed=True
        model.layers.*.feed_forward.shared_expert.gate_proj.weight  matrix
        model.layers.*.feed_forward.shared_expert.up_proj.weight    matrix
        model.layers.*.feed_forward.shared_expert.down_proj.weight  matrix
        lm_head.weight                                           rest
    """,
    "GPT-OSS": """
        model.layers.*.self_attn.q_proj.weight   matrix
        model.layers.*.self_attn.k_proj.weight   matrix
        model.layers.*.self_attn.v_proj.weight   matrix
        model.layers.*.self_attn.o_proj.weight   matrix
        model.layers.*.mlp.router.weight         matrix
        model.layers.*.mlp.experts.gate_up_proj  matrix kernel=batch transposed=True
        model.layers.*.mlp.experts.down_proj     matrix kernel=batch transposed=True
        lm_head.weight                           rest
    """,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_where_the_table_says(name: str) -> None:
    model = MODELS[name]()
    split = groups.split(model, split_fused=True)
    assert len(split.decisions) == len(list(model.parameters()))
    rows = [line.split(maxsplit=1) for line in TABLES[name].strip().splitlines()]
    found = {parameter: kind for parameter, kind in kinds(split).items() if kind != "undecayed"}
    assert found == {parameter: kind.strip() for parameter, kind in rows}
    fused = {d.name for d in groups.split(model).decisions if "row_blocks" in d.layout}
    assert fused == set(), "fused matrices are taken apart only where that is asked for"


def test_most_of_a_mixture_of_experts_is_decayed() -> None:
    split = groups.split(MODELS["Mixtral"]())
    decayed = sum(d.parameter.numel() for d in split.decisions if d.decay)
    assert decayed / sum(d.parameter.numel() for d in split.decisions) > 0.85


def test_a_sharded_model_has_the_decisions_and_shapes_of_the_whole() -> None:
    """Sharding changes classes (FSDPConv1D) and leaves a rank a part of each tensor. Four ranks are pretended."""
    model: Any = MODELS["GPT-2"]()
    expected = groups.split(model, split_fused=True).explain()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        for block in model.transformer.h:
            for layer in (block.attn.c_attn, block.ln_1, block.mlp.c_fc):
                fully_shard(layer, mesh=init_device_mesh("cpu", (4,)))
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
        split = groups.split(model, split_fused=True)
        assert all(isinstance(d.parameter, DTensor) for d in split.decisions)
        assert type(model.transformer.h[0].attn.c_attn).__name__ == "FSDPConv1D"
        assert split.explain() == expected
        optimizer = aimopt.create("hybrid", model, lr=0.01, layer_decay=0.5)
        assert "transposed=True" in groups.explain(optimizer)
        assert "17×8" in groups.explain(optimizer)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's, about names of transformers
def test_lora_factors_of_peft_are_for_the_other_optimizer() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=True)
    split = groups.split(peft.get_peft_model(MODELS["Llama"](), config))
    tensors = {".".join(d.name.split(".")[-3:]): d for d in split.decisions}
    assert {tensor: (d.matrix, d.decay) for tensor, d in tensors.items()} == {
        "lora_A.default.weight": (False, True),
        "lora_B.default.weight": (False, True),
        "lora_magnitude_vector.default.weight": (False, False),
    }
    assert "LoRA factor" in tensors["lora_B.default.weight"].reason
    assert "base_model.model.lm_head.weight" in split.frozen
