"""A variant of a judged run as a registry has it: its folder, and the tags of a promotion."""

from __future__ import annotations

from pathlib import Path

from judged_run import JudgedRun
from listener import Listener

from artifacts.evidence.judged_variant import JudgedVariant
from artifacts.evidence.manifest import digest_of_other_files
from artifacts.registry.registry import EVIDENCE_TAG, FILES_TAG, TUPLE_TAG, Version
from pipeline.core.digest import digest_json
from pipeline.release.evidence import write_evidence
from pipeline.stages.promote import as_tag

RECIPE = "fp8-dynamic"


def registered(run: JudgedRun, recipe: str = RECIPE, **changes: str) -> Version:
    """The version, with some of its tags changed."""
    record = write_evidence(run.report, recipe, run.store, Listener())
    folder = run.store.stage_folder("evidence", record.key) / "output"
    return Version("tiny", "1", ("champion",), str(folder), tags_of(run, folder) | changes)


def tags_of(run: JudgedRun, folder: Path, recipe: str = RECIPE) -> dict[str, str]:
    """The tags that a promotion of the folder writes, of those that anything is checked by."""
    (key,) = (s.key for s in run.report.stages if s.variant == recipe and s.name == "judge")
    judged = JudgedVariant.found(run.store.find, str(key))
    members = judged.deployable(run.store.find)
    return {
        TUPLE_TAG: digest_json(members),
        EVIDENCE_TAG: folder.parent.name,
        FILES_TAG: digest_of_other_files(folder),
        "prepare.recipe": recipe,
        "prepare.verdict": "pass",
        "prepare.override": "",
        "prepare.policy.digest": digest_json(judged.judge.parameters["policy"]),
        "prepare.trust_remote_code": as_tag(judged.trust_remote_code),
        **{f"prepare.{name}": as_tag(member) for name, member in members.items()},
    }
