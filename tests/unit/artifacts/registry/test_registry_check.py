"""What is refused before a run: a registry that could not take what the run promotes."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hub_write_stand_in import (
    STRANGER,
    WRITER,
    Fault,
    HubWriteStandIn,
    ModelRepository,
    point_there,
)

from artifacts.registry.hub_repository import HISTORY
from artifacts.registry.mlflow_registry import is_server
from artifacts.registry.registry_address import check_registry
from pipeline.core.errors import RegistryError

NAME = "smol"
REPO = f"acme/{NAME}"


def refused(uri: str, match: str) -> RegistryError:
    with pytest.raises(RegistryError, match=match) as caught:
        check_registry(uri, NAME)
    assert caught.value.where
    assert caught.value.hint
    return caught.value


class TestHub:
    """Against a server that says whose the token is."""

    URI = "hf://acme"

    @pytest.fixture(autouse=True)
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubWriteStandIn]:
        with HubWriteStandIn() as server:
            point_there(monkeypatch, server.url)
            yield server
        for written in (
            "POST /api/repos/*",
            "POST */commit/*",
            "POST */tag/*",
            "PUT *",
            "DELETE *",
        ):
            assert not server.count(written)

    @pytest.mark.parametrize("role", ["write", "fineGrained", "of 2030"])
    def test_a_token_that_may_write_passes(self, hub: HubWriteStandIn, role: str) -> None:
        hub.roles[WRITER] = role
        check_registry(self.URI, NAME)
        check_registry("hf://Acme?public", NAME)
        check_registry("hf://writer", NAME)
        assert not hub.models

    def test_no_token(self, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        point_there(monkeypatch, hub.url, token=None)
        assert "HF_TOKEN" in refused(self.URI, "we have no token").hint

    def test_a_token_that_may_only_read(self, hub: HubWriteStandIn) -> None:
        hub.roles[WRITER] = "read"
        assert "HF_TOKEN" in refused(self.URI, "the token may only read").hint

    def test_a_token_that_the_hub_does_not_know(
        self, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        point_there(monkeypatch, hub.url, token="hf_revoked")
        refused(self.URI, "does not know the token")

    def test_a_stranger(self, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        point_there(monkeypatch, hub.url, token=STRANGER)
        found = refused(self.URI, "'stranger', who does not belong to 'acme'")
        assert "another namespace" in found.hint
        hub.roles[STRANGER] = "fineGrained"  # of which the Hub does not say where it may write
        check_registry(self.URI, NAME)

    @pytest.mark.parametrize("status", [403, 404, 405, 429, 503])
    def test_no_answer_says_nothing_of_the_token(self, hub: HubWriteStandIn, status: int) -> None:
        hub.faults = [Fault("GET /api/whoami-v2", status)]
        check_registry(self.URI, NAME)
        assert hub.count(f"GET /api/models/{REPO}*")

    @pytest.mark.parametrize(
        "owner",
        [
            {"type": "org", "orgs": None},
            {"type": "app", "orgs": None, "auth": None},
            {"type": "app", "auth": {"accessToken": {"role": "read"}}},
            {"orgs": None},
            {"auth": None},
            {"auth": {"accessToken": None}},
            {"orgs": [None]},
        ],
    )
    def test_the_owner_is_judged_as_far_as_the_hub_tells(
        self, hub: HubWriteStandIn, owner: dict[str, Any]
    ) -> None:
        hub.owners[WRITER] = {"name": "acme", **owner}
        check_registry(self.URI, NAME)

    def test_a_ci_system_that_lends_no_token(
        self, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable in ("HF_OIDC_ID_TOKEN", "GITHUB_ACTIONS"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HF_OIDC_RESOURCE", REPO)
        assert "HF_OIDC_RESOURCE" in refused(self.URI, "no token is available from the CI").hint

    def test_a_repository_of_somebody_else(self, hub: HubWriteStandIn) -> None:
        hub.models[REPO] = made = ModelRepository(private=True)
        made.add("main", {".gitattributes": b"", "README.md": b""}, "begun")
        check_registry(self.URI, NAME)
        made.add("main", {"model.safetensors": b"mine"}, "mine")
        assert "--name" in refused(self.URI, "that prepare did not make").hint
        made.add(HISTORY, {"prepare-history.json": b"{}"}, "ours")
        check_registry(self.URI, NAME)

    def test_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        point_there(monkeypatch, f"http://127.0.0.1:{port}")
        refused(self.URI, "cannot be reached")


@pytest.mark.parametrize("uri", ["oci://{}", "sqlite:///{}/registry.db"])
class TestFolder:
    """Registries in a folder of this machine."""

    def test_one_to_be_made_passes_and_nothing_is_made(self, uri: str, tmp_path: Path) -> None:
        check_registry(uri.format(tmp_path / "new" / "one"), NAME)
        check_registry(uri.format(tmp_path), NAME)
        assert not list(tmp_path.iterdir())

    def test_a_file_is_in_the_way(self, uri: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        refused(uri.format(tmp_path / "file" / "one"), "file is not a folder|Not a directory")

    def test_it_may_not_be_written(
        self, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
        found = refused(uri.format(tmp_path / "one"), "may not be written")
        assert str(tmp_path) in found.message
        assert not list(tmp_path.iterdir())

    def test_it_lies_below_a_closed_folder(
        self, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed, stat, access = tmp_path / "closed", os.stat, os.access
        closed.mkdir()

        def stat_from_outside(path: Any, **options: Any) -> os.stat_result:
            if closed in Path(os.fsdecode(path)).parents:
                raise PermissionError(13, "Permission denied", str(path))
            return stat(path, **options)

        # Root may go everywhere.
        monkeypatch.setattr(os, "stat", stat_from_outside)
        monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
        refused(uri.format(closed / "one" / "two"), "closed may not be written|Permission denied")

    def test_its_path_is_too_long(self, uri: str, tmp_path: Path) -> None:
        refused(uri.format(tmp_path / ("x" * 300) / "one"), "x: File name too long|name too long")
        assert not list(tmp_path.iterdir())


def small_database(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE notes (text)")
    database.commit()
    return database


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class TestEmbedded:
    """An SQLite file that is there already."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "registry.db"

    def test_its_name_is_too_long(self, tmp_path: Path) -> None:
        refused(f"sqlite:///{tmp_path}/{'x' * 300}.db", "File name too long")

    def test_it_may_not_be_written(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        small_database(file).close()
        monkeypatch.setattr(os, "access", lambda path, _: path != file)  # root may write it
        refused(f"sqlite:///{file}", "registry.db may not be written")

    def test_one_that_is_locked_passes(self, file: Path) -> None:
        with closing(small_database(file)) as database:
            database.execute("BEGIN EXCLUSIVE")
            database.execute("INSERT INTO notes VALUES ('half')")
            check_registry(f"sqlite:///{file}", NAME)

    @pytest.mark.parametrize("open_elsewhere", [True, False])
    def test_one_with_a_log_of_writes_is_left_as_it_is(
        self, file: Path, tmp_path: Path, open_elsewhere: bool
    ) -> None:
        with closing(small_database(file)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE more (text)")
            if not open_elsewhere:
                database.close()
            before = contents(tmp_path)
            assert ("registry.db-wal" in before) == open_elsewhere
            check_registry(f"sqlite:///{file}", NAME)
            assert contents(tmp_path) == before

    def test_half_a_file_passes_only_while_it_is_written(self, file: Path, tmp_path: Path) -> None:
        small_database(file).close()
        file.write_bytes(file.read_bytes()[:4096])
        refused(f"sqlite:///{file}", "malformed")
        (tmp_path / "registry.db-journal").touch()
        check_registry(f"sqlite:///{file}", NAME)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite+pysqlite:///{}/other.db",
        "postgresql://nobody@127.0.0.1:1/registry",
        "file:{}/runs",
        "file://{}/runs",
        "{}/runs",
        "databricks-notes",
    ],
)
def test_what_mlflow_would_make_is_not_opened(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    check_registry(uri.format(tmp_path), NAME)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("http://mlflow.example", True),
        ("https://mlflow.example", True),
        ("databricks", True),
        ("databricks://profile", True),
        ("databricks-uc", True),
        ("postgresql://mlflow.example/db", False),
    ],
)
def test_servers_are_asked(uri: str, server: bool) -> None:
    assert is_server(uri) is server


def test_an_embedded_registry_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_text("these are notes, and they are longer than a header")
    refused(f"sqlite:///{tmp_path}/registry.db", "not a database")


def test_a_layout_of_something_else(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (tmp_path / NAME / "index.json").write_text("[")
    refused(f"oci://{tmp_path}", "index")


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused(f"http://127.0.0.1:{port}", "the model registry failed")
