"""Endpoints are probed for what the policy needs, before anything is asked, counted or stored."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from endpoint_stand_in import EndpointStandIn
from fake_run import FakeRun
from listener import Listener

from pipeline.core.errors import PreflightError, PrepareError, ServingError, UsageError
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import Store
from pipeline.environments.settings import Settings
from pipeline.run import gate as endpoint_gate
from pipeline.run.endpoint_check import (
    ProbedSides,
    probe_sides,
    refuse_laid_out,
    refuse_proxies,
)
from pipeline.run.gate import GateRequest
from pipeline.run.pieces import LaidOut
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.questions import QuestionsResult
from recipes.catalog import load_policy

CODE = "code: {kind: humaneval, margins: {fp8: 0.3}}"
LETTER = "knowledge: {kind: mmlu, margins: {fp8: 0.3}}"
CLOZE = "knowledge: {kind: mmlu, prompt_format: cloze, margins: {fp8: 0.3}}"
PROMPT = "calls: {kind: tools, prompt_format: chat, cluster_by: functions, margins: {fp8: 0.3}}"
SERVER = PROMPT.replace("prompt_format: chat", "form: server")
TASK = "other: {kind: lm_eval, task: gsm8k, margins: {fp8: 0.3}}"
SPEED = (
    "speed: {ratio: {min_ratio: 0.9, workloads: [small]}, workloads: {small: {kind: random, "
    "input_tokens: 8, output_tokens: 8, arrivals: {concurrency: 2}}}}"
)


def write_policy(folder: Path, *suites: str, speed: str = "") -> str:
    file = folder / "policy.yaml"
    file.write_text(
        f"{{name: mine, summary: s, suites: {{{', '.join(suites)}}}{', ' * bool(speed)}{speed}}}"
    )
    return str(file)


def probe(folder: Path, lacks: Collection[str], *suites: str, speed: str = "") -> ProbedSides:
    """What a candidate that lacks this was found to lack; the baseline lacks nothing."""
    policy = load_policy(write_policy(folder, *suites, speed=speed))
    with EndpointStandIn() as baseline, EndpointStandIn(lacks) as candidate:
        sides = {
            name: OpenAIEndpoint(each.url, "m")
            for name, each in (("baseline", baseline), ("candidate", candidate))
        }
        return probe_sides(sides, {"completions": policy})[0]


@pytest.mark.parametrize(
    ("lacks", "suites", "speed", "named"),
    [
        ({"completions"}, (CODE,), "", ("candidate", "chat")),
        ({"token_ids"}, (CODE,), "", ("candidate", "token ids")),
        ({"logprobs"}, (CODE, LETTER), "", ("candidate", "log-probabilities", "knowledge")),
        ({"chosen", "scored"}, (LETTER,), "", ("candidate", "log-probabilities", "knowledge")),
        ({"scored"}, (CLOZE,), "", ("candidate", "log-probabilities", "echo", "knowledge")),
        ({"chat"}, (PROMPT,), "", ("candidate", "chat", "calls")),
        ({"tools"}, (SERVER,), "", ("candidate", "tool calls", "calls", "--tool-call-parser")),
        ({"counts"}, (CODE,), "", ("candidate", "usage.completion_tokens", "code")),
        ({"usage"}, (CODE,), SPEED, ("candidate", "stream_options", "speed")),
    ],
)
def test_an_endpoint_that_lacks_what_the_policy_needs_is_refused(
    tmp_path: Path,
    lacks: Collection[str],
    suites: tuple[str, ...],
    speed: str,
    named: tuple[str, ...],
) -> None:
    with pytest.raises(ServingError) as caught:
        probe(tmp_path, lacks, *suites, speed=speed)
    said = str(caught.value)
    assert [word for word in named if word not in said] == []
    assert caught.value.where.startswith("--candidate http://127.0.0.1:")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("lacks", "suites"),
    [
        ((), (CODE, LETTER, CLOZE.replace("knowledge", "cloze"))),
        ({"logprobs", "usage", "chat"}, (CODE,)),
        ({"counts"}, (LETTER,)),
        ({"tools"}, (PROMPT,)),
        ({"chosen"}, (LETTER,)),  # scored prompts will do
        ({"scored"}, (LETTER,)),
        ({"logprobs"}, (TASK,)),  # whether it scores anything is not known yet
    ],
)
def test_what_the_policy_does_not_need_may_be_missing(
    tmp_path: Path, lacks: Collection[str], suites: tuple[str, ...]
) -> None:
    probe(tmp_path, lacks, *suites)


def test_one_that_does_not_answer_is_refused_with_its_own_reason(tmp_path: Path) -> None:
    policy = load_policy(write_policy(tmp_path, CODE))
    with EndpointStandIn(status=503) as broken:
        sides = dict.fromkeys(("baseline", "candidate"), OpenAIEndpoint(broken.url, "m"))
        with pytest.raises(PreflightError) as caught:  # of both, not of the first alone
            probe_sides(sides, {"completions": policy})
    said = str(caught.value)
    assert "503" in said
    assert "EngineCore is dead" in said
    assert "baseline" in said
    assert "candidate" in said


@pytest.mark.parametrize(
    ("output_type", "is_refused"),
    [("generate_until", False), ("multiple_choice", True), ("loglikelihood", True)],
)
def test_a_task_is_held_against_the_probe_once_it_is_laid_out(
    tmp_path: Path, output_type: str, is_refused: bool
) -> None:
    missing = probe(tmp_path, {"logprobs"}, TASK)
    policy = load_policy(write_policy(tmp_path, TASK))
    laid_out = QuestionsResult(
        questions=1, questions_digest="0", guessing=0.0, output_type=output_type
    )
    found: PrepareError | None = None
    try:
        refuse_laid_out(missing, policy, {"other": laid_out})
    except PrepareError as error:
        found = error
    assert (found is not None) == is_refused
    if found is not None:
        assert "'other'" in found.message
        assert found.where.startswith("--candidate")


def test_what_is_laid_out_may_be_refused_before_the_first_question(tmp_path: Path) -> None:
    """As a gate refuses tasks whose endpoints cannot score them."""
    seen: list[str] = []

    def check(laid_out: LaidOut) -> None:
        seen.extend(laid_out)
        raise ServingError("no log-probabilities")

    made = FakeRun(tmp_path / "store", check_laid_out=check)
    with pytest.raises(ServingError):
        made.run()
    assert seen == list(made.policy.suites)
    assert made.models.asked == []


def test_endpoints_that_fail_their_probe_leave_nothing_behind(tmp_path: Path) -> None:
    """No run, no environment, no attempt: nothing was tried."""
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text("{}")
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    with EndpointStandIn() as baseline, EndpointStandIn({"completions", "chat"}) as candidate:
        request = GateRequest(
            baseline=OpenAIEndpoint(baseline.url),
            candidate=OpenAIEndpoint(candidate.url),
            policy=write_policy(tmp_path, CODE),
            family="fp8",
            tokenizer=tokenizer,
            max_length=None,
            eval_data=None,
            deployment_id=None,
        )
        with pytest.raises(PrepareError, match="chat"):
            endpoint_gate.run_gate(request, settings, Listener())
    assert not settings.home.exists()
    store = Store(settings.store)
    assert not settings.store.exists() or not (
        RunFolders(store).all() or list(AttemptLedger(store).all())
    )


@pytest.mark.parametrize(
    ("url", "variables", "word"),
    [
        ("http://127.0.0.1:1", {"http_proxy": "http://p:9"}, "http_proxy"),
        ("http://localhost:1", {"ALL_PROXY": "http://p:9"}, "all_proxy"),
        ("http://127.0.0.1:1", {"http_proxy": "http://p:9", "no_proxy": "127.0.0.1"}, ""),
        ("http://10.0.0.1:1", {"http_proxy": "http://p:9"}, ""),
        ("http://127.0.0.1:1", {}, ""),
    ],
)
def test_a_proxy_before_loopback_is_refused(
    url: str, variables: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sides = {"candidate": OpenAIEndpoint.from_url(url, None)}
    if not word:
        refuse_proxies(sides)
        return
    with pytest.raises(UsageError, match=word) as caught:
        refuse_proxies(sides)
    assert "no_proxy=" in caught.value.hint
