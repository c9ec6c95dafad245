"""Faults of a checkpoint's small files and a calibration file."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.preflight.weight_faults import weight_faults
from prepare.errors import CheckpointError, PrepareError, UsageError
from prepare.untrusted import UntrustedLinesError
from prepare.user_path import user_path
from recipes import catalog
from recipes.checkpoints import unsupported
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.checkpoints.checkpoint import Checkpoint, check_complete
from recipes.checkpoints.dequantized_source import BESIDES, NARROW, PACKED, PACKED_IN
from recipes.checkpoints.folder import MAX_CONTEXT, context_length
from recipes.checkpoints.ignore_list import decoder_layers
from recipes.checkpoints.model_shape import text_level
from recipes.checkpoints.module_kind import is_linear_weight
from recipes.checkpoints.source_format import quantization_configs
from recipes.checkpoints.template_renderer import render
from recipes.checkpoints.weight_files import INDEX
from recipes.quantization import names_file
from recipes.quantizers.calibration import form_of, parse_row, read_rows
from recipes.schema import Recipe, ServingProfile

CALIBRATION_KEY = "quantization.calibration.dataset"
BYTES_A_TOKEN = 2  # fewer than a usual tokenizer's 3 to 4, so that no estimate refuses a good file
RENDERED_CHATS = 20_000  # more take long, and most files have fewer
CHATS_A_CALL = 400  # whose templates are rendered in one process
FEW_LAYERS = 0.1  # more lack a matrix by design, such as layers that share keys and values
MAX_LAYERS = 10_000  # more are an unknown number
_LAYER = re.compile(r"((?:[^.]+\.)*?)(\d+)\.(.+)")
# Their factor lengthens no context, or max_position_embeddings has it already.
UNSCALED_ROPES = ("default", "su", "longrope", "llama3")


def checkpoint_faults(
    source: Checkpoint, profile: ServingProfile, *, quantizes: bool, trust_remote_code: bool
) -> Iterator[PrepareError]:
    """Yield what config.json and headers show."""
    if fault := unsupported.architecture_error(source.architecture, source.config, source.where):
        yield fault
    elif source.small.names:
        try:
            check_complete(source, source.small.names)
        except CheckpointError as incomplete:
            yield incomplete
    if describes_other_weights(source):
        method = next(quantization_configs(source.config), {}).get("quant_method", "quantized")
        types = " and ".join(sorted({tensor.dtype for tensor in source.tensors.values()}))
        yield CheckpointError(
            f"config.json describes {method} weights, and the weights here have {types}, without "
            "scales",
            where=f"{source.where}, key quantization_config",
            hint="the key is left over from training: remove it from config.json",
        )
    elif unlisted := find_unlisted(source):
        yield CheckpointError(
            f"the index leaves out '{unlisted}', which a weight file has: libraries differ in "
            "whether they load it",
            where=f"{Path(source.where).with_name(INDEX)}",
            hint="download or save the checkpoint again, with its index",
        )
    elif missing := find_missing_matrix(source):
        yield CheckpointError(
            f"the weights lack '{missing}', which the other layers have",
            where=source.where,
            hint="save or download the checkpoint again",
        )
    elif quantizes and (fault := unsupported.dequantization_error(source.where, source.format)):
        yield fault
    yield from weight_faults(source)
    if (file := source.code_file) and not trust_remote_code:
        yield unsupported.own_code_error(str(Path(source.where).with_name(file)))
    asked = profile.engine_arguments.get("max-model-len")
    longest = longest_context(source.config)
    is_longer = isinstance(asked, int) and longest is not None and asked > longest
    if is_longer and not may_exceed_context(profile):
        yield UsageError(
            f"the profile '{profile.name}' serves {asked:,} tokens, and the model has {longest:,}",
            where=f"profile {profile.name}, key engine_arguments.max-model-len; {source.where}",
            hint=f"--profile FILE with '{{extends: {profile.name}, name: short, engine_arguments: "
            f"{{max-model-len: {longest}}}}}'"
            if profile.name in catalog.profile_names()
            else f"write 'max-model-len: {longest}' into the profile's file",
        )


def find_unlisted(source: Checkpoint) -> str:
    """Return a weight that is in a file and not in the index, or ''."""
    listed = source.weight_map
    if listed is None:
        return ""
    for name in source.tensors:
        if name not in listed and name.endswith((".weight", ".bias")) and _LAYER.match(name):
            return name
    return ""


def find_missing_matrix(source: Checkpoint) -> str:
    """Return which matrix a decoder layer seems to lack, or ''.

    A layer without any tensor is missing one. So is one of few layers whose module lacks a matrix
    that all others have. The decoder is the stack with the most tensors.
    """
    config = source.config
    shares_keys = text_level(config).get("attention_k_eq_v") is True  # some layers have no v_proj
    if "block_configs" in config or next(quantization_configs(config), None) is not None:
        return ""  # layers that differ as declared, and matrices under several names
    stacks: dict[str, dict[int, set[str]]] = {}
    for name, tensor in source.tensors.items():
        if (match := _LAYER.match(name)) and is_linear_weight(name, tensor):
            stacks.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    if not stacks:
        return ""
    promised = decoder_layers(config)
    stack, layers = max(stacks.items(), key=lambda stack: sum(map(len, stack[1].values())))
    layers = {number: names for number, names in layers.items() if number < promised}
    if len(layers) < 3:
        return ""
    for number in range(promised if promised < MAX_LAYERS else max(layers)):
        if number not in layers:
            return f"{stack}{number} (all of it)"
    usual, times = Counter(map(frozenset, layers.values())).most_common(1)[0]
    if len(layers) - times <= max(1, len(layers) * FEW_LAYERS):
        for number, names in layers.items():
            modules = {name.rsplit(".", 2)[0] for name in names}
            for name in sorted(usual - names if names < usual else ()):
                if shares_keys and name.endswith(".v_proj.weight"):
                    continue
                if name.rsplit(".", 2)[0] in modules:
                    return f"{stack}{number}.{name}"
    return ""


def describes_other_weights(source: Checkpoint) -> bool:
    """Return whether config.json describes quantized weights that are absent."""
    described = next(quantization_configs(source.config), None)
    if described is None:
        return False
    if described.get("kv_cache_scheme") and not described.get("config_groups"):
        return False  # only the cache is quantized
    leaves = {name.rpartition(".")[2] for name in source.tensors}
    packed = {tensor.dtype for tensor in source.tensors.values()} & {*NARROW, "U8", "I32"}
    return bool(source.tensors) and not packed and not leaves & {*BESIDES, PACKED, PACKED_IN}


def may_exceed_context(profile: ServingProfile) -> bool:
    """Return whether vLLM takes a longer max-model-len than the model's."""
    return profile.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"


