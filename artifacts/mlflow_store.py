"""MLflow's model registry: a SQLite file, or a server. Errors are RegistryErrors.

A file is read without MLflow, which takes seconds.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from prepare.credentials import restore_credentials
from prepare.errors import RegistryError, UsageError
from prepare.private_files import flush_folder, is_shared
from prepare.untrusted import open_regular
from recipes.checkpoints.weight_files import plain_files

EMBEDDED = "sqlite:///"
COPIES = ("hf://", "oci://")
HTTP = ("http://", "https://")
EXPERIMENT, ARTIFACTS = "prepare", "weights"
ABSENT, EXISTS = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
CREDENTIALS = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
HINT = "name with --registry a server that answers, or sqlite:////FOLDER/registry.db"
FULL = "free some space, then run the same command again"
MODEL = "SELECT name FROM registered_models WHERE name = ?"
ALIASES = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"
MODEL_TAGS = "SELECT key, value FROM registered_model_tags WHERE name = ?"
VERSIONS = (
    "SELECT version, source FROM model_versions "
    "WHERE name = ? AND current_stage != 'Deleted_Internal'"
)
VERSION_TAGS = "SELECT version, key, value FROM model_version_tags WHERE name = ?"


@dataclass(frozen=True)
class StoredModel:
    """A registered model as MLflow has it."""

    aliases: dict[str, str]  # version by alias
    tags: dict[str, str]
    versions: list[tuple[str, str, dict[str, str]]]  # number, source, tags


class MlflowStore:
    """One registry: `sqlite:////FOLDER/FILE.db`, a server, or another URI."""

    def __init__(self, uri: str) -> None:
        if uri.startswith(COPIES):
            raise UsageError(
                "this address holds copies of versions, and no aliases",
                where=f"--registry {uri}",
                hint=f"`prepare push NAME@ALIAS {uri}` copies a version there; {HINT}",
            )
        if "://" not in uri and not uri.startswith("databricks"):
            raise UsageError(
                "this is no address of a registry",
                where=f"--registry {uri}",
                hint="sqlite:////FOLDER/registry.db, or the http(s) address of an MLflow server",
            )
        self.uri = uri
        self._file = Path(uri.removeprefix(EMBEDDED)) if uri.startswith(EMBEDDED) else None

    def names(self) -> list[str]:
        with self._errors():
            if self._file is not None:
                found = self._rows("SELECT name FROM registered_models")
                return sorted(str(name) for (name,) in found)
            return sorted(each.name for each in _pages(self._client.search_registered_models))

    def read(self, name: str) -> StoredModel | None:
        """Return a model, or None."""
        with self._errors():
            return self._ask(name) if self._file is None else self._read_file(name)

    def check_writable(self) -> None:
        """Raise RegistryError if a file cannot be written."""
        if self._file is None:
            return
        with self._errors():
            there = next(each for each in (self._file, *self._file.parents) if each.exists())
        if there != self._file and not there.is_dir():
            raise self._refusal(f"{there} is not a folder")
        if not os.access(there, os.W_OK):
            raise self._refusal(f"{there} may not be written")

    def create_version(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Make a version of the folder, whose files a server copies."""
        with self._errors():
            place, run_id = self._place(name, folder)
            with _allow(EXISTS):
                self._client.create_registered_model(name)
            made = self._client.create_model_version(
                name, source=place, run_id=run_id, tags=dict(tags), await_creation_for=0
            )
            return str(made.version)

    def set_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        with self._errors():
            self._client.set_model_version_tag(name, version, key, value)

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        with self._errors():
            self._client.set_registered_model_tag(name, key, value)

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        """Point an alias to a version; None deletes it."""
        with self._errors():
            if version is None:
                self._client.delete_registered_model_alias(name, alias)
            else:
                self._client.set_registered_model_alias(name, alias, version)

    def fetch(self, name: str, number: str, source: Path, folder: Path) -> None:
        """Copy into an empty folder."""
        with self._errors():
            if source.is_absolute():
                copy_checkpoint(source, folder)
                return
            run = self._client.get_model_version(name, number).run_id
            if run is None:
                raise RegistryError(
                    f"no run holds the files of version {number} of '{name}'",
                    where=str(source),
                    hint="it was not registered by prepare; copy the files from its source",
                )
            self._client.download_artifacts(run, ARTIFACTS, str(folder))
            for path in (folder / ARTIFACTS).iterdir():
                path.rename(folder / path.name)
            (folder / ARTIFACTS).rmdir()

    def lock(self) -> AbstractContextManager[object]:
        """Return the reentrant lock of a file."""
        if self._file is None:
            return nullcontext()
        from filelock import FileLock

        with self._errors():
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # filelock waits forever in a folder that takes no file, such as /proc.
            TemporaryFile(dir=self._file.parent).close()
        mode = 0o660 if is_shared(self._file.parent) else 0o644
        return FileLock(f"{self._file}.lock", mode=mode, is_singleton=True)

    @cached_property
    def _client(self) -> Any:
        # MLflow asks git and its usage service at import.
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # It would write links between lines of JSON.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # else tracebacks
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        with warnings.catch_warnings(action="ignore"):
            logging.getLogger("alembic").setLevel(logging.CRITICAL)
            if self._file is not None:
                with self.lock():
                    make_database(self._file)
            from mlflow.tracking import MlflowClient

            address = restore_credentials(self.uri)
            return MlflowClient(tracking_uri=address, registry_uri=address)

    def _ask(self, name: str) -> StoredModel | None:
        with _allow(ABSENT):
            found = self._client.get_registered_model(name)
            mark = '"' if "'" in name else "'"  # MLflow's filters have no escape
            made = _pages(self._client.search_model_versions, f"name = {mark}{name}{mark}")
            return StoredModel(
                {str(alias): str(number) for alias, number in found.aliases.items()},
                dict(found.tags),
                [(str(each.version), each.source or "", dict(each.tags)) for each in made],
            )
        return None

    def _read_file(self, name: str) -> StoredModel | None:
        if not self._rows(MODEL, name):
            return None
        tags: dict[str, dict[str, str]] = {}
        for number, key, value in self._rows(VERSION_TAGS, name):
            tags.setdefault(str(number), {})[str(key)] = str(value)
        return StoredModel(
            {str(alias): str(number) for alias, number in self._rows(ALIASES, name)},
            {str(key): str(value) for key, value in self._rows(MODEL_TAGS, name)},
            [(str(n), str(s or ""), tags.get(str(n), {})) for n, s in self._rows(VERSIONS, name)],
        )

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        assert self._file is not None
        if not self._file.exists() or (self._file.is_file() and not self._file.stat().st_size):
            return []
        open_regular(self._file, None).close()  # SQLite would wait forever at a named pipe
        look = f"file:{quote(str(self._file))}?mode=ro"
        with closing(sqlite3.connect(look, uri=True, timeout=20)) as database:
            return database.execute(query, values).fetchall()

    def _place(self, name: str, source: Path) -> tuple[str, str | None]:
        """Return the weights' place, and the MLflow run that has them.

        A server refuses local folders; its artifact store gets the files.
        """
        if not self.uri.startswith(HTTP):
            return str(source), None
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        run = self._client.create_run(experiment, run_name=name)
        self._client.log_artifacts(run.info.run_id, str(source), ARTIFACTS)
        self._client.set_terminated(run.info.run_id)
        return f"{run.info.artifact_uri}/{ARTIFACTS}", str(run.info.run_id)

    def _refusal(self, why: str) -> RegistryError:
        return RegistryError(f"the registry cannot be used: {why}", where=self.uri, hint=HINT)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise  # maybe not the registry's disk
            raise self._refusal(str(error)) from error
        except Exception as error:
            if not type(error).__module__.startswith(("mlflow", "sqlalchemy", "alembic")):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if " (Caused by " in why:  # three layers of libraries, and the reason last
                why = "no answer: " + why.rpartition("): ")[2].rstrip("\"')")
            refused = any(f" {code} " in why for code in (401, 403)) or "DENIED" in why
            is_full = "disk is full" in why
            raise RegistryError(
                f"the model registry failed: {why[:300]}",
                where=self.uri,
                hint=FULL if is_full else f"set {CREDENTIALS}" if refused else HINT,
            ) from error


