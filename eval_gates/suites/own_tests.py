"""Removes an answer's own tests and examples from its program."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Definition = (*_Function, ast.ClassDef)
_Import = (ast.Import, ast.ImportFrom)
_Compound = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)
# Names that only a test, an example or a script uses.
_TOOLS = {"print", "pprint", "input", "exit", "quit"}
_TOOL_MODULES = {"unittest", "doctest", "pytest", "timeit", "cProfile"}
_TOOL_PATHS = (
    "sys.stdin",
    "sys.stdout.write",
    "sys.stderr.write",
    "sys.exit",
    "sys.argv",
    "os._exit",
)
# Functions that call a function that they are given.
_CALLERS = {"map", "filter", "sorted", "max", "min", "reduce", "starmap", "submit", "timeit"}
_FILLING = {
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "sort", "reverse"),
    *("pop", "popitem", "popleft", "remove", "discard", "clear", "put", "push"),
}
# They configure the interpreter, so they stay even next to an example.
_LIMITS = ("sys.set", "resource.setrlimit", "threading.stack_size")

_MAX_DEPTH = 10  # of functions of tests that call others


def names_read(tree: ast.AST) -> set[str]:
    """Return the names that the code reads."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def has_return(statements: Iterable[ast.AST]) -> bool:
    """Return whether `return` or `yield` is in the statements, outside of their functions."""
    waiting = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*_Definition, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def without_own_tests(code: str, name: str, *, is_method: bool = False) -> str:
    """Return the code without tests and examples of the function.

    They may be wrong, loop, or read input. All that may configure the program stays: attributes of
    the function, tables that it reads, the interpreter's limits. Code that does not parse is
    returned as it is. `is_method`: a class has the function.
    """
    try:
        statements = ast.parse(code).body
        program = _Program(statements, name, is_method)
        kept = [part for statement in statements for part in program.reduce(statement)]
        if kept == statements:  # nodes are equal only to themselves
            return code
        return ast.unparse(ast.Module(kept, [])) + "\n"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code


