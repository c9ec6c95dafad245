"""The stage that makes the folder to deploy: weights, card and bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from eval_gates.gate_report import Verdict
from pipeline.checkpoint.source_info import SourceInfo
from pipeline.core.record import Record
from pipeline.core.stage import Stage

JUDGE_OF = "judge."  # role of a judge stage, before the recipe's name


class EvidenceParameters(Record):
    """What the bundle is about."""

    recipe: str
    override: str | None = Field(description="why it is promoted though it did not pass")
    name: str = Field(description="in the registry")
    profile: str
    policy: str
    source: SourceInfo
    attempted: list[str] = Field(fail_fast=True, description="recipes whose number counts")
    unjudged: dict[str, Literal["fail", "error", "skipped"]] = Field(
        description="what became of those without gates"
    )
    depends_on: str = Field(description="digest of all results that it depends on")
    signer: str | None = Field(description="sha256 of the public key that belongs to the key")


class EvidenceRuntime(Record):
    """The run that it describes."""

    run: str
    command: str
    private_key: Path | None = Field(description="file of the signer's key")


class EvidenceResult(Record):
    """What was made."""

    recipe: str
    verdict: Verdict | Literal["error", "skipped"]
    override: str | None
    weights_digest: str
    manifest_digest: str = Field(
        description="of the list of every file: anyone who has it can check all of them"
    )
    files: int
    bundle_bytes: int
    signer: str | None = Field(description="sha256 of the public key of the folder's signature")


EVIDENCE = Stage("evidence", 1, EvidenceParameters, EvidenceRuntime, EvidenceResult)
