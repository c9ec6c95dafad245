"""Faults of a checkpoint's tokenizer that its files, or the built environments, show."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.environments.build import interpreter_path, read_record
from pipeline.environments.environment import EnvironmentState, EnvironmentStatus, status
from pipeline.environments.settings import Settings
from pipeline.stages.context import WORKER_VARIABLES
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.errors import CheckpointError, PrepareError, WorkerError, from_dict
from prepare.private_files import remember
from prepare.process_environment import server_environment
from prepare.untrusted import parse_json
from recipes.accelerator import Accelerator
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.same_tokens import SCRIPTS, SENTENCES
from recipes.checkpoints.tokenizer_file import (
    CURE,
    MAX_TOKENS_BEYOND,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TokenizerFile,
    find_unknown_kind,
    swapped_kind,
)
from recipes.weights.accounting import EMBEDDING

ANSWER_TIMEOUT_S = 300  # importing transformers takes long on a busy machine
READ_BY_CLASSES = (TOKENIZER, TOKENIZER_CONFIG)


def tokenizer_faults(
    file: Path, tokenizer: TokenizerFile, source: Checkpoint
) -> Iterator[CheckpointError]:
    """Yield why libraries do not load the file, read another tokenizer, or the model lacks ids."""
    unknown, cure = find_unknown_kind(tokenizer.parts)
    if unknown:
        yield CheckpointError(
            f"no environment loads the tokenizer: {unknown}",
            where=str(file),
            hint=cure,
        )
    named = source.generation.tokenizer_class
    if kind := swapped_kind(tokenizer.parts, named, source.config.get("model_type")):
        yield CheckpointError(
            f"the libraries would read another tokenizer than {TOKENIZER}: it splits text by "
            f"{kind}, and the class '{named}' replaces that by its own, so spaces are lost",
            where=f"{file.parent / TOKENIZER_CONFIG}, key tokenizer_class; {file}",
            hint=CURE,
        )
    embedding = next(filter(EMBEDDING.fullmatch, source.tensors), None)
    if embedding is None:
        return
    rows = source.tensors[embedding].shape[0]
    beyond = tokenizer.count_beyond(rows)
    if beyond > MAX_TOKENS_BEYOND:
        yield CheckpointError(
            f"the tokenizer is another model's: {beyond:,} of its tokens have ids that the "
            f"embedding '{embedding}' of {rows:,} rows lacks",
            where=f"{file}; {source.where}, key vocab_size",
            hint="put the model's own tokenizer files into a copy of the folder",
        )


def reading_faults(
    source: Checkpoint, environments: Collection[str], accelerator: Accelerator, settings: Settings
) -> Iterator[PrepareError]:
    """Yield how the built environments read a tokenizer.json otherwise than it says.

    One of those with the same libraries is asked, and not again what it read rightly. Classes of
    the checkpoint's own are left to the workers, since no code of it runs here.
    """
    if source.code_file or TOKENIZER not in source.small:
        return
    folder = source.small.path(TOKENIZER).parent
    read = [source.small.digest(name) or "" for name in READ_BY_CLASSES]
    told = repr((SENTENCES, SCRIPTS, source.config, read))
    digest = hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()
    accepted = settings.home / "accepted-tokenizers"
    alike: dict[str, list[EnvironmentStatus]] = {}
    for name in environments:
        environment = status(name, accelerator, settings)
        if environment.state in (EnvironmentState.READY, EnvironmentState.EXTERNAL):
            libraries = _libraries_of(environment)
            if libraries:
                alike.setdefault(libraries, []).append(environment)
    for libraries, members in alike.items():
        marker = accepted / f"{digest}.{libraries}"
        if not marker.exists():
            yield from _reading_faults(folder, members, marker)


def _libraries_of(environment: EnvironmentStatus) -> str:
    """Return the versions that determine the tokens, or the identity of a site's interpreter.

    '' for an environment that reads no tokens.
    """
    record = read_record(environment.path)
    if record is None:
        return environment.identity
    if "transformers" not in record.versions:
        return ""
    return ".".join(
        f"{name}-{record.versions.get(name)}" for name in ("transformers", "tokenizers")
    )


def _reading_faults(
    folder: Path, environments: Sequence[EnvironmentStatus], marker: Path
) -> Iterator[PrepareError]:
    """Ask the smallest of the environments, and note in `marker` that it read rightly."""
    asked = min(environments, key=lambda environment: environment.size_bytes)
    is_ours = asked.state is EnvironmentState.READY
    python = interpreter_path(asked.path) if is_ours else asked.path
    with TemporaryDirectory(prefix="prepare-tokens-") as made:
        spec = Path(made) / "spec.json"
        result = Path(made) / "result.json"
        spec.write_text(json.dumps({"checkpoint": str(folder)}))
        worker = "recipes.quantizers.same_tokens_worker"
        try:
            subprocess.run(
                [*map(str, (python, BOOTSTRAP)), worker, *map(str, (spec, result, made))],
                env=server_environment(os.environ, WORKER_VARIABLES, python=python),
                capture_output=True,
                timeout=ANSWER_TIMEOUT_S,
            )
            answer = parse_json(result.read_bytes())
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return  # the stages tell why the environment does not work
    if answer["ok"]:
        remember(marker)
        return
    fault = from_dict(answer["error"])
    names = ", ".join(environment.key for environment in environments)
    what = "cannot load the tokenizer" if isinstance(fault, WorkerError) else "read other tokens"
    yield CheckpointError(
        f"the environments ({names}) {what}: {fault.message}",
        where=fault.where or f"{folder / TOKENIZER}, {TOKENIZER_CONFIG} or config.json",
        hint=fault.hint
        or "correct what that names in a copy's config.json, tokenizer_config.json or "
        "tokenizer.json, or take the files that the model's maker published",
    )
