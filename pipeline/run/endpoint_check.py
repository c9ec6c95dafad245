"""Refuses endpoints that cannot answer what a policy asks, before the first question.

Both are probed concurrently. What an lm-eval task needs is known when it is laid out, so such
suites are compared with the same probe then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from eval_gates.suites.suite_kind import ChatNeed, kind_of
from pipeline.core.errors import PrepareError, ServingError
from pipeline.preflight.preflight import refuse
from pipeline.serving.endpoint_probe import Capability, Missing, probe
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.stages.questions import QuestionsResult
from recipes.policy import Policy

CHOICES = (Capability.CHOSEN, Capability.SCORED)
GENERATED = "generate_until"  # lm-eval's output type of tasks that need no log-probabilities
OTHER_SERVER = "serve the model with a server that offers this, such as vLLM"
NO_SCORES = f"{OTHER_SERVER}; or take a policy of 'humaneval', 'mbpp' and 'rouge', which need none"
HINTS = {
    Capability.COMPLETIONS: "name an endpoint that answers at /v1/completions, such as vLLM's; the "
    "chat template is applied here, with the tokenizer",
    Capability.TOKEN_IDS: OTHER_SERVER,
    Capability.CHOSEN: NO_SCORES,
    Capability.SCORED: NO_SCORES,
    Capability.CHAT: OTHER_SERVER,
    Capability.TOOLS: "start the server with its tool-call parser (vLLM: --enable-auto-tool-choice "
    "--tool-call-parser NAME), or write 'form: prompt' in the policy",
    Capability.TOKENS: OTHER_SERVER,
    Capability.USAGE: f"{OTHER_SERVER}; or take a policy without 'speed'",
}


@dataclass(frozen=True)
class ProbedEndpoint:
    """One side of the comparison, and its missing capabilities."""

    side: str  # baseline or candidate
    url: str
    missing: Missing


@dataclass(frozen=True)
class Requirement:
    """Capabilities of which a part of the policy needs one."""

    needed_by: str
    one_of: tuple[Capability, ...]


def probe_sides(sides: Mapping[str, OpenAIEndpoint], policy: Policy) -> tuple[ProbedEndpoint, ...]:
    """Probe both endpoints for what the policy needs.

    Raises:
        PrepareError: an endpoint lacks a required capability; the message names all.
    """
    required = list(list_requirements(policy))
    wanted = {capability for each in required for capability in each.one_of}
    if any(kind_of(suite).output_type(suite) is None for suite in policy.suites.values()):
        wanted |= {*CHOICES, Capability.TOKENS}
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda endpoint: probe(endpoint, wanted), sides.values()))
    probed = tuple(
        ProbedEndpoint(side, endpoint.url, missing)
        for (side, endpoint), missing in zip(sides.items(), found, strict=True)
    )
    refuse(list_faults(probed, required))
    return probed


def refuse_laid_out(
    probed: Iterable[ProbedEndpoint], policy: Policy, laid_out: Mapping[str, QuestionsResult]
) -> None:
    """Compare lm-eval's tasks, whose needs are known now, with the probe.

    Raises:
        PrepareError: an endpoint lacks what a task needs.
    """
    refuse(list_faults(probed, list(list_requirements(policy, laid_out))))


def list_requirements(
    policy: Policy, laid_out: Mapping[str, QuestionsResult] | None = None
) -> Iterator[Requirement]:
    """Yield the policy's requirements.

    For lm-eval's tasks only those whose questions are listed.
    """
    yield Requirement("every suite", (Capability.COMPLETIONS,))
    yield Requirement("every suite", (Capability.TOKEN_IDS,))
    for name, suite in policy.suites.items():
        asker = f"the suite '{name}'"
        if (need := kind_of(suite).chat_need(suite)) is not ChatNeed.NONE:
            is_tools = need is ChatNeed.TOOLS
            yield Requirement(asker, (Capability.TOOLS if is_tools else Capability.CHAT,))
        output = kind_of(suite).output_type(suite)
        if output is None and laid_out and name in laid_out:
            output = laid_out[name].output_type
        if output == GENERATED:
            yield Requirement(asker, (Capability.TOKENS,))
        elif output is not None:
            is_choice = output == "multiple_choice"
            yield Requirement(asker, CHOICES if is_choice else (Capability.SCORED,))
    if policy.claims_on(None):
        yield Requirement("'speed'", (Capability.USAGE,))


def list_faults(
    probed: Iterable[ProbedEndpoint], required: Iterable[Requirement]
) -> Iterator[PrepareError]:
    """Yield each missing capability once, with the parts that need it."""
    required = list(required)
    for endpoint in probed:
        needed_by: dict[Capability, list[str]] = {}
        for each in required:
            if all(capability in endpoint.missing for capability in each.one_of):
                needed_by.setdefault(each.one_of[-1], []).append(each.needed_by)
        for capability, askers in needed_by.items():
            yield ServingError(
                f"the {endpoint.side} endpoint failed the probe for {capability}, which "
                f"{', '.join(dict.fromkeys(askers))} needs: {endpoint.missing[capability]}",
                where=f"--{endpoint.side} {endpoint.url}",
                hint=HINTS[capability],
            )
