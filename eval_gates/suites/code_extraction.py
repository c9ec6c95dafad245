"""Extracts code from a model's answer."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
from itertools import islice, pairwise
from typing import NamedTuple

from eval_gates.replies import cut_at, remove_thoughts
from eval_gates.reply_forms import has_entities, unescape
from eval_gates.suites.own_tests import has_return, names_read, without_own_tests
from recipes.generation import THOUGHT_MARKERS

# Ends of a completed function; vLLM's server refuses more than four.
STOPS: dict[str, list[str]] = {
    "completion": ["\nclass", "\ndef", "\nif __name__", "\nprint"],
    "chat": [],
}

_FENCE_OPENS = re.compile(r"(?P<before>^[ \t]*|(?<=[^`~\n]))(?P<fence>`{3,}|~{3,})[^\n`]*\n", re.M)
_CODE_BEGINS = re.compile(
    r"^(?:from \S+ import |import \S+|(?:async )?def |class |@|try:$|(?:for|if|while|with) .*:$"
    r"|[A-Za-z_]\w* ?= ?[^=\s])",
    re.MULTILINE,
)
_RETURNS = re.compile(r"^\s*(?:return|yield)\b", re.MULTILINE)
_DEFINING = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)
# Byte order marks, spaces without width, and spaces that do not break.
_CHARACTERS = str.maketrans({"\ufeff": None, "\u200b": None, "\u2060": None, "\xa0": " "})
_FUTURE = re.compile(r"^from __future__ import [^\n(]+\n", re.MULTILINE)
# A looping answer of a megabyte takes a second to parse.
_MAX_BLOCKS = 50
_MAX_FENCES = 20
_MAX_DEPTH = 10
_MAX_STARTS = 20
_MAX_TRIES = 100
_MAX_HEADERS = 5
_MAX_ALL_STARTS = 30
_ENTITY_NAMES = {"lt", "gt", "amp", "quot", "apos"}


class ExtractedCode(NamedTuple):
    """Program of an answer."""

    code: str
    is_found: bool
    """Whether the answer has code: the function by its name, or a text that parses as its body."""


def extract_code(
    completion: str, problem_prompt: str, entry_point: str, form: str
) -> ExtractedCode:
    """Return a completion's code, complete with what the problem's prompt defines.

    Base form: the prompt and its completion, cut at the first stop.

    Chat form: the last fenced block that defines the function, as in LiveCodeBench (arXiv
    2403.07974), with other blocks that only define names that it uses. A stub counts only if all
    are stubs. Else it is the last block that returns, the first block, or the answer without prose.
    Imports and other functions of the prompt precede it. Code without a header is the function's
    body. A block without a closing fence loses its last lines until it parses. As in EvalPlus
    (arXiv 2305.01210), the answer's own tests are not run.

    A gateway may have escaped the answer's HTML characters: they are read if code needs it.
    """
    extracted = _extract(completion, problem_prompt, entry_point, form)
    if not has_entities(completion):
        return extracted
    unescaped = _extract(unescape(completion), problem_prompt, entry_point, form)
    return unescaped if _is_better(unescaped, extracted) else extracted


def _is_better(unescaped: ExtractedCode, plain: ExtractedCode) -> bool:
    """Return whether only the unescaped code is a program, or it has more lines of it."""
    if not unescaped.is_found or not _parses(unescaped.code):
        return False
    if not plain.is_found or not _parses(plain.code):
        return True
    # `x &lt; 5` is Python: a name `lt`, and the next statement.
    if _missing_names(plain.code) & _ENTITY_NAMES:
        return True
    return unescaped.code.count("\n") > plain.code.count("\n")


def _extract(completion: str, problem_prompt: str, entry_point: str, form: str) -> ExtractedCode:
    if form == "completion":
        return ExtractedCode(
            problem_prompt + cut_at(completion, STOPS["completion"]), is_found=True
        )
    text = _without_thoughts(completion.translate(_CHARACTERS))
    code = _choose_code(text, entry_point)
    before = preamble(problem_prompt, entry_point)
    if _defines(code, entry_point) or _imports(code, entry_point):
        code = without_own_tests(code, entry_point)
        return ExtractedCode(_with_futures_first(f"{before}{code}"), is_found=True)
    if method := _find_method(code, entry_point):
        code = without_own_tests(code, entry_point, is_method=True)
        whole = f"{before}{code}\n\n{entry_point} = {method}\n"
        return ExtractedCode(_with_futures_first(whole), is_found=True)
    whole = _with_body(problem_prompt, code)
    return ExtractedCode(whole, is_found=_gives_a_value(whole, entry_point))


def preamble(problem_prompt: str, entry_point: str) -> str:
    """Return the prompt's code before the function."""
    header = _header(entry_point).search(problem_prompt)
    return problem_prompt[: header.start()] if header else ""


