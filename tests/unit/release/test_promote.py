"""Promotion into a real embedded registry: who gets the alias, what is written next to it."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from empty_registry import tables
from finished_stage import put_record, stage_record
from listener import Listener
from loose_stage import stage_spec
from small_checkpoint import write_files

from artifacts.evidence.manifest import MANIFEST, Manifest, list_files
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import (
    EVIDENCE_TAG,
    FILES_TAG,
    TUPLE_TAG,
    ChangeReason,
    HistoryEntry,
    Version,
)
from pipeline.checkpoint.weights_folder_files import BUNDLE
from pipeline.core.digest import digest_bytes, digest_file, digest_json
from pipeline.core.errors import RegistryError
from pipeline.core.stage_record import StageRecord, StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.release.stages.promote.run import still_holds
from pipeline.stages.context import execute
from recipes.catalog import load_policy

PASSED = {"verdict": "pass", "trust_remote_code": False}
FP8 = {"recipe": "fp8-dynamic", "weights_bytes": 2000, "throughput_ratio": 1.4, **PASSED}
AWQ = {"recipe": "awq-w4a16", "weights_bytes": 1000, "throughput_ratio": 1.1, **PASSED}
SOURCE = {"checkpoint": "c" * 64, "ref": "org/model", "revision": "main"}


def deployable(recipe: str, engine: str = "0.32.0") -> dict[str, Any]:
    return {
        "weights": f"key of {recipe}",
        "engine_version": engine,
        **{f"environment.{name}": name for name in ("quantize", "serve", "evaluate")},
        "serving": {
            "engine_arguments": {"kv-cache-dtype": "fp8", "tensor-parallel-size": 2},
            "environment": {},
        },
        "hardware": {"accelerator": "cuda", "gpu": "NVIDIA H100"},
    }


def policy(prefer: str) -> dict[str, Any]:
    """The default policy with other names for the aliases."""
    promotion = {"prefer": prefer, "alias": "best", "previous_alias": "former"}
    return {**load_policy("default").model_dump(), "promotion": promotion}


def bundled(output: Path) -> dict[str, Any]:
    """Lay a variant and a list of its files there; what its stage says of it."""
    write_files(output, {"config.json": b"{}", "model.safetensors": b""})
    manifest = Manifest(
        prepare_version="0.1.0",
        recipe="any",
        evidence_files=(),
        model_files=list_files(output, (BUNDLE,)),
    )
    write_files(output / BUNDLE, {MANIFEST: manifest.model_dump_json().encode()})
    return {
        **{"recipe": "any", "verdict": "pass", "override": None, "weights_digest": "w"},
        **{"files": 2, "bundle_bytes": 0, "signer": None},
        "manifest_digest": digest_file(output / BUNDLE / MANIFEST),
    }


class Promotion:
    """A store and a registry of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.file = folder / "registry.db"
        self.uri = f"sqlite:///{self.file}"

    def spec(
        self,
        *candidates: dict[str, Any],
        prefer: str = "throughput",
        engine: str = "0.32.0",
        override: str | None = None,
        evidence: str = "key of",
        **runtime: Any,
    ) -> StageSpec:
        inputs = {}
        for recipe in (str(candidate["recipe"]) for candidate in candidates):
            inputs[f"weights.{recipe}"] = StageReference(
                stage="evidence", key=f"{evidence} {recipe}"
            )
            inputs[f"judge.{recipe}"] = StageReference(stage="judge", key=f"verdict on {recipe}")
        parameters = {
            "policy": policy(prefer),
            "candidates": [
                {**candidate, "deployable": deployable(candidate["recipe"], engine)}
                for candidate in candidates
            ],
            "name": "model",
            "registry": self.uri,
            "source": SOURCE,
            "alias": "best",
            "previous_alias": "former",
            "override": override,
        }
        told = {
            "explicit": True,
            "run": "a run",
            "who": "ann",
            "reasons": {candidate["recipe"]: "all gates passed" for candidate in candidates},
        }
        return stage_spec("promote", "registry", parameters, inputs, told | runtime, self.store)

    def run(self, *candidates: dict[str, Any], **how: Any) -> StageRecord:
        spec = self.spec(*candidates, **how)
        store = Store(self.store)
        for reference in spec.inputs.values():
            asked = {"policy": spec.parameters["policy"]}
            output = store.stage_folder(reference.stage, reference.key) / "output"
            result = bundled(output) if reference.stage == "evidence" else {}
            record = stage_record(
                **reference.model_dump(), inputs={}, parameters=asked, result=result
            )
            put_record(store, record)
        return execute(spec, Listener())

    def history(self) -> list[HistoryEntry]:
        return MlflowRegistry(self.uri).history("model")

    def roll_back(self) -> None:
        cause = ChangeReason("rollback", "bob", reason="too slow")
        MlflowRegistry(self.uri).roll_back("model", "best", cause)

    def versions(self) -> dict[str, Version]:
        """Registered versions by recipe."""
        found = MlflowRegistry(self.uri).versions("model")
        return {version.tags["prepare.recipe"]: version for version in found}

    def aliases(self) -> dict[str, str]:
        return {
            alias: recipe
            for recipe, version in self.versions().items()
            for alias in version.aliases
        }


