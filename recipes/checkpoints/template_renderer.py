"""Chat templates, rendered within limits: they are untrusted programs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from traceback import walk_tb
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prepare.errors import CheckpointError
from prepare.limited_call import CallError, call_limited
from recipes.checkpoints.chat_template import ModelGeneration

CPU_SECONDS = 2
MEMORY_BYTES = 512 * 2**20
MAX_PROMPT_LETTERS = 1_000_000
MESSAGES = [{"role": "user", "content": "Hello"}]


class GenerationTag(Extension):
    """The block `generation` of transformers."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True)
class Rendering:
    """Variables that a template reads, and its prompts."""

    names: frozenset[str]
    prompts: tuple[str, ...]


def render(model: ModelGeneration, arguments: Sequence[Mapping[str, Any]]) -> Rendering:
    """Return the prompts of one short message, or the arguments' `messages` and `tools`.

    CheckpointError: rendering fails within the limits.
    """
    constants = {
        "messages": MESSAGES,
        "add_generation_prompt": True,
        "tools": None,  # None if not given, as by transformers
        "documents": None,
        **model.special_tokens,
    }
    renderings = [{**constants, **given} for given in arguments]
    has_tools = any(given["tools"] for given in renderings)
    template = model.template_of(tools=has_tools)
    rendered = _render_limited(template or "", json.dumps(renderings))
    if "error" in rendered:
        line = f", line {rendered['line']} of the chat template" if rendered.get("line") else ""
        raise CheckpointError(
            f"the chat template cannot be rendered: {rendered['error']}",
            where=f"{model.where}{line}",
            hint="fix the template, or write 'prompt_format: completion' in the policy, without "
            "'guided' and 'form: server'",
        )
    return Rendering(frozenset(rendered["names"]), tuple(rendered["prompts"]))


@lru_cache(maxsize=32)
def _render_limited(template: str, arguments: str) -> dict[str, Any]:
    try:
        rendered: dict[str, Any] = call_limited(
            lambda: _render_alone(template, json.loads(arguments)),  # noqa: TID251
            seconds=CPU_SECONDS,
            memory_bytes=MEMORY_BYTES,
        )
    except CallError as error:
        return {"error": str(error)}
    return rendered


def _render_alone(template: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    """Render in a separate process without this one's environment, which holds tokens."""
    os.environ.clear()
    return _render_all(template, arguments)


def _render_all(template: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return `names` and `prompts`, or `error` and its `line`."""
    try:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        names = sorted(find_undeclared_variables(environment.parse(template)))
        compiled = environment.from_string(template)
        prompts = []
        for variables in arguments:
            parts = []
            letters = 0
            for part in compiled.generate(**variables):
                letters += len(part)
                if letters > MAX_PROMPT_LETTERS:
                    return {"error": f"its prompt has more than {MAX_PROMPT_LETTERS:,} letters"}
                parts.append(part)
            prompts.append("".join(parts))
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except Exception as error:  # a template may raise any of Python
        return {
            "error": f"{type(error).__name__}: {str(error)[:300]}",
            "line": getattr(error, "lineno", None) or _line_of(error),
        }
    return {"names": names, "prompts": prompts}


def _line_of(error: Exception) -> int | None:
    """Return the template's line that failed."""
    lines = [
        line
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_code.co_filename in ("<template>", "<unknown>")
    ]
    return lines[-1] if lines else None


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise TemplateError(str(message))
