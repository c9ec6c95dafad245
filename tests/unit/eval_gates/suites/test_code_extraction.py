"""From what a model wrote to a program, which is then really run."""

from __future__ import annotations

import textwrap
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.sandbox import Program, run_many
from eval_gates.suites.code_extraction import STOPS, extract_code
from eval_gates.suites.own_tests import without_own_tests
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


DEEP_TEST = "assert halves([4, 7]) == [2, 3]\nassert halves(list(range(3000)))[-1] == 1499\n"
DEEP = HEADER + "    return [numbers[0] // 2, *halves(numbers[1:])] if numbers else []\n"
CACHED = (
    "from functools import lru_cache\n\n\n@lru_cache(None)\ndef count(n):\n"
    "    return n and 1 + count(n - 1)\n"
)
TABLE = HEADER + "    return [table[n] for n in numbers]\n"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            HEADER + "    halves.calls += 1\n    return [n // 2 for n in numbers]\n\n"
            "halves.calls = 0\nprint(halves([4]))",
            id="an attribute of the function",
        ),
        pytest.param(
            HEADER + "    return [n // halves.by for n in numbers]\n\nsetattr(halves, 'by', 2)",
            id="setattr",
        ),
        pytest.param(
            HEADER + "    return halves.table[tuple(numbers)]\n\nhalves.table = {}\n"
            "halves.table.update({(4, 7): [2, 3]})\nassert halves([4, 7]) == 3",
            id="a method of its attribute",
        ),
        pytest.param(
            f"import sys\nif sys.version_info >= (3, 8):\n    from math import floor\n{HEADER}"
            "    return [floor(n / 2) for n in numbers]",
            id="an import by the version",
        ),
        pytest.param(
            f"try:\n    from math import floor\nexcept ImportError:\n    print('none')\n{HEADER}"
            "    return [floor(n / 2) for n in numbers]",
            id="an import that prints without it",
        ),
        pytest.param(
            HEADER + "    return by_calls[0](numbers) if numbers else []\n\nby_calls = []\n"
            "by_calls.append(lambda ns: [ns[0] // 2, *halves(ns[1:])])",
            id="a function that calls it",
        ),
        pytest.param(
            "table = {}\nfor n in range(9):\n    table[n] = n // 2\n    print(n, table[n])\n"
            f"{TABLE}",
            id="a table whose loop prints",
        ),
        pytest.param(
            "table = {}\nwhile True:\n    table[len(table)] = len(table) // 2\n    print(table)\n"
            f"    if len(table) > 8:\n        break\n{TABLE}",
            id="a table whose loop prints and breaks",
        ),
        pytest.param(
            f"{TABLE}\ntable = {{4: 2}}\ntable[7] = halves([4])[0] + 1",
            id="a table filled by the function",
        ),
        pytest.param(f"{FUNCTION}\nhalved = halves([4])\nsize = halved[5]\nprint(size)", id="size"),
        pytest.param(
            f"{FUNCTION}\nhalved = halves([4])\nif halved != [3]:\n    raise ValueError(halved)",
            id="a test by an exception",
        ),
        pytest.param(
            f"{FUNCTION}\nfor n, half_n in [(4, 1)]:\n    got = halves([n])\n"
            "    ok = got == [half_n]\n    if not ok:\n        raise ValueError(got)",
            id="a loop of tests by an exception",
        ),
        pytest.param(
            f"{FUNCTION}\ndef test_halves():\n    assert halves([4]) == [3]\n\ntest_halves()",
            id="a function of tests",
        ),
        pytest.param(
            f"{FUNCTION}\ndef check(f):\n    assert f([4]) == [3]\n\ncheck(halves)",
            id="a function of tests that takes it",
        ),
        pytest.param(
            f"{FUNCTION}\ndef main():\n    print(halves([int(input())]))\n\nmain()",
            id="a main function",
        ),
        pytest.param(
            f"import sys\n\ndata = sys.stdin.read().split()\nn = int(data[0])\n{FUNCTION}"
            "\nprint(halves([n]))",
            id="numbers of the input",
        ),
        pytest.param(
            f"{FUNCTION}\nwhile True:\n    print(halves([4]))\n    shown = 1", id="no end"
        ),
        pytest.param(
            f"{FUNCTION}\nn = 0\nwhile True:\n    halved = halves([n])\n"
            "    if halved[0] > 3:\n        break\n    n += 1",
            id="a loop that the function ends",
        ),
        pytest.param(f"{FUNCTION}\nprint(list(map(halves, [4])))", id="map"),
        pytest.param(f"{FUNCTION}\nhalved = list(map(halves, [4]))", id="a list by map"),
        pytest.param(
            f"from sys import exit\nfrom doctest import testmod\n{FUNCTION}\ntestmod()\nexit(0)",
            id="tools by their names",
        ),
        pytest.param(
            f"{FUNCTION}\nif __name__ != 'x':\n    import sys\n    sys.exit(0)",
            id="an import next to an exit",
        ),
        pytest.param("def  halves(numbers):\n    return [n // 2 for n in numbers]", id="spaces"),
    ],
)
@pytest.mark.parametrize("fences", [("```python\n", "\n```"), ("", "")], ids=["fenced", "bare"])
def test_configuration_stays_and_own_tests_do_not(program: str, fences: tuple[str, str]) -> None:
    begin, end = fences
    assert solves(f"{begin}{program}{end}")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(f"import sys\n\nsys.setrecursionlimit(10**4)\n\n\n{DEEP}", id="before"),
        pytest.param(f"{DEEP}\nimport sys\n\nsys.setrecursionlimit(10**4)", id="after"),
        pytest.param(
            f"from sys import setrecursionlimit as limit\n\nlimit(10**4)\n{DEEP}\nhalves([])",
            id="by its name",
        ),
        pytest.param(
            "import sys\ntry:\n    sys.setrecursionlimit(10**4)\nexcept OSError:\n"
            f"    print('no')\n{DEEP}",
            id="with an error that is printed",
        ),
        pytest.param(
            f"import sys\nif len(sys.argv) > 5:\n    print(halves([]))\n"
            f"sys.setrecursionlimit(10**4)\n{DEEP}",
            id="next to arguments",
        ),
        pytest.param(
            "import sys\n\nsys.set_int_max_str_digits(0)\n\n\n"
            f"{HEADER}    str(10**5000)\n    return [n // 2 for n in numbers]",
            id="digits",
        ),
    ],
)
def test_limits_of_the_interpreter_stay(program: str) -> None:
    code = extract_code(f"```python\n{program}\n```", PROMPT, "halves", "chat").code
    (execution,) = run_many([Program(code, DEEP_TEST)], seconds=10, memory_bytes=2**29)
    assert execution.passed, execution


