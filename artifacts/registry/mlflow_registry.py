"""MLflow's model registry: an embedded SQLite store, or any tracking server by URI.

Only mlflow-skinny with SQLAlchemy is needed: a version is a pointer to a checkpoint folder with
tags, and an alias is a name for a version.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.errors import RegistryError

TUPLE_TAG = "prepare.tuple"


@dataclass(frozen=True)
class Version:
    """One registered version, as reports show it."""

    name: str
    version: str
    aliases: tuple[str, ...]
    source: str
    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "name": self.name,
            "version": self.version,
            "aliases": list(self.aliases),
            "source": self.source,
            "tags": dict(self.tags),
        }


def has_versions(uri: str, name: str, versions: Collection[str]) -> bool:
    """Whether the registry still has these versions of a model.

    An embedded registry is asked by SQL, since opening it through MLflow takes 6 s and this is
    asked on every run; when its tables are not as expected, MLflow is asked after all.
    """
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///"):
        if not file.is_file():
            return False
        query = "SELECT version FROM model_versions WHERE name = ? AND current_stage != ?"
        try:
            with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
                rows = database.execute(query, (name, "Deleted_Internal")).fetchall()
            return {str(row[0]) for row in rows} >= set(versions)
        except sqlite3.Error:
            logging.getLogger(__name__).debug("asking MLflow instead", exc_info=True)
    known = {version.version for version in MlflowRegistry(uri).versions(name)}
    return known >= set(versions)


class MlflowRegistry:
    """Versions and aliases of registered models.

    Args:
        uri: `sqlite:////path/file.db`, `http(s)://server`, or anything MLflow understands.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        # MLflow asks git and its usage service about us at import; neither is our business.
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        with self._explained(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if uri.startswith("sqlite:///"):
                Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.WARNING)
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def names(self) -> list[str]:
        """Names of all registered models."""
        with self._explained():
            return sorted(model.name for model in self._client.search_registered_models())

    def versions(self, name: str) -> list[Version]:
        """All versions of a model, newest first; none when there is no such model."""
        with self._explained():
            found = self._client.search_model_versions(f"name = '{_quoted(name)}'")
            aliases = self._aliases(name) if found else {}
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

    def find_tuple(self, name: str, digest: str) -> Version | None:
        """The version that carries this deployable tuple's digest."""
        for version in self.versions(name):
            if version.tags.get(TUPLE_TAG) == digest:
                return version
        return None

    def register(self, name: str, source: Path, tags: Mapping[str, str]) -> str:
        """Make a version that points to the checkpoint folder; returns its number.

        A version that already carries the same deployable tuple is used again.
        """
        existing = self.find_tuple(name, tags[TUPLE_TAG])
        if existing is not None:
            return existing.version
        with self._explained():
            if name not in self.names():
                self._client.create_registered_model(name)
            created = self._client.create_model_version(
                name, source=str(source), tags=dict(tags), await_creation_for=0
            )
            return str(created.version)

    def move_alias(self, name: str, alias: str, previous_alias: str, version: str) -> None:
        """Point `alias` to the version, and `previous_alias` to the one it pointed to before."""
        with self._explained():
            before = self._aliases(name).get(alias)
            if before == version:
                return
            if before is not None:
                self._client.set_registered_model_alias(name, previous_alias, before)
            self._client.set_registered_model_alias(name, alias, version)

    def _aliases(self, name: str) -> dict[str, str]:
        aliases = self._client.get_registered_model(name).aliases
        return {str(alias): str(version) for alias, version in dict(aliases).items()}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow.exceptions import MlflowException
        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            raise RegistryError(
                f"the model registry failed: {str(error).splitlines()[0][:300]}",
                where=self.uri,
                cure="check --registry: a tracking server's URI that answers, "
                "or sqlite:////folder/registry.db in a folder that you may write",
            ) from error


def _quoted(name: str) -> str:
    return name.replace("'", "''")
