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
EMBEDDED = "sqlite:///"
EXPERIMENT = "prepare"
ARTIFACTS = "weights"
VERSIONS_BY_SQL = (
    "SELECT version FROM model_versions WHERE name = ? AND current_stage != 'Deleted_Internal'"
)
ALIASES_BY_SQL = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"


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


def still_has(uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]) -> bool:
    """Whether the registry still has these versions of a model, and its aliases point so.

    An embedded registry is asked by SQL, since opening it through MLflow takes 6 s and this is
    asked on every run; when its tables are not as expected, MLflow is asked after all.
    """
    file = Path(uri.removeprefix(EMBEDDED))
    if uri.startswith(EMBEDDED):
        if not file.is_file():
            return False
        try:
            with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
                known = {str(row[0]) for row in database.execute(VERSIONS_BY_SQL, (name,))}
                pointing = database.execute(ALIASES_BY_SQL, (name,)).fetchall()
            pointers = {(str(alias), str(version)) for alias, version in pointing}
            return known >= set(versions) and pointers >= set(aliases.items())
        except sqlite3.Error:
            logging.getLogger(__name__).debug("asking MLflow instead", exc_info=True)
    found = MlflowRegistry(uri).versions(name)
    pointers = {(alias, version.version) for version in found for alias in version.aliases}
    return {v.version for v in found} >= set(versions) and pointers >= set(aliases.items())


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
            if uri.startswith(EMBEDDED):
                check_openable(Path(uri.removeprefix(EMBEDDED)))
            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.WARNING)
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def names(self) -> list[str]:
        """Names of all registered models."""
        found: list[str] = []
        token: str | None = None
        with self._explained():
            while True:
                page = self._client.search_registered_models(page_token=token)
                found += [model.name for model in page]
                token = page.token
                if not token:
                    return sorted(found)

    def versions(self, name: str) -> list[Version]:
        """All versions of a model, newest first; none when there is no such model."""
        with self._explained():
            found = self._client.search_model_versions(f"name = {_quoted(name)}")
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
        """Make a version of the checkpoint folder; returns its number.

        A version that already carries the same deployable tuple is used again, with the tags
        of the newer verdict.
        """
        existing = self.find_tuple(name, tags[TUPLE_TAG])
        with self._explained():
            if existing is not None:
                for key, value in tags.items():
                    if existing.tags.get(key) != value:
                        self._client.set_model_version_tag(name, existing.version, key, value)
                return existing.version
            place, run_id = self._shared_place(name, source)
            self._create_model(name)
            created = self._client.create_model_version(
                name, source=place, run_id=run_id, tags=dict(tags), await_creation_for=0
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

    def _shared_place(self, name: str, source: Path) -> tuple[str, str | None]:
        """Where others find the weights, and the MLflow run that holds them.

        An embedded registry points to the folder. A server refuses folders of this machine (who
        else could read them?), so its own artifact store gets the files.
        """
        if not self.uri.startswith(("http://", "https://")):
            return str(source), None
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        run = self._client.create_run(experiment, run_name=name)
        self._client.log_artifacts(run.info.run_id, str(source), ARTIFACTS)
        self._client.set_terminated(run.info.run_id)
        return f"{run.info.artifact_uri}/{ARTIFACTS}", str(run.info.run_id)

    def _create_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

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
        except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise RegistryError(
                f"the model registry failed: {_first_line(error)}",
                where=self.uri,
                cure="check --registry: a tracking server's URI that answers, "
                "or sqlite:////folder/registry.db in a folder that you may write",
            ) from error


def check_openable(file: Path) -> None:
    """Make the folder and open the database file once; MLflow would try for 100 s, and warn.

    Raises:
        OSError, sqlite3.Error: the folder may not be written, or the file is no database.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA schema_version")


def _quoted(name: str) -> str:
    """The name as MLflow's filters take it: they know two quotation marks, and no escape."""
    mark = '"' if "'" in name else "'"
    return f"{mark}{name}{mark}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