def test_a_loop_that_fills_a_cache_stays() -> None:
    program = f"{CACHED}\nfor n in range(0, 3001, 100):\n    count(n)\n"
    code = extract_code(f"```python\n{program}```", "def count(n):\n", "count", "chat").code
    (execution,) = run_many(
        [Program(code, "assert count(3000) == 3000\n")], seconds=10, memory_bytes=2**28
    )
    assert execution.passed, execution


@pytest.mark.parametrize(
    ("completion", "solves_it"),
    [
        ("```python\nfrom operator import add\n```", True),
        ("from operator import add", True),
        ("```python\nfrom operator import concat as add\nfrom operator import add\n```", True),
        ("```python\nfrom operator import add\nreturn add(a, b)\n```", True),
        ("```python\nfrom operator import sub as add\n```", False),
        ("```python\nfrom solution import add\nprint(add(1, 2))\n```", False),
        (
            "```python\ndef add(a, b):\n    return a + b\n```\nAs a test:\n"
            "```python\nfrom operator import add\n\nassert add(1, 2) == 3\n```",
            True,
        ),
        (
            "```python\ndef add(a, b):\n    return a + b\n```\nUse it:\n"
            "```python\nfrom solution import add\n\nprint(add(1, 2))\n```",
            True,
        ),
    ],
)
def test_an_imported_function_is_the_answer(completion: str, solves_it: bool) -> None:
    prompt = 'def add(a, b):\n    """Add."""\n'
    code = extract_code(completion, prompt, "add", "chat").code
    (execution,) = run_many(
        [Program(code, "assert add(1, 2) == 3\n")], seconds=10, memory_bytes=2**28
    )
    assert execution.passed == solves_it


def test_a_function_with_type_parameters_is_found() -> None:
    code = (
        "def halves[T: int](numbers: list[T]) -> list[T]:\n    return [n // 2 for n in numbers]\n"
    )
    extracted = extract_code(f"```python\n{code}```", PROMPT, "halves", "chat")
    assert extracted.is_found
    assert extracted.code.endswith(code)
    assert extracted.code.count("def halves") == 1


def test_a_block_that_fills_a_table_precedes_the_function() -> None:
    assert solves(
        "```python\ntable = {}\nfor n in range(9):\n    table[n] = n // 2\n```\nand\n"
        f"```python\n{TABLE}```"
    )


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


FILLED = {
    "asserts": ("[]", "def fill(n):\n    assert n > 1\n    table.extend(range(n))", "fill(9)"),
    "prints": ("{}", "def fill(n):\n    print(n)\n    for i in range(n): table[i] = i", "fill(9)"),
    "is given it": ("[]", "def fill(t):\n    t.extend(range(9))\n    print(t)", "fill(table)"),
    "a global": ("[]", "def fill():\n    global table\n    table = [*range(9)]; print()", "fill()"),
    "by the function": (
        "[0]",
        "def fill():\n    for i in range(8): table.append(f(i) + 1)",
        "fill()",
    ),
}


@pytest.mark.parametrize(("table", "fill", "call"), FILLED.values(), ids=FILLED)
def test_what_fills_a_table_of_the_function_stays(table: str, fill: str, call: str) -> None:
    function = "def f(x):\n    return table[x]"
    code = f"table = {table}\n{function}\n{fill}\n{call}\nassert f(3) == 99\n"
    space: dict[str, Any] = {}
    exec(without_own_tests(code, "f"), space)
    assert space["f"](3) == 3
