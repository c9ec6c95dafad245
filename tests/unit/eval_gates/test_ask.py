"""The client: requests of every form, an endpoint's faults, and what an answer is read as."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from word_tokenizer import WordTokenizer

from eval_gates import ask
from eval_gates.ask import Client
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Answer, AnsweredQuestion, Question, Reply, Score
from eval_gates.written_choice import find_choice
from prepare.errors import StageError

Responder = Callable[[str, dict[str, Any]], tuple[int, Any]]
CHOICES = Question("c", "Which?\nAnswer:", continuations=(" A", " B"))
THINKING = {"start": "<think>", "end": "</think>", "keep": False}


@contextmanager
def serving(answer: Responder) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append({"path": self.path, **body})
            status, found = answer(self.path, body)
            content = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        pass

    monkeypatch.setattr(ask.asyncio, "sleep", sleep)


def client_of(url: str, settings: Any = None, **more: Any) -> Client:
    given: dict[str, Any] = {
        "concurrency": 4,
        "max_length": 100,
        "tokenizer": None if "by_chat" in more else Tokenizer(WordTokenizer(), {}),
        "answered": lambda number: None,
        "note": lambda text: None,
        **more,
    }
    return Client(url, "m", {"until": ["\n"], "max_gen_toks": 8, **(settings or {})}, **given)


def text(content: str, reason: str = "stop", **message: Any) -> Any:
    choice = {"text": content, "message": {"content": content, **message}, "finish_reason": reason}
    return {"choices": [choice], "usage": {"completion_tokens": 3}}


def chosen(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Log-probabilities by the number of a token; as the prompt's own where they are asked so."""
    if "logprob_token_ids" in body:
        top = {f"token_id:{n}": -1.0 - n for n in body["logprob_token_ids"]}
        best = max(top.values())
        return 200, {"choices": [{"logprobs": {"top_logprobs": [top], "token_logprobs": [best]}}]}
    values = [None, *(-1.0 - n for n in body["prompt"][1:]), -9.0]
    tops = [None, *({"x": value} for value in values[1:])]
    return 200, {"choices": [{"logprobs": {"top_logprobs": tops, "token_logprobs": values}}]}


def test_choices_are_one_request_and_equal_scored_prompts() -> None:
    with serving(chosen) as (url, bodies):
        once, scored = client_of(url), client_of(url, asks_once=False)
        (first,), (second,) = once.ask([CHOICES]), scored.ask([CHOICES])
    assert [value for value, _ in first[0].values] == [value for value, _ in second[0].values]
    assert [greedy for _, greedy in first[0].values] == [True, False]
    assert len(bodies) == 3
    assert once.counts == {"requests": 1, "one_request": 1, "scored": 0, "fallen_back": 0}
    assert scored.counts == {"requests": 2, "one_request": 0, "scored": 1, "fallen_back": 1}


