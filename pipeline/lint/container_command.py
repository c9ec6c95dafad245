"""The command line that a Kubernetes manifest or a Compose file has a container start.

There it stands in keys: `command` and `args` (Kubernetes), or `entrypoint` and `command` (Compose),
after the image whose entry point they are for, with variables in `env` or `environment`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.core.untrusted.yaml import UntrustedYamlError, parse_yaml

_LINE_OF_A_FILE = re.compile(r"^[ \t]*(- )*(image|entrypoint|command|args):( |\r?$)", re.MULTILINE)
_DOCUMENT_END = re.compile(r"^---(?=\s|$)", re.MULTILINE)  # what follows is of the next one
_WORDS = ("entrypoint", "command", "args")  # in the order in which they are put together


def command_lines(text: str) -> list[str]:
    """Return a shell line for each container; none if the text is no such file.

    Raises:
        UsageError: it is one that cannot be read, such as a template.
    """
    found = []
    for document in _DOCUMENT_END.split(text):
        try:
            content = parse_yaml(document.encode())
        except UntrustedYamlError as error:
            if _LINE_OF_A_FILE.search(text):
                raise UsageError(
                    f"this is a file of containers that cannot be read: {error}",
                    where="prepare lint",
                    hint="mend the YAML; of a template give what it comes to (`helm template`)",
                ) from error
            return []
        found += [_line(each) for each in _containers(content)]
    return found


def _containers(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if any(isinstance(content.get(key), str | list) for key in _WORDS):
            yield content
        for value in content.values():
            yield from _containers(value)
    elif isinstance(content, list):
        for value in content:
            yield from _containers(value)


def _line(container: dict[str, Any]) -> str:
    image = container.get("image")
    words = [image] if isinstance(image, str) else []
    line = [*_variables(container.get("env")), *_variables(container.get("environment")), *words]
    quoted = [shlex.quote(word) for word in line]
    for said in map(container.get, _WORDS):
        if isinstance(said, str):
            quoted.append(said)  # for a shell, or split as by one
        quoted += [shlex.quote(_text(word)) for word in said] if isinstance(said, list) else []
    return " ".join(quoted)


def _variables(said: Any) -> Iterator[str]:
    if isinstance(said, dict):
        yield from (f"{name}={_text(value)}" for name, value in said.items())
    for each in said if isinstance(said, list) else ():
        if isinstance(each, dict) and "name" in each:
            yield f"{each['name']}={_text(each.get('value', ''))}"
        elif isinstance(each, str):
            yield each


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
