"""The life of a model in an OCI layout: promoted, rolled back, listed, pulled, kept by gc."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun
from listener import Listener
from typer.testing import CliRunner

from artifacts.registry.oci_layout import OciLayout
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from pipeline.cli.main import app
from pipeline.cli.main import run as main_run
from pipeline.core.errors import ExitCode, RegistryError
from pipeline.release.deployment import find_version, pull_version
from pipeline.release.garbage_collection import find_garbage, remove


class OciSite:
    """A store with a judged run, and a folder of OCI layouts."""

    def __init__(self, root: Path) -> None:
        self.made = FakeRun(root / "store", recipes=(ONE, TWO))
        self.made.run()
        self.store = self.made.store
        self.layouts = OciLayoutRegistry(f"oci://{root / 'layouts'}")

    def promote(self, **order: Any) -> dict[str, Any]:
        return self.made.promote(self.layouts.uri, **order)

    def command(self, *words: str) -> Any:
        arguments = [*words, "--registry", self.layouts.uri, "--json"]
        return json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)


@pytest.fixture
def site(tmp_path: Path) -> OciSite:
    made = OciSite(tmp_path)
    assert made.promote(variant=ONE)["replaced"] is None
    assert made.promote(variant=TWO)["replaced"] == "1"
    return made


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_a_move_that_is_recorded_and_not_completed(
    site: OciSite, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has its own exit code, since it takes effect later."""
    run = site.made.report.run
    words = {"promote": [f"{run}:{ONE}", "--store", str(site.store.root)], "rollback": ["model"]}

    def full(layout: OciLayout, index: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(layout.folder))

    with monkeypatch.context() as patch:
        patch.setattr(OciLayout, "write_index", full)
        arguments = [command, *words[command], "--registry", site.layouts.uri, "--json"]
        with pytest.raises(SystemExit) as ended:
            main_run(lambda **more: app(arguments, **more))
    assert ended.value.code == ExitCode.RECORDED
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "RecordedMoveError"
    assert "entry 3" in err
    assert site.layouts.aliases("model") == {"champion": "2", "previous": "1"}
    find_version(site.layouts, "model@champion")
    assert site.layouts.aliases("model")["champion"] == "1"


def test_promoted_rolled_back_and_pulled(site: OciSite, tmp_path: Path) -> None:
    listed = site.command("registry", "list")
    assert [(v["version"], v["aliases"]) for v in listed] == [
        ("2", ["champion"]),
        ("1", ["previous"]),
    ]
    assert [v["tags"]["prepare.recipe"] for v in listed] == [TWO, ONE]
    before = site.command("pull", "model@champion", str(tmp_path / "two"))
    assert before["version"] == "2"
    rolled = site.command("rollback", "model", "--reason", "too slow")
    assert rolled["version"] == "1"
    pulled = site.command("pull", "model@champion", str(tmp_path / "one"))
    assert pulled["version"] == "1"
    assert ONE.encode() in (tmp_path / "one" / "model.safetensors").read_bytes()
    assert TWO.encode() in (tmp_path / "two" / "model.safetensors").read_bytes()
    told = site.command("registry", "history", "model")
    assert [(e["action"], e["version"]) for e in told] == [
        ("promote", "1"),
        ("promote", "2"),
        ("rollback", "1"),
    ]


def test_the_same_promotion_again_changes_nothing(site: OciSite) -> None:
    site.promote(variant=TWO)
    assert len(site.layouts.versions("model")) == 2
    assert len(site.layouts.history("model")) == 2


def test_the_layout_does_not_need_the_store(site: OciSite, tmp_path: Path) -> None:
    """A later change of the store's file does not reach the version."""
    for file in site.store.root.rglob("config.json"):
        file.write_text("changed")
    version = find_version(site.layouts, "model@champion")
    assert pull_version(site.layouts, version, tmp_path / "pulled", None) > 1
    assert "changed" not in (tmp_path / "pulled" / "config.json").read_text()


