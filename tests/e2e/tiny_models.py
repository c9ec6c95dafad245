"""Run inside the `quantize` environment: writes tiny random models, and loads variants of them.

`python tiny_models.py make FOLDER TEXTS` writes FOLDER/llama, narrow (with layers of 72 columns),
qwen2 and stablelm (with biases), gemma2 (with norms stored less one), mixtral, qwen3_moe, gpt_oss
and jetmoe, and models of images and text (qwen2_5_vl, gemma3, mistral3), with a tokenizer trained
on the texts.
`python tiny_models.py compare SOURCE VARIANT...` prints, as JSON, by how much each variant's logits
differ from the source's, relative to their size.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Two layers whose widths whole blocks of 128 divide. Their logits are small and random.
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2}


def make(folder: Path, texts: Path) -> None:
    """Write the models."""
    import torch
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        GptOssConfig,
        GptOssForCausalLM,
        JetMoeConfig,
        JetMoeForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        Mistral3Config,
        Mistral3ForConditionalGeneration,
        MistralConfig,
        MixtralConfig,
        MixtralForCausalLM,
        PixtralVisionConfig,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        StableLmConfig,
        StableLmForCausalLM,
    )

    torch.manual_seed(0)
    models = {
        "llama": LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "narrow": LlamaForCausalLM(LlamaConfig(**SHAPE | {"intermediate_size": 72})),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
        "stablelm": StableLmForCausalLM(StableLmConfig(**SHAPE, use_qkv_bias=True)),
        "gemma2": Gemma2ForCausalLM(Gemma2Config(**SHAPE, query_pre_attn_scalar=32)),
        "mixtral": MixtralForCausalLM(MixtralConfig(**SHAPE, **EXPERTS, num_local_experts=4)),
        "qwen3_moe": Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**SHAPE, **EXPERTS, num_experts=4, moe_intermediate_size=128)
        ),
        "gpt_oss": GptOssForCausalLM(
            GptOssConfig(**SHAPE | {"intermediate_size": 128}, **EXPERTS, num_local_experts=4)
        ),
        "jetmoe": JetMoeForCausalLM(
            JetMoeConfig(
                vocab_size=SHAPE["vocab_size"],
                hidden_size=128,
                num_hidden_layers=2,
                intermediate_size=128,
                num_key_value_heads=4,
                kv_channels=32,
                num_local_experts=4,
            )
        ),
    }
    tower = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0}
    models |= {
        "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(
                text_config=SHAPE | {"rope_parameters": rope},
                vision_config={
                    "depth": 2,
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_heads": 4,
                    "out_hidden_size": 128,
                    "window_size": 56,
                    "fullatt_block_indexes": [1],
                },
                image_token_id=500,
                video_token_id=501,
                vision_start_token_id=502,
                vision_end_token_id=503,
                tie_word_embeddings=False,
            )
        ),
        "gemma3": Gemma3ForConditionalGeneration(
            Gemma3Config(
                text_config=SHAPE | {"sliding_window": 128},
                vision_config=tower,
                mm_tokens_per_image=4,
                boi_token_index=500,
                eoi_token_index=501,
                image_token_index=502,
                tie_word_embeddings=False,
            )
        ),
        "mistral3": Mistral3ForConditionalGeneration(
            Mistral3Config(
                text_config=MistralConfig(**SHAPE),
                vision_config=PixtralVisionConfig(**tower, head_dim=16),
                image_token_index=500,
                tie_word_embeddings=False,
            )
        ),
    }
    tokenizer = trained_tokenizer(texts)
    for name in ("qwen2", "stablelm", "gemma2"):  # norms are made as ones, and biases as zeros
        for vector in (each for each in models[name].parameters() if each.dim() == 1):
            vector.data.add_(torch.randn_like(vector) * 0.2)
    for name, model in models.items():
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def trained_tokenizer(texts: Path) -> Any:
    """A byte-level tokenizer of 512 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(texts)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def compare(source: str, variants: list[str]) -> dict[str, float]:
    """Relative difference of the logits (root of the summed squares), by variant."""
    import torch

    tokens = torch.arange(1, 65).reshape(2, 32)
    wanted = logits(source, tokens)
    return {
        variant: float((logits(variant, tokens) - wanted).norm() / wanted.norm())
        for variant in variants
    }


def logits(folder: str, tokens: Any) -> Any:
    """Logits of a checkpoint, quantized or not, loaded by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        return model(tokens).logits.float()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(json.dumps(compare(sys.argv[2], sys.argv[3:])))
