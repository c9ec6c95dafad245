"""MBPP+ (Liu et al. 2023): short Python tasks with many tests, as HumanEval's problems.

The prompt is the function's header, with the row's sentence and one assert as docstring.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from eval_gates.rows import Question
from eval_gates.suites import humaneval
from eval_gates.suites.code_suite import CodeKind, CodeTask, Problem, lay_out
from eval_gates.suites.json_lines import TEXT, check_row
from eval_gates.suites.own_tests import names_read
from eval_gates.suites.sources import (
    HubQuestions,
    QuestionSource,
    Row,
    SourceLookup,
    SuiteSource,
)
from eval_gates.suites.suite_kind import QuestionOrder, Read
from prepare.errors import EvaluationDataError
from recipes.policy import Suite

LARGEST_SHARE_LEFT_OUT = 0.05
_CURE = (
    "each row needs task_id, prompt (a sentence), code (the reference), test_list and test_imports "
    "(lists of texts), and test (a program that calls the function)"
)
_TEXTS = {"type": "array", "items": {"type": "string"}}
_KEYS = {
    "task_id": {"anyOf": [{"type": "integer"}, TEXT]},
    **dict.fromkeys(("prompt", "code", "test"), TEXT),
    "test_list": {**_TEXTS, "minItems": 1},
    "test_imports": _TEXTS,
}
# numpy broadcasts, so the datasets' own comparison takes an empty list for any number.
_OF_ONE_SHAPE = """\
import numpy as _numpy

def _of_one_shape(compare):
    def compared(out, exp, *more, **named):
        assert _numpy.shape(out) == _numpy.shape(exp), "the answer has another shape"
        return compare(out, exp, *more, **named)
    return compared

"""
_STRETCHING = ("allclose", "testing.assert_allclose")


class MbppTask(CodeTask):
    """MBPP+'s problems."""

    kind: Literal["mbpp"] = "mbpp"
    humaneval: bool = Field(
        False,
        description="ask HumanEval's 164 problems in the same gate, which then has 542: enough for "
        "3 points",
    )


def select_usable(rows: list[tuple[str, Row]]) -> tuple[list[Problem], list[str]]:
    """Return usable problems, and why others are not."""
    problems: list[Problem] = []
    left_out: list[EvaluationDataError] = []
    for place, row in rows:
        try:
            problems.append(problem_of(row, place))
        except EvaluationDataError as error:
            left_out.append(error)
    if len(left_out) > LARGEST_SHARE_LEFT_OUT * len(rows):
        raise left_out[0]
    return problems, [f"{error.where}: {error.message}" for error in left_out]


def problem_of(row: Row, place: str) -> Problem:
    """Convert a row; `test` is the complete program."""
    check_row(row, place, _CURE, **_KEYS)
    asserts = row["test_list"]
    number = row["task_id"]
    function = _function(_parse(row["code"], "code", place), asserts[0], place)
    test = "\n".join([*row["test_imports"], row["test"]]) + "\n"
    _check_can_be_judged(_parse(test, "test", place), function.name, place)
    return Problem(
        task_id=number if isinstance(number, str) else f"Mbpp/{number}",
        header=_prompt(function, row["prompt"], asserts[0], place),
        entry_point=function.name,
        test=_guard(test),
    )


def _guard(test: str) -> str:
    stretching = [name for name in _STRETCHING if name in test]
    if not stretching:
        return test
    guards = [f"_numpy.{name} = _of_one_shape(_numpy.{name})\n" for name in stretching]
    return "".join([_OF_ONE_SHAPE, *guards, "\n", test])


