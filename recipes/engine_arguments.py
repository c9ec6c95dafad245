"""Engine arguments and variables that a profile or a registry tag may set.

Only `prepare` sets arguments that decide access to the server and what it loads, or beginnings of
their names. No value may name a file or a Python object, which the engine would open or import.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prepare.untrusted import parse_json
from recipes.engines import DEFAULT, find_engine

# A dot leads into an argument that is a mapping.
_NAME = re.compile(r"([a-z0-9][a-z0-9-]*)(\.[A-Za-z0-9_-]{1,60}){0,5}")
_PATH = re.compile(r"[/\\~]|^\.|\.[^\W\d]")
_OBJECT = re.compile(r"^[A-Za-z_]\w*([.:][A-Za-z_]\w*)+$")
# Keys whose value names a file or object, even without a slash or a dot.
_OF_A_FILE = re.compile(
    r"(.*[_-])?(dir|path|file|folder|plugin|cls|module|qualname)s?", re.IGNORECASE
)
# Lets a server compile kernels with its environment's nvcc.
COMPILES = "PREPARE_NVCC"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A process reads more, such as CC, CXX and OPENSSL_CONF; permitted are those that tune the engine
# and its libraries.
_TUNES = re.compile(
    r"(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|CUDA|CUBLAS|NVIDIA"
    r"|NCCL|GLOO|FLASHINFER|MALLOC)_.*|TOKENIZERS_PARALLELISM|PREPARE_(CPU_FEATURES|NVCC)"
)
# Variables that load code or settings, open connections, or hold a credential.
_VARIABLES_OF_OURS = re.compile(
    r"LD_.*|PYTHON.*|GLIBC_TUNABLES|PATH|HOME|BASH_ENV|ENV|.*_PROXY|PREPARE_(?!(CPU_FEATURES|NVCC)$).*"
    r"|.*(TOKEN|PASSW|SECRET|CREDENTIAL|API_?KEY|ACCESS_KEY).*"
    r"|OMP_TOOL.*|.*PLUGIN.*"
    r"|.*_(DIR|ROOT|HOME|FOLDER|PATH|FILE|LIBS?|LIBRARY|LIBRARIES|URL|URI)",
    re.IGNORECASE,
)
# Names that look like credentials but concern tokens of text.
_TOKENS_OF_TEXT = re.compile(r"TOKENIZERS_PARALLELISM|.*(MAX|NUM|BATCHED)_?.*TOKENS(_.*)?")


# A server uses the product of these (vllm/config/parallel.py).
DIVIDES_GPUS = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "prefill-context-parallel-size",
    "data-parallel-size",
)
EXPERT_PARALLEL = "enable-expert-parallel"  # experts are divided by number, on the same GPUs
# The engine also accepts forms such as 4k, but plans compute with integers.
_COUNTS = (
    *("max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size"),
    *DIVIDES_GPUS,
)


MEMORY_SHARE = "gpu-memory-utilization"
DEFAULT_MEMORY_SHARE = 0.92  # vLLM 0.33's


def memory_share(arguments: Mapping[str, Any]) -> float:
    """Return the part of each GPU's memory that a server may use."""
    return float(arguments.get(MEMORY_SHARE, DEFAULT_MEMORY_SHARE))


def count_gpus(arguments: Mapping[str, Any]) -> int:
    """Return a server's GPUs."""
    return math.prod(int(arguments.get(name, 1)) for name in DIVIDES_GPUS)


def subject_of(name: str) -> str:
    """Return a name without its switch prefix or mapping key."""
    return re.sub(r"^(no-)?((enable|disable)-)?", "", name.partition(".")[0])


class EngineArgumentError(ValueError):
    """Refused name or value."""


def explain_ours(name: str, engine: str = DEFAULT) -> str:
    """Return why only `prepare` sets this argument, or ""."""
    if name == "kv-cache-dtype":
        return "the profile has a separate key for it"
    serving = find_engine(engine)
    for reason, names in serving.ours.items():
        wholes = {pattern.removesuffix("*"): pattern.endswith("*") for pattern in names}
        if name not in serving.whole_names and any(
            whole.startswith(name) or (is_start and name.startswith(whole))
            for whole, is_start in wholes.items()
        ):
            return reason
    return ""


