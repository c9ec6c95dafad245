"""Worker of the `quantize` environment: converts a GGUF file to bf16 safetensors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, raise_as
from prepare.events import Progress

TASK = "convert GGUF"
STEPS = 4
END_OF_TURN = "<|im_end|>"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write a checkpoint into the empty folder `output`; return facts.

    `spec["gguf"]` is a llama-like file whose chat turns end with <|im_end|>.
    """
    source = Path(spec["gguf"])
    metadata = _read_metadata(source)
    progress.advance(TASK, 1, STEPS, "steps")
    model = _load_model(source)
    progress.advance(TASK, 2, STEPS, "steps")
    tokenizer = _load_tokenizer(source, pre_tokenizer=str(metadata["tokenizer.ggml.pre"]))
    progress.advance(TASK, 3, STEPS, "steps")
    model.generation_config = _generation_config(tokenizer)
    model.save_pretrained(output)
    _make_readable_by_transformers_4(output / "config.json")
    tokenizer.save_pretrained(output)
    _clean_tokenizer_config(output / "tokenizer_config.json", model.config.max_position_embeddings)
    progress.advance(TASK, 4, STEPS, "steps")
    return {
        "source": source.name,
        "name": str(metadata["general.name"]),
        "tensors": metadata["GGUF.tensor_count"],
        "parameters": model.num_parameters(),
        "dtype": "bfloat16",
    }


def _read_metadata(source: Path) -> dict[str, Any]:
    """Return the GGUF file's short key-value pairs."""
    import gguf

    # transformers parses the file four times over, 49,000 tokens one by one, and builds the table
    # of tensor names once a module: caching both takes a third of the time.
    gguf.GGUFReader = cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)
    with raise_as(
        CheckpointError,
        "the GGUF file cannot be read",
        source,
        "delete the file's folder, to have it fetched again",
        errors=(OSError, ValueError),
    ):
        reader = gguf.GGUFReader(str(source))
    return {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}


def _load_model(source: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    # The library refuses to save what it loaded from GGUF, so another model takes over the tensors
    # (no copy).
    left_out = ("quantization_config", "_name_or_path", "_model_name_or_path", "model_name")
    values = {key: value for key, value in loaded.config.to_dict().items() if key not in left_out}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            type(loaded.config)(**values), dtype=torch.bfloat16
        )
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    return model


def _load_tokenizer(source: Path, pre_tokenizer: str) -> Any:
    """Return the tokenizer, with what its conversion from GGUF loses restored.

    "smollm" splits off every digit, for example.
    """
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The file's end token ends a document; a chat turn ends with this one (id 2).
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    backend = tokenizer.backend_tokenizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre_tokenizer == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    # The converter's decoder also turns a real U+2581 into a blank, as SentencePiece does.
    backend.decoder = decoders.ByteLevel()
    return tokenizer


def _generation_config(tokenizer: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _make_readable_by_transformers_4(path: Path) -> None:
    """Write `rope_theta` where 4.x reads it too."""
    config = json.loads(path.read_text(encoding="utf-8"))  # noqa: TID251
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _clean_tokenizer_config(path: Path, context: int) -> None:
    """Name a class that 4.x and 5.x have; set the length; keep spaces."""
    config = json.loads(path.read_text(encoding="utf-8"))  # noqa: TID251
    for key in ("backend", "is_local", "local_files_only", "model_type", "legacy"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["clean_up_tokenization_spaces"] = False
    config["model_max_length"] = context
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
