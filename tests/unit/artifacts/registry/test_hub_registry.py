"""The Hub as a registry: huggingface_hub's own client, and a server that speaks its interface."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hub_write_stand_in import STRANGER, Fault, HubWriteStandIn, point_there

from artifacts.registry.hub_registry import HubRegistry
from artifacts.registry.registry import (
    FILES_TAG,
    TUPLE_TAG,
    WEIGHTS_TAG,
    AliasChange,
    ChangeReason,
    Version,
)
from artifacts.registry.registry_address import open_registry
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import digest_of_other_files
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError
from pipeline.release.deployment import find_version, pull_version

NAME = "smol"
REPO = f"acme/{NAME}"
UPLOADS = "PUT /lfs/*"
# huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
CARD = "---\nlicense: apache-2.0\nbase_model: org/base\ntags: [quantized]\n---\n# The card\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubWriteStandIn]:
    """A server, and huggingface_hub told to use it with a token that may write."""
    with HubWriteStandIn() as server:
        point_there(monkeypatch, server.url)
        yield server


@pytest.fixture
def registry(hub: HubWriteStandIn) -> HubRegistry:
    made = open_registry("hf://acme")
    assert isinstance(made, HubRegistry)
    made.patience_seconds = 0.05
    return made


def variant(folder: Path, content: str) -> Path:
    """A variant's folder: weights, card, evidence."""
    path = folder / f"variant-{content}"
    (path / "prepare-evidence").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(f"weights {content}".encode())
    (path / "config.json").write_text("{}")
    (path / "README.md").write_text(CARD)
    (path / "prepare-evidence" / "verdict.json").write_text(content)
    return path


def tags(folder: Path, content: str, **changes: str) -> dict[str, str]:
    return {
        TUPLE_TAG: content,
        WEIGHTS_TAG: weights_digest(folder, digest_file),
        FILES_TAG: digest_of_other_files(folder),
        "prepare.run": "r",
        **changes,
    }


def register(registry: HubRegistry, folder: Path, content: str) -> str:
    path = variant(folder, content)
    return registry.register(NAME, path, tags(path, content))


def move(registry: HubRegistry, version: str, alias: str = "champion") -> None:
    before = registry.aliases(NAME).get(alias)
    cause = ChangeReason("promote", "ann", run="r", verdict="pass", reason="all gates passed")
    registry.move_alias(NAME, AliasChange(alias, version, before, cause, "previous"))


@pytest.fixture
def three(registry: HubRegistry, tmp_path: Path) -> HubRegistry:
    """A registry with three versions, of which 2 is the champion."""
    for content in "abc":
        register(registry, tmp_path, content)
    move(registry, "1")
    move(registry, "2")
    return registry