def _without_thoughts(text: str) -> str:
    for markers in THOUGHT_MARKERS:
        text, _ = remove_thoughts(text, markers)
        text = text.rpartition(markers.end)[2]  # of a thought within a thought
    return text


def _choose_code(completion: str, entry_point: str) -> str:
    blocks = _blocks(completion)
    defining = [
        block
        for block in blocks
        if _defines(block, entry_point) or _find_method(block, entry_point)
    ]
    solutions = [block for block in defining if not _is_stub(block, entry_point)]
    bodies = [block for block in blocks if _RETURNS.search(block) and block not in defining]
    # A usage block imports the function, too, so an import counts only if nothing else does.
    importing = [] if solutions or bodies else [b for b in blocks if _imports(b, entry_point)]
    candidates = solutions or importing or ([] if bodies else defining)
    if candidates:
        return _with_other_definitions(candidates[-1], blocks, entry_point)
    if blocks:
        return bodies[-1] if bodies else blocks[0]
    return _without_prose(completion, entry_point)


def _is_stub(code: str, name: str) -> bool:
    if not _parses(code):
        header = _header(name).search(code)
        return header is not None and "\n" not in code[header.start() :].strip()
    bodies = [
        node.body
        for node in ast.walk(ast.parse(code))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    return bool(bodies) and all(
        isinstance(statement, (ast.Pass, ast.Raise))
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in bodies[-1]
    )


def _find_method(code: str, name: str) -> str | None:
    """Return a class's method of that name as an expression."""
    classes = [statement for statement in _parse(code) if isinstance(statement, ast.ClassDef)]
    for node in classes:
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == name:
                first = [argument.arg for argument in method.args.args[:1]]
                return f"{node.name}{'()' if first == ['self'] else ''}.{name}"
    return None


def _blocks(text: str, depth: int = 0) -> list[str]:
    blocks: list[str] = []
    at = 0
    while len(blocks) < _MAX_BLOCKS and (opening := _FENCE_OPENS.search(text, at)) is not None:
        code, at = _block(text, opening)
        inner = [] if depth == _MAX_DEPTH or _parses(code) else _blocks(code, depth + 1)
        blocks.extend(inner or [code])
    return blocks


def _block(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """Return code and end: the first fence with which it parses."""
    fence = opening["fence"]
    closing = re.compile(rf"^[ \t]*{fence}{fence[0]}*[ \t]*$|{fence}[ \t]*$", re.MULTILINE)
    candidates = list(islice(closing.finditer(text, opening.end()), _MAX_FENCES))
    for candidate in candidates:
        code = _dedent(text[opening.end() : candidate.start()], opening)
        if _parses(code):
            return code, candidate.end()
    if candidates:
        first = candidates[0]
        return _dedent(text[opening.end() : first.start()], opening), first.end()
    return _find_longest_parsing(_dedent(text[opening.end() :], opening)), len(text)


def _dedent(code: str, opening: re.Match[str]) -> str:
    """Return an indented fence's code at the margin."""
    is_within_line = opening.string[: opening.start()].rpartition("\n")[2] != ""
    return textwrap.dedent(code) if opening["before"] or is_within_line else code


def _with_other_definitions(code: str, blocks: list[str], entry_point: str) -> str:
    wanted = _missing_names(code)
    helpers = []
    for block in blocks:
        if block is code or not _can_precede(block, entry_point):
            continue
        if wanted & _defined_names(block):
            helpers.append(block.rstrip("\n") + "\n")
            wanted |= _missing_names(block)
    return "".join(helpers) + code


def _can_precede(code: str, entry_point: str) -> bool:
    """Return whether it is a module that needs no other block's function."""
    statements = _parse(code)
    others = [node for node in statements if not isinstance(node, _DEFINING)]
    return (
        bool(statements)
        and not has_return(statements)
        and (entry_point not in names_read(ast.Module(others, [])) or _defines(code, entry_point))
    )


def _missing_names(code: str) -> set[str]:
    if not _parses(code):
        return set()
    return names_read(ast.parse(code)) - _defined_names(code) - set(dir(builtins))


def _defined_names(code: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            mentioned = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            names |= mentioned - names_read(node)
    return names


def _without_prose(text: str, entry_point: str) -> str:
    headers = [header.start() for header in _header(entry_point).finditer(text)]
    if not headers:
        return text
    begins = [match.start() for match in _CODE_BEGINS.finditer(text)]
    # All together are a module; else the last readable one counts.
    ranges = [(0, headers[0], headers[-1])]
    ranges += [(before + 1, at, at) for before, at in pairwise(headers)][:-_MAX_HEADERS:-1]
    ranges += [(0, headers[0], headers[0])] if len(headers) > 1 else []
    starts = [
        (start, end)
        for earliest, header, end in ranges
        for start in [*[at for at in begins if earliest <= at < header][:_MAX_STARTS], header]
    ]
    for start, end in starts[:_MAX_ALL_STARTS]:
        code = _definitions(_find_longest_parsing(text[start:]))
        if _defines(code, entry_point) and _parses(code) and start + len(code) > end:
            return code
    return text[headers[-1] :]


def _definitions(code: str) -> str:
    if not _parses(code):
        return code
    # Prose parses as expressions, seldom as other statements or calls of the code's names.
    names = _defined_names(code) | {"setattr"}
    ends = [
        node.end_lineno or 0
        for node in ast.parse(code).body
        if not isinstance(node, ast.Expr)
        or (isinstance(node.value, ast.Call) and names_read(node.value.func) & names)
    ]
    last = max(ends, default=0)
    return "".join(code.splitlines(keepends=True)[:last])


def _find_longest_parsing(code: str) -> str:
    lines = re.findall(r"[^\n]*\n|[^\n]+", code)
    end = len(lines)
    for _ in range(_MAX_TRIES):
        kept = "".join(lines[:end])
        if not kept.strip():
            break
        fault = _find_fault(kept)
        if fault is None:
            return kept
        end = min(end - 1, fault)  # what includes the faulty line does not parse either
    return code


def _parse(code: str) -> list[ast.stmt]:
    return ast.parse(code).body if _parses(code) else []


def _parses(code: str) -> bool:
    return _find_fault(code) is None


def _find_fault(code: str) -> int | None:
    """Return the first error's line, from 1."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return code.count("\n") + 1
    return None


def _header(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\s*[(\[]"
        rf"|^{re.escape(name)}\s*(?::[^=\n]+)?=(?!=|\s*{re.escape(name)}\b)",
        re.MULTILINE,
    )


def _defines(code: str, name: str) -> bool:
    return _header(name).search(code) is not None


def _imports(code: str, name: str) -> bool:
    """Return whether a module takes the function from Python's library."""
    statements = _parse(code)
    if has_return(statements):
        return False
    return any(
        (alias.asname or alias.name) == name
        for node in statements
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if node.module.partition(".")[0] in sys.stdlib_module_names
    )


def _with_futures_first(code: str) -> str:
    return "".join(_FUTURE.findall(code)) + _FUTURE.sub("", code)


def _gives_a_value(code: str, name: str) -> bool:
    """Return whether the function itself has `return` or `yield`."""
    functions = [n for n in _parse(code) if isinstance(n, ast.FunctionDef) and n.name == name]
    return any(has_return(function.body) for function in functions[-1:])


def _with_body(problem_prompt: str, body: str) -> str:
    """Return the prompt's header with `body`, at any indentation."""
    body = body.strip("\n").expandtabs(4)
    head = problem_prompt if problem_prompt.endswith("\n") else problem_prompt + "\n"
    if body[:1].isspace():
        return head + body + "\n"
    whole = head + textwrap.indent(body, "    ") + "\n"
    first_line = f"{head}    {body}\n"
    return first_line if _parses(first_line) and not _parses(whole) else whole
