"""The address that other nodes reach this one at, as who gives out work here knows it."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "PREPARE_NODE_ADDRESS"


def own_address(variables: Mapping[str, str]) -> str:
    """Of the node that a process with these variables runs on; "" where nobody has said it."""
    return variables.get(VARIABLE, "")
