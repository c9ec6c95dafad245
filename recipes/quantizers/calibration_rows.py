"""Rows of a user's calibration file, as planning checks them and workers read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# ShareGPT's names of roles, and those of chat templates.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
ROLES = ("system", "developer", "user", "assistant", "tool")


def text_or_chat(row: Any, column: str) -> str | list[dict[str, Any]]:
    """Return a row's text, or its messages with `role` and `content`; ShareGPT's are translated.

    Raises:
        ValueError: the row has neither; the message is a clause that names the fault.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"it is {_kind(row)} and not an object with the key '{column}'")
    key = next((name for name in (column, "text", "messages", "conversations") if name in row), "")
    if not key:
        keys = ", ".join(map(str, row)) or "none"
        raise ValueError(f"it lacks the key '{column}'; it has {keys}")
    value = row[key]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"its '{key}' is {_kind(value)} and neither text nor messages")
    return [_message(each, number, key) for number, each in enumerate(value, start=1)]


def _message(message: Any, number: int, key: str) -> dict[str, Any]:
    where = f"message {number} of its '{key}'"
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} is {_kind(message)} and not an object")
    if "from" in message and "role" not in message:
        role = SHAREGPT_ROLES.get(str(message["from"]))
        if role is None:
            raise ValueError(
                f"{where} is from '{message['from']!s:.40}', and known are "
                f"{', '.join(SHAREGPT_ROLES)}"
            )
        message = {"role": role, "content": message.get("value")}
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"{where} has the role '{role!s:.40}', and known are {', '.join(ROLES)}")
    if not isinstance(content, str | list) and not message.get("tool_calls"):
        raise ValueError(f"{where} has no content")
    return dict(message)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    if value == []:
        return "an empty list"
    return names.get(type(value), "a number")