class _Program:
    """What is known of a program while its statements are read in order."""

    def __init__(self, statements: Sequence[ast.stmt], name: str, is_method: bool) -> None:
        self.name = name
        self.is_method = is_method
        needed = _needed_names(statements, name)
        defined = {node.name for node in statements if isinstance(node, _Definition)}
        imported = {alias for node in statements for alias in _imported_names(node)}
        self.data = needed - defined - imported | {name}
        self.tools = _TOOLS | _imported_tools(statements)
        self.examples: set[str] = set()
        self.kept: set[str] = set()
        self.dropped: set[str] = set()
        definitions = [node for node in statements if isinstance(node, _Function)]
        # Calls of these set the program up, also if they print or assert.
        self.setters = {node.name for node in definitions if _fills(node, self.data)}
        self.fillers = {node.name for node in definitions if _fills(node, _parameters(node))}
        self._find_examples(statements, needed)

    def _find_examples(self, statements: Sequence[ast.stmt], needed: set[str]) -> None:
        """Find functions and classes that only test the function, also by others of them."""
        waiting = [
            node
            for node in statements
            if isinstance(node, _Definition) and node.name not in needed | self.setters
        ]
        for _ in range(_MAX_DEPTH):
            exercises = [node for node in waiting if self._exercises(node)]
            self.examples |= {node.name for node in exercises}
            waiting = [node for node in waiting if node.name not in self.examples]

    def reduce(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return a statement of the module without its tests: itself, a part of it, or nothing."""
        if isinstance(statement, (*_Definition, *_Import)):
            kept: list[ast.stmt] = [statement]
        elif isinstance(statement, ast.Raise) or _is_script(statement):
            kept = []
        elif _fills_cache(statement, self.name):
            kept = [statement]
        else:
            kept = self._reduce(statement)
        names = _changed_names(statement)
        if kept:
            self.kept |= names
        else:
            self.dropped |= names - self.kept
        return kept

    def _reduce(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (*_Definition, *_Import)) or not self._exercises(statement):
            return [statement]
        is_needed = bool(_changed_names(statement) & self.data) or self._sets_up(statement)
        if not isinstance(statement, _Compound):
            if not is_needed:
                self.dropped |= _changed_names(statement) - self.kept
            return [statement] if is_needed else []
        if not is_needed and not _defines_or_limits(statement):
            return []
        if any(self._exercises(part) for part in _headers(statement)):
            return [statement]
        return self._reduce_blocks(statement)

    def _reduce_blocks(self, statement: ast.stmt) -> list[ast.stmt]:
        dropped = set(self.dropped)
        reduced = copy.deepcopy(statement)
        is_empty = True
        for block in _blocks(reduced):
            parts = [part for inner in block for part in self._reduce(inner)]
            is_empty = is_empty and not parts
            if block:
                block[:] = parts or [ast.Pass()]
        self.dropped = dropped  # what is kept may still set them
        if is_empty:
            return []
        # Without a part that breaks out of it, a loop might not end.
        return [reduced] if _count_jumps(reduced) == _count_jumps(statement) else [statement]

    def _sets_up(self, statement: ast.stmt) -> bool:
        """Return whether it calls what changes data of the function, or gives data to be filled."""
        calls = [
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        return any(
            _path(call.func) in self.setters
            or (_path(call.func) in self.fillers and names_read(call) & self.data)
            for call in calls
        )

    def _exercises(self, tree: ast.AST) -> bool:
        """Return whether a part calls the function, or tests, prints or reads input."""
        nodes = list(ast.walk(tree))
        bound = {name for node in nodes for name in _inner_names(node)}
        return any(self._is_exercise(node, bound) for node in nodes)

    def _is_exercise(self, node: ast.AST, bound: set[str]) -> bool:
        match node:
            case ast.Assert():
                return True
            case ast.AugAssign(target=ast.Name(id=name)):
                return self._is_lost(name, bound)
            case ast.Name(id=name, ctx=ast.Load() | ast.Del()):
                return name in self.tools or name in self.examples or self._is_lost(name, bound)
            case ast.Attribute():
                return _path(node).startswith(_TOOL_PATHS)
            case ast.Call(func=ast.Name(id=self.name)):
                return True
            case ast.Call(func=ast.Attribute(attr=self.name)) if self.is_method:
                return True
            case ast.Call(func=function):
                return _path(function).rpartition(".")[2] in _CALLERS and any(
                    self.name in names_read(argument) for argument in node.args
                )
        return False

    def _is_lost(self, name: str, bound: set[str]) -> bool:
        return name in self.dropped and name not in bound


def _fills(function: ast.AST, names: set[str]) -> bool:
    """Return whether a function assigns to these names, to parts of them, or fills them."""
    for node in ast.walk(function):
        match node:
            case ast.Global(names=changed) | ast.Nonlocal(names=changed):
                if names & {*changed}:
                    return True
            case (
                ast.Subscript(ctx=ast.Store() | ast.Del())
                | ast.Attribute(ctx=ast.Store() | ast.Del())
            ):
                if _root(node.value) & names:
                    return True
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                if method in _FILLING and _root(value) & names:
                    return True
    return False


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _needed_names(statements: Sequence[ast.stmt], name: str) -> set[str]:
    """Return the module's names that the function uses, directly or by others."""
    setters: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for changed in _changed_names(statement):
            setters.setdefault(changed, []).append(statement)
        if isinstance(statement, ast.ClassDef) and any(
            isinstance(node, _Definition) and node.name == name for node in statement.body
        ):
            setters.setdefault(name, []).append(statement)
    needed: set[str] = set()
    read: set[ast.stmt] = set()
    waiting = [name]
    while waiting:
        wanted = waiting.pop()
        needed.add(wanted)
        for statement in setters.get(wanted, []):
            if statement not in read and not _is_script(statement):
                read.add(statement)
                waiting.extend(_free_names(statement) - needed)
    return needed


def _free_names(statement: ast.stmt) -> set[str]:
    """Return the module's names that a statement reads."""
    names = names_read(statement)
    if not isinstance(statement, _Definition):
        return names
    nodes = [node for node in ast.walk(statement) if node is not statement]
    shared = {n for node in nodes if isinstance(node, ast.Global) for n in node.names}
    return names - {n for node in nodes for n in _bound_names(node)} | shared


def _bound_names(node: ast.AST) -> set[str]:
    """Return names that one node binds in its scope."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
            return {name}
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return {name}
    return _imported_names(node)


def _inner_names(node: ast.AST) -> set[str]:
    """Return names that one node sets for a part of its statement only."""
    match node:
        case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
            return {name}
        case ast.comprehension(target=target) | ast.For(target=target):
            return {n for part in ast.walk(target) for n in _bound_names(part)}
    return set()


def _imported_names(node: ast.AST) -> set[str]:
    if not isinstance(node, _Import):
        return set()
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _imported_tools(statements: Sequence[ast.stmt]) -> set[str]:
    tools = set(_TOOL_MODULES)
    for node in statements:
        for alias in node.names if isinstance(node, _Import) else []:
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            is_tool = module.partition(".")[0] in _TOOL_MODULES
            if is_tool or f"{module}.{alias.name}" in _TOOL_PATHS:
                tools.add(alias.asname or alias.name.partition(".")[0])
    return tools


def _changed_names(statement: ast.stmt) -> set[str]:
    """Return names that a statement sets, or whose object it changes."""
    if isinstance(statement, _Definition):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        names |= _bound_names(node) if not isinstance(node, ast.arg) else set()
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                names |= _root(node)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as function)):
                names |= _root(function)
            case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[changed, *_])):
                names |= _root(changed)
    return names


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _path(node: ast.expr) -> str:
    """Return a dotted name, or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _is_script(statement: ast.stmt) -> bool:
    """Return whether it is `if __name__ == "__main__"`, which is not run."""
    match statement:
        case ast.If(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]), orelse=[]):
            return "__name__" in names_read(left) | names_read(right)
    return False


def _fills_cache(statement: ast.stmt, name: str) -> bool:
    """Return whether a loop over numbers only calls the function, for a cache's sake."""
    match statement:
        case ast.For(
            target=ast.Name(id=number),
            iter=ast.Call(func=ast.Name(id="range")),
            body=[ast.Expr(value=ast.Call(func=ast.Name(id=called), args=[ast.Name(id=given)]))],
            orelse=[],
        ):
            return called == name and given == number
    return False


def _count_jumps(statement: ast.stmt) -> int:
    jumps = (ast.Break, ast.Continue, ast.Raise)
    return sum(isinstance(node, jumps) for node in ast.walk(statement))


def _defines_or_limits(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, (*_Definition, *_Import)):
            return True
        if isinstance(node, ast.Call) and _path(node.func).startswith(_LIMITS):
            return True
    return False


def _headers(statement: ast.stmt) -> Iterator[ast.AST]:
    """Return parts of a compound statement that are in none of its blocks."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from (part for part in ast.iter_child_nodes(child) if _is_header(part))
        elif _is_header(child):
            yield child


def _is_header(node: ast.AST) -> bool:
    return not isinstance(node, ast.stmt)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
        yield part.body
