"""A variant of a judged run as a registry has it: its folder, and the tags of a promotion."""

from __future__ import annotations

from pathlib import Path

from fake_run import NAME, FakeRun
from listener import Listener

from artifacts.deployable import Deployable, verdict_tags
from artifacts.evidence.judged_variant import JudgedVariant
from artifacts.evidence.manifest import digest_of_other_files
from artifacts.registry.registry import EVIDENCE_TAG, FILES_TAG, Version
from pipeline.release.evidence import write_evidence

RECIPE = "fp8-dynamic"


def registered(run: FakeRun, recipe: str = RECIPE, **changes: str) -> Version:
    """The version, with some of its tags changed."""
    record = write_evidence(run.report, recipe, run.store, Listener())
    folder = run.store.stage_folder("evidence", record.key) / "output"
    return Version(NAME, "1", ("champion",), str(folder), tags_of(run, folder) | changes)


def tags_of(run: FakeRun, folder: Path, recipe: str = RECIPE) -> dict[str, str]:
    """The tags that a promotion of the folder writes, of those that anything is checked by."""
    (key,) = (s.key for s in run.report.stages if s.variant == recipe and s.name == "judge")
    judged = JudgedVariant.load_by_key(run.store.find, str(key))
    return {
        **verdict_tags(
            Deployable.of_evidence(judged, run.store.find),
            policy=judged.judge.parameters["policy"],
            recipe=recipe,
            verdict="pass",
            override=None,
            trust_remote_code=judged.trust_remote_code,
        ),
        EVIDENCE_TAG: folder.parent.name,
        FILES_TAG: digest_of_other_files(folder),
    }
