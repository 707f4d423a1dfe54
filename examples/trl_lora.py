"""TRL and PEFT: `python examples/trl_lora.py`, with trl and peft installed.

Supervised fine-tuning of LoRA factors on a tiny random Llama. The factors are no matrices of their own (their product
is), so that the hybrid gives them RADAR alone; `groups.explain` shows it.
"""

import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import aimopt

WORDS = ["<pad>", "<eos>", "one", "two", "three", "four", "five"]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def main() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    llama = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, bos_token_id=1, eos_token_id=1, **sizes)
    )
    model = get_peft_model(llama, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    optimizer = aimopt.create("hybrid", model, lr=1e-2, weight_decay=0.0)
    print(aimopt.groups.explain(optimizer).split("\n", 2)[1])
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model,
            SFTConfig(
                folder, max_steps=10, logging_steps=5, max_length=8, report_to="none", use_cpu=True, bf16=False,
                dataloader_pin_memory=False, disable_tqdm=True, save_strategy="no", gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"text": ["one two three four five"] * 16}),
            processing_class=tiny_tokenizer(),
            optimizers=(optimizer, None),
        )  # fmt: skip
        trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    print(f"LoRA factors: {len(optimizer.state)} trained, loss {losses[0]:.2f} → {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
