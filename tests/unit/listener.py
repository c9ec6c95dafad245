"""A Progress that remembers what was reported, for tests of notes."""

from __future__ import annotations


class Listener:
    """Keeps notes and events.

    Attributes:
        notes: texts in the order they were said.
        events: (task, done, total, unit), likewise.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[tuple[str, int, int | None, str]] = []

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        """Keep the event."""
        self.events.append((task, done, total, unit))

    def note(self, text: str) -> None:
        """Keep the text."""
        self.notes.append(text)

    def stage_ended(self, stage: object) -> None:
        """Keep nothing."""