class TestRegister:
    def test_a_version_is_one_commit_with_the_whole_folder(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        assert register(registry, tmp_path, "a") == "1"
        model = hub.models[REPO]
        files = model.commits[model.tags["v1"]].files
        assert files.pop(".gitattributes")
        folder = tmp_path / "variant-a"
        assert files == {
            p.relative_to(folder).as_posix(): p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file()
        }
        (version,) = registry.versions(NAME)
        assert version == Version(
            NAME, "1", (), f"hf://{REPO}@{model.tags['v1']}", tags(folder, "a")
        )
        assert set(model.branches) == {"main", "prepare-history"}

    def test_the_main_branch_says_where_the_versions_are(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        register(registry, tmp_path, "a")
        model = hub.models[REPO]
        files = model.commits[model.branches["main"]].files
        assert set(files) == {".gitattributes", "README.md"}
        text = files["README.md"].decode()
        assert f"vllm serve {REPO} --revision champion" in text
        assert yaml.safe_load(text.split("---")[1]) == {
            "license": "apache-2.0",
            "base_model": "org/base",
            "tags": ["prepare"],
        }

    def test_each_version_has_only_its_own_files(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        first = variant(tmp_path, "a")
        (first / "extra.json").write_text("{}")
        registry.register(NAME, first, tags(first, "a"))
        assert register(registry, tmp_path, "b") == "2"
        model = hub.models[REPO]
        assert "extra.json" in model.commits[model.tags["v1"]].files
        assert "extra.json" not in model.commits[model.tags["v2"]].files

    def test_the_same_tuple_is_not_uploaded_again(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        folder = variant(tmp_path, "a")
        registry.register(NAME, folder, tags(folder, "a"))
        uploads, commits = hub.count(UPLOADS), len(hub.models[REPO].commits)
        assert registry.register(NAME, folder, tags(folder, "a")) == "1"
        assert (hub.count(UPLOADS), len(hub.models[REPO].commits)) == (uploads, commits)
        newer = tags(folder, "a", **{"prepare.run": "newer"})
        assert registry.register(NAME, folder, newer) == "1"
        assert hub.count(UPLOADS) == uploads == 1
        assert registry.versions(NAME)[0].tags["prepare.run"] == "r"

    def test_weights_that_are_there_are_not_sent_twice(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        folder = variant(tmp_path, "a")
        registry.register(NAME, folder, tags(folder, "a"))
        assert registry.register(NAME, folder, tags(folder, "other engine")) == "2"
        assert hub.count(UPLOADS) == 1

    @pytest.mark.parametrize(("uri", "private"), [("hf://acme", True), ("hf://acme?public", False)])
    def test_who_may_see_it(
        self, hub: HubWriteStandIn, tmp_path: Path, uri: str, private: bool
    ) -> None:
        register(HubRegistry(uri), tmp_path, "a")
        assert hub.models[REPO].private is private

    def test_a_repository_of_somebody_else_is_left_alone(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        registry._api.create_repo(REPO)
        hub.models[REPO].add("main", {"model.safetensors": b"mine"}, "mine")
        before = dict(hub.models[REPO].branches)
        with pytest.raises(RegistryError, match=f"'{REPO}'") as caught:
            register(registry, tmp_path, "a")
        assert "--name" in caught.value.hint
        assert hub.models[REPO].branches == before
        assert hub.models[REPO].tags == {}

    def test_files_that_the_hub_ignores(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        register(registry, tmp_path, "a")
        main = hub.models[REPO].commits[hub.models[REPO].branches["main"]].files
        hub.models[REPO].add("main", main | {".gitignore": b"*.safetensors\n"}, "by hand")
        with pytest.raises(RegistryError) as caught:
            register(registry, tmp_path, "b")
        assert f"{REPO}, branch " in caught.value.where
        assert [v.version for v in registry.versions(NAME)] == ["1"]

    def test_an_answer_that_got_lost_counts_once(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        register(registry, tmp_path, "a")
        hub.faults = [Fault("POST */commit/prepare-history", 502, done=True)]
        assert register(registry, tmp_path, "b") == "2"
        assert hub.faults == []
        hub.faults = [Fault("POST */commit/prepare-history", 502, done=True)]
        move(registry, "1")
        assert [e.number for e in registry.history(NAME)] == [1]


class TestAliases:
    def test_an_alias_is_a_tag_of_the_versions_commit(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        refs = hub.models[REPO].tags
        assert refs["champion"] == refs["v2"]
        assert refs["previous"] == refs["v1"]
        assert three.aliases(NAME) == {"champion": "2", "previous": "1"}
        assert [v.aliases for v in three.versions(NAME)] == [(), ("champion",), ("previous",)]

    def test_every_state_of_the_history_stays_a_commit(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        model = hub.models[REPO]
        told: list[str] = []
        commit: str | None = model.branches["prepare-history"]
        while commit is not None:
            told.append(model.commits[commit].message)
            commit = model.commits[commit].parent
        assert told[::-1][2:] == [
            "Version 1",
            "Version 2",
            "Version 3",
            "promote: champion to 1",
            "Aliases are as of entry 1",
            "promote: champion to 2",
            "Aliases are as of entry 2",
        ]

    def test_moved_by_hand_to_a_commit_that_is_no_version(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        model = hub.models[REPO]
        main = model.tags["champion"] = model.branches["main"]
        three.settle(NAME)
        assert three.aliases(NAME)["champion"] == main
        move(three, "3")
        assert three.aliases(NAME) == {"champion": "3", "previous": main}

    def test_a_tag_that_was_deleted_is_put_back(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        """A move is two requests; between them, or when killed there, the tag is not there."""
        model = hub.models[REPO]
        del model.tags["champion"]
        assert three.aliases(NAME)["champion"] == "2"
        assert three.settle(NAME) == []
        assert model.tags["champion"] == model.tags["v2"]
        assert len(three.history(NAME)) == 2

    def test_a_version_that_does_not_exist(self, three: HubRegistry) -> None:
        for version in ("9", "f" * 40, "nonsense"):
            with pytest.raises(RegistryError, match=f"version {version} "):
                move(three, version)
        assert three.aliases(NAME) == {"champion": "2", "previous": "1"}

    def test_a_history_that_was_damaged(self, hub: HubWriteStandIn, three: HubRegistry) -> None:
        hub.models[REPO].add("prepare-history", {"registry.json": b"{}}"}, "by hand")
        with pytest.raises(RegistryError, match="'acme/smol'"):
            three.history(NAME)


class TestReading:
    def test_names_are_those_of_prepare(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        assert registry.names() == []
        registry._api.create_repo("acme/other")
        register(registry, tmp_path, "a")
        assert registry.names() == [NAME]
        assert HubRegistry("hf://nobody").names() == []

    def test_pull_checks_the_digests(
        self, hub: HubWriteStandIn, three: HubRegistry, tmp_path: Path
    ) -> None:
        version = find_version(three, f"{NAME}@champion")
        assert version.version == "2"
        assert pull_version(three, version, tmp_path / "copy", None) == 4
        copied = {p.relative_to(tmp_path / "copy") for p in (tmp_path / "copy").rglob("*")}
        original = tmp_path / "variant-b"
        assert copied == {p.relative_to(original) for p in original.rglob("*")}
        model = hub.models[REPO]
        model.commits[model.tags["v2"]].files["config.json"] = b"[]"
        with pytest.raises(RegistryError) as caught:
            pull_version(three, version, tmp_path / "another", None)
        assert str(tmp_path) in caught.value.where
        assert not (tmp_path / "another").exists()

    def test_a_file_too_many_in_the_repository(
        self, hub: HubWriteStandIn, three: HubRegistry, tmp_path: Path
    ) -> None:
        model = hub.models[REPO]
        model.commits[model.tags["v2"]].files["modeling.py"] = b"import os"
        with pytest.raises(RegistryError) as caught:
            pull_version(three, find_version(three, f"{NAME}@champion"), tmp_path / "copy", None)
        assert str(tmp_path) in caught.value.where

    def test_looking_costs_one_request_once_the_history_is_read(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        before = len(hub.requests)
        three.aliases(NAME)
        assert hub.requests[before:] == [f"GET /api/models/{REPO}/refs"]


class TestRefused:
    @pytest.mark.parametrize("uri", ["hf://", "hf://acme/model", "hf://acme?private", "hf:///x"])
    def test_no_such_address(self, uri: str) -> None:
        with pytest.raises(RegistryError) as caught:
            open_registry(uri)
        assert caught.value.where == "--registry"

    def test_no_token(
        self, hub: HubWriteStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        point_there(monkeypatch, hub.url, token=None)
        with pytest.raises(RegistryError) as caught:
            register(HubRegistry("hf://acme"), tmp_path, "a")
        assert "hf auth login" in caught.value.hint
        assert caught.value.where == f"hf://{REPO}"

    def test_a_token_that_may_not_write(
        self, hub: HubWriteStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        point_there(monkeypatch, hub.url, token=STRANGER)
        with pytest.raises(RegistryError) as caught:
            register(HubRegistry("hf://acme"), tmp_path, "a")
        assert caught.value.where == f"hf://{REPO}"
        assert "may write" in caught.value.hint

    def test_a_token_that_nobody_knows(
        self, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        point_there(monkeypatch, hub.url, token="hf_expired")
        with pytest.raises(RegistryError) as caught:
            HubRegistry("hf://acme").versions(NAME)
        assert caught.value.where == f"hf://{REPO}"
        assert "hf auth login" in caught.value.hint

    def test_a_gated_repository(
        self, hub: HubWriteStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register(HubRegistry("hf://acme?public"), tmp_path, "a")
        hub.models[REPO].gated = True
        point_there(monkeypatch, hub.url, token=STRANGER)
        with pytest.raises(RegistryError) as caught:
            HubRegistry("hf://acme").versions(NAME)
        assert "accept the model's terms" in caught.value.hint

    def test_offline(self, three: HubRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils._http import close_session

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        close_session()
        try:
            with pytest.raises(RegistryError, match="HF_HUB_OFFLINE") as caught:
                three.versions(NAME)
        finally:
            monkeypatch.undo()
            close_session()
        assert "unset HF_HUB_OFFLINE" in caught.value.hint

    def test_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        point_there(monkeypatch, url)
        with pytest.raises(RegistryError, match=url):
            HubRegistry("hf://acme").versions(NAME)

    @pytest.mark.parametrize(
        "what",
        ["POST */tag/*", "POST */branch/*", "POST */commit/*", "POST */repos/create", "GET */refs"],
    )
    def test_the_hub_is_down_and_comes_back(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path, what: str
    ) -> None:
        hub.faults = [Fault(what, 500)]
        with pytest.raises(RegistryError, match=hub.url) as caught:
            register(registry, tmp_path, "a")
        assert "again" in caught.value.hint
        folder = tmp_path / "variant-a"
        assert registry.register(NAME, folder, tags(folder, "a")) == "1"

    def test_a_history_that_cannot_be_read_is_not_an_empty_one(
        self, hub: HubWriteStandIn, three: HubRegistry
    ) -> None:
        """Else the next write would throw away what is there."""
        hub.faults = [Fault("HEAD */registry.json", 500), Fault("GET */registry.json", 500)]
        with pytest.raises(RegistryError):
            HubRegistry(three.uri).set_tags(NAME, "1", {"a": "b"})
        assert len(HubRegistry(three.uri).history(NAME)) == 2

    def test_a_card_that_the_hub_refuses(
        self, hub: HubWriteStandIn, registry: HubRegistry, tmp_path: Path
    ) -> None:
        register(registry, tmp_path, "a")
        hub.faults = [Fault("POST /api/validate-yaml", 400)]
        with pytest.raises(RegistryError, match=r"README\.md"):
            register(registry, tmp_path, "b")

    def test_a_name_that_the_hub_takes_not(self, registry: HubRegistry, tmp_path: Path) -> None:
        folder = variant(tmp_path, "a")
        with pytest.raises(RegistryError, match=r"two\.\.dots") as caught:
            registry.register("two..dots", folder, tags(folder, "a"))
        assert "--name" in caught.value.hint

    def test_a_web_page_instead_of_a_hub(
        self, hub: HubWriteStandIn, registry: HubRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import hub_write_stand_in

        page = (200, b"<html>Welcome to our network</html>", {"Content-Type": "text/html"})
        monkeypatch.setattr(hub_write_stand_in, "as_json", lambda value: page)
        with pytest.raises(RegistryError, match=hub.url):
            registry.names()