def longest_context(config: Mapping[str, Any]) -> int | None:
    """Return a lower bound on vLLM's context, or None."""
    plain = context_length(dict(config))
    inner = config.get("text_config")
    scales = [1.0]
    for level in (config, inner if isinstance(inner, dict) else {}):
        for key in ("rope_scaling", "rope_parameters"):
            rope = level.get(key)
            ropes = [rope, *rope.values()] if isinstance(rope, dict) else []
            for scaling in (one for one in ropes if isinstance(one, dict)):
                factor = scaling.get("factor")
                kind = scaling.get("rope_type", scaling.get("type"))
                if isinstance(factor, int | float) and 1 < factor < MAX_CONTEXT:
                    scales.append(1.0 if kind in UNSCALED_ROPES else float(factor))
    return None if plain is None else int(plain * max(scales))


class RefusedChatError(Exception):
    """A chat that the template does not render."""

    def __init__(self, line: int, fault: CheckpointError) -> None:
        super().__init__(fault.message)
        self.line = line
        self.fault = fault


def check_chats(model: ModelGeneration, chats: Mapping[int, list[dict[str, Any]]]) -> None:
    """Render the chats of a file's lines; raise RefusedChatError for the first that fails."""
    lines = list(chats)[:RENDERED_CHATS]
    for start in range(0, len(lines), CHATS_A_CALL):
        _check_chats(model, chats, lines[start : start + CHATS_A_CALL])


def _check_chats(
    model: ModelGeneration, chats: Mapping[int, list[dict[str, Any]]], lines: list[int]
) -> None:
    """Render the lines' chats in one process, and halve them to find the one that fails."""
    plain = {"add_generation_prompt": False}
    try:
        render(model, [{"messages": chats[line], **plain} for line in lines])
    except CheckpointError as fault:
        if len(lines) == 1:
            raise RefusedChatError(lines[0], fault) from fault
    else:
        return
    middle = len(lines) // 2
    _check_chats(model, chats, lines[:middle])
    _check_chats(model, chats, lines[middle:])


def calibration_faults(recipe: Recipe, model: ModelGeneration) -> Iterator[PrepareError]:
    """Yield the first fault of the recipe's calibration file."""
    calibration = recipe.quantization.calibration
    if calibration is None or not calibration.dataset or not names_file(calibration.dataset):
        return
    key = f"recipe {recipe.name}, key {CALIBRATION_KEY}"
    file = user_path(calibration.dataset, f"recipe key {CALIBRATION_KEY}")
    where = f"{file} ({key})"
    if not file.is_file():
        yield UsageError(
            "the calibration file does not exist",
            where=where,
            hint="give a file of texts, a Hub dataset id, or 'builtin'; a relative path "
            "starts from the recipe's directory",
        )
        return
    if file.suffix == ".json":
        yield UsageError(
            "calibration texts are one JSON object a line, and this is one JSON value",
            where=where,
            hint=f"of a list: jq -c '.[]' {file.name} > {file.stem}.jsonl",
        )
        return
    try:
        form = form_of(file, key)
    except UsageError as error:
        yield error
        return
    number = 0
    texts = list[str]()
    chats: dict[int, list[dict[str, Any]]] = {}  # by line
    try:
        with file.open("rb") as opened:
            if opened.read(3) == BOM_UTF8:
                raise ValueError("it begins with a byte order mark (BOM): save it without one")
        for line, row in read_rows(file, form):
            number = line
            sample = parse_row(row, form, calibration.column)
            if isinstance(sample, str):
                texts.append(sample)
            else:
                chats[line] = sample
                texts += [str(message.get("content")) for message in sample]
        number = 0
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if model.is_template_known:
            check_chats(model, chats)
    except (OSError, ValueError, UntrustedLinesError) as error:
        is_row = number > 0 and not isinstance(error, UntrustedLinesError)
        yield UsageError(
            f"the calibration texts cannot be used: {error}",
            where=f"{file}, line {number} ({key})" if is_row else where,
            hint=f"each line is a JSON object with text or messages under '{calibration.column}' "
            "(recipe key quantization.calibration.column)",
        )
    except RefusedChatError as error:
        yield UsageError(
            f"the calibration chats cannot be used: {error.fault.message}",
            where=f"{file}, line {error.line} ({key}); {error.fault.where}",
            hint="give messages that the model's chat template takes, or the key 'text'",
        )
    else:
        if size < BYTES_A_TOKEN * calibration.max_tokens:
            yield UsageError(
                f"the calibration texts have {size:,} bytes, too few for a block of "
                f"{calibration.max_tokens:,} tokens",
                where=where,
                hint="give more text, or a smaller quantization.calibration.max_tokens",
            )
