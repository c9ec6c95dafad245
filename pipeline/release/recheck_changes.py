"""In which members what would serve here and now differs from the tuple that was judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.deployable import JudgedTuple
from artifacts.registry.registry import Version

WORDS = {
    "engine_version": "engine version",
    "environment.serve": "environment 'serve'",
    "environment.evaluate": "environment 'evaluate'",
    "serving": "serving",
    "hardware": "hardware",
}
ABSENT = "none"
SHORT = 12  # characters of a digest


@dataclass(frozen=True)
class Change:
    """One member that differs."""

    member: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.member}: judged {self.then}, here {self.now}"

    def to_dict(self) -> dict[str, str]:
        """Plain data for `--json`."""
        return dict(vars(self))


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Every member that differs; of serving and hardware each part.

    The environment that quantized is left out: the weights are made, and nothing serves with it.
    """
    return [change for name in WORDS for change in _compared(WORDS[name], then[name], now[name])]


def registered_members(version: Version, members: Mapping[str, Any]) -> dict[str, Any]:
    """The tuple as the version's tags say it, which somebody may have changed.

    Args:
        version: with its tags.
        members: of the evidence, for what tags say nothing of.
    """
    tagged = JudgedTuple.of(version)
    return {
        **members,
        "engine_version": tagged.engine_version,
        "environment.serve": tagged.environment,
        "serving": tagged.arguments.to_dict(),
        "hardware": tagged.hardware,
    }


def _compared(name: str, then: Any, now: Any) -> Iterator[Change]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from _compared(f"{name}, {key}", then.get(key, ABSENT), now.get(key, ABSENT))
    elif then != now:
        yield Change(name, _shown(then), _shown(now))


def _shown(value: Any) -> str:
    """A value for people; a digest by its beginning."""
    text = str(value)
    is_digest = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:SHORT] if is_digest else text
