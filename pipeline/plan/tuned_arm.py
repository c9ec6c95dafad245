"""What `prepare tune` compares: the engine's defaults and candidates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.plan.serving_profile import fit_profile
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import UsageError
from prepare.hardware import NodeInfo
from recipes.catalog import load_workload
from recipes.engine_arguments import (
    COMPILES,
    DIVIDES_GPUS,
    EXPERT_PARALLEL,
    check_arguments,
    check_variables,
    subject_of,
)
from recipes.policy import Policy
from recipes.schema import ServingProfile
from recipes.speed import SpeedPolicy, ThroughputRatioGate
from recipes.tuning_candidates import (
    ENGINE_DEFAULTS,
    CandidateFile,
    ServingCandidate,
)

# The profile sets the number of GPUs and what their division needs, and a backend without a
# download.
NEVER_MOVED = (*DIVIDES_GPUS, EXPERT_PARALLEL, "attention-backend")


@dataclass(frozen=True)
class TunedArm:
    """One way to serve the model, for any machine."""

    name: str
    profile: ServingProfile

    def serving(self, node: NodeInfo) -> ServingArguments:
        """Return that node's arguments, or raise UsageError."""
        return ServingArguments.of(fit_profile(self.profile, node), is_baseline=False)


def make_defaults(profile: ServingProfile, candidates: CandidateFile) -> TunedArm:
    """Return the profile with engine defaults for all that candidates set.

    Kernels are then compiled.
    """
    known = candidates.candidates.values()
    moved = {subject_of(name) for one in known for name in one.engine_arguments}
    switches = {name for one in known for name in one.environment}
    environment = {n: value for n, value in profile.environment.items() if n not in switches}
    if COMPILES in switches and profile.accelerator == "cuda":
        environment[COMPILES] = "1"
    kept = {
        name: value
        for name, value in profile.engine_arguments.items()
        if subject_of(name) not in moved or name in NEVER_MOVED
    }
    bare = {
        **{"engine_arguments": kept, "environment": environment, "kv_cache_dtype": "auto"},
        **{"kv_cache_note": None, "speculative": None},
        "starts": "fresh",  # a gain of two starts alone may be gone after the next one
    }
    return TunedArm(ENGINE_DEFAULTS, profile.model_copy(update=bare))


def add_candidate(name: str, added: ServingCandidate, base: TunedArm) -> TunedArm:
    """Return the base with the candidate's options."""
    profile = base.profile
    try:
        check_arguments(added.engine_arguments, profile.engine)
        check_variables(added.environment, profile.engine)
        if (speculative := added.speculative) is not None:
            speculative.check(profile.accelerator, profile.engine)
            if unfit := speculative.unfit(profile.engine):
                raise ValueError(f"nothing that is served so may be promoted: {unfit}")
    except ValueError as error:
        raise UsageError(
            str(error),
            where=f"candidates.{name}",
            hint="leave that out, or the candidate; say with 'accelerator' which machines it is "
            "for, if others can serve it",
        ) from error
    changed = {
        "engine_arguments": {**profile.engine_arguments, **added.engine_arguments},
        "environment": {**profile.environment, **added.environment},
        "kv_cache_dtype": added.kv_cache_dtype or profile.kv_cache_dtype,
        "speculative": added.speculative or profile.speculative,
    }
    return TunedArm(name, profile.model_copy(update=changed))


def gain_policy(policy: Policy, profile: ServingProfile, workload: str | None) -> Policy:
    """Return the policy with one gate: faster than the defaults.

    Without `workload`, that of the policy's ratio of speed, or 'chat'.
    """
    speed = policy.speed
    before = speed.ratio if speed else None
    wanted = workload or (before.workloads[0] if before else "chat")
    name = wanted
    own = speed.workloads if speed else {}
    if "/" in wanted or wanted.endswith((".yaml", ".yml")):
        stem = re.sub("[^a-z0-9._-]", "-", Path(wanted).stem.lower())
        name = stem.lstrip("._-")[:80] or "file"
        own = {**own, name: load_workload(wanted, speed, profile)[0]}
    else:
        load_workload(wanted, speed, profile)
    blocks = {"blocks": before.blocks} if before and before.blocks else {}
    ratio = ThroughputRatioGate.model_validate({"min_ratio": 1.0, "workloads": [name], **blocks})
    gain = SpeedPolicy(ratio=ratio, workloads=own, quiet=speed.quiet if speed else None)
    return policy.model_copy(update={"suites": {}, "cost": None, "speed": gain})