def make_database(file: Path) -> None:
    """Create the file with MLflow's tables, if there is none; the caller locks.

    MLflow cannot complete tables, so the file is renamed last.
    """
    for left in file.parent.glob(f".{file.name}.new*"):
        left.unlink()
    if file.exists() and (not file.is_file() or file.stat().st_size):
        return
    # MLflow keeps a connection to every name that it opened.
    made = file.with_name(f".{file.name}.new.{uuid4().hex}")
    made.touch()
    made.chmod(0o660 if is_shared(file.parent) else 0o644)
    fill(made)
    with made.open("rb") as content:
        os.fsync(content.fileno())
    made.replace(file)
    flush_folder(file.parent)


def fill(file: Path) -> None:
    """Create MLflow's tables in an empty file."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    store: Any = SqlAlchemyStore(f"{EMBEDDED}{file}")  # type: ignore[no-untyped-call]
    store.engine.dispose()


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy the regular files of a checkpoint that a registry names.

    RegistryError for another folder, which may be private.
    """
    if not (source / "config.json").is_file() or not any(
        file.suffix == ".safetensors" for file in source.iterdir()
    ):
        raise RegistryError(
            "the version's source is not a checkpoint's folder",
            where=str(source),
            hint="it was not registered by prepare, or a user changed its source",
        )
    for path, file in list(plain_files(source)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)


def _pages(search: Any, *what: str) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = search(*what, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


@contextmanager
def _allow(code: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != code:
            raise
