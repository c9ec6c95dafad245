from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chat_stand_ins import OLLAMA, OPENAI, OPENAI_NEWER, TRTLLM, VLLM, ChatStandIn, Schema
from endpoint_stand_in import EndpointStandIn
from fake_run import FakeRun
from finished_stage import stage_record
from listener import Listener
from sample_stages import PARAMETERS
from word_tokenizer import WordTokenizer

from artifacts.requests import GateRequest
from eval_gates import first_rows_worker
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.suites.json_lines import write_rows
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.plan import Arm
from pipeline.run import pieces
from pipeline.run.gate import GateChoice, check_policy, choose_endpoints, model_of
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.stages.consistency import find_other_forms
from pipeline.stages.evaluate import EvaluateParameters
from pipeline.stages.evidence import Evidence, place_of
from prepare.errors import PrepareError, ServingError, StageError
from prepare.stage import StageReference
from prepare.store import Store
from recipes.catalog import load_policy
from recipes.policy import Policy

JSON = "code: {kind: structured, margins: {fp8: 0.3}}"
LETTER = "code: {kind: mmlu, margins: {fp8: 0.3}}"
CLOZE = LETTER.replace("mmlu", "mmlu, prompt_format: cloze")
TOOLS = JSON.replace("structured", "tools, form: server")
GUIDED = JSON.replace("structured", "structured, guided: true")
TOP_K = JSON.replace("structured", "structured, samples: 2, sampling: {top_k: 20}")
SWITCHED = JSON.replace("structured", "structured, chat_template_kwargs: {thinks: false}")
TO_CONTINUE = "code: {kind: humaneval, prompt_format: completion, margins: {fp8: 0.3}}"
SPEED = (
    "}, speed: {ratio: {min_ratio: 0.9, workloads: [small]}, workloads: {small: {kind: random, "
    "input_tokens: 8, output_tokens: 8, arrivals: {concurrency: 2}}}"
)
CALL = {"category": "simple", "turns": [], "functions": [], "ground_truth": []}
ASKED: dict[str, dict[str, Any]] = {
    JSON: {"prompt": "Say.", "schema": {}},
    LETTER: {"prompt": "Which?", "continuations": [" A", " B"], "subject": "x", "answer": 0},
    CLOZE: {"prompt": "Which?", "continuations": [" a b", " c d"], "subject": "x", "answer": 0},
    TOOLS: {"messages": [{"role": "user", "content": "Call."}], "server": {"tools": [{}]}, **CALL},
    GUIDED: {"messages": [{"role": "user", "content": "Say."}], "server": {}, "schema": {}},
}
ASKED |= {TOP_K: ASKED[JSON], SWITCHED: ASKED[JSON]}


@pytest.fixture
def policy_of(tmp_path: Path) -> Callable[[str], Policy]:
    def make(suites: str) -> Policy:
        file = tmp_path / "policy.yaml"
        file.write_text(f"{{name: mine, summary: s, suites: {{{suites}}}}}")
        return load_policy(str(file))

    return make


