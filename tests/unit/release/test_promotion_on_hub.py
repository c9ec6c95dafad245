"""A judged run promoted to the Hub's stand-in by the commands: from promote to pull and gc."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun
from hub_write_stand_in import STRANGER, Fault, HubWriteStandIn, point_there
from listener import Listener
from typer.testing import CliRunner

from artifacts.registry.registry import FILES_TAG, WEIGHTS_TAG
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import digest_of_other_files
from pipeline.cli.main import app
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError
from pipeline.release.garbage_collection import find_garbage

# huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
URI, REPO = "hf://acme", "acme/model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubWriteStandIn]:
    with HubWriteStandIn() as server:
        point_there(monkeypatch, server.url)
        yield server


@pytest.fixture
def site(hub: HubWriteStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """A run of two variants that passed, which names the Hub as its registry."""
    made = FakeRun(tmp_path / "store", recipes=(ONE, TWO), uri=URI)
    made.run()
    monkeypatch.setenv("PREPARE_STORE", str(made.store.root))
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREPARE_REGISTRY", raising=False)
    monkeypatch.setenv("GITHUB_ACTOR", "ann")
    return made


def told(*arguments: str) -> Any:
    """The JSON value that the command prints."""
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_whole_life(hub: HubWriteStandIn, site: FakeRun, tmp_path: Path) -> None:
    run, on_hub = site.report.run, ("--registry", URI)
    # The run names its registry.
    assert told("promote", f"{run}:{ONE}")["versions"] == {ONE: "1"}
    assert told("promote", f"{run}:{TWO}")["replaced"] == "1"
    uploads = hub.count("PUT /lfs/*")
    told("promote", f"{run}:{TWO}")
    assert hub.count("PUT /lfs/*") == uploads
    tags = hub.models[REPO].tags
    assert (tags["champion"], tags["previous"]) == (tags["v2"], tags["v1"])

    listed = told("registry", "list", *on_hub)
    assert [(v["name"], v["version"], v["aliases"]) for v in listed] == [
        ("model", "2", ["champion"]),
        ("model", "1", ["previous"]),
    ]
    assert listed[0]["source"] == f"hf://{REPO}@{tags['champion']}"
    assert told("registry", "show", "model", *on_hub) == listed

    copy = tmp_path / "copy"
    pulled = told("pull", "model@champion", str(copy), *on_hub)
    assert pulled["version"] == "2"
    assert weights_digest(copy, digest_file) == listed[0]["tags"][WEIGHTS_TAG]
    assert digest_of_other_files(copy) == listed[0]["tags"][FILES_TAG]
    assert {"README.md", "prepare-evidence"} <= {path.name for path in copy.iterdir()}

    back = told("rollback", "model", "--reason", "wrong language", *on_hub)
    assert (back["version"], back["replaced"], back["who"]) == ("1", "2", "ann")
    assert tags["champion"] == tags["v1"]
    assert "previous" not in tags
    moves = told("registry", "history", "model", *on_hub)
    assert [(e["action"], e["version"]) for e in moves] == [
        ("promote", "1"),
        ("promote", "2"),
        ("rollback", "1"),
    ]
    assert moves[-1]["reason"] == "wrong language"


def test_serving_says_to_pull_first(site: FakeRun) -> None:
    told("promote", f"{site.report.run}:{ONE}")
    with pytest.raises(RegistryError) as caught:
        CliRunner().invoke(
            app, ["serve", "model@champion", "--registry", URI], catch_exceptions=False
        )
    assert "prepare pull model@1 FOLDER" in caught.value.hint


def test_what_the_hub_names_stays_in_the_store(hub: HubWriteStandIn, site: FakeRun) -> None:
    before = {g.path for g in find_garbage(site.store, [], 0, Listener())}
    told("promote", f"{site.report.run}:{ONE}")
    left = {g.path for g in find_garbage(site.store, [], 0, Listener())}
    named = site.store.root / "runs" / site.report.run
    assert named in before
    assert named not in left
    stages = [s for s in site.report.stages if s.variant == ONE and s.key]
    assert stages
    assert not left & {site.store.stage_folder(s.name.split()[0], str(s.key)) for s in stages}
    hub.faults = [Fault("GET /api/models", 403)]
    with pytest.raises(RegistryError):
        find_garbage(site.store, [], 0, Listener())


@pytest.mark.parametrize("token", [None, STRANGER])
def test_what_the_hub_hides_from_us_is_not_garbage(
    site: FakeRun, hub: HubWriteStandIn, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """A private repository looks to others as if there were none."""
    told("promote", f"{site.report.run}:{ONE}")
    point_there(monkeypatch, hub.url, token=token)
    with pytest.raises(RegistryError):
        find_garbage(site.store, [], 0, Listener())
