"""Bounded, unambiguous reader of untrusted YAML."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from prepare.untrusted import MAX_DEPTH, MEBIBYTE, read_regular

MAX_YAML_BYTES = MEBIBYTE
MAX_YAML_VALUES = 20_000  # including each use of an alias
CHARACTERS_PER_VALUE = 100  # a longer string in YAML counts as several values
MAX_NUMBER_CHARACTERS = 64
MAX_INTEGER = 2**63


class UntrustedYamlError(ValueError):
    """YAML that is invalid, too large, too deep or ambiguous."""


_PLAIN = frozenset(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "seq", "map", "merge", "value")
)
# libyaml's parser, if available, is ten times faster.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml_file(path: Path) -> Any:
    """Return a YAML file's value; see `parse_yaml`."""
    return parse_yaml(read_regular(path, MAX_YAML_BYTES))


def parse_yaml(
    content: bytes, *, finite: bool = True, function: Callable[[str], Any] | None = None
) -> Any:
    """Return the value of one YAML document; the caller limits its size.

    Dates stay strings. `finite` rejects `.nan`, `.inf` and overflows. `function` handles lm-eval's
    tag `!function`.
    """
    try:
        text = content.decode("utf-8")
        _check_shape(text)
        loader = _Loader(text)
        loader.finite = finite
        loader.function = function
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except UnicodeError as error:
        raise UntrustedYamlError(f"it is not UTF-8 text: {error}"[:200]) from error
    except yaml.MarkedYAMLError as error:
        words = " ".join(part for part in (error.context, error.problem) if part)[:200]
        raise UntrustedYamlError(_at(words, error.problem_mark or error.context_mark)) from error
    except yaml.YAMLError as error:
        raise UntrustedYamlError(str(error)[:200]) from error


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader; errors and duplicate keys get the line."""

    finite = True
    function: Callable[[str], Any] | None = None
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in known if tag in _PLAIN]
        for first, known in _Base.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: construct
        for tag, construct in _Base.yaml_constructors.items()
        if tag in _PLAIN or tag is None  # None handles every other tag
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        written = node.value[:40] if isinstance(node, yaml.ScalarNode) else "a collection"
        if kind in ("int", "float") and len(node.value) > MAX_NUMBER_CHARACTERS:
            raise _yaml_error(f"{written}... has too many digits", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise _yaml_error(f"{written!a} is no {kind}", node) from error
        if isinstance(value, float) and self.finite and not math.isfinite(value):
            raise _yaml_error(f"{written} is not a finite number", node)
        if type(value) is int and abs(value) >= MAX_INTEGER:
            raise _yaml_error(f"the number {written} has more than 64 bits", node)
        return value

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> Any:
        """Reject duplicate keys, except over a merged mapping's."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise _yaml_error(f"the key {key.value[:80]!a} occurs twice", key)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_function(self, node: yaml.ScalarNode) -> Any:
        """Apply `function` to the text of a `!function` tag."""
        if self.function is None:
            return self.construct_undefined(node)
        return self.function(str(self.construct_scalar(node)))


_Loader.add_constructor("!function", _Loader.construct_function)


def _check_shape(text: str) -> None:
    """Check depth and count: aliases may multiply, or loop."""
    weights: dict[str, int] = {}  # number of values of each anchor, with aliases expanded
    opened: list[tuple[str | None, int]] = []  # anchor and preceding values of each open collection
    count = 0
    for event in yaml.parse(text, Loader=_Base):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, count))
            if len(opened) > MAX_DEPTH:
                problem = f"it is nested more than {MAX_DEPTH} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                weights[anchor] = count - before + 1
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                problem = "an alias refers to what contains it"
            count += weights.get(event.anchor or "", 0)
        elif isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # an escaped unpaired surrogate raises UnicodeEncodeError
            count += len(event.value) // CHARACTERS_PER_VALUE
            if event.anchor:
                weights[event.anchor] = 1 + len(event.value) // CHARACTERS_PER_VALUE
        else:
            continue
        count += 1
        if count > MAX_YAML_VALUES:
            problem = f"it has more than {MAX_YAML_VALUES:,} values, aliases counted in full"
        if problem:
            raise UntrustedYamlError(_at(problem, event.start_mark))


def _yaml_error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _at(problem: str, mark: Any) -> str:
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else problem