@pytest.fixture
def ask_first(
    policy_of: Callable[[str], Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    tokenizer = Tokenizer(WordTokenizer(), {})
    monkeypatch.setattr(Tokenizer, "load", lambda *given, **more: tokenizer)

    def ask(suite: str, *servers: Any, by_chat: bool = False) -> None:
        policy = policy_of(suite)
        request = request_of(tmp_path / "policy.yaml", "chat" if by_chat else "completions")
        asked = resolve_generation(policy, model_of(request, policy)).suites["code"]
        parameters = PARAMETERS["evaluate"] | {"suite": asked}
        task = EvaluateParameters.model_validate(parameters).suite
        rows = [{"id": str(n), "choices": ["a b", "c d"], **ASKED[suite]} for n in range(2)]
        write_rows(tmp_path / "questions.jsonl", rows)
        with ExitStack() as stack:
            urls = [stack.enter_context(server).url for server in servers]
            common = {
                **{"name": "code", "suite": task.model_dump(), "concurrency": 1, "model": "m"},
                **{"questions": str(tmp_path / "questions.jsonl"), "tokenizer": "folder"},
                **{"max_length": 4096, "trust_remote_code": False, "by_chat": by_chat},
                "asks_once": True,
            }
            sides = [
                {**common, "side": side, "url": url}
                for side, url in zip(("baseline", "candidate"), urls, strict=True)
            ]
            first_rows_worker.run({"first_rows": [sides]}, Listener(), tmp_path)

    return ask


@pytest.mark.parametrize(
    ("lacks", "suite", "words"),
    [
        ({"completions"}, JSON, ("404", "--api chat")),
        ({"token_ids"}, JSON, ("token_ids is not supported",)),
        ({"logprobs"}, LETTER, ("log-probabilities",)),
        ({"chosen", "scored"}, LETTER, ("scored is not supported",)),
        ({"scored"}, CLOZE, ("scored is not supported",)),
        ({"chat"}, GUIDED, ("no chat",)),
        ({"tools"}, TOOLS, ("no parser", "--tool-call-parser")),
        ({"counts"}, JSON, ("usage.completion_tokens",)),
    ],
)
def test_an_endpoint_that_lacks_what_a_suite_needs_is_refused_by_its_first_answer(
    ask_first: Callable[..., None], lacks: Collection[str], suite: str, words: tuple[str, ...]
) -> None:
    by_chat = "messages" in ASKED[suite]
    with pytest.raises(StageError) as caught:
        ask_first(suite, EndpointStandIn(), EndpointStandIn(lacks), by_chat=by_chat)
    assert "the candidate cannot be asked the suite 'code'" in caught.value.message
    assert caught.value.where.startswith("--candidate http://127.0.0.1:")
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("schema", [VLLM, TRTLLM, OLLAMA, OPENAI, OPENAI_NEWER])
@pytest.mark.parametrize("suite", [JSON, LETTER])
def test_every_chat_api_is_asked_in_a_form_that_it_takes(
    ask_first: Callable[..., None], schema: Schema, suite: str
) -> None:
    server = ChatStandIn(schema)
    ask_first(suite, ChatStandIn(VLLM), server, by_chat=True)
    (body,) = [body for path, body in server.requests if server.answer(path, body)[0] == 200]
    assert len(schema.lengths & body.keys()) == 1
    assert ("repetition_penalty" in body) == (schema not in (OPENAI, OPENAI_NEWER))


@pytest.mark.parametrize(
    ("suite", "word"),
    [(CLOZE, "several words"), (TOP_K, "top_k"), (SWITCHED, "chat_template_kwargs")],
)
def test_what_a_chat_api_cannot_be_asked_is_refused(
    ask_first: Callable[..., None], suite: str, word: str
) -> None:
    with pytest.raises(StageError, match=word):
        ask_first(suite, ChatStandIn(VLLM), ChatStandIn(OPENAI), by_chat=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (EndpointStandIn, ""),
        (lambda: EndpointStandIn({"usage"}), "include_usage"),
        (lambda: ChatStandIn(VLLM), "404"),
    ],
)
def test_loads_need_streams_that_count_their_tokens(make: Callable[[], Any], words: str) -> None:
    with make() as server:
        endpoint = OpenAIEndpoint(server.url, "m")
        if not words:
            endpoint.check_stream()
            return
        with pytest.raises(ServingError, match=words) as caught:
            endpoint.check_stream()
    assert "without 'speed'" in caught.value.hint


def test_an_endpoint_may_be_refused_before_the_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: Any) -> None:
        raise ServingError("no log-probabilities")

    monkeypatch.setattr(pieces, "ask_first_rows", ask)
    monkeypatch.setattr(Arm, "is_ours", property(lambda _: False))
    made = FakeRun(tmp_path / "store")
    with pytest.raises(ServingError):
        made.run()
    assert made.models.asked == []


def request_of(policy: Path, api: str, tokenizer: Path | None = None) -> GateChoice:
    request = GateRequest(
        baseline="http://a",
        candidate="http://b",
        policy=str(policy),
        tokenizer=tokenizer,
        api=api,
    )
    return choose_endpoints(request)


def test_without_a_tokenizer_only_the_chat_api_can_be_asked(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    policy_of(JSON)
    file = tmp_path / "policy.yaml"
    assert request_of(file, "auto").by_chat
    assert not request_of(file, "auto", tmp_path).by_chat
    with pytest.raises(PrepareError) as caught:
        check_policy(request_of(file, "completions"))
    assert caught.value.where == "--api completions"
    policy_of(f"{LETTER}{SPEED}")
    with pytest.raises(PrepareError) as caught:
        check_policy(request_of(file, "auto"))
    assert caught.value.where == "policy key speed"


def test_a_suite_of_text_to_continue_is_no_chat(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    policy, file = policy_of(TO_CONTINUE), tmp_path / "policy.yaml"
    with pytest.raises(PrepareError) as caught:
        model_of(request_of(file, "chat"), policy)
    assert caught.value.where == "policy key suites.code.prompt_format"
    model_of(request_of(file, "completions"), policy)


def test_a_verdict_on_sides_of_different_forms_is_refused(tmp_path: Path) -> None:
    endpoint = {"url": "u", "model": "m", "deployment_id": "d", "tokenizer": ""}

    def evidence_with(chat: dict[str, bool]) -> Evidence:
        keys = {f"{side}.code": StageReference(stage="evaluate", key=side) for side in chat}
        evidence = Evidence(Store(tmp_path), keys)
        for side, reference in zip(chat, keys.values(), strict=True):
            served = {"endpoint": {**endpoint, "side": side, "chat": chat[side]}}
            parameters = EvaluateParameters.model_validate(PARAMETERS["evaluate"] | served)
            record = stage_record(stage="evaluate", parameters=parameters.model_dump(), inputs={})
            evidence.stages[place_of(reference)] = record
        return evidence

    same = evidence_with({"baseline": True, "candidate": True})
    assert list(find_other_forms(["code"], same)) == []
    other = evidence_with({"baseline": False, "candidate": True})
    assert list(find_other_forms(["code"], other)) == [
        "code: the sides were asked in different forms"
    ]
