"""Whether a model thinks before it answers, by its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.checkpoints.chat_template import ModelGeneration
from recipes.checkpoints.template_renderer import render
from recipes.generation import THOUGHT_MARKERS, ThoughtMarkers

SWITCHES = ("enable_thinking", "thinking", "think", "enable_reasoning")
# Set by the client of the suites, or by transformers.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def find_markers(model: ModelGeneration) -> ThoughtMarkers | None:
    """Return the markers that the template mentions."""
    text = model.template or ""
    return next(
        (markers for markers in THOUGHT_MARKERS if markers.start in text or markers.end in text),
        None,
    )


def argument_names(model: ModelGeneration) -> frozenset[str]:
    """Return names that a policy may set; CheckpointError as :func:`render`."""
    return render(model, [{}]).names - RESERVED - model.special_tokens.keys()


def find_switch(model: ModelGeneration) -> str | None:
    """Return the argument against thoughts; CheckpointError as :func:`render`."""
    names = argument_names(model)
    return next((name for name in SWITCHES if name in names), None)


def thinks(model: ModelGeneration, arguments: Mapping[str, Any]) -> bool:
    """Return whether the model thinks with these arguments; CheckpointError as :func:`render`.

    A prompt that ends within or after a thought decides, or else the switch. Without one, a
    template with thoughts means yes.
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
