"""From what a model wrote to a program, which is then really run."""

from __future__ import annotations

import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.sandbox import Program, run_many
from eval_gates.suites.code_extraction import STOPS, extract_code
from recipes.generation import THOUGHT_MARKERS

HELPER = "def half(x: int) -> int:\n    return x // 2\n\n\n"
HEADER = "def halves(numbers: List[int]) -> List[int]:\n"
DOCSTRING = '    """ Halve each number.\n    >>> halves([4])\n    [2]\n    """\n'
PROMPT = "from typing import List\n\n\n" + HELPER + HEADER + DOCSTRING
BODY = (
    "    halved = []\n    for number in numbers:\n        halved.append(half(number))\n"
    "    return halved\n"
)
FUNCTION = HEADER + BODY
TEST = "def check(f):\n    assert f([4, 7]) == [2, 3]\n\n\ncheck(halves)\n"


def solves(completion: str, form: str = "chat") -> bool:
    code = extract_code(
        completion, PROMPT, "halves", "completion" if form == "completion" else "chat"
    ).code
    (execution,) = run_many([Program(code, TEST)], seconds=10, memory_bytes=2**28)
    return execution.passed


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
            f"```python\n{HEADER}    return []\n```\nBetter:\n```python\n{FUNCTION}```",
            id="last wins",
        ),
        pytest.param(
            f"Naive:\n```\n{HEADER}    raise NotImplementedError\n```\n```\n{FUNCTION}```",
            id="a stub before",
        ),
        pytest.param(
            f"```python\n{FUNCTION}```\nIts form:\n```python\n{HEADER}    ...\n```",
            id="a stub after",
        ),
        pytest.param(
            f"```python\n{FUNCTION}```\nThe line\n```python\n{HEADER}```\nsays its types.",
            id="the header alone after",
        ),
        pytest.param(
            f"```python\ndef cut(n):\n    return n // 2\n\n\n{HEADER}    return []\n```\nNow:\n"
            f"```python\n{HEADER}    return [cut(n) for n in numbers]\n```",
            id="a helper in a draft",
        ),
        pytest.param(
            f"```python\n{HEADER}    return []\n```\n````\n```python\n{FUNCTION}```\n````",
            id="the last is nested",
        ),
        *(
            pytest.param(
                f"{start}\n```python\n{HEADER}    return []\n```\nNo.{end}\n\n{answer}",
                id=f"a draft within {start or 'thoughts begun by the prompt'}, {number}",
            )
            for number, answer in enumerate([f"```python\n{FUNCTION}```", FUNCTION, BODY])
            for start, end in [
                *((each.start, each.end) for each in THOUGHT_MARKERS),
                ("", "</think>"),
                ("<think>", "</think> </think>"),
            ]
        ),
        pytest.param(
            f"<think>\n```python\n{HEADER}    ret</think>\n```python\n{FUNCTION}```",
            id="a draft's fence open at the end of the thoughts",
        ),
        pytest.param(
            f"```python\n{FUNCTION}```\n<think>\n```python\n{HEADER}    return []\n```\n</think>",
            id="thoughts after the answer",
        ),
        pytest.param(
            "```python\nclass Solution:\n"
            + textwrap.indent(FUNCTION.replace("(", "(self, ", 1), "    ")
            + "```",
            id="a method",
        ),
        pytest.param(
            "```python\nclass Solution:\n    @staticmethod\n"
            + textwrap.indent(FUNCTION, "    ")
            + "```",
            id="a static method",
        ),
        pytest.param(
            f"```python\n{BODY.replace('half(', 'nothing(')}```\nNo:\n```python\n{BODY}```\n"
            "It takes\n```\nO(n)\n```",
            id="the last body",
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
        pytest.param(f"```python\n{FUNCTION.replace('    ', chr(9))}```", id="tabs"),
        pytest.param(f"```python\n{BODY.replace('    ', chr(9))}```", id="body with tabs"),
        pytest.param(BODY.replace("    ", "\t"), id="unfenced body with tabs"),
        pytest.param(f"~~~python\n{FUNCTION}~~~\nDone.", id="tildes"),
        pytest.param(f"````markdown\nSure:\n```python\n{FUNCTION}```\n````", id="nested fences"),
        pytest.param(f"````python\n{FUNCTION}````\n", id="four marks"),
        pytest.param(
            f'```python\n{HEADER}    """Halve.\n\n    ```\n    halves([4])\n    ```\n    """\n'
            f"{BODY}```\nThat's it.",
            id="fences in the docstring",
        ),
        pytest.param(
            "First a helper:\n```python\ndef cut(n):\n    return n // 2\n```\nand then:\n"
            f"```python\n{HEADER}    return [cut(n) for n in numbers]\n```\nHope it helps!",
            id="a helper in a block before",
        ),
        pytest.param(
            f"```python\n{HEADER}    return [cut(n) for n in numbers]\n```\nwhere\n"
            "```python\ndef cut(n):\n    return n // TWO\n```\nand\n```python\nTWO = 2\n```",
            id="helpers in blocks after",
        ),
        pytest.param(
            f"```python\nimport nowhere\n```\n```python\n{FUNCTION}```\nA test:\n"
            "```python\nimport pytest_that_is_not_here\n\ndef test_halves():\n    halves(1)\n```",
            id="blocks that it does not need",
        ),
        pytest.param(
            f"```python\nimport functools as tools\n```\nUse it:\n```python\n{HEADER}"
            "    return list(tools.reduce(lambda a, n: [*a, half(n)], numbers, []))\n```",
            id="an import in a block before",
        ),
        pytest.param(
            f"```python\ndef cut(n):\n    return n // 2\n\n\n{HEADER}"
            "    return [cut(n) for n in numbers]\n\n\ndef main():\n    halves([1])\n```",
            id="three functions in one block",
        ),
        pytest.param(
            f"### Explanation\n\nWe loop, so `halves([4])` is `[2]`.\n\n### Code\n\n"
            f"```py\n{FUNCTION}```\n\n### Complexity\n\n```\nO(n)\n```\n",
            id="explanations before and after",
        ),
        pytest.param(f"```python\r\n{FUNCTION}```".replace("\n", "\r\n"), id="Windows lines"),
        pytest.param("```python\nhalves = lambda ns: [n // 2 for n in ns]\n```", id="lambda"),
        pytest.param(
            f"```python\n{FUNCTION}\nif __name__ == '__main__':\n    input()\n```", id="main guard"
        ),
        *(
            pytest.param(f"```python\n{FUNCTION}\n{more}\n```", id=f"then {more}")
            for more in (
                "assert halves([4]) == [3]",
                "ns = [int(input())]\nprint(halves(ns))",
                "import sys\nsys.exit(0)",
                "for ns in ([4], 7):\n    print(halves(ns))",
                "import unittest\n\nclass Tests(unittest.TestCase):\n    def test(self):\n"
                "        self.assertEqual(halves([4]), [3])\n\nunittest.main()",
                "halved = halves(4)",
            )
        ),
        pytest.param(
            f"```python\ntable = {{}}\n{HEADER}    return [table[n] for n in numbers]\n\n"
            "for n in range(9):\n    table[n] = half(n)\nprint(halves([4]))\n```",
            id="a table that is filled below",
        ),
        pytest.param(
            f"```python\nfrom __future__ import annotations\n\n{FUNCTION}```", id="future import"
        ),
        pytest.param(
            "```python\nfrom typing import Callable\nhalves: Callable = lambda ns: "
            "[n // 2 for n in ns]\n```",
            id="annotated lambda",
        ),
        pytest.param(
            f"```python\n{FUNCTION}```\nUse it:\n```python\nhalves = halves([4])\n```",
            id="a name that is used again",
        ),
        pytest.param(f"\ufeff```python\n\ufeff{FUNCTION}```", id="byte order mark"),
        pytest.param(f"```python\n{FUNCTION.replace('    ', chr(160) * 4)}```", id="hard spaces"),
        pytest.param(
            f"```python\n{PROMPT}    pass\n```\nIts body:\n```python\n{BODY}```",
            id="a stub, then the body",
        ),
        *(
            pytest.param(
                f"{mark} ```python\n" + textwrap.indent(FUNCTION, " " * 3) + "   ```\n",
                id=f"a fence in the line of {mark}",
            )
            for mark in ("-", "1.")
        ),
        pytest.param(
            f"A draft:\n\n{HEADER}    return []\n\nBetter:\n\n{FUNCTION}", id="no fences, last wins"
        ),
        pytest.param(
            f"def halves( is where it begins.\n\n{FUNCTION}", id="no fences, named in the prose"
        ),
        pytest.param(
            f"{HEADER}    return []\n\n{FUNCTION}\ndef halves( is its name.",
            id="no fences, named after",
        ),
    ],
)
def test_a_right_answer_is_found_in_what_the_model_wrote(completion: str) -> None:
    assert solves(completion)


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param("", id="nothing"),
        pytest.param(f"```python\n{HEADER}\t  return [\n    2, 3\n```", id="mixed indentation"),
        pytest.param("I cannot do that.", id="refusal"),
        pytest.param("```python\n```", id="empty fence"),
        pytest.param(f"```python\n{HEADER}    return numbers\n```", id="wrong"),
        pytest.param(f"```python\n{PROMPT}    pass\n```", id="no body"),
        pytest.param(f"```python\n{FUNCTION}\n  bad indent(\n```", id="closed but does not parse"),
        pytest.param(f"```python\n{FUNCTION.replace('halves', 'other')}```", id="other name"),
        pytest.param(f"```python\n{HEADER}    halved = [\n", id="cut in the middle"),
        pytest.param(f"<think>\n```python\n{FUNCTION}```\nBut", id="thoughts without an end"),
        pytest.param(
            f"```python\n{FUNCTION}```\nNo:\n```python\n{HEADER}    return []\n```",
            id="last is wrong",
        ),
    ],
)
def test_a_wrong_answer_stays_wrong(completion: str) -> None:
    assert not solves(completion)


