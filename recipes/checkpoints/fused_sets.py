"""Modules whose matrices vLLM stores as one, so they need one format.

vLLM takes the first one's format for all, and misreads the others' weights without an error. The
names follow the `packed_modules_mapping` of its models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# They read the same activations.
SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
_TOGETHER = (
    *("qkv_proj", "gate_up_proj", "gate_up_proj"),
    *("fused_qkv_a_proj", "in_proj_qkvz", "in_proj_ba"),
)
_EXPERT = re.compile(r"(.*\bexperts)\.\d+\.")
CURE = "give the modules of one fused set (q, k, v; gate, up; a layer's experts) one format"


def fused_name(module: str) -> str | None:
    """Return vLLM's name of the module's fused matrix; None if it is stored alone.

    Experts are found by their own names.
    """
    parent, _, leaf = module.rpartition(".")
    place = next((n for n, each in enumerate(SIBLINGS) if leaf in each), None)
    if place is None or _EXPERT.match(module):
        return None
    return f"{parent}.{_TOGETHER[place]}"


def find_split(forms: Mapping[str, object]) -> tuple[str, str] | None:
    """Return two modules of one fused set that have different formats, if any.

    `forms` has each module's format; None for 16 bits.
    """
    firsts: dict[tuple[str, int], str] = {}
    for module, form in forms.items():
        expert = _EXPERT.match(module)
        parent, _, leaf = module.rpartition(".")
        place = -1 if expert else next((n for n, each in enumerate(SIBLINGS) if leaf in each), None)
        if place is None:
            continue
        first = firsts.setdefault((expert[1] if expert else parent, place), module)
        if forms[first] != form:
            return first, module
    return None
