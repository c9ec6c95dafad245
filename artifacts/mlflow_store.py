"""MLflow's model registry: a SQLite file, or a server. Errors are RegistryErrors.

A file is read without MLflow, which takes seconds.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from artifacts.mlflow_session import bound_requests, download, refuse_other_host
from prepare.credentials import restore_credentials
from prepare.errors import RegistryError, UsageError, means_full_disk
from prepare.private_files import flush_folder, is_shared
from prepare.untrusted import MEBIBYTE, open_regular
from prepare.user_path import nearest_existing
from recipes.checkpoints.weight_files import plain_files

EMBEDDED = "sqlite:///"
COPIES = ("hf://", "oci://")
HTTP = ("http://", "https://")
NO_ALIAS = "prepare-permission"  # of no version
EXPERIMENT = "prepare"
ARTIFACTS = "weights"
ABSENT = "RESOURCE_DOES_NOT_EXIST"
EXISTS = "RESOURCE_ALREADY_EXISTS"
CREDENTIALS = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
HINT = "name with --registry a server that answers, or sqlite:////FOLDER/registry.db"
_SQLITE = re.compile(r"^\(sqlite3\.\w+\) ")  # SQLAlchemy's words before SQLite's
FULL = "free some space, then run the same command again"
MODEL = "SELECT name FROM registered_models WHERE name = ?"
ALIASES = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"
MODEL_TAGS = "SELECT key, value FROM registered_model_tags WHERE name = ?"
VERSIONS = (
    "SELECT version, source FROM model_versions "
    "WHERE name = ? AND current_stage != 'Deleted_Internal'"
)
# MLflow has no views, and triggers of secrets alone.
ODD_PARTS = (
    "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') "
    "AND NOT (type = 'trigger' AND tbl_name = 'secrets')"
)
HAS_REVISION = "SELECT name FROM sqlite_master WHERE name = 'alembic_version'"
REVISION = "SELECT version_num FROM alembic_version"
NEIGHBOURS = ("-journal", "-wal", "-shm", ".lock")  # files that SQLite and the lock open
QUERY_S = 60.0
LOCK_S = 300.0
MAX_ROWS = 1_000_000
MAX_VALUE_BYTES = 16 * MEBIBYTE
MAX_PAGES = 1_000
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
        self._is_checked = False

    def names(self) -> list[str]:
        with self._errors():
            if self._file is not None:
                rows = self._rows("SELECT name FROM registered_models")
                return sorted(str(name) for (name,) in rows)
            return sorted(
                registered.name for registered in self._pages(self._client.search_registered_models)
            )

    def read(self, name: str) -> StoredModel | None:
        """Return a model, or None."""
        with self._errors():
            return self._ask(name) if self._file is None else self._read_file(name)

    def check_writable(self) -> None:
        """Raise RegistryError if a file cannot be written."""
        if self._file is None:
            return
        with self._errors():
            there = nearest_existing(self._file)
        if there != self._file and not there.is_dir():
            raise self._refusal(f"{there} is not a folder")
        if not os.access(there, os.W_OK):
            raise self._refusal(f"{there} may not be written")

    def check_permission(self, name: str, *, is_there: bool) -> None:
        """Raise RegistryError if a server lets this login read alone; change nothing."""
        if not self.uri.startswith(HTTP):
            return
        _silence()
        from mlflow.exceptions import MlflowException

        with self._errors():
            try:
                if is_there:
                    self._client.delete_registered_model_alias(name, NO_ALIAS)
                else:
                    self._client.create_registered_model("")  # no name: it is refused anyhow
            except MlflowException as error:
                if " 403 " not in str(error) and error.error_code != "PERMISSION_DENIED":
                    return  # there is no such alias, or no name was given
                raise

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

    def delete_version(self, name: str, version: str) -> None:
        """Delete a version, and the run that holds its files on a server."""
        with self._errors():
            run = self._client.get_model_version(name, version).run_id
            self._client.delete_model_version(name, version)
            if run:
                self._client.delete_run(run)

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
            refuse_other_host(str(self._client.get_run(run).info.artifact_uri))
            download(lambda: self._client.download_artifacts(run, ARTIFACTS, str(folder)), folder)
            for path in (folder / ARTIFACTS).iterdir():
                path.rename(folder / path.name)
            (folder / ARTIFACTS).rmdir()

    def lock(self) -> AbstractContextManager[object]:
        """Return the reentrant lock of a file; RegistryError if another process keeps it."""
        if self._file is None:
            return nullcontext()
        with self._errors():
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # filelock waits forever in a folder that takes no file, such as /proc.
            TemporaryFile(dir=self._file.parent).close()
        return self._locked(Path(f"{self._file}.lock"))

    @contextmanager
    def _locked(self, file: Path) -> Iterator[None]:
        from filelock import FileLock, Timeout

        mode = 0o660 if is_shared(file.parent) else 0o644
        lock = FileLock(file, mode=mode, is_singleton=True, timeout=LOCK_S)
        try:
            lock.acquire()
        except Timeout as error:
            raise RegistryError(
                f"another process has held the registry's lock for {LOCK_S:.0f} s",
                where=str(file),
                hint="wait for that command, or end it if it hangs; then run the same one again",
            ) from error
        try:
            yield
        finally:
            lock.release()

    @cached_property
    def _client(self) -> Any:
        _silence()
        with warnings.catch_warnings(action="ignore"):
            logging.getLogger("alembic").setLevel(logging.CRITICAL)
            if self._file is not None:
                with self.lock():
                    make_database(self._file)
                    self._check_file()
            from mlflow.tracking import MlflowClient

            address = restore_credentials(self.uri)
            if self._file is not None:
                address = address_of(self._file)
            elif self.uri.startswith(HTTP):
                bound_requests(address)
            return MlflowClient(tracking_uri=address, registry_uri=address)

    def _ask(self, name: str) -> StoredModel | None:
        with _allow(ABSENT):
            registered = self._client.get_registered_model(name)
            mark = '"' if "'" in name else "'"  # MLflow's filters have no escape
            made = self._pages(self._client.search_model_versions, f"name = {mark}{name}{mark}")
            return StoredModel(
                {str(alias): str(number) for alias, number in registered.aliases.items()},
                dict(registered.tags),
                [
                    (str(version.version), version.source or "", dict(version.tags))
                    for version in made
                ],
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
        self._check_file()
        with _open_to_read(self._file) as database:
            rows = database.execute(query, values).fetchmany(MAX_ROWS + 1)
        if len(rows) > MAX_ROWS:
            raise self._refusal(f"it has more than {MAX_ROWS:,} rows of a kind")
        return rows

    def _check_file(self) -> None:
        """Refuse a file that SQLite or MLflow would wait or work for without an end."""
        assert self._file is not None
        if self._is_checked:
            return
        # SQLite would wait forever at a named pipe.
        for file in (self._file, *(Path(f"{self._file}{end}") for end in NEIGHBOURS)):
            if file == self._file or file.exists() or file.is_symlink():
                open_regular(file, None).close()
        with _open_to_read(self._file) as database:
            # A view or a trigger is a program of another user.
            odd = database.execute(ODD_PARTS).fetchone()
            revision = None
            if database.execute(HAS_REVISION).fetchone():
                revision = database.execute(REVISION).fetchone()
        if odd is not None:
            raise self._refusal(f"its {odd[0]} {str(odd[1])[:80]!r} is none of MLflow's")
        if revision is not None:
            self._check_revision(str(revision[0]))
        self._is_checked = True

    def _check_revision(self, revision: str) -> None:
        """Refuse a file that another MLflow made, which could not be written."""
        known, newest = mlflow_revisions()
        if not newest or revision == newest:
            return
        is_older = revision in known
        raise RegistryError(
            f"the registry was made by {'an older' if is_older else 'another'} MLflow: its schema "
            f"is {revision[:40]}, and the one of MLflow here is {newest}",
            where=self.uri,
            hint=f"copy the file, then run `mlflow db upgrade '{self.uri}'`"
            if is_older
            else "install a newer prepare or MLflow, or name another registry with --registry",
        )

    def _place(self, name: str, source: Path) -> tuple[str, str | None]:
        """Return the weights' place, and the MLflow run that has them.

        A server refuses local folders; its artifact store gets the files.
        """
        if not self.uri.startswith(HTTP):
            return str(source), None
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        run = self._client.create_run(experiment, run_name=name)
        self._client.log_artifacts(run.info.run_id, str(source), ARTIFACTS)
        self._client.set_terminated(run.info.run_id)
        return f"{run.info.artifact_uri}/{ARTIFACTS}", str(run.info.run_id)

    def _pages(self, search: Any, *what: str) -> list[Any]:
        entries: list[Any] = []
        tokens: list[str | None] = [None]
        for token in tokens:  # which grows meanwhile
            page = search(*what, page_token=token)
            entries += page
            if page.token in tokens or len(tokens) >= MAX_PAGES:
                raise self._refusal(f"its answer has no end, after {len(tokens)} pages")
            if page.token:
                tokens.append(page.token)
        return entries

    def _refusal(self, why: str, hint: str = HINT) -> RegistryError:
        return RegistryError(f"the registry cannot be used: {why}", where=self.uri, hint=hint)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, OSError) and means_full_disk(error):
                raise  # maybe not the registry's disk
            why = str(error)
            raise self._refusal(why, _hint(why)) from error
        except Exception as error:
            if not type(error).__module__.startswith(("mlflow", "sqlalchemy", "alembic")):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            why = _SQLITE.sub("", why)
            if " (Caused by " in why:  # three layers of libraries, and the reason last
                why = "no answer: " + why.rpartition("): ")[2].rstrip("\"')")
            raise RegistryError(
                f"the model registry failed: {why[:300]}", where=self.uri, hint=_hint(why)
            ) from error


def address_of(file: Path) -> str:
    """Return a file's address for MLflow, whose SQLAlchemy reads '%20' and '?' in another way.

    MLflow also makes the folder that it reads there, so an odd one is named by a descriptor, which
    stays open as MLflow's connections do.
    """
    folder = str(file.parent)
    if "%" in folder or "?" in folder:
        folder = f"/proc/self/fd/{os.open(file.parent, os.O_PATH | os.O_DIRECTORY)}"
    name = file.name.replace("%", "%25").replace("?", "%3F")
    return f"{EMBEDDED}{folder}/{name}"


def _hint(why: str) -> str:
    """Return what helps against this error of MLflow's."""
    if "disk is full" in why:
        return FULL
    if "database is locked" in why:
        return "another program has the file open for writing: end it, then run the same again"
    if "host header" in why.lower():
        return (
            "the server knows itself by other names: start it with `mlflow server --allowed-hosts "
            "NAME`, with the name in this address, or use one that it allows"
        )
    if any(f" {code} " in why for code in (401, 403)) or "DENIED" in why:
        return f"set {CREDENTIALS}, of a user who may do this"
    return HINT


