"""The SQLite file of an embedded MLflow registry: created atomically, checked, locked.

MLflow cannot complete its tables after a kill. A new file therefore gets its tables under another
name, and is renamed afterwards.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from artifacts.registry.folder_access import HINT, UNUSABLE, check_folder
from pipeline.core.errors import RegistryError, raise_as
from pipeline.core.fsync import flush_folder
from pipeline.core.private_files import is_shared
from pipeline.core.untrusted.file import open_regular

EMBEDDED = "sqlite:///"
VERSIONS_BY_SQL = (
    "SELECT version FROM model_versions WHERE name = ? AND current_stage != 'Deleted_Internal'"
)
ALIASES_BY_SQL = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"
TABLES_BY_SQL = "SELECT name FROM sqlite_master WHERE type = 'table'"
ROWS_OF_A_NEW_ONE = {"alembic_version": 1, "experiments": 1, "workspaces": 1}


def file_of(uri: str) -> Path:
    """Return the file of an embedded registry's URI."""
    return Path(uri.removeprefix(EMBEDDED))


def embedded_has(
    uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]
) -> bool | None:
    """Return whether an embedded registry has these versions and aliases; None: ask MLflow.

    It uses SQL because every run asks, and MLflow takes 6 s to open a registry. None if the tables
    are unexpected.
    """
    file = file_of(uri)
    if not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
            known = {str(row[0]) for row in database.execute(VERSIONS_BY_SQL, (name,))}
            pointing = database.execute(ALIASES_BY_SQL, (name,)).fetchall()
    except sqlite3.Error:
        logging.getLogger(__name__).debug("asking MLflow instead", exc_info=True)
        return None
    pointers = {(str(alias), str(version)) for alias, version in pointing}
    return known >= set(versions) and pointers >= set(aliases.items())


def check_embedded(uri: str) -> None:
    """Check without writing that an embedded registry can be opened or created.

    A registry with an unfinished write is accepted.

    Raises:
        RegistryError: it cannot be opened or created.
    """
    file = file_of(uri)
    check_folder(file.parent, uri)
    with raise_as(RegistryError, UNUSABLE, uri, HINT):
        if not file.exists():
            return
    if not os.access(file, os.W_OK):
        raise _unopenable_error(uri, f"{file} may not be written")
    try:
        # Not immutable, it would wait for locks, leave files next to one in WAL mode, and refuse
        # one that a killed writer left to be rolled back, which the next writer does.
        look = f"file:{quote(str(file))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(look, uri=True)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if not _is_being_written(file):
            raise _unopenable_error(uri, str(error)) from error


def make_database(uri: str) -> None:
    """Create the file with MLflow's tables, unless it has them.

    A file with incomplete tables and no model is created again.

    Raises:
        RegistryError: the file has content, and other tables than the installed MLflow's.
        OSError, sqlite3.Error: the folder is not writable, or the file is not a database.
    """
    file = file_of(uri)
    if _has_tables(file, uri):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # filelock waits forever in a folder in which no file can be made, such as /proc.
    TemporaryFile(dir=file.parent).close()
    with lock_of(file):
        for left in file.parent.glob(f".{file.name}.new*"):
            left.unlink()
        if not _has_tables(file, uri):
            _make_beside(file)


def lock_of(file: Path) -> AbstractContextManager[object]:
    """Return the lock that excludes other writers; it is reentrant."""
    from filelock import FileLock

    mode = 0o660 if is_shared(file.parent) else 0o644
    return FileLock(f"{file}.lock", mode=mode, is_singleton=True)


def fill(file: Path) -> None:
    """Create MLflow's tables in an empty file."""
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    store: Any = SqlAlchemyStore(f"{EMBEDDED}{file}")  # type: ignore[no-untyped-call]
    store.engine.dispose()


def _make_beside(file: Path) -> None:
    # A new name: MLflow keeps a connection to every name that it opened.
    new_file = file.with_name(f".{file.name}.new.{uuid4().hex}")
    shared = is_shared(file.parent)
    new_file.touch(mode=0o660 if shared else 0o644)
    if shared:
        new_file.chmod(0o660)
    try:
        fill(new_file)
        with new_file.open("rb") as content:
            os.fsync(content.fileno())
        new_file.replace(file)
        flush_folder(file.parent)
    finally:
        for left in file.parent.glob(f"{new_file.name}*"):
            left.unlink()


def _has_tables(file: Path, uri: str) -> bool:
    """Return whether the file has all MLflow tables; raises RegistryError for others."""
    try:
        open_regular(file, None).close()  # SQLite would wait forever at a named pipe
    except FileNotFoundError:
        return False
    with closing(sqlite3.connect(file)) as database:
        rows = {
            str(name): int(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])  # noqa: S608
            for (name,) in database.execute(TABLES_BY_SQL).fetchall()
        }
        versions = "SELECT version_num FROM alembic_version"
        found = database.execute(versions).fetchall() if "alembic_version" in rows else []
    if found == [(_newest_schema(),)]:
        return True
    if all(count <= ROWS_OF_A_NEW_ONE.get(name, 0) for name, count in rows.items()):
        return False
    raise RegistryError(
        "the SQLite file has other tables than those of the installed MLflow",
        where=uri,
        hint=f"copy the file, then run `mlflow db upgrade {uri}` where prepare is installed; or "
        "name another registry with --registry",
    )


def _newest_schema() -> str | None:
    import mlflow
    from alembic.script import ScriptDirectory

    scripts = Path(mlflow.__file__).parent / "store" / "db_migrations"
    return ScriptDirectory(str(scripts)).get_current_head()


def _is_being_written(file: Path) -> bool:
    """Return whether the file may contain half of a change; the read ignores locks."""
    return any(Path(f"{file}{ending}").exists() for ending in ("-journal", "-wal"))


def _unopenable_error(uri: str, why: str) -> RegistryError:
    return RegistryError(
        f"the model registry cannot be opened: {why}",
        where=uri,
        hint="name with --registry an SQLite file of MLflow's that you may write, or a new one",
    )
