"""BFCL's data, prompts, decoder and checker of single-turn calls (Patil et al. 2025).

A list of function names' forms replaces its leaderboard's clients.
"""

from __future__ import annotations

import ast
import copy
import operator
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

from eval_gates.suites.json_lines import package_file, read_rows

CallForm = Literal["prompt", "server"]
Calls = list[dict[str, Any]]
"""Calls in order, each `{function: {parameter: value}}`."""

Category = Literal[
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
]
# Cases of each category in bfcl-eval 2026.3.23.
_CASES = (400, 100, 50, 200, 200, 200, 240, 258, 1053, 16, 24, 884, 16)
CATEGORIES: dict[str, int] = dict(zip(get_args(Category), _CASES, strict=True))
FUNCTION_LISTS = 2_116  # that these cases show to the model
# Characters of an answer in Java or JavaScript: C parsers recurse, and 100,000 end the process.
MAX_CHARACTERS = 8_000
_MAX_BASE = 1_000_000
_MAX_EXPONENT = 64


class BfclCase(NamedTuple):
    """Request with its functions and its right calls."""

    id: str
    category: str
    turns: list[dict[str, str]]
    functions: list[dict[str, Any]]
    # For each call `{function: {parameter: [allowed values]}}`; empty if no call is right.
    ground_truth: list[dict[str, dict[str, Any]]]


class Bfcl(NamedTuple):
    """The package's modules."""

    utils: ModuleType
    handling: ModuleType
    checker: ModuleType
    enums: ModuleType


@lru_cache(maxsize=1)
def load_package() -> Bfcl:
    """Import the package, and remove the folders that it creates."""
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {  # type: ignore[attr-defined]
        "prompt": SimpleNamespace(underscore_to_dot=False),
        "server": SimpleNamespace(underscore_to_dot=True),
    }
    sys.modules[models.__name__] = models
    before = os.environ.get("BFCL_PROJECT_ROOT")
    with tempfile.TemporaryDirectory(prefix="prepare-bfcl-") as folder:
        os.environ["BFCL_PROJECT_ROOT"] = folder
        try:
            from bfcl_eval import utils
            from bfcl_eval.constants import enums
            from bfcl_eval.eval_checker.ast_eval import ast_checker
            from bfcl_eval.model_handler import utils as handling
        finally:
            del os.environ["BFCL_PROJECT_ROOT"]
            if before is not None:
                os.environ["BFCL_PROJECT_ROOT"] = before
    # Its decoder would evaluate anything that a model wrote.
    handling.eval = evaluate_arithmetic
    return Bfcl(utils, handling, ast_checker, enums)


def read_category(category: str) -> list[BfclCase]:
    """Return a category's cases in order."""
    cases = [
        row for _, row in read_rows(package_file("bfcl_eval", "data", f"BFCL_v4_{category}.json"))
    ]
    truths: list[list[Any]] = [[] for _ in cases]
    if "relevance" not in category:
        file = package_file("bfcl_eval", "data", "possible_answer", f"BFCL_v4_{category}.json")
        # As its runner does: ids of the two files differ.
        truths = [row["ground_truth"] for _, row in read_rows(file)]
    return [
        BfclCase(row["id"], category, row["question"][0], row["function"], truth)
        for row, truth in zip(cases, truths, strict=True)
    ]


def prompt_messages(case: BfclCase) -> list[dict[str, str]]:
    """Return messages, first a system prompt with the functions."""
    bfcl = load_package()
    messages: list[dict[str, str]] = bfcl.handling.system_prompt_pre_processing_chat_model(
        copy.deepcopy(case.turns), _described(case), f"{case.category}_0"
    )
    return messages


def openai_tools(case: BfclCase) -> list[dict[str, Any]]:
    """Return OpenAI's tools; KeyError for an unknown type."""
    bfcl = load_package()
    tools: list[dict[str, Any]] = bfcl.handling.convert_to_tool(
        _described(case), bfcl.handling.GORILLA_TO_OPENAPI, bfcl.enums.ModelStyle.OPENAI_COMPLETIONS
    )
    return tools


def decode(text: str, category: str) -> Calls | None:
    """Parse by BFCL's decoder; None if it is not a list of calls."""
    bfcl = load_package()
    language = bfcl.enums.ReturnFormat[_language(category)]
    if language is not bfcl.enums.ReturnFormat.PYTHON and len(text) > MAX_CHARACTERS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a text's \d that is not raw
        calls: Calls | None = _or_none(
            lambda: bfcl.handling.default_decode_ast_prompting(text, language)
        )
    return calls


def is_right(case: BfclCase, calls: Calls | None, form: CallForm) -> bool:
    """Return whether BFCL's checker accepts these calls."""
    bfcl = load_package()
    if "relevance" in case.category:
        has_called = calls is not None and not bfcl.utils.is_empty_output(calls)
        return has_called != ("irrelevance" in case.category)
    if not bfcl.utils.is_function_calling_format_output(calls):
        return False
    language = bfcl.enums.Language[_language(case.category)]
    checked = _or_none(
        lambda: bfcl.checker.ast_checker(
            case.functions, calls, case.ground_truth, language, case.category, form
        )
    )
    return bool(checked and checked["valid"])


def right_calls(ground_truth: list[dict[str, dict[str, Any]]]) -> Calls:
    """Return calls with each parameter's first allowed value."""
    return [
        {name: _first_values(allowed) for name, allowed in call.items()} for call in ground_truth
    ]


def _first_values(allowed: dict[str, Any]) -> dict[str, Any]:
    # An empty text allows a missing parameter. Some keys of an object have their only value without
    # a list.
    lists = {
        key: values if isinstance(values, list) else [values] for key, values in allowed.items()
    }
    given = {key: [value for value in values if value != ""] for key, values in lists.items()}
    return {key: _plain(values[0]) for key, values in given.items() if values}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _first_values(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def evaluate_arithmetic(expression: str) -> Any:
    """Return the value of numbers or texts, else ValueError."""
    return _value_of(ast.parse(expression, mode="eval").body)


def _value_of(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.BinOp(left=left, op=op, right=right):
            values = _value_of(left), _value_of(right)
            if _is_bounded(op, *values):
                return _OPERATORS[type(op)](*values)
    raise ValueError("the argument is neither a value nor simple arithmetic")


def _is_bounded(op: ast.operator, left: Any, right: Any) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return isinstance(op, ast.Add)
    if isinstance(op, ast.Pow):
        return bool(abs(left) <= _MAX_BASE and abs(right) <= _MAX_EXPONENT)
    return type(op) in _OPERATORS


def _described(case: BfclCase) -> list[dict[str, Any]]:
    functions = copy.deepcopy(case.functions)
    entry = {"id": f"{case.category}_0", "function": functions}
    load_package().utils.add_language_specific_hint_to_function_doc([entry])
    return functions  # changed in place


def _language(category: str) -> str:
    languages = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}
    return languages.get(category, "PYTHON")


def _or_none(call: Callable[[], Any]) -> Any:
    """Return a result; None if a model's text makes BFCL's code fail."""
    try:
        return call()
    except ImportError:
        raise
    except Exception:
        return None
