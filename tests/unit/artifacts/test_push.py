"""Copies in OCI registries and on the Hub: sent, fetched by digest, and what a host may try."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, judged_run
from hub_stand_in import HubStandIn
from hub_write_stand_in import HubWriteStandIn, point_there
from listener import Listener
from oci_stand_in import LOGIN, OciStandIn
from typer.testing import CliRunner

from artifacts.push import TITLE, fetch
from pipeline.cli.main import app
from prepare.digest import digest_bytes
from prepare.errors import RegistryError, UsageError
from recipes.checkpoints.weight_files import ARCHIVE

# huggingface_hub 2.4 uploads by an option that its HTTP library is about to give up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    made = judged_run(tmp_path_factory.mktemp("run") / "store", lost={"fp8-dynamic": 0})
    made.promote()
    return made


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No login of the user who runs the tests."""
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def prepare(*words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--insecure", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def push(run: FakeRun, where: str, reference: str = "model@champion", *more: str) -> Any:
    at = ("--registry", run.uri, "--store", str(run.root))
    return prepare("push", reference, where, *at, *more)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def pull_changed(oci: OciStandIn, reference: str, manifest: Any, folder: Path) -> Any:
    """Pull by the changed manifest's own digest."""
    content = json.dumps(manifest).encode()
    digest = f"sha256:{digest_bytes(content)}"
    oci.content.manifests[digest] = content
    at = f"{reference.rpartition('@')[0]}@{digest}"
    return CliRunner().invoke(app, ["pull", at, str(folder), "--insecure"])


def log_in(host: str) -> None:
    (Path.home() / ".docker").mkdir()
    (Path.home() / ".docker" / "config.json").write_text(
        json.dumps({"auths": {host: {"auth": LOGIN}}})
    )


class TestOci:
    @pytest.fixture
    def oci(self) -> Iterator[OciStandIn]:
        with OciStandIn() as server:
            yield server

    def test_sent_again_and_pulled_by_digest(
        self, run: FakeRun, oci: OciStandIn, tmp_path: Path
    ) -> None:
        where = f"oci://{oci.host}/team/model"
        first = push(run, where, "model@champion", "--with-questions")
        assert first["reference"] == f"{where}:champion"
        assert first["sent_bytes"] > 0
        again = push(run, where, "model@1", "--with-questions")
        assert again["reference"] == f"{where}:v1"
        assert (again["sent_bytes"], again["digest_reference"]) == (0, first["digest_reference"])
        pulled = prepare("pull", first["digest_reference"], str(tmp_path / "pulled"))
        (version,) = run.registry.versions("model")
        assert content(tmp_path / "pulled") == content(Path(version.source))
        assert pulled["source"] == first["digest_reference"]
        manifest = f"prepare.manifest={version.tags['prepare.manifest']}"
        prepare("pull", f"{where}:v1", str(tmp_path / "by tag"), "--require", manifest)
        with pytest.raises(RegistryError, match=r"prepare\.manifest"):
            prepare("pull", f"{where}:v1", str(tmp_path / "x"), "--require", "prepare.manifest=0")
        with pytest.raises(UsageError, match=r"prepare\.manifest"):
            prepare("pull", f"{where}:v1", str(tmp_path / "y"), "--require", "prepare.manifest")
        done = CliRunner().invoke(app, ["verify", str(tmp_path / "pulled")])
        assert done.exit_code == 0

    def test_questions_are_not_sent_unasked(
        self, run: FakeRun, oci: OciStandIn, tmp_path: Path
    ) -> None:
        sent = push(run, f"oci://{oci.host}/model")
        prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))
        (version,) = run.registry.versions("model")
        whole = content(Path(version.source))
        answers = whole.pop(ARCHIVE)
        assert content(tmp_path / "pulled") == whole
        assert answers not in oci.content.blobs.values()
        done = CliRunner().invoke(app, ["verify", str(tmp_path / "pulled")])
        assert done.exit_code == 5
        assert "nothing was judged" in done.stdout
        (tmp_path / "pulled" / "config.json").write_text("{}")
        assert CliRunner().invoke(app, ["verify", str(tmp_path / "pulled")]).exit_code == 1

    @pytest.mark.parametrize("auth", ["basic", "token"])
    def test_with_a_login(self, run: FakeRun, tmp_path: Path, auth: str) -> None:
        with OciStandIn(auth=auth) as server:
            with pytest.raises(RegistryError) as caught:
                push(run, f"oci://{server.host}/model")
            assert f"docker login {server.host}" in caught.value.hint
            log_in(server.host)
            sent = push(run, f"oci://{server.host}/model")
            prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))

    @pytest.mark.parametrize(
        "token",
        [b"[]", b"null", b'"t"', b"[" * 99_999, b'{"token": "\xe2\x82\xac"}', b" " * 5_000_000],
    )
    def test_an_answer_to_a_login_that_is_none(self, token: bytes, tmp_path: Path) -> None:
        with OciStandIn(auth="token", token=token) as server:
            log_in(server.host)
            with pytest.raises(RegistryError):
                fetch(f"oci://{server.host}/model", tmp_path, Listener(), insecure=True)

    def test_an_answer_without_an_end(
        self, oci: OciStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        oci.content.drips = True
        monkeypatch.setattr("artifacts.push.MAX_BLOCK_S", 0.2)
        with pytest.raises(RegistryError, match="took more than"):
            fetch(f"oci://{oci.host}/model", tmp_path, Listener(), insecure=True)

    def test_headers_without_an_end(
        self, oci: OciStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        oci.content.drips_headers = True
        monkeypatch.setattr("artifacts.push.ANSWER_S", 0.3)
        with pytest.raises(RegistryError) as caught:
            fetch(f"oci://{oci.host}/model", tmp_path, Listener(), insecure=True)
        assert oci.host in caught.value.where

    @pytest.mark.parametrize("place", ["http://localhost", "ftp://{host}", "http://["])
    def test_an_upload_elsewhere_is_refused(self, run: FakeRun, place: str) -> None:
        with OciStandIn(auth="basic") as server:
            server.content.elsewhere = place.format(host=server.host)
            log_in(server.host)
            with pytest.raises(RegistryError):
                push(run, f"oci://{server.host}/model")
            assert {each for each, _, _ in server.content.asked} == {"GET", "HEAD", "POST"}

    def test_a_login_is_not_sent_without_encryption(self, tmp_path: Path) -> None:
        """Over HTTPS the registry names a plain address to log in at."""
        from artifacts.push import _Oci

        with OciStandIn(auth="token") as server:
            log_in(server.host)
            remote = _Oci(f"oci://{server.host}/model", insecure=True, progress=Listener())
            remote._secure = True
            with pytest.raises(RegistryError, match="without encryption"):
                remote.fetch(tmp_path)
            assert all(LOGIN not in told for _, _, told in server.content.asked)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                lambda layer: layer["annotations"].update(
                    {"org.opencontainers.image.title": "../x"}
                ),
                "x",
            ),
            (
                lambda layer: layer["annotations"].update({"org.opencontainers.image.title": "/x"}),
                "x",
            ),
            (
                lambda layer: layer["annotations"].update(
                    {"org.opencontainers.image.title": "a\0b/c"}
                ),
                "no copy",
            ),
            (
                lambda layer: layer["annotations"].update(
                    {"org.opencontainers.image.title": "x" * 300}
                ),
                "no copy",
            ),
            (lambda layer: layer.update(annotations={}), "no copy"),
            (lambda layer: layer.update(size=3), "not the file of its digest"),
            (lambda layer: layer.update(digest="sha256:" + "0" * 64), "404"),
            (lambda layer: layer.update(digest=5), "no copy"),
        ],
    )
    def test_a_manifest_that_lies(
        self, run: FakeRun, oci: OciStandIn, tmp_path: Path, change: Any, words: str
    ) -> None:
        push(run, f"oci://{oci.host}/model")
        manifest = json.loads(oci.content.manifests["champion"])
        change(manifest["layers"][0])
        oci.content.manifests["champion"] = json.dumps(manifest).encode()
        (tmp_path / "in").mkdir()
        with pytest.raises(RegistryError, match=words):
            fetch(f"oci://{oci.host}/model:champion", tmp_path / "in", Listener(), insecure=True)
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("size", float("nan")),
            ("size", float("inf")),
            ("size", -5),
            ("size", 10**400),
            ("size", "5"),
            ("digest", "sha256:../../../../etc/passwd"),
            ("digest", "sha512:" + "0" * 128),
            ("digest", ""),
            ("annotations", None),
            *(
                ("title", title)
                for title in ("", ".", "a/", "a/../../x", "config.json/x", "d/" * 5000)
            ),
            *(("title", title) for title in ("\x1b[2Jx", "x\n::error::x", "\ud800", 5, [1])),
            *(
                ("title", title)
                for title in (".git/config", "README.md/x", "evil.py", "more.safetensors")
            ),
        ],
        ids=lambda value: ascii(value)[:30],
    )
    def test_one_more_file_that_is_none(
        self, run: FakeRun, oci: OciStandIn, tmp_path: Path, key: str, value: Any
    ) -> None:
        sent = push(run, f"oci://{oci.host}/model")
        manifest = json.loads(oci.content.manifests["champion"])
        changed = {"annotations": {TITLE: value}} if key == "title" else {key: value}
        manifest["layers"].append({**manifest["layers"][0], **changed})
        done = pull_changed(oci, sent["digest_reference"], manifest, tmp_path / "pulled")
        assert done.exit_code == 1, done.output
        assert not (tmp_path / "pulled").exists()
        assert not (tmp_path / "x").exists()

    def test_another_manifest_of_the_same_files_is_pulled(
        self, run: FakeRun, oci: OciStandIn, tmp_path: Path
    ) -> None:
        """The control of the test before."""
        sent = push(run, f"oci://{oci.host}/model")
        manifest = json.loads(oci.content.manifests["champion"])
        manifest["layers"].reverse()
        done = pull_changed(oci, sent["digest_reference"], manifest, tmp_path / "pulled")
        assert done.exit_code == 0, done.output

    def test_other_bytes(self, run: FakeRun, oci: OciStandIn, tmp_path: Path) -> None:
        sent = push(run, f"oci://{oci.host}/model")
        digest = f"sha256:{digest_bytes(b'{}')}"
        blob = next(each for each in oci.content.blobs if each != digest)
        oci.content.blobs[blob] = oci.content.blobs[blob][:-1] + b"!"
        with pytest.raises(RegistryError, match="not the file of its digest"):
            prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))
        by_digest = sent["digest_reference"].rpartition("@")[2]
        oci.content.manifests[by_digest] += b" "
        with pytest.raises(RegistryError, match="another manifest"):
            prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))
        assert not (tmp_path / "pulled").exists()

    def test_nobody_answers(self, run: FakeRun) -> None:
        with pytest.raises(RegistryError) as caught:
            push(run, "oci://127.0.0.1:1/model")
        assert caught.value.where == "oci://127.0.0.1:1/model"

    @pytest.mark.parametrize(
        "where", ["host/model", "oci:///srv/models", "oci://host", "oci://h/UPPER", "hf://one", "x"]
    )
    def test_what_names_no_repository(self, run: FakeRun, where: str) -> None:
        with pytest.raises(UsageError) as caught:
            push(run, where)
        assert caught.value.where == where