def test_a_server_without_chosen_tokens_scores_prompts_after_one_try() -> None:
    def refusing(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (400, {"error": "unknown"}) if "logprob_token_ids" in body else chosen(path, body)

    notes: list[str] = []
    with serving(refusing) as (url, bodies):
        client = client_of(url, note=notes.append)
        client.ask([CHOICES, Question("d", "Who?\nAnswer:", continuations=(" A", " B"))])
    assert sum("logprob_token_ids" in body for body in bodies) == 1
    assert len(notes) == 1
    assert client.counts["fallen_back"] == 2


def test_long_choices_and_own_contexts_are_scored_as_prompts() -> None:
    pairs = Question("p", "x", continuations=(" end", " end"), contexts=("One", "Two words"))
    long = Question("l", "Which? ", continuations=("a b", "c"))
    with serving(chosen) as (url, bodies):
        replies = client_of(url).ask([pairs, long])
    assert len(bodies) == 4
    assert all(body["echo"] for body in bodies)
    assert [len(reply[0].values) for reply in replies] == [2, 2]


def test_texts_have_their_stops_samples_and_seeds() -> None:
    drawn = {"do_sample": True, "temperature": 0.7, "samples": 3}
    with serving(lambda path, body: (200, text(f"seed {body['seed']}", "length"))) as (url, bodies):
        (greedy,) = client_of(url).ask([Question("q", "Say.")])
        (several,) = client_of(url, drawn).ask([Question("q", "Say.")])
    assert bodies[0]["stop"] == ["\n"]
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"]) == (0, 8)
    assert greedy[0].is_truncated
    assert len({reply.text for reply in several}) == 3
    assert {body["temperature"] for body in bodies[1:]} == {0.7}


def test_a_chat_prompt_is_rendered_here_and_messages_by_the_server() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    called = [{"function": {"name": "f", "arguments": "{}"}}]
    by_server = Question("t", "x", ({"role": "user", "content": "Call."},), {"tools": tools})
    with serving(lambda path, body: (200, text("", tool_calls=called))) as (url, bodies):
        client = client_of(url, is_chat=True)
        _, (reply,) = client.ask([Question("q", "Say."), by_server])
    paths = {body["path"]: body for body in bodies}
    assert client.shown(Question("q", "Say.")) == "<user>Say.<assistant>"
    assert isinstance(paths["/v1/completions"]["prompt"][0], int)
    assert paths["/v1/chat/completions"]["tools"] == tools
    assert [call.name for call in reply.calls] == ["f"]


def test_thoughts_are_removed_and_stops_are_applied_here() -> None:
    said = "<think>why\nnot</think> Yes.\nNo."
    with serving(lambda path, body: (200, text(said))) as (url, bodies):
        ((reply,),) = client_of(url, {"thinking": THINKING}).ask([Question("q", "Say.")])
    assert "stop" not in bodies[0]
    assert reply.text == "Yes."


@pytest.mark.parametrize(("said", "score"), [("B", 1), ("**B.** as such", 1), ("None fits", None)])
def test_a_chat_only_endpoint_writes_its_choice(said: str, score: int | None) -> None:
    with serving(lambda path, body: (200, text(said))) as (url, bodies):
        ((reply,),) = client_of(url, by_chat=True).ask([CHOICES])
    assert bodies[0]["max_tokens"] == ask.CHOICE_TOKENS
    greedy = [greedy for _, greedy in reply.values]
    assert (greedy.index(True) if any(greedy) else None) == score
    row = Answer.of(AnsweredQuestion(CHOICES, [reply], CHOICES), Score(0.0), thinks=False)
    assert (row.answer, row.unread) == (said, int(score is None))


def test_chat_apis_have_no_long_choices() -> None:
    long = Question("l", "Which?", continuations=(" a long one", " b"))
    with pytest.raises(StageError, match="several words"):
        client_of("http://127.0.0.1:9", by_chat=True).ask([long])


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (400, {"error": "too long"}, "400"),
        (503, {"error": "busy"}, "after 3 requests"),
        (302, {}, "redirects are not followed"),
        (200, b"no json", "did not answer JSON"),
        (200, {"choices": []}, "has no text"),
        (200, {"choices": [{"text": "x"}]}, "does not count its tokens"),
        (200, {**text("x"), "usage": {"completion_tokens": 2**31}}, "does not count its tokens"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_its_place(
    status: int, content: Any, words: str, no_sleep: None
) -> None:
    with (
        serving(lambda path, body: (status, content)) as (url, bodies),
        pytest.raises(StageError, match=words) as caught,
    ):
        client_of(url).ask([Question("q", "Say.")])
    assert url in str(caught.value.where)
    assert len(bodies) == (3 if status in (302, 503) or content == b"no json" else 1)


@pytest.mark.parametrize("logprobs", [None, {}, {"token_logprobs": None, "top_logprobs": None}])
def test_log_probabilities_that_are_left_out_are_named(logprobs: Any) -> None:
    def lacking(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"choices": [{"text": "x", "logprobs": logprobs}]}

    with (
        serving(lacking) as (url, _),
        pytest.raises(StageError, match="lacks the log-probabilities of the prompt") as caught,
    ):
        client_of(url).ask([CHOICES])
    assert url in str(caught.value.where)


def test_requests_are_in_flight_together() -> None:
    together = threading.Barrier(4)

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        together.wait(timeout=10)  # no request is answered until four are there
        return 200, text("yes")

    drawn = {"do_sample": True, "temperature": 0.7, "samples": 4}
    with serving(answer) as (url, bodies):
        replies = client_of(url, drawn, concurrency=4).ask([Question(n, "Say.") for n in "ab"])
    assert [[reply.text for reply in each] for each in replies] == [["yes"] * 4] * 2
    assert len({body["seed"] for body in bodies}) == 8


@pytest.mark.parametrize(
    ("limit", "most"), [(1, 1), (99, 1), (250, 2), (0, 6)], ids=["one", "none fits", "two", "all"]
)
def test_tokens_under_way_together_are_bounded(limit: int, most: int) -> None:
    under_way: list[int] = []
    counted: list[int] = []
    together = threading.Barrier(most)

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        under_way.append(1)
        counted.append(len(under_way))
        together.wait(timeout=10)  # no request is answered until so many are there
        under_way.pop()
        return 200, text("yes")

    requests = [ask.Request("completions", {}, len, 100)] * 6
    with serving(answer) as (url, bodies):
        answers = client_of(url, concurrency=6).send(requests, tokens_in_flight=limit)
    assert len(answers) == len(bodies) == 6
    assert max(counted) <= most


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MAX_BYTES", 10)
    monkeypatch.setattr(ask, "TRIES", 1)
    with (
        serving(lambda path, body: (200, text("x" * 1000))) as (url, _),
        pytest.raises(StageError, match="larger than 10 bytes"),
    ):
        client_of(url).ask([Question("q", "Say.")])


def test_a_passing_fault_is_asked_again(no_sleep: None) -> None:
    statuses = iter([503, 429, 200])
    with serving(lambda path, body: (next(statuses), text("yes"))) as (url, _):
        ((reply,),) = client_of(url).ask([Question("q", "Say.")])
    assert reply.text == "yes"


def test_a_prompt_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    with serving(chosen) as (url, bodies), pytest.raises(StageError, match="too long"):
        client_of(url, max_length=5).ask([CHOICES])
    assert bodies == []


def test_a_log_probability_that_is_none_is_refused() -> None:
    def broken(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        top = {f"token_id:{n}": float("nan") for n in body["logprob_token_ids"]}
        return 200, {"choices": [{"logprobs": {"top_logprobs": [top], "token_logprobs": [0.0]}}]}

    with serving(broken) as (url, _), pytest.raises(StageError, match="nan"):
        client_of(url).ask([CHOICES])


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("B", 1),
        ("\uff22", 1),
        ("\u7b54\u6848\uff1a\uff23", 2),
        ("(C)", 2),
        ("D. because", 3),
        ("D. A & C", 3),
        ("正确答案是B。", 1),
        ("答案选B", 1),
        ("정답은 B입니다.", 1),
        ("Let's see:\nA) 4\nB) 5\nC) 6\nD) 7\n\nThe correct answer is B.", 1),
        ("The correct answer is **B**.\n\nWhy:\n* **A.** too small\n* **B.** fits", 1),
        ("Option A: 5 is wrong.\nOption B: 6 is right.\nTherefore option B.", 1),
        ("A - no. B - no. C - yes. D - no. C", 2),
        ("A) 4\nB) 5\nC) 6\nD) 7", None),
        ("The answer is B", 1),
        ("The correct answer is **C**, not A.", 2),
        ("Answer: D", 3),
        ("A good question. The answer is B.", 1),
        ("I think it must be C", 2),
        ("A or B, hard to say", None),
        ("", None),
        ("none of them", None),
    ],
)
def test_the_choice_that_a_text_names(said: str, place: int | None) -> None:
    assert find_choice(said, ["A", "B", "C", "D"]) == place


@pytest.mark.parametrize(
    "said",
    [
        "Both A and B",
        "A or B",
        "A/B",
        "A, B",
        "A\nB",
        "A. B",
        "(A) and (C)",
        "Answer: A, B",
        "Answer: A B",
        "The answer is A or B.",
        "The correct answers are A and D",
        "Answer: A. Answer: B",
        "B, or possibly C",
        "It's A or B",
        "A) London\nB) Paris\nC) Rome",
        "Neither A nor B",
        "Not A.",
        "Hepatitis B",
        "Vitamin A",
        "Plan A",
        "Group A",
        "The patient has hepatitis B.",
        "The answer is vitamin C",
        "B-cell lymphoma",
        "Washington D.C.",
        "C++",
        "A whale is a mammal",
        "A 5% rise",
        "Answer: A whale",
        "A is wrong, B is right",
        "A " * 50_000,
        "A or " * 20_000,
    ],
    ids=lambda said: repr(said[:30]),
)
def test_a_text_that_names_no_single_choice_has_none(said: str) -> None:
    started = time.process_time()
    assert find_choice(said, ["A", "B", "C", "D"]) is None
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("I would choose B over A.", "B"),
        ("B rather than A.", "B"),
        ("I prefer B to A.", "B"),
        ("B, unlike A.", "B"),
        ("B is better than A", "B"),
        ("I wouldn't choose A, so B", "B"),
        ("The answer is not A but B", "B"),
        ("Not A. B", "B"),
        ("B, not A", "B"),
        ("Correct: B. Why not A", "B"),
        ("Answers A and C are false, so B", "B"),
        ("Between A and B, the answer: B", "B"),
        ("B is correct, A is wrong.", "B"),
        ("It's C. A is wrong", "C"),
        ("A is incorrect.", "A"),
        ("A. No wait, B", "B"),
        ("Option B: Group A", "B"),
        ("B) Hepatitis A", "B"),
        ("C. Vitamin C", "C"),
        ("The answer is C (vitamin C)", "C"),
        ("The best answer to question A is B", "B"),
        ("D (both A and B)", "D"),
        ("D) Both A and C", "D"),
        ("Answer: D) All of A, B and C", "D"),
        ("B) Paris\n\nA) is wrong", "B"),
        ("Option A is tempting, so B", "B"),
        ("The correct answer is B, since A", "B"),
        ("$\\boxed{B}$", "B"),
        ("B</s>", "B"),
        ("A because it is", "A"),
        ("A.", "A"),
        ("Definitely B", "B"),
        ("Option B", "B"),
        ("Selecting B", "B"),
        ("Die Antwort B", "B"),
        ("La respuesta es B", "B"),
        ("None of the above (D)", "D"),
    ],
)
def test_other_letters_hide_no_choice(said: str, letter: str) -> None:
    assert find_choice(said, ["A", "B", "C", "D"]) == "ABCD".index(letter)