def _parse(text: str, key: str, place: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a pattern's \d in a text that is not raw
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise EvaluationDataError(
            f"'{key}' is not Python: {error}", where=place, hint="fix or remove the row"
        ) from error


def _function(code: ast.Module, shown: str, place: str) -> ast.FunctionDef:
    defined = {node.name: node for node in code.body if isinstance(node, ast.FunctionDef)}
    called = sorted(names_read(_parse(shown, "test_list", place)) & defined.keys())
    if len(called) != 1:
        raise EvaluationDataError(
            "the first of 'test_list' must use one function that 'code' defines at its top level, "
            f"and uses {', '.join(called) or 'none'}",
            where=place,
            hint="fix or remove the row: the sandbox asks a solution for one function",
        )
    return defined[called[0]]


def _prompt(function: ast.FunctionDef, sentence: str, shown: str, place: str) -> str:
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None  # its names may be the reference's own
    try:
        arguments = ast.unparse(function.args)
    except RecursionError as error:
        raise EvaluationDataError(
            "'code' nests a default value too deeply", where=place, hint="fix or remove the row"
        ) from error
    text = f"{sentence.strip()}\n\n{shown.strip()}".replace("\\", "\\\\").replace('"""', '\\"""')
    lines = [f"    {line}".rstrip() for line in text.splitlines()]
    lines[0] = f'    """{lines[0].strip()}'
    prompt = "\n".join([f"def {function.name}({arguments}):", *lines, '    """\n'])
    _parse(prompt, "prompt", place)  # the sentence may hold what no source text can
    return prompt


def _check_can_be_judged(test: ast.Module, function: str, place: str) -> None:
    bound = _names_bound(test)
    read = names_read(test)
    unknown = read - bound - set(dir(builtins)) - {function}
    if function not in read or function in bound or "*" in bound or unknown:
        raise EvaluationDataError(
            f"'test' must use '{function}', and define all other names that it uses but not this "
            f"one{', such as ' * bool(unknown)}{', '.join(sorted(unknown)[:5])}",
            where=place,
            hint="fix or remove the row: of a solution a test gets its one function alone",
        )


def _names_bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.split(".")[0])
    return names


class Mbpp(CodeKind[MbppTask]):
    """MBPP+: Python functions from a sentence and an assert, tested in a sandbox."""

    task = MbppTask  # its tests run in the sandbox, but their text is unchecked: no Hub by itself
    folder_stem = "mbpp"
    hub = HubQuestions(
        QuestionSource(kind="hub", id="evalplus/mbppplus", config="default", split="test"), 378
    )

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        source = super().find_source(name, suite, lookup)
        if not _asks_humaneval(suite):
            return source
        identity = source.identity.model_copy(update={"humaneval": lookup.environment})
        return replace(source, identity=identity)

    def _identify(
        self, source: str, suite: Suite, lookup: SourceLookup
    ) -> tuple[QuestionSource | None, Path | None]:
        # HumanEval's problems replace MBPP's that are out of reach.
        if source == "packages" and _asks_humaneval(suite):
            return QuestionSource(kind="packages", environment=lookup.environment), None
        return super()._identify(source, suite, lookup)

    def count(self, suite: Suite, identity: QuestionSource) -> int | None:
        counted = super().count(suite, identity)
        if identity.kind == "packages":  # has HumanEval's alone
            counted = counted or 0
        if counted is None or getattr(suite, "problems", None):
            return counted
        return counted + self.besides(suite)

    def besides(self, suite: Suite) -> int:
        return humaneval.PROBLEMS if _asks_humaneval(suite) else 0

    def known_questions(self, task: MbppTask, order: QuestionOrder) -> list[Question]:
        problems, rows = _problems_of(self.read(order.source, order.folder))
        # HumanEval's, which `evaluate` has, may be chosen, too.
        every = task.model_copy(update={"problems": []}) if task.humaneval else task
        return lay_out(every, problems, "MBPP", rows)

    def questions(self, task: MbppTask, order: QuestionOrder) -> Read:
        source = order.source
        left_out = list[str]()
        problems: list[Problem] = []
        rows: dict[str, Row] | None = None
        if source.kind == "packages":
            order.progress.note("MBPP's problems are out of reach: HumanEval's are asked alone")
        elif source.kind == "hub":
            problems, left_out = select_usable(self.read(source, None))
        else:
            problems, rows = _problems_of(self.read(source, order.folder))
        if task.humaneval:
            problems += humaneval.read_problems()
        facts = {
            "dropped": len(left_out),
            "dropped_why": f"problems were left out: {'; '.join(left_out)}",
        }
        return lay_out(task, problems, "MBPP", rows), facts


def _problems_of(rows: Sequence[tuple[str, Row]]) -> tuple[list[Problem], dict[str, Row]]:
    """Return the problems, and their rows by id."""
    problems = [problem_of(row, place) for place, row in rows]
    named = {problem.task_id: row for problem, (_, row) in zip(problems, rows, strict=True)}
    return problems, named


def _asks_humaneval(suite: Suite) -> bool:
    return isinstance(suite, MbppTask) and suite.humaneval