@pytest.mark.parametrize(
    ("completion", "is_found"),
    [
        (f"```python\n{HEADER}    return numbers\n```", True),
        (f"```python\n{FUNCTION}\n  bad indent(\n```", True),
        (f"```python\n{BODY}```", True),
        (BODY, True),
        ("", False),
        ("I cannot do that.", False),
        (f"<think>\n{FUNCTION}", False),
        ('{"code": "def halves(numbers): return []"', False),
        ("Use `halves = lambda ns: ns` here, it's fine.", False),
        ("```\nFirst we loop over it.\n```", False),
        (f"```python\n# <think> of it\n{FUNCTION}```", False),
        ('```json\n{"code": "def halves(numbers): return []"}\n```', False),
        (f"```python\n{FUNCTION.replace('halves', 'solution')}```", False),
        (f"```python\nif True:\n{textwrap.indent(FUNCTION, '    ')}```", False),
    ],
)
def test_an_answer_without_code_is_told(completion: str, is_found: bool) -> None:
    assert extract_code(completion, PROMPT, "halves", "chat").is_found == is_found


def test_a_base_completion_ends_where_the_function_does() -> None:
    assert solves(BODY + "\ndef halves(numbers):\n    return []\n", form="completion")
    assert solves(BODY + "\nprint(halves(1, 2, 3))\n", form="completion")
    assert solves(BODY + "\nif __name__ == '__main__':\n    raise ValueError\n", form="completion")
    assert extract_code("    x\nclass A: pass", "P\n", "f", "completion").code == "P\n    x"


def test_the_server_takes_four_stops_at_most() -> None:
    assert all(len(stops) <= 4 for stops in STOPS.values())


@given(st.text(alphabet="`\n ab=():def halves", max_size=120))
def test_no_answer_breaks_the_extraction(completion: str) -> None:
    assert isinstance(extract_code(completion, PROMPT, "halves", "chat").code, str)
    assert extract_code(completion, PROMPT, "halves", "completion").code.startswith(PROMPT)


@pytest.mark.parametrize(
    "completion",
    [
        "```python\nx = (\n" + "1,\n" * 30_000,
        "```python\ntry:\n" + "    x = 1\n" * 3_000,
        "```python\nif x\n```\n" * 5_000,
        "```python\n" * 5_000,
        "```python\n" + "It is so.\n" * 10_000,
        "import os\n" * 5_000 + "!\ndef halves(\n",
        "def halves(\n" * 5_000,
    ],
    ids=lambda text: f"{text[:20]!r}",
)
def test_an_answer_that_goes_round_in_circles_takes_seconds(completion: str) -> None:
    started = time.process_time()
    extract_code(completion, PROMPT, "halves", "chat")
    assert time.process_time() - started < 20
