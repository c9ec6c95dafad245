"""Whether a running server is the judged tuple: by its settings, and by its log-probabilities.

The fingerprint is the perplexity of a fixed passage, which the evidence has. Restarts of one tuple
on a CPU gave equal numbers; FP8 and bf16 weights of the demo model differ by 0.02 in its logarithm.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field

from artifacts.deployable import Deployable
from pipeline.core.errors import ServingError
from pipeline.core.record import Record
from pipeline.core.untrusted.json import parse_json
from pipeline.core.untrusted.text import log_line
from pipeline.release.recorded_verdict import RecordedVerdict
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.serving.server_log import engine_facts
from pipeline.stages.coherence.run import CoherenceProbe, UnsupportedRequestError
from recipes.engines import KERNELS, find_engine

REPEATS = 3
ANSWER_TIMEOUT_S = 30.0
MIN_TOLERANCE = 5e-4  # of the logarithm of the perplexity
SPREADS = 3  # tolerance in spreads of the repeated requests
DIFFERENT = 10  # tolerances from which on it is another model
CONTEXT = "max-model-len"
AUTO = "auto"  # the engine chooses, and may report what it chose
_SHOWN = 60


class LiveCheck(Record):
    """Comparison of a running server with a version."""

    verdict: Literal["same", "differs", "undecided"]
    differences: list[str] = Field(description="from the judged tuple")
    unknown: list[str] = Field(description="what could not be compared, or is too close")
    compared: list[str] = Field(description="what is as judged")
    not_reported: list[str] = Field(
        [], description="what no server reports, so that it decides nothing here"
    )


def check_live(
    past: RecordedVerdict, url: str, model: str | None = None, log: Path | None = None
) -> LiveCheck:
    """Compare the server at that URL with the judged tuple.

    Args:
        log: of the server, which alone names its kernels.

    Raises:
        ServingError: it does not answer, or does not serve the model.
    """
    endpoint = OpenAIEndpoint.from_url(url, model).resolve_model()
    differences: list[str] = []
    unknown: list[str] = []
    compared: list[str] = []
    for name, (recorded, live) in _settings(past.deployable, endpoint).items():
        words = f"{name}: judged {recorded}, the server has {log_line(live, _SHOWN)}"
        if not live:
            unknown.append(f"{name}: the server does not report it")
        elif live == recorded:
            compared.append(name)
        else:
            (unknown if recorded == AUTO else differences).append(words)
    judged = past.judged.coherence.result
    probe = CoherenceProbe(endpoint.url, endpoint.model)
    found = _perplexities(probe)
    logs = [math.log(each) for each in found]
    if not judged.perplexity or len(logs) < REPEATS:
        unknown.append("log-probabilities: the evidence or the server has none of the passage")
    else:
        distance = abs(logs[0] - math.log(judged.perplexity))
        tolerance = max(MIN_TOLERANCE, SPREADS * (max(logs) - min(logs)))
        words = (
            f"log-probabilities: perplexity {found[0]:.6g} of the passage, judged "
            f"{judged.perplexity:.6g} (tolerance {tolerance:.2g} of its logarithm)"
        )
        if distance <= tolerance:
            compared.append("log-probabilities")
        else:
            (differences if distance > DIFFERENT * tolerance else unknown).append(words)
    if probe.complete() == judged.sample:
        compared.append("greedy answer")
    else:
        unknown.append("greedy answer: other words than judged")
    not_reported: list[str] = []
    if past.deployable.kernels is not None:
        facts = engine_facts(log, find_engine(past.deployable.serving.engine)) if log else {}
        if log is None:
            not_reported.append("kernels, which the server's log has")
        elif not facts.keys() & set(KERNELS):
            unknown.append("kernels: the log does not name them")
        elif others := past.deployable.kernel_differences(facts):
            differences += map(str, others)
        else:
            compared.append("kernels")
    verdict: Any = "differs" if differences else "undecided" if unknown else "same"
    return LiveCheck(
        verdict=verdict,
        differences=differences,
        unknown=unknown,
        compared=compared,
        not_reported=not_reported,
    )


def _perplexities(probe: CoherenceProbe) -> list[float]:
    """Return the passage's perplexity by each request that gave a positive number."""
    try:
        return [each for _ in range(REPEATS) if (each := probe.passage_perplexity())]
    except UnsupportedRequestError:
        return []


def _settings(judged: Deployable, endpoint: OpenAIEndpoint) -> dict[str, tuple[str, str]]:
    """Return what was judged and what the server reports ('' if nothing), by name."""
    engine = find_engine(judged.serving.engine)
    arguments = judged.serving.engine_arguments
    live = engine.settings_in(_text(endpoint, "/metrics"))
    try:
        version = str(parse_json(_text(endpoint, engine.version_path))["version"])
    except (ValueError, LookupError, TypeError):
        version = ""
    found = {"engine version": (judged.engine_version, version)}
    if CONTEXT in arguments:
        found[CONTEXT] = (str(arguments[CONTEXT]), str(endpoint.max_length))
    for name in engine.reported_settings.values():
        if name in arguments:
            found[name] = (str(arguments[name]), live.get(name, ""))
    return found


def _text(endpoint: OpenAIEndpoint, path: str) -> str:
    try:
        answer = endpoint.request("GET", path, seconds=ANSWER_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServingError(f"the server did not answer: {error}", where=endpoint.url) from error
    # All of it: `text` is the beginning alone.
    return answer.content.decode(errors="replace") if answer.status == 200 else ""
