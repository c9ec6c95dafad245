"""Reads users' YAML files; errors name the key and its purpose."""

from __future__ import annotations

import difflib
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from prepare.errors import UsageError, raise_as
from prepare.untrusted_yaml import read_yaml_file

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHAPE = TypeVar("SHAPE", bound=BaseModel)
BRIEF = 120  # characters of a name that a message repeats


def parse(path: Path, noun: str, kind: type[SHAPE]) -> SHAPE:
    """Read a file as `kind`; UsageError names a faulty key."""
    return validate(read(path, noun, kind), path, noun, kind)


def read(path: Path, noun: str, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the keys; raises as :func:`parse`."""
    with raise_as(
        UsageError, f"the {noun} cannot be read", path, "fix the file", errors=(OSError, ValueError)
    ):
        data: Any = read_yaml_file(path)
    if data is None and not any(field.is_required() for field in kind.model_fields.values()):
        return {}
    if not isinstance(data, dict):
        known = f"keys known at the top: {', '.join(kind.model_fields)}"
        raise UsageError(f"the {noun} is not a mapping of keys", where=str(path), hint=known)
    return data


def validate(data: dict[str, Any], path: Path, noun: str, kind: type[SHAPE]) -> SHAPE:
    """Return the data as `kind`; raises as :func:`parse`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # An unknown key is often a misspelled required one, so it explains more than a missing
        # key.
        first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        key = ".".join(map(shorten, _users_path(first, data))) or "(the whole file)"
        raise UsageError(
            f"the {noun} is wrong at '{key}': {_explain(first)}",
            where=f"{path}, key {key}",
            hint=_hint(kind, first, data),
        ) from error


def shorten(text: str) -> str:
    """Return at most `BRIEF` characters."""
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}..."


def _users_path(fault: ErrorDetails, data: Any) -> list[str]:
    """Return the keys in the file; pydantic inserts a union's `kind`."""
    path: list[str] = []
    location: tuple[Any, ...] = fault["loc"]
    for number, part in enumerate(location, start=1):
        is_item = isinstance(data, list) and isinstance(part, int)
        if is_item or (isinstance(data, dict) and part in data):
            data = data[part]
        elif fault["type"] != "missing" or number != len(location):
            continue
        path.append(str(part))
    return path


def _explain(fault: ErrorDetails) -> str:
    given = fault["input"]
    message = fault["msg"].removeprefix("Value error, ")
    known = {
        "extra_forbidden": "there is no such key",
        "missing": "this key is required",
        "union_tag_not_found": "the key 'kind' is required",
    }
    if fault["type"] in known:
        return known[fault["type"]]
    if fault["type"] == "union_tag_invalid":
        tags = fault["ctx"]
        return f"the kind '{shorten(tags['tag'])}' is not known: {tags['expected_tags']}"
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "Input should be a mapping of keys"
    if isinstance(given, (bool, int, float, str)) or given is None:
        return message.replace("Input should", f"{shorten(repr(given))} should", 1)
    return message


def _hint(kind: type[BaseModel], fault: ErrorDetails, data: Any) -> str:
    """Return the faulty key's purpose, or the known keys."""
    if fault["type"] in ("float_type", "int_type") and (number := _written_out(fault["input"])):
        return f"write {number}: YAML reads quoted values, and 1e7 or 1.0e7, as strings"
    node = schema = kind.model_json_schema()
    keys = list(schema["properties"])
    around = "at the top"
    meaning = ""
    location = fault["loc"]
    if location and location[-1] == "[key]":  # the key itself is wrong: describe its parent
        location = location[:-2]
    for part in location:
        data = data.get(part) if isinstance(data, dict) else None
        node = _look_inside(node, part, data, schema)
        if node.get("properties"):
            keys = list(node["properties"])
            around = f"in {part}"
        meaning = f"{part}: {node['description']}" if node.get("description") else ""
    known = f"keys known {around}: {', '.join(keys)}"
    if fault["type"] == "extra_forbidden":
        close = difflib.get_close_matches(shorten(str(fault["loc"][-1])), keys, n=1)
        return f"did you mean '{close[0]}'? {known}" if close else known
    return known if fault["type"] == "missing" or not meaning else meaning


def _written_out(text: Any) -> str:
    """Return a string's number without exponent, if it is short."""
    try:
        number = Decimal(text if isinstance(text, str) else "")
    except InvalidOperation:
        return ""
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) < 20 else ""


def _look_inside(
    node: dict[str, Any], part: int | str, data: Any, schema: dict[str, Any]
) -> dict[str, Any]:
    """Return the schema at that part, by the data's `kind` for a union."""

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        reference = node.get("$ref", "").rpartition("/")[2]
        return {**schema["$defs"][reference], **node} if reference else node

    def tags(node: dict[str, Any]) -> dict[str, str]:
        mapping: dict[str, str] = node.get("discriminator", {}).get("mapping", {})
        return mapping

    more = node.get("additionalProperties")
    resolved: dict[str, Any] = (
        node.get("properties", {}).get(part)
        or ({"$ref": tags(node)[str(part)]} if part in tags(node) else None)
        or next(iter(node.get("patternProperties", {}).values()), None)
        or (more if isinstance(more, dict) else None)
        or (node.get("items") if isinstance(part, int) else None)
        or {}
    )
    options = [option for option in resolved.get("anyOf", []) if option.get("type") != "null"]
    resolved = resolve({**options[0], **resolved} if len(options) == 1 else resolved)
    kind = data.get("kind") if isinstance(data, dict) else None
    reference = tags(resolved).get(kind) if isinstance(kind, str) else None
    return {**resolve({"$ref": reference}), **resolved} if reference else resolved
