"""Renders lm-eval's prompt templates for display."""

from __future__ import annotations

from typing import Any


def render(template: str, question: dict[str, Any]) -> str:
    """Return a jinja template's text, unescaped; KeyError for a missing field."""
    from jinja2 import StrictUndefined, UndefinedError
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    try:
        return environment.from_string(template).render(**question)
    except UndefinedError as error:
        raise KeyError(str(error)) from error
