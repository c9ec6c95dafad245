"""Finds JSON schemas that would not judge an answer: they accept any, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

# Values of each type. A schema that states no type refuses those of one type at most.
_PROBES: dict[str, tuple[Any, ...]] = {
    "a text": ("", "a", "2020-01-01"),
    "a number": (0, 1.5, -7),
    "true": (True, False),
    "null": (None,),
    "a list": ([], [0], ["a", {}]),
    "an object": ({}, {"a": 0}, {"a": "a", "b": {}}),
}
_MAX_TYPES = 4  # of which a schema takes every value

_SCHEMAS_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_LISTS_OF_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SCHEMAS = {
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "if",
    "then",
    "else",
    "not",
}
_VALUES = {
    "$ref",
    "type",
    "enum",
    "const",
    "multipleOf",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "maxContains",
    "minContains",
    "maxProperties",
    "minProperties",
    "required",
    "dependentRequired",
}
_ASSERTING = (_SCHEMAS_BY_NAME | _LISTS_OF_SCHEMAS | _SCHEMAS | _VALUES) - {"$defs", "definitions"}
# They assert nothing, and they may resemble a keyword that does.
_ANNOTATIONS = {
    "$schema",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$vocabulary",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
    "example",
    "examples",
    "format",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
}
# Keywords of other drafts and of OpenAPI, and what asserts the same in draft 2020-12.
_FOREIGN = {
    "additionalItems": "'prefixItems' with 'items'",
    "dependencies": "'dependentRequired' or 'dependentSchemas'",
    "divisibleBy": "'multipleOf'",
    "nullable": "a 'type' with 'null'",
    "$recursiveRef": "'$ref'",
}
_MIN_CLOSE_LETTERS = 5  # of a keyword that a misspelt one may resemble
_CLOSENESS = 0.77  # 'property' to 'properties'


def find_wrapper(schema: dict[str, Any]) -> str:
    """Return why the schema is not the one that is meant, or ""."""
    wraps = any(isinstance(schema.get(key), dict) for key in ("schema", "json_schema"))
    if not wraps or schema.keys() & (_ASSERTING - {"type"}):
        return ""
    return "wraps a schema, as OpenAI's json_schema does; give its inner 'schema' alone"


def find_ignored(schema: dict[str, Any]) -> str:
    """Return why a keyword asserts nothing that its name says, or ""."""
    for part in _subschemas(schema):
        for word, value in part.items():
            if word in _FOREIGN and not (word == "nullable" and value is False):
                return f"has '{word}', which draft 2020-12 ignores; take {_FOREIGN[word]}"
            meant = _find_meant(word)
            if meant:
                return (
                    f"has '{word}', which asserts nothing; take '{meant}' if it is meant, and "
                    f"'x-{word}' if not"
                )
    return ""


def _find_meant(word: str) -> str:
    """Return the keyword that a misspelt one resembles, or ""."""
    if word in _ASSERTING | _ANNOTATIONS | _FOREIGN.keys() or word.startswith("x-"):
        return ""
    letters = _letters(word)
    annotations = {_letters(name): "" for name in _ANNOTATIONS}
    names = annotations | {_letters(name): name for name in _ASSERTING}
    for same in (letters, letters.removesuffix("s")):
        if same in names:
            return names[same]
    long = [name for name in names if len(name) >= _MIN_CLOSE_LETTERS]
    return "".join(names[name] for name in get_close_matches(letters, long, 1, _CLOSENESS))


def _letters(word: str) -> str:
    return re.sub("[^a-z]", "", word.lower())


def find_indifference(schema: dict[str, Any], validator: Any) -> str:
    """Return why the schema accepts any answer, or none, or ""."""
    taken = [
        name
        for name, values in _PROBES.items()
        if not any(any(True for _ in validator.iter_errors(value)) for value in values)
    ]
    if len(taken) > _MAX_TYPES:
        return f"accepts any JSON ({', '.join(taken)}); give its 'type'"
    absent = _forbidden_names(schema)
    if absent:
        return f"requires {absent[0]!r}, which 'additionalProperties: false' forbids"
    return ""


def _forbidden_names(schema: dict[str, Any]) -> list[str]:
    """Return required properties of the whole answer that it must not have."""
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return []
    return [name for name in schema.get("required", []) if name not in schema.get("properties", {})]


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Return the schema and those within it; a property's name is no keyword."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for key, value in part.items():
            if key in _SCHEMAS:
                waiting.append(value)
            elif key in _SCHEMAS_BY_NAME and isinstance(value, dict):
                waiting.extend(value.values())
            elif key in _LISTS_OF_SCHEMAS and isinstance(value, list):
                waiting.extend(value)
