"""MLflow's model registry: an embedded SQLite store, or any tracking server by URI.

It needs only mlflow-skinny with SQLAlchemy. A version points to a checkpoint folder with tags. The
history of a model NAME is a registered model NAME.history, with a version per entry. MLflow assigns
each number once, even after deletions.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from artifacts.registry.embedded_database import (
    EMBEDDED,
    check_embedded,
    embedded_has,
    file_of,
    lock_of,
    make_database,
)
from artifacts.registry.history import HistoryEntry
from artifacts.registry.registry import Registry, Version
from pipeline.checkpoint.weights_folder_files import plain_files
from pipeline.core.credentials import restore_credentials
from pipeline.core.errors import RegistryError

HISTORY = ".history"
HISTORY_OF_TAG = "prepare.history_of"
APPLIED_TAG = "prepare.applied"
ENTRY_TAG = "prepare.entry"
# MLflow wants a source of every version; an entry has none.
NO_SOURCE = "prepare://history/entry"
PATIENCE_SECONDS = 0.5
HTTP = ("http://", "https://")
DATABRICKS = ("databricks", "databricks-uc")
ABSENT = "RESOURCE_DOES_NOT_EXIST"  # of MLflow's error codes
EXPERIMENT = "prepare"
ARTIFACTS = "weights"


def is_server(uri: str) -> bool:
    """Return whether a server has the registry, so that opening it creates nothing here."""
    return uri.startswith(HTTP) or uri.partition("://")[0] in DATABRICKS


class MlflowRegistry(Registry):
    """Versions, aliases and histories of registered models.

    Moves of an embedded registry hold a lock next to its file. Elsewhere the history decides races.

    Args:
        uri: `sqlite:////path/file.db`, `http(s)://server`, or another URI of MLflow.
    """

    @classmethod
    def check(cls, uri: str, name: str) -> None:
        """Check an embedded database or a server.

        MLflow would create tables or folders in other places.
        """
        if uri.startswith(EMBEDDED):
            check_embedded(uri)
        elif is_server(uri):
            super().check(uri, name)

    @classmethod
    def has(
        cls, uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]
    ) -> bool:
        if uri.startswith(EMBEDDED):
            answer = embedded_has(uri, name, versions, aliases)
            if answer is not None:
                return answer
        return super().has(uri, name, versions, aliases)

    def __init__(self, uri: str) -> None:
        self.uri = uri
        embedded = uri.startswith(EMBEDDED)
        self._file = file_of(uri) if embedded else None
        self.patience_seconds = 0 if embedded else PATIENCE_SECONDS
        # MLflow asks git and its usage service about us at import; neither is our business.
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Else it writes links between our own lines of JSON.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        with self._explain_errors(), warnings.catch_warnings(action="ignore"):
            for name in ("mlflow", "alembic"):  # it would print tracebacks of what it raises, too
                logging.getLogger(name).setLevel(logging.CRITICAL)
            if self._file is not None:
                make_database(uri)
            from mlflow.tracking import MlflowClient

            address = restore_credentials(uri)
            self._client = MlflowClient(tracking_uri=address, registry_uri=address)

    def names(self) -> list[str]:
        with self._explain_errors():
            models = _all_pages(self._client.search_registered_models)
            return sorted(model.name for model in models if HISTORY_OF_TAG not in model.tags)

    def versions(self, name: str) -> list[Version]:
        with self._explain_errors():
            found = self._all_versions(name)
            aliases = self.aliases(name) if found else {}
        numbered = sorted(found, key=lambda version: int(version.version), reverse=True)
        return [
            Version(
                name=name,
                version=str(version.version),
                aliases=tuple(sorted(a for a, v in aliases.items() if v == str(version.version))),
                source=version.source or "",
                tags=dict(version.tags),
            )
            for version in numbered
        ]

    def check_writable(self, name: str) -> None:
        """Check that the server answers; only a write shows its permission."""
        self.versions(name)

    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Make a version of the folder, or reuse one with the same tuple and evidence.

        A reused version of this folder gets these tags, because the folder may be new.
        """
        if name.endswith(HISTORY):
            raise RegistryError(
                f"'{name}' would be the history of '{name.removesuffix(HISTORY)}'",
                where=self.uri,
                hint=f"give a name (--name) that does not end in '{HISTORY}'",
            )
        with self.lock(name), self._explain_errors():
            existing = self.find_same(name, tags)
            if existing is not None:
                if existing.source == str(folder):
                    changed = {k: v for k, v in tags.items() if existing.tags.get(k) != v}
                    self.set_tags(name, existing.version, changed)
                return existing.version
            place, run_id = self._shared_place(name, folder)
            self._create_model(name)
            created = self._client.create_model_version(
                name, source=place, run_id=run_id, tags=dict(tags), await_creation_for=0
            )
            return str(created.version)

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        with self.lock(name), self._explain_errors():
            for key, value in tags.items():
                self._client.set_model_version_tag(name, version, key, value)

    def fetch(self, version: Version, folder: Path) -> None:
        source = Path(version.source)
        with self._explain_errors():
            if source.is_absolute():
                copy_checkpoint(source, folder)
                return
            run = self._client.get_model_version(version.name, version.version).run_id
            if run is None:
                raise RegistryError(
                    f"no run holds the files of version {version.version} of '{version.name}'",
                    where=version.source,
                    hint="it was not registered by prepare; copy the files from its source",
                )
            self._client.download_artifacts(run, ARTIFACTS, str(folder))
            for path in (folder / ARTIFACTS).iterdir():
                path.rename(folder / path.name)
            (folder / ARTIFACTS).rmdir()

    # What the journal is kept by.

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        with ExitStack() as held:
            if self._file is not None:
                with self._explain_errors():
                    held.enter_context(lock_of(self._file))
            yield

    def entries(self, name: str) -> list[HistoryEntry]:
        with self._explain_errors():
            found = self._all_versions(name + HISTORY)
        entries = []
        for version in sorted(found, key=lambda version: int(version.version)):
            try:
                entry = HistoryEntry.model_validate_json(version.tags[ENTRY_TAG])
            except (KeyError, ValueError) as error:
                raise RegistryError(
                    f"entry {version.version} of the history of '{name}' is damaged: {error}",
                    where=f"{self.uri}, model {name}{HISTORY}",
                    hint="a user changed its tags; delete that version to leave the entry out",
                ) from error
            entries.append(entry.model_copy(update={"number": int(version.version)}))
        return entries

    def append(self, name: str, entry: HistoryEntry) -> None:
        with self._explain_errors():
            self._create_model(name + HISTORY, {HISTORY_OF_TAG: name})
            self._client.create_model_version(
                name + HISTORY,
                source=NO_SOURCE,
                tags={ENTRY_TAG: entry.model_dump_json(exclude={"number"})},
                await_creation_for=0,
            )

    def read_applied(self, name: str) -> int:
        with self._explain_errors():
            model = self._model(name + HISTORY)
            return int(model.tags.get(APPLIED_TAG, 0)) if model else 0

    def mark_applied(self, name: str, number: int) -> None:
        with self._explain_errors():
            self._client.set_registered_model_tag(name + HISTORY, APPLIED_TAG, str(number))

    def aliases(self, name: str) -> dict[str, str]:
        with self._explain_errors():
            model = self._model(name)
            return {str(a): str(v) for a, v in dict(model.aliases).items()} if model else {}

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        with self._explain_errors():
            if version is not None:
                self._client.set_registered_model_alias(name, alias, version)
            elif alias in self.aliases(name):
                self._client.delete_registered_model_alias(name, alias)

    def has_version(self, name: str, version: str) -> bool:
        # A version that is no number is refused, not looked for.
        with self._explain_errors(), _allow_codes(ABSENT, "INVALID_PARAMETER_VALUE"):
            self._client.get_model_version(name, version)
            return True
        return False

    def _shared_place(self, name: str, source: Path) -> tuple[str, str | None]:
        """Return the weights' place for other users, and the MLflow run that has them.

        A server refuses local folders, so its artifact store gets the files.
        """
        if not self.uri.startswith(HTTP):
            return str(source), None
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        run = self._client.create_run(experiment, run_name=name)
        self._client.log_artifacts(run.info.run_id, str(source), ARTIFACTS)
        self._client.set_terminated(run.info.run_id)
        return f"{run.info.artifact_uri}/{ARTIFACTS}", str(run.info.run_id)

    def _create_model(self, name: str, tags: Mapping[str, str] | None = None) -> None:
        if self._model(name) is None:
            with _allow_codes("RESOURCE_ALREADY_EXISTS"):
                self._client.create_registered_model(name, tags=dict(tags or {}))

    def _model(self, name: str) -> Any | None:
        with _allow_codes(ABSENT):
            return self._client.get_registered_model(name)
        return None

    def _all_versions(self, name: str) -> list[Any]:
        return _all_pages(self._client.search_model_versions, f"name = {_quote(name)}")

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        with warnings.catch_warnings(action="ignore"):
            from mlflow.exceptions import MlflowException
        try:
            yield
        except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise RegistryError(
                f"the model registry failed: {_first_line(error)}",
                where=self.uri,
                hint="check --registry: a tracking server's URI that answers, "
                "or sqlite:////folder/registry.db in a folder that you may write",
            ) from error


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy a checkpoint's folder that a registry names: regular files only.

    Raises:
        RegistryError: it is not a checkpoint; another user may have named a private folder.
        EvidenceError: it contains something that is neither a file nor a folder.
    """
    if not (source / "config.json").is_file() or not any(
        file.suffix in (".safetensors", ".gguf") for file in source.iterdir()
    ):
        raise RegistryError(
            "the version's source is not a checkpoint's folder",
            where=str(source),
            hint="it was not registered by prepare, or a user changed its source",
        )
    for path, file in list(plain_files(source)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)


@contextmanager
def _allow_codes(*codes: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise


def _all_pages(search: Callable[..., Any], *what: str) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = search(*what, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _quote(name: str) -> str:
    """Quote a name for MLflow's filters, which support two quotation marks and no escape."""
    mark = '"' if "'" in name else "'"
    return f"{mark}{name}{mark}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