def check_arguments(arguments: Mapping[str, Any], engine: str = DEFAULT) -> None:
    """Raise EngineArgumentError for a refused argument.

    Names have no dashes before them; true is a bare flag, false omits it.
    """
    serving = find_engine(engine)
    for name, value in arguments.items():
        shown = ascii(name)[:80]
        if not (match := _NAME.fullmatch(name)):
            raise EngineArgumentError(
                f"{shown} is no argument: write its long option, without the leading dashes"
            )
        if reason := explain_ours(match[1], engine):
            raise EngineArgumentError(f"a profile must not set {shown}: {reason}")
        words = serving.words_or_folders.get(name, (value,))
        if reason := _fault_in_value(value) or _fault_in_place(name, value, words):
            raise EngineArgumentError(f"the value of {shown} {reason}")


def check_counts(arguments: Mapping[str, Any]) -> None:
    """Check the numbers that plans compute with."""
    for name in _COUNTS:
        value = arguments.get(name, 1)
        if type(value) is not int or value < 1:
            raise EngineArgumentError(
                f"the value of '{name}' is {value!r:.80}, but must be an integer from 1, "
                "without quotes"
            )
    share = arguments.get(MEMORY_SHARE, DEFAULT_MEMORY_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise EngineArgumentError(
            f"the value of '{MEMORY_SHARE}' is {share!r:.80}, but must be a number up to 1"
        )


def check_variables(variables: Mapping[str, Any], engine: str = DEFAULT) -> None:
    """Raise EngineArgumentError for a refused variable."""
    serving = find_engine(engine)
    for name, value in variables.items():
        shown = ascii(name)[:80]
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise EngineArgumentError(f"{shown} is not a name of an environment variable")
        if not isinstance(value, str) or not value.isprintable():
            raise EngineArgumentError(f"the variable {shown} needs a string of one line")
        if _PATH.search(value):
            raise EngineArgumentError(f"the variable {shown} names a file")
        if not (_TUNES.fullmatch(name) or re.fullmatch(serving.tuning, name)):
            raise EngineArgumentError(
                f"a profile must not set the variable {shown}: it does not tune the engine, and "
                "it could make the server run or load something that was not gated"
            )
        if re.fullmatch(serving.silencing, f"{name}={value}", re.IGNORECASE):
            raise EngineArgumentError(
                f"a profile must not set the variable {shown} to {value!r:.80}: the engine's log "
                "would not say whether it took the checkpoint's scales"
            )
        is_ours = _VARIABLES_OF_OURS.fullmatch(name) or re.fullmatch(
            serving.reaching, name, re.IGNORECASE
        )
        if is_ours and not _TOKENS_OF_TEXT.fullmatch(name):
            raise EngineArgumentError(
                f"a profile must not set the variable {shown}: it is a credential, or it would "
                "make the server load code or accept other clients"
            )


def _fault_in_value(value: Any) -> str:
    """Return the fault of a value, or ''."""
    if isinstance(value, list):
        if not value or not all(isinstance(word, str) for word in value):
            return "is not a list of words"
        return next(filter(None, map(_fault_in_value, value)), "")
    if isinstance(value, bool | int):
        return "" if abs(value) < 2**63 else "is too large"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is not a finite number"
    if not isinstance(value, str) or not value.isprintable():
        return "is not a number, word, true or false"
    if value.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", value):
        return "starts with a dash, so the engine would parse it as another argument"
    if any(_PATH.search(word) or _OBJECT.match(word) for word in _words(value)):
        return "names a file or a Python object, which the engine would load"
    return ""


def _fault_in_place(name: str, value: Any, words: tuple[Any, ...]) -> str:
    """Return a fault that depends on the argument."""
    if value not in words:
        return f"is none of {', '.join(words)}, so the engine would read it as a directory"
    texts = value if isinstance(value, list) else [value]
    keys = name.split(".")[1:]
    keys += [key for text in texts if isinstance(text, str) for key in _words(text, keys=True)]
    if key_of_file := next((key for key in keys if _OF_A_FILE.fullmatch(key)), ""):
        return f"sets {ascii(key_of_file)[:80]}, which names something that the engine would load"
    return ""


def _words(text: str, *, keys: bool = False) -> Iterator[str]:
    """Yield strings, or keys, in the text or its JSON."""
    try:
        pending: list[Any] = [parse_json(text, finite=False)]
    except ValueError:
        pending = [text]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if keys:
                yield from value.keys()
            pending += [*(() if keys else value.keys()), *value.values()]
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and not keys:
            yield value
