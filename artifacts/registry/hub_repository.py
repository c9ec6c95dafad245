"""One model repository on the Hugging Face Hub: refs, ledger, and uploads of versions.

Atomicity depends on two refusals of the Hub: a commit whose parent is not the head, and an existing
tag.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.registry.hub_errors import CONFLICTS, MISSING, status_of, token_error
from artifacts.registry.hub_ledger import Ledger
from artifacts.registry.model_pack import files_in
from pipeline.core.errors import RegistryError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
HISTORY = "prepare-history"
UPLOAD = "prepare-upload-"
LEDGER = "registry.json"
CARD = "README.md"
# The Hub puts it into every repository, for git's sake; it is part of no version.
ATTRIBUTES = ".gitattributes"
# Made by huggingface_hub, in every folder that it downloads to.
DOWNLOAD_NOTES = ".cache"
# So often in a row another process may come first before we give up.
ATTEMPTS = 20
SECONDS_AFTER_A_CONFLICT = 0.2


@dataclass(frozen=True)
class RepositoryState:
    """Refs and ledger at one moment."""

    # commit by name
    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)  # as the history branch has it


class HubRepository:
    """Reads and writes one model repository; errors are those of huggingface_hub."""

    def __init__(self, api: HfApi, repo_id: str, uri: str) -> None:
        self.repo_id = repo_id
        self._api = api
        self._uri = uri
        self._read: tuple[str, Ledger] | None = None

    def state(self) -> RepositoryState | None:
        """Return refs and ledger, or None if the repository does not exist.

        Raises:
            RegistryError: no repository is visible, and there is no token.
        """
        from huggingface_hub import get_token
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        try:
            refs = self._api.list_repo_refs(self.repo_id)
        except GatedRepoError:  # a subclass of the other; it is there
            raise
        except RepositoryNotFoundError as error:
            if get_token() is None:
                raise token_error(f"hf://{self.repo_id}") from error
            return None
        branches = {ref.name: ref.target_commit for ref in refs.branches}
        tags = {ref.name: ref.target_commit for ref in refs.tags}
        return RepositoryState(branches, tags, self._ledger(branches.get(HISTORY)))

    def create(self, card: str, *, private: bool) -> RepositoryState:
        """Create the missing parts: repository, card and history branch.

        Raises:
            RegistryError: another program made the repository.
        """
        for _ in range(ATTEMPTS):
            state = self.state()
            if state is None:
                with allow_statuses(*CONFLICTS):  # another one was quicker
                    self._api.create_repo(self.repo_id, private=private)
                continue
            if HISTORY in state.branches:
                return state
            head = state.branches[MAIN]
            if CARD not in self._files_of_ours(head):
                self.commit(MAIN, head, "Say where the versions are", {CARD: card.encode()})
                continue
            self._api.create_branch(self.repo_id, branch=HISTORY, revision=head, exist_ok=True)
        raise self._busy_error()

    def check_ours(self) -> None:
        """Raise RegistryError if another program made the repository."""
        state = self.state()
        if state is not None and HISTORY not in state.branches:
            self._files_of_ours(state.branches[MAIN])

    def update(self, change: Callable[[Ledger], Ledger | None], message: str) -> None:
        """Change the ledger atomically, and keep other writers' changes.

        `change` returns the new ledger, or None. It is called again after another process wrote.
        """
        from huggingface_hub.errors import HfHubHTTPError

        from pipeline.checkpoint.hub import transport_error

        for attempt in range(ATTEMPTS):
            state = self.state()
            if state is None or HISTORY not in state.branches:
                raise RegistryError(
                    f"'{self.repo_id}' has no branch '{HISTORY}'",
                    where=self._uri,
                    hint="it was not registered by prepare, or a user deleted the branch",
                )
            wanted = change(state.ledger)
            if wanted is None:
                return
            content = wanted.model_dump_json(indent=1).encode() + b"\n"
            try:
                if self.commit(HISTORY, state.branches[HISTORY], message, {LEDGER: content}):
                    return
            except (HfHubHTTPError, transport_error()):
                # Perhaps it was done, and only the answer got lost.
                now = self.state()
                if now is None or change(now.ledger) is not None:
                    raise
                return
            time.sleep(random.uniform(0, SECONDS_AFTER_A_CONFLICT * (attempt + 1)))  # noqa: S311
        raise self._busy_error()

    def upload(self, folder: Path, label: str) -> str:
        """Commit exactly the folder's files; return the commit, which a tag must keep.

        A separate branch lets a killed upload continue: `label` identifies the content.
        """
        branch = UPLOAD + label[:16]
        local = dict(files_in(folder))
        sizes = {name: path.stat().st_size for name, path in local.items()}
        for _ in range(ATTEMPTS):
            state = self.state() or RepositoryState()
            if branch not in state.branches:
                self._api.create_branch(
                    self.repo_id, branch=branch, revision=state.branches[MAIN], exist_ok=True
                )
                continue
            head = state.branches[branch]
            there = self.files(head)
            if {name: size for name, size in there.items() if name != ATTRIBUTES} == sizes:
                return head
            gone = there.keys() - local.keys() - {ATTRIBUTES}
            made = self.commit(branch, head, f"Version of {label}", local, gone)
            if made is not None and self.files(made).keys() - {ATTRIBUTES} != local.keys():
                raise RegistryError(
                    "the Hub did not take every file of the version",
                    where=f"{self.repo_id}, branch {branch}",
                    hint="look for a .gitignore on the repository's main branch, and remove it",
                )
        raise self._busy_error()

    def drop_upload(self, label: str) -> None:
        with allow_statuses(MISSING):
            self._api.delete_branch(self.repo_id, branch=UPLOAD + label[:16])

    def commit(
        self,
        branch: str,
        parent: str,
        message: str,
        files: Mapping[str, bytes | Path],
        gone: frozenset[str] | set[str] = frozenset(),
    ) -> str | None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.errors import RevisionNotFoundError

        operations: list[Any] = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
            for name, content in files.items()
        ]
        operations += [CommitOperationDelete(path_in_repo=name) for name in sorted(gone)]
        # A revision that is not found is a branch that was removed meanwhile.
        with suppress(RevisionNotFoundError), allow_statuses(*CONFLICTS):
            made = self._api.create_commit(
                self.repo_id,
                operations,
                commit_message=message,
                revision=branch,
                parent_commit=parent,
            )
            return str(made.oid)
        return None

    def add_tag(self, tag: str, commit: str) -> bool:
        with allow_statuses(*CONFLICTS):
            self._api.create_tag(self.repo_id, tag=tag, revision=commit)
            return True
        return False

    def remove_tag(self, tag: str) -> None:
        with allow_statuses(MISSING):
            self._api.delete_tag(self.repo_id, tag=tag)

    def move_tag(self, tag: str, commit: str | None) -> None:
        for _ in range(ATTEMPTS):
            current = (self.state() or RepositoryState()).tags.get(tag)
            if current == commit:
                return
            if current is not None:
                self.remove_tag(tag)
            if commit is None or self.add_tag(tag, commit):
                return
        raise self._busy_error()

    def files(self, commit: str) -> dict[str, int]:
        """Return the size in bytes of every file in the commit, by path."""
        from huggingface_hub import RepoFile

        tree = self._api.list_repo_tree(self.repo_id, recursive=True, revision=commit)
        return {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}

    def has_commit(self, commit: str) -> bool:
        return bool(self._api.revision_exists(self.repo_id, commit))

    def _files_of_ours(self, head: str) -> dict[str, int]:
        files = self.files(head)
        if files.keys() - {ATTRIBUTES, CARD}:
            raise RegistryError(
                f"the Hub has a model repository '{self.repo_id}' that prepare did not make",
                where=self._uri,
                hint="register under another name (--name); nothing was written there",
            )
        return files

    def _ledger(self, head: str | None) -> Ledger:
        if head is None:
            return Ledger()
        if self._read is None or self._read[0] != head:
            self._read = (head, self._ledger_at(head))
        return self._read[1]

    def _ledger_at(self, commit: str) -> Ledger:
        from huggingface_hub.errors import RemoteEntryNotFoundError

        # A folder of our own: in the Hub's cache every move would leave a snapshot forever.
        with tempfile.TemporaryDirectory() as folder:
            try:
                file = self._api.hf_hub_download(
                    self.repo_id, LEDGER, revision=commit, local_dir=folder
                )
            except RemoteEntryNotFoundError:  # not its parent class: that is a lost connection, too
                return Ledger()
            text = Path(file).read_text(encoding="utf-8")
        try:
            return Ledger.model_validate_json(text)
        except ValueError as error:
            raise RegistryError(
                f"the history of '{self.repo_id}' is damaged: {error}",
                where=f"{self._uri}, branch {HISTORY}, file {LEDGER}, commit {commit}",
                hint="a user changed it; put the branch back to the commit before with git",
            ) from error

    def _busy_error(self) -> RegistryError:
        return RegistryError(
            f"others wrote to '{self.repo_id}' {ATTEMPTS} times in a row while we tried",
            where=self._uri,
            hint="run the command again",
        )


@contextmanager
def allow_statuses(*statuses: int) -> Iterator[None]:
    """Suppress these HTTP statuses."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        if status_of(error) not in statuses:
            raise
