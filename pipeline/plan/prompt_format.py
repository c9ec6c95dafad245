"""Prompt formats of suites: the model's chat template, or text to continue.

A base model has no template. Planning resolves `prompt_format: auto`; the result is in each stage's
parameters, so in its key, and in the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.errors import PrepareError, UsageError
from recipes.policy import Policy


def with_forms(policy: Policy, *, has_template: bool) -> Policy:
    """Return the policy with each `prompt_format: auto` resolved.

    It is `chat` if the tokenizer has a template, else `completion`.
    """
    form = "chat" if has_template else "completion"
    return policy.model_copy(
        update={
            "suites": {
                name: suite.model_copy(update={"prompt_format": form})
                if suite.prompt_format == "auto"
                else suite
                for name, suite in policy.suites.items()
            }
        }
    )


def form_faults(policy: Policy, where: str, *, has_template: bool) -> list[PrepareError]:
    """Return errors for suites that require a missing chat template.

    Args:
        where: the tokenizer's folder, for messages.
    """
    if has_template:
        return []
    return [
        UsageError(
            f"the suite '{name}' is asked in the chat format, and the tokenizer has no chat "
            "template",
            where=f"policy key suites.{name}.prompt_format; {where}",
            hint="write 'prompt_format: auto' (chat where there is a template, else completion) "
            "or 'prompt_format: completion' "
            "there, or give an instruction-tuned checkpoint",
        )
        for name, suite in policy.suites.items()
        if suite.prompt_format == "chat"
    ]


def form_notes(policy: Policy, *, has_template: bool) -> Iterator[str]:
    """Yield notes on suites with an unusual format."""
    if has_template:
        return
    names = [name for name, suite in policy.suites.items() if suite.prompt_format == "auto"]
    if names:
        yield (
            f"the tokenizer has no chat template: {', '.join(names)} asked in the completion "
            "format, as text "
            "to go on from"
        )
