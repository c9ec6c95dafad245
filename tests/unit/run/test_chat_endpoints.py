"""Which form both endpoints are asked in, by stand-ins with the published schemas."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from chat_stand_ins import (
    OLLAMA,
    OPENAI,
    OPENAI_NEWER,
    TRTLLM,
    VLLM,
    ChatStandIn,
    Schema,
)
from finished_stage import stage_record
from sample_stages import PARAMETERS
from word_tokenizer import WordTokenizer

from eval_gates.ask import Client
from eval_gates.chat_form import ChatForm
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Question
from pipeline.core.errors import PrepareError
from pipeline.core.stage_record import StageRecord
from pipeline.inspection.chat_template import ModelGeneration
from pipeline.plan.chat_api import Api, by_chat
from pipeline.plan.generation_settings import resolve_generation
from pipeline.run.endpoint_check import ProbedSides, probe_sides, refuse_laid_out
from pipeline.run.gate import APIS, GateRequest, check_policy, possible_models
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.stages.evaluate import EvaluateParameters
from pipeline.stages.judge.verdict import check_asked_alike
from pipeline.stages.questions import QuestionsResult
from recipes.catalog import load_policy
from recipes.generation import Sampling
from recipes.policy import Policy

CODE = "code: {kind: humaneval, margins: {fp8: 0.3}}"
LETTER = "knowledge: {kind: mmlu, margins: {fp8: 0.3}}"
CLOZE = LETTER.replace("mmlu", "mmlu, prompt_format: cloze")
TASK = "other: {kind: lm_eval, task: gsm8k, margins: {fp8: 0.3}}"
TOP_K = "code: {kind: humaneval, samples: 2, sampling: {top_k: 20}, margins: {fp8: 0.3}}"
SWITCHED = "code: {kind: humaneval, chat_template_kwargs: {thinks: false}, margins: {fp8: 0.3}}"
TO_CONTINUE = "code: {kind: humaneval, prompt_format: completion, margins: {fp8: 0.3}}"
SPEED = (
    "}, speed: {ratio: {min_ratio: 0.9, workloads: [small]}, workloads: {small: {kind: random, "
    "input_tokens: 8, output_tokens: 8, arrivals: {concurrency: 2}}}"
)
ENDPOINT = by_chat(ModelGeneration("the endpoints"))


@pytest.fixture
def policy_of(tmp_path: Path) -> Callable[[str], Policy]:
    def make(suites: str) -> Policy:
        file = tmp_path / "policy.yaml"
        file.write_text(f"{{name: mine, summary: s, suites: {{{suites}}}}}")
        return load_policy(str(file))

    return make


def choose(policy: Policy, *schemas: Schema, api: str = "chat") -> tuple[ProbedSides, Policy]:
    """The form that endpoints of two schemas are asked in, and the policy in it."""
    models: dict[Api, ModelGeneration] = {
        each: ENDPOINT if each == "chat" else ModelGeneration() for each in APIS[api]
    }
    policies = {each: resolve_generation(policy, model) for each, model in models.items()}
    with ExitStack() as stack:
        servers = [stack.enter_context(ChatStandIn(schema)) for schema in schemas]
        urls = [OpenAIEndpoint(server.url, "m") for server in servers]
        return probe_sides(dict(zip(("baseline", "candidate"), urls, strict=True)), policies)


@pytest.mark.parametrize(
    ("schemas", "form"),
    [
        ((VLLM, VLLM), ChatForm(length_key="max_tokens", extended=True)),
        ((TRTLLM, VLLM), ChatForm(length_key="max_tokens", extended=True)),
        # It ignores what it does not know, which cannot be seen.
        ((OLLAMA, OLLAMA), ChatForm(length_key="max_tokens", extended=True)),
        ((OLLAMA, OPENAI), ChatForm(length_key="max_tokens", extended=False)),
        (
            (OPENAI, OPENAI_NEWER),
            ChatForm(length_key="max_completion_tokens", extended=False),
        ),
        (
            (OPENAI_NEWER, TRTLLM),
            ChatForm(length_key="max_completion_tokens", extended=False),
        ),
    ],
)
def test_both_sides_get_the_richest_form_that_both_accept(
    policy_of: Callable[[str], Policy], schemas: tuple[Schema, Schema], form: ChatForm
) -> None:
    for pair in (schemas, schemas[::-1]):
        probed, policy = choose(policy_of(f"{CODE}, {LETTER}"), *pair)
        assert probed.chat == form
        assert policy.suites["code"].prompt_format == "chat"


@pytest.mark.parametrize(
    ("schemas", "suites", "named"),
    [
        # What limits answers at one has no effect at the other.
        ((OLLAMA, OPENAI_NEWER), CODE, ("chat", "no form of requests")),
        ((VLLM, VLLM), CLOZE, ("echo", "knowledge")),
        ((VLLM, VLLM), f"{CODE}{SPEED}", ("404", "without 'speed'")),
        ((VLLM, OPENAI), TOP_K, ("sampling.top_k",)),
        ((OPENAI, VLLM), SWITCHED, ("chat_template_kwargs",)),
    ],
)
def test_what_the_chat_api_cannot_be_asked_is_refused_with_the_field(
    policy_of: Callable[[str], Policy],
    schemas: tuple[Schema, Schema],
    suites: str,
    named: tuple[str, ...],
) -> None:
    with pytest.raises(PrepareError) as caught:
        choose(policy_of(suites), *schemas)
    assert [word for word in named if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("schemas", "suites", "is_chat"),
    [
        ((TRTLLM, TRTLLM), CODE, False),  # it takes token ids
        ((TRTLLM, TRTLLM), LETTER, True),  # and scores no prompts: the letter is written
        ((OLLAMA, OLLAMA), CODE, True),  # it takes texts alone
        ((TRTLLM, OPENAI), CODE, True),  # both in one form
    ],
)
def test_text_completions_are_preferred_if_both_offer_what_is_needed(
    policy_of: Callable[[str], Policy],
    schemas: tuple[Schema, Schema],
    suites: str,
    is_chat: bool,
) -> None:
    probed, policy = choose(policy_of(suites), *schemas, api="auto")
    assert (probed.chat is not None) == is_chat
    expected = {CODE: "chat" if is_chat else "completion", LETTER: "letter"}[suites]
    assert next(iter(policy.suites.values())).prompt_format == expected


def test_loads_are_text_completions_also_where_suites_are_messages(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    policy, file = policy_of(f"{LETTER}{SPEED}"), tmp_path / "policy.yaml"
    probed, _ = choose(policy, TRTLLM, TRTLLM, api="auto")
    assert probed.chat is not None
    with pytest.raises(PrepareError) as caught:
        check_policy(request_of(file, "auto"))
    assert caught.value.where == "policy key speed"


def test_generated_answers_ask_tensorrt_llm_only_for_what_it_accepts() -> None:
    """By text completions, where it rejects unknown fields."""
    settings = {"until": ["a"], "max_gen_toks": 5, "do_sample": True, **Sampling().model_dump()}
    client = Client(
        "http://none",
        "m",
        settings,
        concurrency=1,
        max_length=99,
        tokenizer=Tokenizer(WordTokenizer(), {}),
        answered=lambda number: None,
        note=str,
    )
    (request,) = client.requests_of(Question("1", "a"))
    with ChatStandIn(TRTLLM) as server:
        assert server.answer(f"/v1/{request.path}", request.body)[0] == 200
        assert server.answer(f"/v1/{request.path}", {**request.body, "other": 1})[0] == 400


def test_an_endpoint_that_lacks_both_is_refused_with_both_reasons(
    policy_of: Callable[[str], Policy],
) -> None:
    with pytest.raises(PrepareError) as caught:
        choose(policy_of(CLOZE), OLLAMA, OLLAMA, api="auto")
    said = str(caught.value)
    assert "cannot unmarshal" in said
    assert "the chat API does not score prompts" in said


def test_a_task_of_whole_texts_is_refused_once_it_is_laid_out(
    policy_of: Callable[[str], Policy],
) -> None:
    probed, policy = choose(policy_of(TASK), OPENAI, OPENAI)
    for output, is_refused in (
        ("generate_until", False),
        ("multiple_choice", False),
        ("loglikelihood_rolling", True),
    ):
        laid_out = QuestionsResult(
            questions=1, questions_digest="0", guessing=0.0, output_type=output
        )
        try:
            refuse_laid_out(probed, policy, {"other": laid_out})
        except PrepareError:
            assert is_refused
        else:
            assert not is_refused


def request_of(policy: Path, api: str, tokenizer: Path | None = None) -> GateRequest:
    return GateRequest(
        baseline=OpenAIEndpoint("http://a", "m"),
        candidate=OpenAIEndpoint("http://b", "m"),
        policy=str(policy),
        family="fp8",
        tokenizer=tokenizer,
        max_length=None,
        eval_data=None,
        deployment_id=None,
        apis=APIS[api],
    )


def test_without_a_tokenizer_only_the_chat_api_can_be_asked(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    policy, file = policy_of(CODE), tmp_path / "policy.yaml"
    assert list(possible_models(request_of(file, "auto"), policy)) == ["chat"]
    with pytest.raises(PrepareError) as caught:
        check_policy(request_of(file, "completions"))
    assert caught.value.where == "--api completions"


def test_a_suite_of_text_to_continue_is_no_chat(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    policy, file = policy_of(TO_CONTINUE), tmp_path / "policy.yaml"
    with pytest.raises(PrepareError) as caught:
        possible_models(request_of(file, "chat"), policy)
    assert caught.value.where == "policy key suites.code.prompt_format"
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    assert list(possible_models(request_of(file, "auto", tokenizer), policy)) == ["completions"]


def test_settings_that_need_the_models_files_are_refused_without_them(
    policy_of: Callable[[str], Policy], tmp_path: Path
) -> None:
    suite = CODE.replace("humaneval", "humaneval, sampling: model, thinking: remove")
    with pytest.raises(PrepareError) as caught:
        possible_models(request_of(tmp_path / "policy.yaml", "chat"), policy_of(suite))
    assert "sampling: {temperature" in str(caught.value)
    assert "thinking: {start" in str(caught.value)


def test_a_verdict_on_sides_of_different_forms_is_refused() -> None:
    form = ChatForm(length_key="max_tokens", extended=True)
    endpoint = {"url": "u", "model": "m", "deployment_id": "d", "tokenizer": ""}

    def record_with(chat: dict[str, ChatForm | None]) -> Callable[[str], StageRecord]:
        def record(role: str) -> StageRecord:
            side = role.partition(".")[0]
            served = {"endpoint": {**endpoint, "side": side, "chat": chat[side]}}
            parameters = EvaluateParameters.model_validate(PARAMETERS["evaluate"] | served)
            return stage_record(stage="evaluate", parameters=parameters.model_dump(), inputs={})

        return record

    check_asked_alike(["code"], record_with({"baseline": form, "candidate": form}))
    with pytest.raises(ValueError, match="code"):
        check_asked_alike(["code"], record_with({"baseline": None, "candidate": form}))
