"""Which of the engine's arguments and variables a profile, or a registry's tag, may set.

The engine's parser takes any unique beginning of a name, so only whole names that it knows are
passed on. Those that decide who may reach the server, and what the server loads, are ours; and
no value may name a file or a Python object, since the engine would open or import it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipes.engines import DEFAULT, find_engine

# A dot leads into an argument that is a mapping.
_NAME = re.compile(r"([a-z0-9-]+)(\.[A-Za-z0-9_-]{1,60}){0,5}")
_PATH = re.compile(r"[/\\~]|^\.|\.[^\W\d]")
_OBJECT = re.compile(r"^[A-Za-z_]\w*([.:][A-Za-z_]\w*)+$")
# Keys of a mapping whose value is such a name, with or without a slash or a dot.
_OF_A_FILE = re.compile(
    r"(.*[_-])?(dir|path|file|folder|plugin|cls|module|qualname)s?", re.IGNORECASE
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A process reads more, such as CC, CXX and OPENSSL_CONF; allowed is what tunes the engine and the
# libraries that compute for it.
_TUNES = re.compile(
    r"(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|CUDA|CUBLAS|NVIDIA"
    r"|NCCL|GLOO|FLASHINFER|MALLOC)_.*|TOKENIZERS_PARALLELISM|PREPARE_CPU_FEATURES"
)
# What makes a process load code or settings of others, reach others, or shows a credential.
_VARIABLES_OF_OURS = re.compile(
    r"LD_.*|PYTHON.*|GLIBC_TUNABLES|PATH|HOME|BASH_ENV|ENV|.*_PROXY|PREPARE_(?!CPU_FEATURES$).*"
    r"|.*(TOKEN|PASSW|SECRET|CREDENTIAL|API_?KEY|ACCESS_KEY).*"
    r"|OMP_TOOL.*|.*PLUGIN.*"
    r"|.*_(DIR|ROOT|HOME|FOLDER|PATH|FILE|LIBS?|LIBRARY|LIBRARIES|URL|URI)",
    re.IGNORECASE,
)
# Not credentials, though they sound like some.
_TOKENS_OF_TEXT = re.compile(r"TOKENIZERS_PARALLELISM|.*(MAX|NUM|BATCHED)_?.*TOKENS(_.*)?")


# What one server is spread over is their product (vllm/config/parallel.py).
DIVIDES_GPUS = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "prefill-context-parallel-size",
    "data-parallel-size",
)
# The engine takes more here, such as 4k; what is planned is computed with them.
_COUNTS = ("max-model-len", *DIVIDES_GPUS)


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """How many GPUs a server with these arguments, which were checked, is spread over."""
    return math.prod(int(arguments.get(name, 1)) for name in DIVIDES_GPUS)


def subject_of(name: str) -> str:
    """What an argument is about, whether it turns it on or off, or sets one key of its mapping."""
    return re.sub(r"^(no-)?((enable|disable)-)?", "", name.partition(".")[0])


class EngineArgumentError(ValueError):
    """A name or value that must not reach the engine; says which, and why."""


def explain_ours(name: str, engine: str = DEFAULT) -> str:
    """Why nobody but the command itself sets this argument; "" where a profile may."""
    if name == "kv-cache-dtype":
        return "the profile has a separate key for it"
    for reason, names in find_engine(engine).ours.items():
        for ours in names:
            if name == ours or (ours.endswith("*") and name.startswith(ours[:-1])):
                return reason
    return ""


def check_arguments(accelerator: str, arguments: Mapping[str, Any], engine: str = DEFAULT) -> None:
    """See that these may be handed to the engine.

    Args:
        accelerator: kind of machine, which decides the engine's version.
        arguments: by long name without dashes; true is a bare flag, false leaves it out.

    Raises:
        EngineArgumentError: one of them may not.
    """
    serving = find_engine(engine)
    version, known = serving.known_arguments(accelerator)
    for name, value in arguments.items():
        shown = ascii(name)[:80]
        found = _NAME.fullmatch(name)
        whole = found[1] if found else ""
        if reason := explain_ours(whole, engine):
            raise EngineArgumentError(f"{shown} is not for a profile to set: {reason}")
        if whole not in known:
            raise EngineArgumentError(
                f"{shown} is no argument of {version}: names are its long options, in full, "
                "without the dashes in front"
            )
        words = serving.words_or_folders.get(name, (value,))
        if reason := _fault_in_value(value) or _fault_in_place(name, value, words):
            raise EngineArgumentError(f"the value of {shown} {reason}")


def check_counts(arguments: Mapping[str, Any]) -> None:
    """Check that what plans count with is a number from 1; raises EngineArgumentError if not."""
    for name in _COUNTS:
        value = arguments.get(name, 1)
        if type(value) is not int or value < 1:
            raise EngineArgumentError(
                f"the value of '{name}' is {value!r:.80}, and has to be an integer from 1, "
                "without quotes"
            )


def check_variables(variables: Mapping[str, Any], engine: str = DEFAULT) -> None:
    """See that these may be set in the server's environment; raises EngineArgumentError if not."""
    serving = find_engine(engine)
    for name, value in variables.items():
        shown = ascii(name)[:80]
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise EngineArgumentError(f"{shown} is no name of an environment variable")
        if not isinstance(value, str) or not value.isprintable():
            raise EngineArgumentError(f"the variable {shown} wants a text of one line")
        if _PATH.search(value):
            raise EngineArgumentError(f"the variable {shown} names a file, which would be loaded")
        if not (_TUNES.fullmatch(name) or re.fullmatch(serving.tuning, name)):
            raise EngineArgumentError(
                f"the variable {shown} is not for a profile to set: it is none of those that tune "
                "the engine, and others can have the server run or load what was not judged"
            )
        is_ours = _VARIABLES_OF_OURS.fullmatch(name) or re.fullmatch(
            serving.reaching, name, re.IGNORECASE
        )
        if is_ours and not _TOKENS_OF_TEXT.fullmatch(name):
            raise EngineArgumentError(
                f"the variable {shown} is not for a profile to set: it is a credential, or would "
                "have the server load code or answer to others"
            )


def _fault_in_value(value: Any) -> str:
    """What is wrong with an argument's value; "" when nothing is."""
    if isinstance(value, bool | int):
        return "" if abs(value) < 2**63 else "is too large"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is no finite number"
    if not isinstance(value, str) or not value.isprintable():
        return "is no number, word, true or false"
    if value.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", value):
        return "begins with a dash, so the engine would take it for another argument"
    if any(_PATH.search(word) or _OBJECT.match(word) for word in _words(value)):
        return "names a file or a Python object, which the engine would load"
    return ""


def _fault_in_place(name: str, value: Any, words: tuple[Any, ...]) -> str:
    """What is wrong with a value for where it stands; "" when nothing is."""
    if value not in words:
        return f"is none of {', '.join(words)}, so it would be taken for a folder"
    keys = [*name.split(".")[1:], *(_words(value, keys=True) if isinstance(value, str) else ())]
    if found := next((key for key in keys if _OF_A_FILE.fullmatch(key)), ""):
        return f"sets {ascii(found)[:80]}, which names what the engine would load"
    return ""


def _words(text: str, *, keys: bool = False) -> Iterator[str]:
    """Every text in it, or every key: those of its JSON, where it is that."""
    try:
        pending: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        pending = [text]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            if keys:
                yield from found.keys()
            pending += [*(() if keys else found.keys()), *found.values()]
        elif isinstance(found, list):
            pending += found
        elif isinstance(found, str) and not keys:
            yield found
