"""The Hugging Face Hub as a registry: a model repository per name, aliases as git tags.

A version is one commit of the variant's folder, kept by a tag v1, v2 and so on. A separate branch
has the versions, their tags and the history (`hub_ledger.py`), and decides races.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

from artifacts.registry.history import HistoryEntry, replay
from artifacts.registry.hub_access import check_token
from artifacts.registry.hub_card import MODEL_TAG, main_card
from artifacts.registry.hub_errors import explain_hub_errors
from artifacts.registry.hub_ledger import Ledger, RegisteredVersion
from artifacts.registry.hub_repository import (
    ATTEMPTS,
    ATTRIBUTES,
    DOWNLOAD_NOTES,
    HubRepository,
    RepositoryState,
)
from artifacts.registry.journal import no_version
from artifacts.registry.registry import (
    EVIDENCE_TAG,
    FILES_TAG,
    TUPLE_TAG,
    Registry,
    Version,
    is_same,
)
from pipeline.core.digest import digest_json
from pipeline.core.errors import RegistryError

SCHEME = "hf://"
PUBLIC = "public"
# Between two requests of another process there may be a slow connection.
PATIENCE_SECONDS = 2.0

_NUMBERED = re.compile(r"v([1-9][0-9]*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_URI = re.compile(rf"{SCHEME}([A-Za-z0-9][\w.-]*)/?(?:\?({PUBLIC}))?")


class HubRegistry(Registry):
    """Versions, aliases and histories in model repositories of one user or organization.

    Args:
        uri: `hf://NAMESPACE`; new repositories are private, unless it ends in `?public`.

    Raises:
        RegistryError: the address has another form.
    """

    names_are_repositories = True
    hides_models = True

    def __init__(self, uri: str) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise RegistryError(
                f"'{uri}' is not a registry on the Hub",
                where="--registry",
                hint=f"write {SCHEME}NAMESPACE, a user or an organization; "
                f"{SCHEME}NAMESPACE?{PUBLIC} makes public repositories",
            )
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars

        # Its bars would go between our lines.
        disable_progress_bars()
        self.uri = uri
        self.patience_seconds = PATIENCE_SECONDS
        self._namespace, self._private = match[1], match[2] is None
        self._api = HfApi()
        # Each remembers what it has read of its history.
        self._repository: Callable[[str], HubRepository] = cache(
            lambda name: HubRepository(self._api, f"{self._namespace}/{name}", uri)
        )

    def names(self) -> list[str]:
        """Return the namespace's models whose card on `main` has the tag 'prepare'."""
        with explain_hub_errors(self.uri):
            found = self._api.list_models(author=self._namespace, filter=MODEL_TAG)
            return sorted(model.id.partition("/")[2] for model in found)

    def versions(self, name: str) -> list[Version]:
        state = self._state(name)
        aliases = _aliases(state)
        return [
            Version(
                name=name,
                version=number,
                aliases=tuple(sorted(a for a, v in aliases.items() if v == number)),
                source=f"{self._address(name)}@{registered.commit}",
                tags=dict(registered.tags),
            )
            for number, registered in sorted(
                _select_present(state).items(), key=lambda item: int(item[0]), reverse=True
            )
        ]

    def check_writable(self, name: str) -> None:
        with self._explain_errors(name):
            check_token(self._api, self._namespace, self._address(name))
            self._repository(name).check_ours()

    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Upload the folder as a version, or reuse one with the same tuple and evidence."""
        existing = self.find_same(name, tags)
        if existing is not None:
            return existing.version
        label = digest_json([tags.get(tag) for tag in (TUPLE_TAG, EVIDENCE_TAG, FILES_TAG)])
        repository = self._repository(name)
        with self._explain_errors(name):
            repository.create(main_card(self._namespace, name, folder), private=self._private)
            commit = repository.upload(folder, label)
            number = self._number(repository, commit)
            kept = self._record(repository, number, RegisteredVersion(commit=commit, tags={**tags}))
            if kept != number:  # another process has registered the same meanwhile
                repository.remove_tag(f"v{number}")
            repository.drop_upload(label)
        return kept

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:

        def change(ledger: Ledger) -> Ledger | None:
            there = ledger.versions.get(version)
            if there is None:
                raise no_version(self.uri, name, version)
            return ledger.with_version(
                version, there.model_copy(update={"tags": there.tags | dict(tags)})
            )

        with self._explain_errors(name):
            self._repository(name).update(change, f"Tags of version {version}")

    def fetch(self, version: Version, folder: Path) -> None:
        repo_id, _, commit = version.source.removeprefix(SCHEME).partition("@")
        with self._explain_errors(version.name):
            self._api.snapshot_download(
                repo_id, revision=commit, local_dir=folder, ignore_patterns=[ATTRIBUTES]
            )
            shutil.rmtree(folder / DOWNLOAD_NOTES, ignore_errors=True)

    # What the journal is kept by.

    def lock(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()

    def entries(self, name: str) -> list[HistoryEntry]:
        return list(self._state(name).ledger.entries)

    def append(self, name: str, entry: HistoryEntry) -> None:
        with self._explain_errors(name):
            message = f"{entry.action}: {entry.alias} to {entry.version}"
            self._repository(name).update(lambda ledger: ledger.with_entry(entry), message)

    def read_applied(self, name: str) -> int:
        return self._state(name).ledger.applied

    def mark_applied(self, name: str, number: int) -> None:
        with self._explain_errors(name):
            self._repository(name).update(
                lambda ledger: ledger.with_applied(number), f"Aliases are as of entry {number}"
            )

    def aliases(self, name: str) -> dict[str, str]:
        """Return the aliases by the tags, or by the history for missing tags.

        The Hub moves a tag in two steps, so a tag is missing during a move or after a kill.
        """
        return _aliases(self._state(name))

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        commit = None if version is None else self._commit_of(name, version)
        with self._explain_errors(name):
            self._repository(name).move_tag(alias, commit)

    def has_version(self, name: str, version: str) -> bool:
        if _COMMIT.fullmatch(version):
            with self._explain_errors(name):
                return self._repository(name).has_commit(version)
        return version in _select_present(self._state(name))

    def put_back(self, name: str) -> None:
        state = self._state(name)
        said = replay(state.ledger.entries)
        if state.ledger.applied != said.last:
            return
        for alias, version in said.aliases.items():
            if alias not in state.tags and self.has_version(name, version):
                commit = self._commit_of(name, version)
                with self._explain_errors(name):
                    # When another one made it first, it knows better.
                    self._repository(name).add_tag(alias, commit)

    def _commit_of(self, name: str, version: str) -> str:
        if _COMMIT.fullmatch(version):
            return version
        registered = self._state(name).ledger.versions.get(version)
        if registered is None:
            raise no_version(self.uri, name, version)
        return registered.commit

    def _number(self, repository: HubRepository, commit: str) -> str:
        for _ in range(ATTEMPTS):
            state = repository.state() or RepositoryState()
            given = {m[1]: c for t, c in state.tags.items() if (m := _NUMBERED.fullmatch(t))}
            for number, of in given.items():
                if of == commit and number not in state.ledger.versions:
                    return number
            number = str(max([0, *map(int, given), *map(int, state.ledger.versions)]) + 1)
            if repository.add_tag(f"v{number}", commit):
                return number
        raise RegistryError(
            f"others took the next number {ATTEMPTS} times in a row while we tried",
            where=f"{SCHEME}{repository.repo_id}",
            hint="run the command again",
        )

    def _record(self, repository: HubRepository, number: str, version: RegisteredVersion) -> str:
        """Record the version; return the number of an equal one if another process added it."""
        kept = number

        def change(ledger: Ledger) -> Ledger | None:
            nonlocal kept
            tags = (repository.state() or RepositoryState()).tags
            same = [n for n, v in ledger.versions.items() if is_same(v.tags, version.tags)]
            kept = next((n for n in same if f"v{n}" in tags), number)
            return None if kept in same else ledger.with_version(number, version)

        repository.update(change, f"Version {number}")
        return kept

    def _state(self, name: str) -> RepositoryState:
        with self._explain_errors(name):
            return self._repository(name).state() or RepositoryState()

    def _address(self, name: str) -> str:
        return f"{SCHEME}{self._namespace}/{name}"

    def _explain_errors(self, name: str) -> AbstractContextManager[None]:
        return explain_hub_errors(self._address(name))


def _select_present(state: RepositoryState) -> dict[str, RegisteredVersion]:
    return {n: v for n, v in state.ledger.versions.items() if f"v{n}" in state.tags}


def _aliases(state: RepositoryState) -> dict[str, str]:
    numbers = {version.commit: number for number, version in _select_present(state).items()}
    found = {
        tag: numbers.get(commit, commit)
        for tag, commit in state.tags.items()
        if not _NUMBERED.fullmatch(tag)
    }
    said = replay(state.ledger.entries)
    if state.ledger.applied != said.last:
        return found
    present = _select_present(state)
    missing = {a: v for a, v in said.aliases.items() if v in present or _COMMIT.fullmatch(v)}
    return missing | found
