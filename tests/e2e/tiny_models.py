"""Run inside the `quantize` environment: writes tiny random models, and loads variants of them.

`python tiny_models.py make FOLDER TEXTS` writes FOLDER/llama, narrow (with layers of 72 columns),
llama2 (the same with stored rotary frequencies), qwen2 and stablelm (with biases), gemma2 (with
norms stored less one), gemma4 (a layer whose keys are its values), mixtral, phi3, qwen3_moe,
qwen3_next (a layer of linear attention, one of full), glm4_moe (a dense layer first),
gpt_oss and jetmoe, and models of images and text (qwen2_5_vl, gemma3, mistral3), with a tokenizer
trained on the texts.
Those of images have their processor's settings and a chat template.
`python tiny_models.py compare SOURCE VARIANT...` prints, as JSON, by how much each variant's logits
differ from the source's, relative to their size.
"""

from __future__ import annotations

import json
import shutil
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
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2}

# Special tokens of the models of images, from number 1.
START, END, IMAGE, OTHER = "<image_start>", "<image_end>", "<image>", "<other>"
LINES = ["\n", "\n\n", "\n\n\n", "\n\n\n\n"]  # vLLM's Gemma 3 looks for them
OF_IMAGES = [START, END, IMAGE, OTHER, *LINES]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% else %}PLACE{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PROCESSORS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # What stands for an image, settings of its pixels, settings of its tokens.
    "qwen2_5_vl": (
        START + IMAGE + END,
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56},
        },
        {"processor_class": "Qwen2_5_VLProcessor"},
    ),
    "gemma3": (
        START,
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
        {"processor_class": "Gemma3Processor", "image_seq_length": 4},
    ),
    "mistral3": (
        IMAGE,
        {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": 14,
            "size": {"longest_edge": 56},
        },
        {
            **{"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
            **{"image_token": IMAGE, "image_break_token": OTHER, "image_end_token": END},
        },
    ),
}


def make(folder: Path, texts: Path) -> None:
    """Write the models."""
    import torch
    from transformers import (
        AutoTokenizer,
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        Glm4MoeConfig,
        Glm4MoeForCausalLM,
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
        Phi3Config,
        Phi3ForCausalLM,
        PixtralVisionConfig,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
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
        # The layer of full attention takes its keys as its values.
        "gemma4": Gemma4ForCausalLM(
            Gemma4TextConfig(
                **SHAPE,
                attention_k_eq_v=True,
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=128,
                global_head_dim=32,
                num_global_key_value_heads=2,
                hidden_size_per_layer_input=0,
                num_kv_shared_layers=0,
            )
        ),
        "mixtral": MixtralForCausalLM(MixtralConfig(**SHAPE, **EXPERTS, num_local_experts=4)),
        "phi3": Phi3ForCausalLM(Phi3Config(**SHAPE)),
        "qwen3_moe": Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**SHAPE, **EXPERTS, num_experts=4, moe_intermediate_size=128)
        ),
        "qwen3_next": Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **SHAPE,
                **EXPERTS,
                num_experts=4,
                moe_intermediate_size=128,
                shared_expert_intermediate_size=128,
                layer_types=["linear_attention", "full_attention"],
                linear_num_value_heads=4,
                linear_num_key_heads=2,
                linear_key_head_dim=32,
                linear_value_head_dim=32,
            )
        ),
        "glm4_moe": Glm4MoeForCausalLM(
            Glm4MoeConfig(
                **SHAPE,
                **EXPERTS,
                n_routed_experts=4,
                n_shared_experts=1,
                moe_intermediate_size=128,
                first_k_dense_replace=1,
            )
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
                image_token_id=3,
                video_token_id=4,
                vision_start_token_id=1,
                vision_end_token_id=2,
                tie_word_embeddings=False,
            )
        ),
        "gemma3": Gemma3ForConditionalGeneration(
            Gemma3Config(
                text_config=SHAPE | {"sliding_window": 128},
                vision_config=tower,
                mm_tokens_per_image=4,
                boi_token_index=1,
                eoi_token_index=2,
                image_token_index=3,
                tie_word_embeddings=False,
            )
        ),
        "mistral3": Mistral3ForConditionalGeneration(
            Mistral3Config(
                text_config=MistralConfig(**SHAPE),
                vision_config=PixtralVisionConfig(**tower, head_dim=16),
                image_token_index=3,
                tie_word_embeddings=False,
            )
        ),
    }
    tokenizer, of_images = trained_tokenizer(texts), trained_tokenizer(texts, sees=True)
    for name in ("qwen2", "stablelm", "gemma2"):  # norms are made as ones, and biases as zeros
        for vector in (each for each in models[name].parameters() if each.dim() == 1):
            vector.data.add_(torch.randn_like(vector) * 0.2)
    projector = models["gemma3"].model.multi_modal_projector
    projector.mm_input_projection_weight.data.normal_(std=0.2)  # made as zeros: it would not see
    for name, model in models.items():
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    # Its class splits text by its own rule, so the file is saved as the class reads.
    AutoTokenizer.from_pretrained(folder / "qwen2").save_pretrained(folder / "qwen2")
    for name, (place, pixels, tokens) in PROCESSORS.items():
        of_images.chat_template = TEMPLATE.replace("PLACE", place)
        of_images.save_pretrained(folder / name)
        (folder / name / "preprocessor_config.json").write_text(json.dumps(pixels | tokens))
        (folder / name / "processor_config.json").write_text(json.dumps(tokens))
    name_as_published(folder / "gemma3" / "model.safetensors")
    store_frequencies(folder / "llama", folder / "llama2")


def store_frequencies(source: Path, folder: Path) -> None:
    """Copy a checkpoint with the rotary frequencies, as files of Llama 2's time have them."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    width = SHAPE["head_dim"]
    frequencies = 1 / 10_000 ** (torch.arange(0, width, 2).float() / width)
    for layer in range(SHAPE["num_hidden_layers"]):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies.clone()
    save_file(tensors, file, metadata={"format": "pt"})


def name_as_published(file: Path) -> None:
    """Give a tower the names in Google's checkpoints; transformers 5 writes shorter ones."""
    from safetensors.torch import load_file, save_file

    own, published = "vision_tower.", "vision_tower.vision_model."
    renamed = {name.replace(own, published): its for name, its in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})


def trained_tokenizer(texts: Path, *, sees: bool = False) -> Any:
    """A byte-level tokenizer of 512 tokens; `sees`: with those that stand for images."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<end>", *(OF_IMAGES if sees else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(texts)], trainer)
    named = {"boi_token": START, "eoi_token": END, "image_token": IMAGE, "video_token": OTHER}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        **({"extra_special_tokens": named} if sees else {}),
    )


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
