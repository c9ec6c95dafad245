"""Refuses endpoints that cannot answer what a policy asks, before the first question.

Both are probed concurrently, and asked in one form: text completions or the chat API. What an
lm-eval task needs is known when it is laid out, so such suites are compared with the same probe
then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from eval_gates.chat_form import ChatForm
from eval_gates.suites.suite_kind import ChatNeed, kind_of
from pipeline.core.errors import PrepareError, ServingError, UsageError
from pipeline.plan.chat_api import Api, form_faults
from pipeline.plan.preflight import refuse
from pipeline.serving.chat_probe import probe_chat
from pipeline.serving.endpoint_probe import Capability, Missing, probe
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.stages.questions import QuestionsResult
from recipes.policy import Policy

LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
CHOICES = (Capability.CHOSEN, Capability.SCORED)
SLOW_PROBE_S = 5.0
GENERATED = "generate_until"  # lm-eval's output type of tasks that need no log-probabilities
OTHER_SERVER = "serve the model with a server that offers this, such as vLLM"
NO_SCORES = f"{OTHER_SERVER}; or take a policy of 'humaneval', 'mbpp' and 'rouge', which need none"
HINTS = {
    Capability.COMPLETIONS: "name an endpoint that answers at /v1/completions, such as vLLM's; the "
    "chat template is applied here, with the tokenizer; or let the chat API be asked (--api auto)",
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
class ProbedSides:
    """Both sides, and the form that both are asked in."""

    endpoints: tuple[ProbedEndpoint, ...]
    chat: ChatForm | None  # None: text completions
    seconds: float = 0.0  # wall time of the probe

    @property
    def note(self) -> str:
        """Sentence about endpoints that are slow; '' for others."""
        if self.seconds < SLOW_PROBE_S:
            return ""
        return (
            f"an endpoint is slow: the probe's few requests of one token took {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Requirement:
    """Capabilities of which a part of the policy needs one."""

    needed_by: str
    one_of: tuple[Capability, ...]


def refuse_proxies(sides: Mapping[str, OpenAIEndpoint]) -> None:
    """Refuse endpoints of this machine that would be asked through a proxy.

    Raises:
        UsageError: the environment has a proxy, and no_proxy does not exempt the endpoint.
    """
    proxies = getproxies_environment()
    for side, endpoint in sides.items():
        url = urlsplit(endpoint.url)
        host, scheme = url.hostname or "", url.scheme
        used = next((name for name in (scheme, "all") if proxies.get(name)), None)
        if used and LOOPBACK.fullmatch(host) and not proxy_bypass(host):
            raise UsageError(
                f"{used}_proxy is set, so this machine's {side} endpoint would be asked by a proxy",
                where=f"--{side} {endpoint.url}, variable {used}_proxy",
                hint=f"set no_proxy={host}, or unset {used}_proxy",
            )


def probe_sides(
    sides: Mapping[str, OpenAIEndpoint], policies: Mapping[Api, Policy]
) -> tuple[ProbedSides, Policy]:
    """Probe both endpoints for what the policy needs, and return the form to ask them in.

    Args:
        policies: the policy as each form would ask it, the preferred form first.

    Raises:
        PrepareError: an endpoint lacks a required capability in every form; the message names all.
    """
    faults: list[PrepareError] = []
    begun = time.monotonic()
    for api, policy in policies.items():
        required = list(list_requirements(policy, is_chat=api == "chat"))
        wanted = {capability for each in required for capability in each.one_of}
        if any(kind_of(suite).output_type(suite) is None for suite in policy.suites.values()):
            wanted |= {*CHOICES, Capability.TOKENS}
        form: ChatForm | None = None
        if api == "chat":
            form, found = probe_chat(list(sides.values()), wanted)
        else:
            with ThreadPoolExecutor() as threads:
                found = list(threads.map(partial(probe, wanted=wanted), sides.values()))
        probed = tuple(
            ProbedEndpoint(side, endpoint.url, missing)
            for (side, endpoint), missing in zip(sides.items(), found, strict=True)
        )
        lacking = [*list_faults(probed, required), *(form_faults(policy, form) if form else ())]
        if not lacking:
            return ProbedSides(probed, form, time.monotonic() - begun), policy
        faults += lacking
    refuse(faults)
    raise AssertionError("a form without faults is returned")


def refuse_laid_out(
    probed: ProbedSides, policy: Policy, laid_out: Mapping[str, QuestionsResult]
) -> None:
    """Compare lm-eval's tasks, whose needs are known now, with the probe.

    Raises:
        PrepareError: an endpoint lacks what a task needs.
    """
    required = list_requirements(policy, laid_out, is_chat=probed.chat is not None)
    refuse(list_faults(probed.endpoints, list(required)))


def list_requirements(
    policy: Policy,
    laid_out: Mapping[str, QuestionsResult] | None = None,
    *,
    is_chat: bool = False,
) -> Iterator[Requirement]:
    """Yield the policy's requirements of text completions or the chat API.

    For lm-eval's tasks only those whose questions are listed.
    """
    basic = (Capability.CHAT,) if is_chat else (Capability.COMPLETIONS, Capability.TOKEN_IDS)
    for capability in basic:
        yield Requirement("every suite", (capability,))
    for name, suite in policy.suites.items():
        asker = f"the suite '{name}'"
        if (need := kind_of(suite).chat_need(suite)) is not ChatNeed.NONE:
            is_tools = need is ChatNeed.TOOLS
            yield Requirement(asker, (Capability.TOOLS if is_tools else Capability.CHAT,))
        output = kind_of(suite).output_type(suite)
        if output is None and laid_out and name in laid_out:
            output = laid_out[name].output_type
        if output == GENERATED and not is_chat:  # a form of chat counts tokens
            yield Requirement(asker, (Capability.TOKENS,))
        elif output not in (None, GENERATED):
            is_choice = output == "multiple_choice"
            if not (is_choice and is_chat):  # a chat API writes its choice
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