@contextmanager
def _open_to_read(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database of others; sqlite3.Error if a query takes too long."""
    end = time.monotonic() + QUERY_S
    with closing(_connect(file, "ro")) as database:
        if _is_unfinished(database):
            _roll_back(file)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
        yield database


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=20)


def _roll_back(file: Path) -> None:
    """Roll back the journal that a killed writer left, which takes a connection that may write.

    SQLite locks the file meanwhile.
    """
    with closing(_connect(file, "rw")) as database:
        if _is_unfinished(database):
            raise sqlite3.OperationalError(
                f"a writer was killed, and {file}-journal has to be rolled back by a user who may "
                "write both files: any command of prepare does so"
            )


def _is_unfinished(database: sqlite3.Connection) -> bool:
    """Return whether a journal is there whose writer has ended, and this may not roll it back."""
    try:
        database.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        return True
    return False


@cache
def mlflow_revisions() -> tuple[frozenset[str], str]:
    """Return the schemas that this MLflow knows, and the newest; '' if they cannot be told.

    Its files are read, because importing it takes seconds.
    """
    spec = find_spec("mlflow")
    folder = (
        Path(spec.origin).parent / "store/db_migrations/versions" if spec and spec.origin else None
    )
    known: set[str] = set()
    before: set[str] = set()
    for file in sorted(folder.glob("*.py")) if folder else ():
        text = file.read_text(encoding="utf-8")
        known.update(re.findall(r"^revision = ['\"](\w+)['\"]", text, re.MULTILINE))
        before.update(re.findall(r"^down_revision = ['\"](\w+)['\"]", text, re.MULTILINE))
    newest = known - before
    return frozenset(known), newest.pop() if len(newest) == 1 else ""


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

    store: Any = SqlAlchemyStore(address_of(file))  # type: ignore[no-untyped-call]
    store.engine.dispose()


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copy the regular files of a checkpoint that a registry names.

    RegistryError for another folder, which may be private.
    """
    if not source.is_dir():
        raise RegistryError(
            "the version's files are not on this machine, or are gone",
            where=str(source),
            hint="pull it from where `prepare push` copied it; or `prepare promote RUN` makes them "
            "again in the store that has its run",
        )
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


def _silence() -> None:
    """Keep MLflow, which reads these at its first import, from writing and from asking anybody."""
    # It asks git and its usage service at import.
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # It would write links between lines of JSON.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # else tracebacks
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")  # it has no limit


@contextmanager
def _allow(code: str) -> Iterator[None]:
    _silence()
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != code:
            raise