@pytest.fixture
def promotion(tmp_path: Path) -> Promotion:
    return Promotion(tmp_path)


class TestPreference:
    @pytest.mark.parametrize(
        ("prefer", "champion"), [("throughput", "fp8-dynamic"), ("smallest", "awq-w4a16")]
    )
    @pytest.mark.parametrize("candidates", [(FP8, AWQ), (AWQ, FP8)])
    def test_two_candidates(
        self,
        promotion: Promotion,
        prefer: str,
        champion: str,
        candidates: tuple[dict[str, Any], ...],
    ) -> None:
        result = promotion.run(*candidates, prefer=prefer).result
        assert result["champion"] == champion
        assert promotion.aliases() == {"best": champion}
        versions = promotion.versions()
        assert result["versions"] == {name: version.version for name, version in versions.items()}
        assert set(versions) == {"fp8-dynamic", "awq-w4a16"}

    def test_the_only_candidate(self, promotion: Promotion) -> None:
        assert promotion.run(AWQ).result == {
            "name": "model",
            "versions": {"awq-w4a16": "1"},
            "champion": "awq-w4a16",
            "alias": "best",
            "registry": promotion.uri,
            "replaced": None,
            "moved": True,
        }

    def test_the_next_champion_makes_the_last_one_former(self, promotion: Promotion) -> None:
        promotion.run(FP8)
        promotion.run(FP8, AWQ, prefer="smallest")
        assert promotion.aliases() == {"best": "awq-w4a16", "former": "fp8-dynamic"}
        assert promotion.versions()["fp8-dynamic"].version == "1"

    def test_the_same_promotion_again_changes_nothing(self, promotion: Promotion) -> None:
        promotion.run(FP8)
        promotion.run(AWQ)
        before = promotion.versions()
        shutil.rmtree(promotion.store)
        promotion.run(AWQ)
        assert promotion.versions() == before
        assert promotion.aliases() == {"best": "awq-w4a16", "former": "fp8-dynamic"}


class TestTags:
    def test_the_tuple_and_where_it_comes_from(self, promotion: Promotion) -> None:
        promotion.run(FP8, AWQ)
        version = promotion.versions()["fp8-dynamic"]
        whole = deployable("fp8-dynamic")
        manifest = Path(version.source) / BUNDLE / MANIFEST
        assert dict(version.tags) == {
            TUPLE_TAG: digest_json(whole),
            "prepare.recipe": "fp8-dynamic",
            "prepare.signer": "",
            "prepare.run": "a run",
            "prepare.verdict": "pass",
            "prepare.override": "",
            EVIDENCE_TAG: "key of fp8-dynamic",
            "prepare.trust_remote_code": "false",
            FILES_TAG: digest_json(
                [
                    ["config.json", digest_bytes(b"{}")],
                    [f"{BUNDLE}/{MANIFEST}", digest_file(manifest)],
                ]
            ),
            "prepare.policy": "default",
            "prepare.policy.digest": digest_json(policy("throughput")),
            "prepare.verdict.stage": "verdict on fp8-dynamic",
            "prepare.weights": "key of fp8-dynamic",
            "prepare.engine_version": "0.32.0",
            "prepare.environment.quantize": "quantize",
            "prepare.environment.serve": "serve",
            "prepare.environment.evaluate": "evaluate",
            "prepare.serving": json.dumps(whole["serving"], sort_keys=True),
            "prepare.hardware": json.dumps(whole["hardware"], sort_keys=True),
            "prepare.source.checkpoint": "c" * 64,
            "prepare.source.ref": "org/model",
            "prepare.source.revision": "main",
        }

    def test_the_source_is_the_checkpoint_in_the_store(self, promotion: Promotion) -> None:
        promotion.run(AWQ)
        folder = promotion.store / "stages" / "evidence" / "key of awq-w4a16" / "output"
        assert promotion.versions()["awq-w4a16"].source == str(folder)

    def test_another_engine_is_another_version(self, promotion: Promotion) -> None:
        """The verdict was about the tuple: a change in any member makes it say nothing."""
        assert promotion.run(FP8).result["versions"] == {"fp8-dynamic": "1"}
        assert promotion.run(FP8, engine="0.33.0").result["versions"] == {"fp8-dynamic": "2"}