def test_a_changed_blob_is_not_pulled(site: OciSite, tmp_path: Path) -> None:
    version = find_version(site.layouts, "model@champion")
    (config,) = [f for f in site.layouts.pack_of(version).files if f.path == "config.json"]
    blob = site.layouts.blob_path("model", config.blob)
    blob.chmod(0o644)
    blob.write_text(ONE[::-1])
    with pytest.raises(RegistryError) as caught:
        pull_version(site.layouts, version, tmp_path / "pulled", None)
    assert caught.value.where == str(blob)
    assert not (tmp_path / "pulled").exists()


def test_a_lost_blob_is_copied_again_as_the_hint_says(site: OciSite, tmp_path: Path) -> None:
    version = find_version(site.layouts, "model@champion")
    (config,) = [f for f in site.layouts.pack_of(version).files if f.path == "config.json"]
    site.layouts.blob_path("model", config.blob).unlink()
    with pytest.raises(RegistryError, match="missing") as caught:
        pull_version(site.layouts, version, tmp_path / "pulled", None)
    assert "--if-current" in caught.value.hint
    site.promote(variant=TWO, replaces="2")
    assert pull_version(site.layouts, version, tmp_path / "pulled", None) > 1
    assert len(site.layouts.history("model")) == 2


def test_gc_keeps_what_its_history_names(site: OciSite) -> None:
    garbage = find_garbage(site.store, [], 0, Listener())
    assert not [each for each in garbage if each.kind == "run"]
    for each in garbage:
        remove(each, site.store)
    site.promote(variant=ONE)  # the evidence is still there
    assert site.layouts.aliases("model") == {"champion": "1", "previous": "2"}


def test_gc_stops_where_the_layout_is_damaged(site: OciSite) -> None:
    (site.layouts.folder / "model" / "index.json").write_text("{")
    with pytest.raises(RegistryError) as caught:
        find_garbage(site.store, [], 0, Listener())
    assert caught.value.where == str(site.layouts.folder / "model" / "index.json")


# --- push to a folder -----------------------------------------------------------------------------


def push(site: OciSite, target: Path, *words: str) -> Any:
    arguments = ["push", *words, f"oci://{target}", "--registry", site.layouts.uri, "--json"]
    return json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)


def test_a_folder_of_layouts_is_a_target_of_push(site: OciSite, tmp_path: Path) -> None:
    """Without the client for registries of the network, and with a separate history."""
    target = OciLayoutRegistry(f"oci://{tmp_path / 'elsewhere'}")
    first = push(site, target.folder, "model@previous")
    assert first["sent"] > 0
    assert first["present"] == 0
    push(site, target.folder, "model@champion")
    assert target.aliases("model") == {"previous": "1", "champion": "2"}
    tags = {version.version: version.tags for version in target.versions("model")}
    origin = {version.version: version.tags for version in site.layouts.versions("model")}
    assert tags == origin
    assert [(each.action, each.alias, each.version) for each in target.history("model")] == [
        ("promote", "previous", "1"),
        ("promote", "champion", "2"),
    ]
    pulled = tmp_path / "pulled"
    pull = ["pull", "model@champion", str(pulled), "--registry", target.uri]
    assert CliRunner().invoke(app, pull, catch_exceptions=False).exit_code == 0
    assert TWO.encode() in (pulled / "model.safetensors").read_bytes()

    again = push(site, target.folder, "model@champion")
    assert again["sent"] == 0
    assert again["digest"]
    assert len(target.history("model")) == 2


def test_a_version_that_is_pushed_by_its_number_moves_no_alias(
    site: OciSite, tmp_path: Path
) -> None:
    target = OciLayoutRegistry(f"oci://{tmp_path / 'elsewhere'}")
    push(site, target.folder, "model@2")
    assert target.aliases("model") == {}
    assert len(target.versions("model")) == 1


WITHOUT_ORAS = """
import sys
sys.modules["oras"] = None  # as where it is not installed
from pipeline.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("target", "named", "code"),
    [
        ("registry.example.com/models/model", ("'oci'", "pip install '.[oci]'"), 1),
        ("./layouts", ("oci:///", "folder"), 2),
    ],
)
def test_what_push_needs_is_named_before_anything_is_done(
    tmp_path: Path, target: str, named: tuple[str, ...], code: int
) -> None:
    words = ["push", "model@champion", target, "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ORAS, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == code
    assert [word for word in named if word not in done.stderr] == []
    assert "No module named" not in done.stderr
    assert list(tmp_path.iterdir()) == []
