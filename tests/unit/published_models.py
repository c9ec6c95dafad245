"""Configs and tensor shapes of well-known models, from their published config.json; no weights."""

from __future__ import annotations

import math
from typing import Any

from pipeline.preflight.memory import Model
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.safetensors_header import TensorEntry

Shapes = dict[str, tuple[int, ...]]

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
LLAMA_3_70B = LLAMA_3_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
}
LLAMA_3_405B = LLAMA_3_8B | {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "max_position_embeddings": 131072,
    "num_attention_heads": 128,
    "num_hidden_layers": 126,
}
MISTRAL_7B_V01 = LLAMA_3_8B | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
QWEN_3_235B = LLAMA_3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
GPT_OSS_120B = LLAMA_3_8B | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
    "sliding_window": 128,
    "vocab_size": 201088,
}
MIXTRAL_8X22B = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN_25_72B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "max_position_embeddings": 32768,
    "max_window_layers": 70,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def attention(prefix: str, config: dict[str, Any], *, bias: bool = False) -> Shapes:
    """Query, key, value and output projections of a layer."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    wide, narrow = head * heads, head * config["num_key_value_heads"]
    shapes: Shapes = {
        f"{prefix}.self_attn.q_proj.weight": (wide, hidden),
        f"{prefix}.self_attn.k_proj.weight": (narrow, hidden),
        f"{prefix}.self_attn.v_proj.weight": (narrow, hidden),
        f"{prefix}.self_attn.o_proj.weight": (hidden, wide),
    }
    if bias:
        widths = {"q_proj": wide, "k_proj": narrow, "v_proj": narrow}
        shapes |= {f"{prefix}.self_attn.{n}.bias": (width,) for n, width in widths.items()}
    return shapes


def around(config: dict[str, Any]) -> Shapes:
    """Embeddings, the last norm and the output head."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    return {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }


def norms(prefix: str, config: dict[str, Any]) -> Shapes:
    """A layer's two norms."""
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{prefix}.{name}.weight": (config["hidden_size"],) for name in names}


def dense(config: dict[str, Any], *, bias: bool = False) -> Shapes:
    """A Llama, Mistral or Qwen 2."""
    shapes = around(config)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= norms(prefix, config) | attention(prefix, config, bias=bias)
        shapes |= gated(f"{prefix}.mlp", config["hidden_size"], config["intermediate_size"])
    return shapes


def mixtral(config: dict[str, Any]) -> Shapes:
    """A MoE model as Mistral publishes them."""
    shapes = around(config)
    hidden, inner, experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= norms(prefix, config) | attention(prefix, config)
        shapes[f"{prefix}.block_sparse_moe.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            one = f"{prefix}.block_sparse_moe.experts.{expert}"
            shapes[f"{one}.w1.weight"] = (inner, hidden)
            shapes[f"{one}.w2.weight"] = (hidden, inner)
            shapes[f"{one}.w3.weight"] = (inner, hidden)
    return shapes


def qwen3_moe(config: dict[str, Any]) -> Shapes:
    """A MoE model as Qwen publishes them since the third."""
    shapes = around(config)
    hidden, experts = config["hidden_size"], config["num_experts"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= norms(prefix, config) | attention(prefix, config)
        shapes[f"{prefix}.mlp.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            one = f"{prefix}.mlp.experts.{expert}"
            shapes |= gated(one, hidden, config["moe_intermediate_size"])
    return shapes


def gpt_oss(config: dict[str, Any]) -> Shapes:
    """gpt-oss: experts in stacks, two 4-bit floats a byte and a scale for each 32 of them."""
    shapes = around(config)
    hidden, inner, experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= norms(prefix, config) | attention(prefix, config, bias=True)
        shapes[f"{prefix}.mlp.router.weight"] = (experts, hidden)
        for name, rows, columns in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
            one = f"{prefix}.mlp.experts.{name}_proj"
            shapes[f"{one}_bias"] = (experts, rows)
            shapes[f"{one}_blocks"] = (experts, rows, columns // 32, 16)
            shapes[f"{one}_scales"] = (experts, rows, columns // 32)
    return shapes


def deepseek(config: dict[str, Any]) -> Shapes:
    """DeepSeek-V3: three dense layers, then experts; one after the last predicts more tokens."""
    shapes = around(config)
    hidden, heads, rank = (
        config[k] for k in ("hidden_size", "num_attention_heads", "kv_lora_rank")
    )
    queries, straight = config["q_lora_rank"], config["qk_nope_head_dim"]
    rotary, values = config["qk_rope_head_dim"], config["v_head_dim"]
    for layer in range(config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{layer}"
        attn = f"{prefix}.self_attn"
        shapes |= norms(prefix, config) | {
            f"{attn}.q_a_proj.weight": (queries, hidden),
            f"{attn}.q_a_layernorm.weight": (queries,),
            f"{attn}.q_b_proj.weight": (heads * (straight + rotary), queries),
            f"{attn}.kv_a_proj_with_mqa.weight": (rank + rotary, hidden),
            f"{attn}.kv_a_layernorm.weight": (rank,),
            f"{attn}.kv_b_proj.weight": (heads * (straight + values), rank),
            f"{attn}.o_proj.weight": (hidden, heads * values),
        }
        if layer < 3:
            shapes |= gated(f"{prefix}.mlp", hidden, config["intermediate_size"])
            continue
        experts = config["n_routed_experts"]
        shapes[f"{prefix}.mlp.gate.weight"] = (experts, hidden)
        shapes[f"{prefix}.mlp.gate.e_score_correction_bias"] = (experts,)
        for name in ("shared_experts", *(f"experts.{number}" for number in range(experts))):
            shapes |= gated(f"{prefix}.mlp.{name}", hidden, config["moe_intermediate_size"])
    return shapes


def gated(prefix: str, hidden: int, inner: int) -> Shapes:
    """A gated MLP."""
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def source(config: dict[str, Any], shapes: Shapes, dtype: str = "BF16") -> Checkpoint:
    """As if read from headers."""
    tensors, position = {}, 0
    for name, shape in shapes.items():
        stored = "U8" if name.endswith(("_blocks", "_scales")) else dtype
        size = {"U8": 1, "I8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}[stored]
        end = position + size * math.prod(shape)
        tensors[name] = TensorEntry(stored, shape, position, end)
        position = end
    return Checkpoint("org/name", "org/name/config.json", config, tensors, position)


def inspected(config: dict[str, Any], shapes: Shapes | None = None, dtype: str = "BF16") -> Model:
    """The shape of a published model; dense unless shapes are given."""
    return Model.of(source(config, dense(config) if shapes is None else shapes, dtype))
