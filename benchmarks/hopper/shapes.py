"""Shapes of Llama-like models for random weights. Needs no torch: planned.py reads them too."""

SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "vocab_size": 4096,
    },
}


def configuration(shape):
    """config.json of the BF16 checkpoint."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "mlp_bias": False,
    }


def layer_sizes(shape):
    """Rows and columns of a layer's matrices."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads, kv = (shape[key] * shape["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    return {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def sizes_of(shape):
    """Every tensor's size in the BF16 checkpoint."""
    hidden, words = shape["hidden_size"], shape["vocab_size"]
    sizes = {"model.embed_tokens.weight": (words, hidden), "lm_head.weight": (words, hidden), "model.norm.weight": (hidden,)}
    for layer in range(shape["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        sizes |= {of + "input_layernorm.weight": (hidden,), of + "post_attention_layernorm.weight": (hidden,)}
        sizes |= {f"{of}{name}.weight": size for name, size in layer_sizes(shape).items()}
    return sizes
