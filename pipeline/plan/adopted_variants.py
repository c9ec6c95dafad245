"""Variants that are not quantized here: `--variant` and `--served-variant`.

Another program made the former; the server quantizes the source's weights for the latter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.stages.adopt import ADOPT, AdoptParameters, AdoptRuntime
from prepare.errors import CheckpointError, UsageError, VerificationError
from prepare.escape import MAX_NAME_CHARACTERS, clip, one_line
from prepare.stage import StageSpec
from recipes.catalog import BASELINE
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.folder import check_folder
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.checkpoints.reference import CheckpointReference, parse_reference
from recipes.checkpoints.source_info import describe_source
from recipes.engine_arguments import check_arguments, check_counts
from recipes.engines.engine import KV_DTYPE
from recipes.quantizers.adopted import MADE_ELSEWHERE, AdoptedQuantization, family_of, words_of
from recipes.schema import EngineValue, Family, Recipe, ServingProfile
from recipes.weights.layouts import NotComparableError
from recipes.weights.stored_formats import (
    UNQUANTIZED,
    adopted_formats,
    check_fused_sets,
    modules_of,
    quantization_config,
)

_NAMED = re.compile(r"([a-z0-9][a-z0-9._-]*)=(.+)", re.DOTALL)
MAX_NAME = 60
# Words in engine arguments, and the family whose margins apply; others get fp8's, the strictest.
_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("fp4", "fp4"),
    ("int8", "int8"),
    ("int4", "int4"),
    ("bitsandbytes", "int4"),
)


@dataclass(frozen=True)
class AdoptedVariant:
    """A requested variant, before its weights are fetched.

    `recipe` has no digest yet. `reference` and `header` are None for a served variant.
    """

    recipe: Recipe
    reference: CheckpointReference | None = None
    header: Checkpoint | None = None


def read_variant(text: str, checkpoints: Checkpoints) -> AdoptedVariant:
    """Resolve a value of `--variant`: a folder or Hub id, with or without `NAME=`.

    UsageError: it is neither, or the name is unsuitable. CheckpointError: a file is missing or
    damaged.
    """
    named = _NAMED.fullmatch(text)
    reference = parse_reference(named[2] if named else text)
    if reference.kind == "demo":
        raise UsageError("a demo is no variant", where=f"--variant {text}", hint="name a folder")
    name = named[1] if named else _name_from(reference.short_name)
    _check_name(name, f"--variant {text}")
    if reference.kind == "folder":
        check_folder(Path(reference.name).expanduser().absolute())
    header = checkpoints.read(reference)
    quantizer = header.quantizer or {}
    config = quantization_config(header.config, quantizer)
    where = f"{header.where}, key quantization_config"
    modules = modules_of(header.tensors)
    try:
        formats = adopted_formats(config, where)
        check_fused_sets(config, formats, modules, where)
        layout = str(formats)
    except NotComparableError as error:
        formats = UNQUANTIZED
        layout = f"cannot be compared: {error.message}"
    except VerificationError as error:
        raise CheckpointError(error.message, where=error.where, hint=error.hint) from error
    form = formats.coarsest
    recipe = Recipe(
        name=name,
        summary="weights that others quantized",
        family=family_of(form),
        quantization=AdoptedQuantization(
            kind="adopted",
            origin=reference.name if reference.kind == "hub" else reference.short_name,
            digest="",
            producer=_producer(config, quantizer),
            layout=layout,
            bits=form.bits,
            number="int" if form.number == "int" else "float",
        ),
    )
    return AdoptedVariant(recipe, reference, header)


def _producer(config: object, quantizer: Mapping[str, object]) -> str:
    """Return the named method and program."""
    described = config if isinstance(config, dict) else {}
    producer = quantizer.get("producer") or described.get("producer")
    program = producer if isinstance(producer, dict) else {}
    version = program.get("version") or described.get("version")
    words = [described.get("quant_method"), program.get("name"), version]
    known = dict.fromkeys(str(word) for word in words if isinstance(word, str) and word)
    return clip(one_line(" ".join(known)), MAX_NAME_CHARACTERS)


def read_served(text: str, source: str, profile: ServingProfile) -> AdoptedVariant:
    """Resolve a value of `--served-variant`: NAME='engine arguments'.

    UsageError: no name, or unknown engine arguments.
    """
    where = f"--served-variant {text.partition('=')[0]}"  # arguments may have secrets
    named = _NAMED.fullmatch(text)
    if named is None:
        raise UsageError(
            "a served variant needs a name and arguments",
            where=where,
            hint="write NAME='--quantization fp8'; the name has lower-case letters, digits, '.', "
            "'_' and '-'",
        )
    _check_name(named[1], where)
    try:
        arguments = _parse_arguments(shlex.split(named[2]))
        others = {name: value for name, value in arguments.items() if name != KV_DTYPE}
        check_arguments(others, profile.engine)
        check_counts(others)
        kind = arguments.get(KV_DTYPE, "auto")
        if not isinstance(kind, str) or not re.fullmatch(r"\w+", kind):
            raise ValueError(f"'{KV_DTYPE}' is no word")
    except ValueError as error:
        raise UsageError(
            str(error),
            where=where,
            hint="leave it out, or correct it: long options of vLLM, such as '--quantization fp8'",
        ) from error
    word = " ".join(map(words_of, arguments.values()))
    recipe = Recipe(
        name=named[1],
        summary="the source's weights, served with other arguments",
        family=next((family for part, family in _FAMILIES if part in word), "fp8"),
        quantization=AdoptedQuantization(
            kind="adopted",
            origin=source,
            digest="",
            layout="as the source's",
            bits=16,
            number="float",
            served_with=arguments,
        ),
    )
    return AdoptedVariant(recipe)


def _parse_arguments(words: list[str]) -> dict[str, EngineValue]:
    """Parse `--name value`, `--name=value` and `--flag`, or raise ValueError."""
    arguments: dict[str, EngineValue] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            if name in arguments:
                raise ValueError(f"--{name} is given twice")
            arguments[name] = _value(value) if equals else True
            name = "" if equals else name
        elif name and arguments[name] is True:
            arguments[name] = _value(word)
        elif name:  # an option of several words
            first = arguments[name]
            arguments[name] = [*(first if isinstance(first, list) else [str(first)]), word]
        else:
            raise ValueError(f"'{word.partition('=')[0]}' is no option")
    if not arguments:
        raise ValueError("there are no arguments")
    return arguments


def _value(text: str) -> EngineValue:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _name_from(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:MAX_NAME]


def _check_name(name: str, where: str) -> None:
    if not name or name == BASELINE or len(name) > MAX_NAME:
        raise UsageError(
            f"a variant cannot be called '{name:.80}'",
            where=where,
            hint=f"write another NAME=..., not '{BASELINE}', with lower-case letters, digits, '.', "
            f"'_' and '-', {MAX_NAME} at most",
        )


def adopt_stage(recipe: Recipe, source: str, checkpoint: Checkpoint, store: Path) -> StageSpec:
    """Return the stage that copies a variant's files.

    `source` is the source's digest.
    """
    return ADOPT.spec(
        recipe.name,
        AdoptParameters(
            checkpoint=source,
            quantization=recipe.quantization,
            environment=MADE_ELSEWHERE,
            files={file.name: file.sha256 for file in checkpoint.files},
            copied=True,
        ),
        {},
        AdoptRuntime(folder=str(checkpoint.path)),
        store,
    )


def served_profile(
    profile: ServingProfile, recipe: Recipe, kv_format: str | None = None
) -> ServingProfile:
    """Return the profile with the recipe's engine arguments, and its KV cache of `--kv`."""
    quantization = recipe.quantization
    arguments: dict[str, EngineValue] = {}
    if isinstance(quantization, AdoptedQuantization):
        arguments |= quantization.served_with or {}
    if kv_format is not None:
        arguments[KV_DTYPE] = kv_format
    return profile.serve_with(arguments) if arguments else profile


def with_facts(
    variants: tuple[AdoptedVariant, ...], checkpoints: Mapping[str, Checkpoint]
) -> tuple[AdoptedVariant, ...]:
    """Return the variants with their checkpoints' facts."""
    complete = []
    for variant in variants:
        checkpoint = checkpoints[variant.recipe.name]
        known = describe_source(checkpoint)
        facts = {
            "revision": known.revision,
            "digest": checkpoint.digest,
            "license": clip(one_line(known.license_name or known.license), MAX_NAME_CHARACTERS),
        }
        quantization = variant.recipe.quantization.model_copy(update=facts)
        recipe = variant.recipe.model_copy(update={"quantization": quantization})
        complete.append(replace(variant, recipe=recipe))
    return tuple(complete)