@pytest.mark.parametrize(
    ("said", "letter"),
    [("I think it must be C", "C"), ("I'm sure: D.", "D"), ("I am not sure.", ""), ("I.", "I")],
)
def test_a_pronoun_is_no_choice(said: str, letter: str) -> None:
    found = find_choice(said, list("ABCDEFGHIJ"))
    assert ("" if found is None else "ABCDEFGHIJ"[found]) == letter


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("yes and no", None),
        ("Not yes", None),
        ("Yes, no problem", 0),
        ("no doubt: yes", 0),
        ("The answer is no, not yes", 1),
        ("I know", None),
    ],
)
def test_words_are_chosen_as_letters_are(said: str, place: int | None) -> None:
    assert find_choice(said, [" yes", " no"]) == place


def test_a_word_is_found_in_any_case() -> None:
    assert find_choice("Yes, it is.", [" yes", " no"]) == 0
    assert find_choice("No", [" yes", " no"]) == 1


def test_an_unfinished_thought_is_not_read() -> None:
    question, cut = Question("1", "p"), Reply("x", 5, is_truncated=True)
    row = Answer.of(AnsweredQuestion(question, [cut], question), Score(0.0), thinks=True)
    assert (row.truncated, row.unread, row.tokens) == (1, 1, (5,))
