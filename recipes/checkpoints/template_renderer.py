"""Script: renders a chat template, an untrusted program, within limits of time and memory.

Input is JSON: the template, constant variables, and one object of arguments for each rendering.
Output is JSON: the names that the template reads and the prompts, or an error with its line. It
needs jinja2 only; filters and functions are those of transformers.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from traceback import walk_tb
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 2
MEMORY_BYTES = 512 * 2**20
MAX_PROMPT_LETTERS = 1_000_000


class GenerationTag(Extension):
    """The block `generation`, which marks a model's own words in transformers."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_all(
    template: str, constants: dict[str, Any], arguments: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return `names` and `prompts`, or `error` and its `line` (None if no line is at fault)."""
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
        for each in arguments:
            parts, letters = [], 0
            for part in compiled.generate(**{**constants, **each}):
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
    """Return the template's line where a rendering failed; jinja2 names its source so."""
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


def main() -> None:
    """Answer the request on the standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    asked = json.load(sys.stdin)
    json.dump(render_all(asked["template"], asked["constants"], asked["arguments"]), sys.stdout)


if __name__ == "__main__":
    main()