class TestHub:
    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubWriteStandIn]:
        with HubWriteStandIn() as server:
            point_there(monkeypatch, server.url)
            yield server

    def test_sent_and_pulled_by_commit(
        self, run: FakeRun, hub: HubWriteStandIn, tmp_path: Path
    ) -> None:
        sent = push(run, "hf://acme/model", "model@champion", "--with-questions")
        assert sent["reference"] == "hf://acme/model@champion"
        again = push(run, "hf://acme/model@best")
        assert again["reference"] == "hf://acme/model@best"
        prepare("pull", sent["digest_reference"], str(tmp_path / "pulled"))
        (version,) = run.registry.versions("model")
        assert content(tmp_path / "pulled") == content(Path(version.source))
        prepare("pull", "hf://acme/model@best", str(tmp_path / "by tag"))
        assert ARCHIVE not in content(tmp_path / "by tag")
        assert hub.models["acme/model"].private

    @pytest.mark.parametrize("page", [b"<html>", b"[]", b"{}"])
    def test_a_server_that_is_no_hub(
        self, page: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with HubStandIn() as server:
            server.page = page
            point_there(monkeypatch, server.url)
            with pytest.raises(RegistryError, match="the Hub failed"):
                prepare("pull", "hf://acme/model", str(tmp_path / "pulled"))

    def test_a_repository_that_is_not_there(self, hub: HubWriteStandIn, tmp_path: Path) -> None:
        with pytest.raises(RegistryError) as caught:
            prepare("pull", "hf://acme/nothing@main", str(tmp_path / "pulled"))
        assert caught.value.where == "hf://acme/nothing@main"
        assert not (tmp_path / "pulled").exists()
