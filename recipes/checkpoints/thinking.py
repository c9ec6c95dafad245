"""Whether a model thinks before it answers, by its chat template."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import CheckpointError
from pipeline.core.untrusted import parse_json
from recipes.checkpoints import template_renderer
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.generation import THOUGHT_MARKERS, ThoughtMarkers

SWITCHES = ("enable_thinking", "thinking", "think", "enable_reasoning")
MESSAGES = [{"role": "user", "content": "Hello"}]
# Set by the client of the suites, or by transformers.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
SECONDS = 20.0  # for busy machines; the limit of CPU time comes earlier


@dataclass(frozen=True)
class Rendering:
    """The variables that a template reads, and a prompt for each object of arguments."""

    names: frozenset[str]
    prompts: tuple[str, ...]


def find_markers(model: ModelGeneration) -> ThoughtMarkers | None:
    """Return the markers that the template mentions."""
    text = model.template or ""
    return next((each for each in THOUGHT_MARKERS if each.start in text or each.end in text), None)


def argument_names(model: ModelGeneration) -> frozenset[str]:
    """Return the names that a policy may set; CheckpointError as :func:`render`."""
    return render(model, [{}]).names - RESERVED - model.special_tokens.keys()


def find_switch(model: ModelGeneration) -> str | None:
    """Return the argument that turns thoughts off; CheckpointError as :func:`render`."""
    names = argument_names(model)
    return next((name for name in SWITCHES if name in names), None)


def thinks(model: ModelGeneration, arguments: Mapping[str, Any]) -> bool:
    """Return whether the model thinks with these arguments; CheckpointError as :func:`render`.

    It does if the prompt ends within a thought, and not if after one. Otherwise the template's
    switch decides. Without a switch, a model whose template has thoughts thinks.
    """
    markers = find_markers(model)
    if markers is None:
        return False
    switches = [name for name in SWITCHES if name in (model.template or "")]
    turned = [{**arguments, name: value} for name in switches for value in (True, False)]
    prompt, *others = render(model, [dict(arguments), *turned]).prompts
    end = prompt.rstrip()
    if end.endswith(markers.start):
        return True
    if end.endswith(markers.end):
        return False
    for on, off in zip(others[::2], others[1::2], strict=True):
        if on != off:
            return prompt != off
    return True


def render(model: ModelGeneration, arguments: Sequence[Mapping[str, Any]]) -> Rendering:
    """Return the prompts of one short message, or of the arguments' `messages` and `tools`.

    Raises CheckpointError if the template cannot be rendered within its limits.
    """
    order = {
        "template": model.template or "",
        "constants": {
            "messages": MESSAGES,
            "add_generation_prompt": True,
            "tools": None,  # None if not given, as by transformers
            "documents": None,
            **model.special_tokens,
        },
        "arguments": [dict(each) for each in arguments],
    }
    found = _run(json.dumps(order))
    if "error" in found:
        line = f", line {found['line']} of the chat template" if found.get("line") else ""
        raise CheckpointError(
            f"the chat template cannot be rendered: {found['error']}",
            where=f"{model.where}{line}",
            hint="fix the template, or write 'prompt_format: completion' in the policy",
        )
    return Rendering(frozenset(found["names"]), tuple(found["prompts"]))


@lru_cache(maxsize=32)
def _run(order: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(Path(template_renderer.__file__))],
            input=order.encode("utf-8", "surrogatepass"),
            capture_output=True,
            timeout=SECONDS,
            env={"LC_ALL": "C.UTF-8"},
            check=False,
        )
        found = parse_json(done.stdout, whole_text=False)
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {SECONDS:.0f} seconds"}
    except ValueError:
        limit = template_renderer.CPU_SECONDS
        return {"error": f"it takes more than {limit} seconds or too much memory"}
    return found if isinstance(found, dict) else {"error": "its output is damaged"}
