"""A checkpoint's tokenizer.json, and the class that reads it.

Standard library only at module level, for the quantizers' environments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepare.digest import digest_json
from prepare.errors import CheckpointError
from prepare.untrusted import MEBIBYTE, parse_json

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# Gemma 3 has 262,144 tokens and 514,906 merges of two values each: 34 MB.
MAX_TOKENIZER_BYTES = 128 * MEBIBYTE
MAX_TOKENIZER_VALUES = 8_000_000
MAX_ID = 2**63
# Ids of the base vocabulary that an embedding may lack: Gemma 3's text model lacks one.
MAX_TOKENS_BEYOND = 100
# Kinds of each part that `tokenizers` 0.23 has. It loads no file with another one.
KINDS: Mapping[str, str] = {
    "normalizer": "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend "
    "Replace Sequence Strip StripAccents",
    "pre_tokenizer": "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace "
    "Punctuation Sequence Split UnicodeScripts Whitespace WhitespaceSplit",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing Sequence TemplateProcessing",
    "decoder": "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Sequence Strip "
    "WordPiece",
    "model": "BPE Unigram WordLevel WordPiece",
}
# Classes of transformers 5.17 that replace the file's pre-tokenizer by their own.
METASPACE_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
BYTE_LEVEL_CLASSES = (
    *("CohereTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"),
    "Qwen3_5Tokenizer",
)
# Model types for which this version loads the class that the checkpoint names. For others it
# has a list of wrong names. A type that is absent here is found when its tokenizer is loaded.
TYPES_BY_NAMED_CLASS = (
    "apertus arcee bamba bitnet bloom code_llama cohere cohere2 cwm dbrx exaone4 falcon falcon_h1 "
    "gemma gemma2 gemma3 gemma3_text gemma3n gemma4 gemma4_text glm_moe_dsa gpt2 gpt_neox gpt_oss "
    "helium hunyuan_v1_dense hunyuan_v1_moe lfm2 lfm2_moe llama llama4 llama4_text longcat_flash "
    "mamba mamba2 minimax mpt nanochat nemotron_h olmo olmoe opt phi qwen2_5_vl qwen2_moe qwen2_vl "
    "qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe seed_oss smollm3 solar_open starcoder2 "
    "zamba zamba2"
)
# And for these it loads its own class, with any that the checkpoint names.
TYPES_BY_OWN_CLASS = ("qwen2",)
PUBLISHED = "take the tokenizer.json that the model's maker published, or its base model's"
CURE = (
    'set "tokenizer_class": "PreTrainedTokenizerFast" in a copy\'s tokenizer_config.json, which '
    "reads tokenizer.json as it is"
)
OWN_CLASS_CURE = (
    "transformers loads that class for this model type, also where tokenizer_config.json names "
    "another. If the model was trained with it, save the tokenizer again by its save_pretrained(). "
    "Otherwise make a copy with a file as_written.py of two lines, 'import transformers' and "
    "'class AsWritten(transformers.PreTrainedTokenizerFast): pass', and with the keys "
    '"tokenizer_class": "PreTrainedTokenizerFast" and "auto_map": {"AutoTokenizer": [null, '
    '"as_written.AsWritten"]} in tokenizer_config.json; `prepare model` then needs '
    "--trust-remote-code"
)


@dataclass(frozen=True)
class TokenizerFile:
    """Content of a tokenizer.json, without its vocabulary and merges, which are large."""

    parts: Mapping[str, Any]  # all else in the file; its "model" is an object
    vocabulary: str  # digest
    merges: str  # digest of one form: older versions write "a b"
    size: int  # tokens of the vocabulary
    ids: array[int]  # of the vocabulary's tokens, if it has ids

    def count_beyond(self, rows: int) -> int:
        """Return how many tokens of the vocabulary an embedding of so many rows lacks."""
        if self.ids:
            return sum(number >= rows for number in self.ids)
        return max(0, self.size - rows)


def parse_tokenizer(content: bytes, file: Path) -> TokenizerFile:
    """Return what a tokenizer.json has, or raise CheckpointError."""
    try:
        parts = parse_json(content, values=MAX_TOKENIZER_VALUES)
        if not isinstance(parts, dict):
            raise ValueError("it is no JSON object")
        added_tokens(parts)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the tokenizer is damaged: {error}",
            where=str(file),
            hint="download it again, or save it again with the tokenizer's save_pretrained()",
        ) from error
    model = parts.get("model")
    if not isinstance(model, dict):
        model = {}
    parts["model"] = model
    vocabulary = model.pop("vocab", None)
    merges = model.pop("merges", None)
    if not isinstance(merges, list):
        merges = []
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    ids = array("q")
    if isinstance(vocabulary, dict):
        ids.extend(
            number for number in vocabulary.values() if type(number) is int and 0 <= number < MAX_ID
        )
    return TokenizerFile(
        parts=parts,
        vocabulary=digest_json(vocabulary),
        merges=digest_json(merges),
        size=len(vocabulary) if isinstance(vocabulary, (dict, list)) else 0,
        ids=ids,
    )


def added_tokens(content: Mapping[str, Any]) -> dict[str, int]:
    """Return ids of the added tokens by text."""
    added = content.get("added_tokens") or []
    return {str(token["content"]): int(token["id"]) for token in added}


def swapped_kind(content: Mapping[str, Any], tokenizer_class: str, model_type: object) -> str:
    """Return how the file splits text if the class splits it otherwise, or ''."""
    if model_type not in TYPES_BY_NAMED_CLASS.split():
        return ""
    own = tokenizer_class.removesuffix("Fast")
    kinds = {part["type"] for part in _parts(content, "pre_tokenizer")}
    if "ByteLevel" in kinds:
        return "ByteLevel" if own in METASPACE_CLASSES else ""
    kinds |= {part["type"] for part in _parts(content, "decoder")}
    return "Metaspace" if own in BYTE_LEVEL_CLASSES and "Metaspace" in kinds else ""


def find_unknown_kind(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return which part `tokenizers` does not know, and what helps, or empty texts."""
    for name, kinds in KINDS.items():
        for part in _parts(content, name):
            kind = part["type"]
            if kind not in kinds.split():
                return (
                    f"{name} has the type '{kind}', which is not known",
                    PUBLISHED,
                )
            is_old = "add_prefix_space" in part and "prepend_scheme" not in part
            if kind == "Metaspace" and is_old and part["add_prefix_space"] is False:
                return (
                    f"{name} is a Metaspace of an old version, with add_prefix_space and without "
                    "prepend_scheme",
                    'write "prepend_scheme": "never" next to "add_prefix_space": false in a copy',
                )
    return "", ""


def _parts(content: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield a part of the tokenizer, or the members of its sequence, that name a type."""
    part = content.get(name)
    waiting = [part] if isinstance(part, dict) else []
    while waiting:
        part = waiting.pop()
        if isinstance(part.get("type"), str):
            yield part
        for key in ("normalizers", "pretokenizers", "processors", "decoders"):
            members = part.get(key)
            if isinstance(members, list):
                waiting += [member for member in members if isinstance(member, dict)]