class TestHistory:
    def test_a_promotion(self, promotion: Promotion) -> None:
        promotion.run(FP8)
        promotion.run(AWQ)
        last = promotion.history()[-1]
        assert (last.action, last.who, last.run) == ("promote", "ann", "a run")
        assert (last.verdict, last.reason) == ("pass", "all gates passed")
        assert (last.replaced, last.version) == ("1", "2")

    def test_an_override_keeps_its_reason_and_the_verdict(self, promotion: Promotion) -> None:
        promotion.run({**FP8, "verdict": "fail"}, override="short-lived test")
        (entry,) = promotion.history()
        assert (entry.action, entry.verdict, entry.reason) == (
            "override",
            "fail",
            "short-lived test",
        )
        version = promotion.versions()["fp8-dynamic"]
        assert version.tags["prepare.verdict"] == "fail"
        assert version.tags["prepare.override"] == "short-lived test"


class TestWhatItReplaces:
    def test_not_the_version_that_was_named(self, promotion: Promotion) -> None:
        promotion.run(FP8)
        with pytest.raises(RegistryError, match=r" 1, .* 7,"):
            promotion.run(AWQ, replaces="7")
        assert promotion.aliases() == {"best": "fp8-dynamic"}
        assert promotion.run(AWQ, replaces="1").result["replaced"] == "1"

    def test_moved_since_the_run_began(self, promotion: Promotion) -> None:
        began = datetime.now(UTC)
        promotion.run(FP8)
        with pytest.raises(RegistryError, match=r" ann .* a run"):
            promotion.run(AWQ, since=began.isoformat(), explicit=False)
        assert promotion.aliases() == {"best": "fp8-dynamic"}
        # The same command again is another run, which has seen the new champion.
        promotion.run(AWQ, since=datetime.now(UTC).isoformat(), explicit=False)
        assert promotion.aliases() == {"best": "awq-w4a16", "former": "fp8-dynamic"}

    def test_a_run_that_is_repeated_does_not_undo_a_rollback(self, promotion: Promotion) -> None:
        promotion.run(FP8)
        record = promotion.run(AWQ)
        promotion.roll_back()
        assert not still_holds(record)
        Store(promotion.store).discard(record.stage, record.key)
        with pytest.raises(RegistryError, match=r" bob .*too slow") as caught:
            promotion.run(AWQ, since=datetime.now(UTC).isoformat(), explicit=False)
        assert "prepare promote a run" in caught.value.hint
        assert promotion.aliases() == {"best": "fp8-dynamic"}
        promotion.run(AWQ)
        assert promotion.aliases() == {"best": "awq-w4a16", "former": "fp8-dynamic"}

    def test_nor_with_another_evidence(self, promotion: Promotion) -> None:
        """Judged again, by another policy say: another version of the tuple rolled back."""
        promotion.run(FP8)
        promotion.run(AWQ)
        promotion.roll_back()
        again = {"since": datetime.now(UTC).isoformat(), "explicit": False}
        with pytest.raises(RegistryError, match="version 2 of 'model'"):
            promotion.run(AWQ, evidence="other evidence on", **again)
        promotion.run(AWQ, evidence="other evidence on", engine="0.33.0", **again)
        assert MlflowRegistry(promotion.uri).aliases("model") == {"best": "4", "former": "1"}


class TestStillHolds:
    def test_while_the_versions_are_there(self, promotion: Promotion) -> None:
        assert still_holds(promotion.run(FP8, AWQ))

    def test_not_after_the_alias_was_moved_on(self, promotion: Promotion) -> None:
        """Who asks again for this promotion gets it again."""
        record = promotion.run(FP8)
        promotion.run(AWQ)
        assert not still_holds(record)

    def test_not_after_the_file_was_deleted(self, promotion: Promotion) -> None:
        record = promotion.run(FP8)
        promotion.file.unlink()
        assert not still_holds(record)

    def test_not_after_a_version_was_deleted(self, promotion: Promotion) -> None:
        from mlflow.tracking import MlflowClient

        record = promotion.run(FP8, AWQ)
        client = MlflowClient(tracking_uri=promotion.uri, registry_uri=promotion.uri)
        client.delete_model_version("model", record.result["versions"]["awq-w4a16"])
        assert not still_holds(record)

    def test_not_in_another_registry(self, promotion: Promotion) -> None:
        record = promotion.run(FP8)
        promotion.file.write_bytes(tables())
        assert not still_holds(record)


def test_a_registry_that_refuses_leaves_no_record(promotion: Promotion) -> None:
    promotion.file.mkdir()
    spec = promotion.spec(FP8)
    with pytest.raises(RegistryError) as caught:
        promotion.run(FP8)
    assert caught.value.where == promotion.uri
    assert not (promotion.store / "stages" / "promote" / spec.key).exists()
