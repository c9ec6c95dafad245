"""A checkpoint's small files, each read once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, cast

from prepare.digest import digest_bytes
from prepare.errors import CheckpointError, raise_as
from prepare.untrusted import MAX_JSON_BYTES, MEBIBYTE, read_regular
from recipes.checkpoints.weight_files import checkpoint_names, parse_object

# Named chat templates besides the default one, as transformers saves them.
TEMPLATES_FOLDER = "additional_chat_templates"
MAX_TEMPLATE_BYTES = MEBIBYTE

Content = TypeVar("Content")
Locate = Callable[[str], Path]


class SmallFiles:
    """The files next to the weights, by name.

    A file is opened once: what was parsed of it is kept, and so is the digest of the same bytes.
    """

    def __init__(self, names: Collection[str], locate: Locate) -> None:
        self.names = frozenset(names)
        self._locate = locate
        self._parsed: dict[str, Any] = {}
        self._digests: dict[str, str] = {}

    @classmethod
    def in_folder(cls, folder: Path) -> SmallFiles:
        """Return those of a folder, and of its folder of chat templates."""
        names = [name for name in small_names(folder) if (folder / name).is_file()]
        return cls(names, folder.joinpath)

    def moved_to(self, folder: Path) -> SmallFiles:
        """Return the same files in a folder; what was read is not read again."""
        moved = SmallFiles.in_folder(folder)
        moved._parsed = self._parsed
        moved._digests = self._digests
        return moved

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def path(self, name: str) -> Path:
        """Return where the file is; from the Hub, it is fetched."""
        return self._locate(name)

    def digest(self, name: str) -> str | None:
        """Return the SHA-256 of the bytes that were read, or None."""
        return self._digests.get(name)

    def hash(self, name: str, limit: int) -> str:
        """Return the SHA-256 of a file of at most `limit` bytes."""
        self.parsed(name, limit, lambda *_: None)
        return self._digests[name]

    def json(self, name: str) -> dict[str, Any]:
        """Return the file's JSON object, or raise CheckpointError."""
        return self.parsed(name, MAX_JSON_BYTES, parse_object)

    def text(self, name: str) -> str:
        """Return a chat template, or raise CheckpointError."""
        return self.parsed(name, MAX_TEMPLATE_BYTES, _parse_text)

    def parsed(self, name: str, limit: int, parse: Callable[[bytes, Path], Content]) -> Content:
        """Return what `parse` makes of at most `limit` bytes."""
        if name not in self._parsed:
            path = self.path(name)
            with raise_as(CheckpointError, "the file cannot be read", path):
                content = read_regular(path, limit)
            self._parsed[name] = parse(content, path)
            self._digests[name] = digest_bytes(content)
        return cast("Content", self._parsed[name])


def small_names(folder: Path) -> list[str]:
    """Return the names in a checkpoint's folder, and in its folder of chat templates."""
    names = checkpoint_names(folder)
    templates = folder / TEMPLATES_FOLDER
    if TEMPLATES_FOLDER in names and templates.is_dir():
        names += [f"{TEMPLATES_FOLDER}/{name}" for name in checkpoint_names(templates)]
    return names


def _parse_text(content: bytes, path: Path) -> str:
    with raise_as(
        CheckpointError,
        "the chat template cannot be read",
        path,
        "download it again",
        errors=ValueError,
    ):
        return content.decode("utf-8")
