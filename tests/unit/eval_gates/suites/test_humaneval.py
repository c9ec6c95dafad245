"""HumanEval: from what a model wrote to a program, which is then really run."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.code_execution import run_program
from eval_gates.suites.humaneval import (
    STOPS,
    Problem,
    extract_code,
    pass_at_k,
    program,
    prompt_of,
    read_problems,
)
from pipeline.errors import EvaluationDataError

HELPER = "def half(x: int) -> int:\n    return x // 2\n\n\n"
HEADER = "def halves(numbers: List[int]) -> List[int]:\n"
DOCSTRING = '    """ Halve each number.\n    >>> halves([4])\n    [2]\n    """\n'
PROMPT = "from typing import List\n\n\n" + HELPER + HEADER + DOCSTRING
BODY = (
    "    halved = []\n    for number in numbers:\n        halved.append(half(number))\n"
    "    return halved\n"
)
FUNCTION = HEADER + BODY
PROBLEM = Problem(
    task_id="Test/0",
    prompt=PROMPT,
    entry_point="halves",
    test="def check(candidate):\n    assert candidate([4, 7]) == [2, 3]\n",
    canonical_solution=BODY,
)


def solves(completion: str, form: str = "chat") -> bool:
    code = extract_code(completion, PROMPT, "halves", "base" if form == "base" else "chat")
    return run_program(program(PROBLEM, code), seconds=10, memory_bytes=2**28).passed


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param(f"```python\n{PROMPT}{BODY}```", id="the whole file"),
        pytest.param(f"```python\n{FUNCTION}```", id="without imports and helpers"),
        pytest.param(f"```\n{FUNCTION}\n```", id="no language"),
        pytest.param(f"```Python3 title=x\n{FUNCTION}\n```", id="odd language"),
        pytest.param(f"Sure!\n\n```python\n{FUNCTION}```\nIt halves.", id="prose around"),
        pytest.param(f"Sure: ```python\n{FUNCTION.rstrip()}```\nDone.", id="fences inside lines"),
        pytest.param(f"```python\n{FUNCTION}", id="unclosed"),
        pytest.param(f"```python\n{FUNCTION}\nassert halves([", id="unclosed, cut in a test"),
        pytest.param(f"```\nhalves([4])\n```\nso\n```python\n{FUNCTION}```", id="second fence"),
        pytest.param(
            f"```python\n{FUNCTION}```\nOr:\n```python\n{HEADER}    return []\n```", id="first wins"
        ),
        pytest.param(
            "1. Write it:\n   ```python\n"
            + "".join(f"   {line}\n" for line in FUNCTION.splitlines())
            + "   ```\n",
            id="in a list",
        ),
        pytest.param(f"```python\n{BODY}```", id="body alone"),
        pytest.param(f"```python\n{BODY.strip()}\n```", id="stripped body"),
        pytest.param("```python\nreturn [half(n) for n in numbers]\n```", id="body at the margin"),
        pytest.param(
            "```python\nout = []\nfor n in numbers:\n    out.append(half(n))\nreturn out\n```",
            id="longer body at the margin",
        ),
        pytest.param(BODY, id="unfenced body"),
        pytest.param(FUNCTION, id="unfenced function"),
        pytest.param(f"Here's the function:\n\n{FUNCTION}\nThat's all, isn't it?", id="no fences"),
        pytest.param(f"import math\n\n{FUNCTION}\nThis is it", id="import first"),
        pytest.param("```python\nhalves = lambda ns: [n // 2 for n in ns]\n```", id="lambda"),
        pytest.param(
            f"```python\n{FUNCTION}\nif __name__ == '__main__':\n    input()\n```", id="main guard"
        ),
    ],
)
def test_a_right_answer_is_found_in_what_the_model_wrote(completion: str) -> None:
    assert solves(completion)


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param("", id="nothing"),
        pytest.param("I cannot do that.", id="refusal"),
        pytest.param("```python\n```", id="empty fence"),
        pytest.param(f"```python\n{HEADER}    return numbers\n```", id="wrong"),
        pytest.param(f"```python\n{PROMPT}    pass\n```", id="no body"),
        pytest.param(f"```python\n{FUNCTION}\n  bad indent(\n```", id="closed but does not parse"),
        pytest.param(f"```python\n{FUNCTION.replace('halves', 'other')}```", id="other name"),
        pytest.param(f"```python\n{HEADER}    halved = [\n", id="cut in the middle"),
    ],
)
def test_a_wrong_answer_stays_wrong(completion: str) -> None:
    assert not solves(completion)


def test_a_base_completion_goes_on_from_the_prompt() -> None:
    assert solves(BODY, form="base")


def test_a_base_completion_ends_where_the_function_does() -> None:
    assert solves(BODY + "\ndef halves(numbers):\n    return []\n", form="base")
    assert solves(BODY + "\nprint(halves(1, 2, 3))\n", form="base")
    assert solves(BODY + "\nif __name__ == '__main__':\n    raise ValueError\n", form="base")
    assert extract_code("    x\nclass A: pass", "P\n", "f", "base") == "P\n    x"


def test_the_server_takes_four_stops_at_most() -> None:
    assert all(len(stops) <= 4 for stops in STOPS.values())


def test_prompts() -> None:
    assert prompt_of(PROBLEM, "base") == PROMPT
    assert prompt_of(PROBLEM, "chat") == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{PROMPT}\n```\n"
    )


@given(st.text(alphabet="`\n ab=():def halves", max_size=120))
def test_no_answer_breaks_the_extraction(completion: str) -> None:
    assert isinstance(extract_code(completion, PROMPT, "halves", "chat"), str)
    assert extract_code(completion, PROMPT, "halves", "base").startswith(PROMPT)


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_samples_with_a_right_one(
    samples: int, correct: int, k: int
) -> None:
    if correct > samples or k > samples:
        with pytest.raises(ValueError, match="no meaning"):
            pass_at_k(samples, correct, k)
        return
    draws = list(combinations(range(samples), k))
    right = sum(min(draw) < correct for draw in draws)

    assert pass_at_k(samples, correct, k) == pytest.approx(right / len(draws))


def test_pass_at_k_keeps_its_precision() -> None:
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    assert pass_at_k(1, 1, 1) == 1
    assert not math.isnan(pass_at_k(10_000, 5_000, 10_000))


def test_problems_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    second = PROBLEM._replace(task_id="Test/1")
    path.write_text("".join(json.dumps(p._asdict()) + "\n" for p in (PROBLEM, second)))

    assert read_problems(path) == [PROBLEM, second]


def test_a_problem_without_a_test_is_named(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    row = PROBLEM._asdict()
    del row["test"]
    path.write_text(json.dumps(row) + "\n")

    with pytest.raises(EvaluationDataError, match="'test' is missing"):
        read_problems(path)


def test_without_the_package_the_cure_is_named() -> None:
    with pytest.raises(EvaluationDataError, match="not installed here") as caught:
        read_problems()

    assert "prepare env build evaluate" in caught.value.cure
