"""Plans `prepare tune`: each candidate is one model served with other arguments.

Each candidate has one server start, one screen stage and one load stage. The fastest is compared
with the engine's defaults by the ordinary speed gate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eval_gates.speed.rules import SpeedRule
from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.digest import digest_json
from pipeline.core.errors import UsageError
from pipeline.core.hardware import NodeInfo
from pipeline.core.stage_record import StageSpec
from pipeline.plan.build import Arm
from pipeline.plan.generation_settings import max_length_of
from pipeline.plan.machine import Machine
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.plan.serving_profile import fit_profile
from pipeline.plan.speed_plan import (
    Sides,
    SpeedGatePlan,
    SpeedSide,
    dump_workload,
    find_claims,
    speed_stages,
)
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.attempts import Trial, trial_of
from pipeline.stages.screen import SCREEN
from recipes.catalog import BASELINE, load_workload
from recipes.engine_arguments import (
    COMPILES,
    DIVIDES_GPUS,
    EXPERT_PARALLEL,
    check_arguments,
    check_variables,
    count_gpus,
    subject_of,
)
from recipes.policy import Policy
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import Recipe, ServingProfile
from recipes.speed import SpeedPolicy, ThroughputRatioGate
from recipes.tuning_candidates import (
    AS_PROFILED,
    ENGINE_DEFAULTS,
    CandidateFile,
    ServingCandidate,
    change_answers,
)

NO_GAIN = 1.0  # ratio to the engine defaults that must be exceeded
SCREENING = "screening"
# The profile sets the number of GPUs and what their division needs, and a backend that needs no
# download where the engine's own does.
NEVER_MOVED = (*DIVIDES_GPUS, EXPERT_PARALLEL, "attention-backend")


@dataclass(frozen=True)
class TunedArm:
    """One way to serve the model."""

    name: str
    parameter: str
    profile: ServingProfile  # as its file would say it, for any machine of its kind
    node: NodeInfo  # that serves, or one of its kind
    changes_outputs: bool = False

    @property
    def fitted(self) -> ServingProfile:
        """The profile as the node serves it; raises UsageError if it cannot."""
        return fit_profile(self.profile, self.node)

    @property
    def serving(self) -> ServingArguments:
        """Arguments on this node."""
        return ServingArguments.of(self.fitted, is_baseline=False)


def make_defaults(profile: ServingProfile, candidates: CandidateFile, node: NodeInfo) -> TunedArm:
    """Return the profile with engine defaults for every option or variable that a candidate sets.

    If a candidate sets whether kernels are compiled, they are, as the engine would by itself.
    """
    parameters = candidates.candidates.values()
    moved = {subject_of(name) for each in parameters for name in each.engine_arguments}
    kept = {
        name: value
        for name, value in profile.engine_arguments.items()
        if subject_of(name) not in moved or name in NEVER_MOVED
    }
    switches = {name for each in parameters for name in each.environment}
    environment = {n: value for n, value in profile.environment.items() if n not in switches}
    if COMPILES in switches and profile.accelerator == "cuda":
        environment[COMPILES] = "1"
    bare = profile.model_copy(
        update={
            **{"engine_arguments": kept, "environment": environment, "kv_cache_dtype": "auto"},
            **{"kv_cache_note": None, "speculative": None},
            "starts": "fresh",  # a gain of two starts alone may be gone after the next one
        }
    )
    return TunedArm(ENGINE_DEFAULTS, ENGINE_DEFAULTS, bare, node)


def add_candidate(name: str, candidate: ServingCandidate, base: TunedArm) -> TunedArm:
    """Return the base with the candidate's options.

    Raises:
        UsageError: a profile may not set an option, or the engine does not have it.
    """
    profile = base.profile
    try:
        check_arguments(candidate.engine_arguments, profile.engine)
        check_variables(candidate.environment, profile.engine)
        if (speculative := candidate.speculative) is not None:
            speculative.check(profile.accelerator, profile.engine)
            if unfit := speculative.unfit(profile.engine):
                raise ValueError(f"nothing that is served so may be promoted: {unfit}")
    except ValueError as error:
        raise UsageError(
            str(error),
            where=f"candidates.{name}",
            hint="leave it out, or say with 'accelerator' which machines it is for",
        ) from error
    changed = profile.model_copy(
        update={
            "engine_arguments": {**profile.engine_arguments, **candidate.engine_arguments},
            "environment": {**profile.environment, **candidate.environment},
            "kv_cache_dtype": candidate.kv_cache_dtype or profile.kv_cache_dtype,
            "speculative": candidate.speculative or profile.speculative,
        }
    )
    changes = base.changes_outputs or candidate.changes_outputs
    return TunedArm(name, candidate.parameter, changed, base.node, changes)


def as_profiled(profile: ServingProfile, defaults: TunedArm) -> TunedArm:
    """Return the unchanged profile as a candidate."""
    before = defaults.profile.engine_arguments
    changed = (n for n, value in profile.engine_arguments.items() if before.get(n) != value)
    changes = (
        profile.speculative is not None
        or profile.kv_cache_dtype != defaults.profile.kv_cache_dtype
        or change_answers(changed)
    )
    return TunedArm(AS_PROFILED, AS_PROFILED, profile, defaults.node, changes)


def skip_reason(candidate: ServingCandidate, profile: ServingProfile, machine: Machine) -> str:
    """Return why the candidate is not for such a machine; "" if it is."""
    if candidate.accelerator not in (None, profile.accelerator):
        return f"for {candidate.accelerator}, and this profile is for {profile.accelerator}"
    needed, here = candidate.minimum_compute_capability, machine.compute_capability
    if needed is not None and here is not None and here < needed:
        return f"needs compute capability {needed}, {machine.gpu} has {here}"
    return ""


def misfit(arm: TunedArm, best: TunedArm) -> str:
    """Return why the arm cannot be served here, or equals the best so far; "" if it can."""
    if (speculative := arm.profile.speculative) is not None and speculative.model is not None:
        return "it drafts by a model, and draft models are not tuned"
    if arm.serving == best.serving:
        because = "; ".join(each.reason for each in arm.fitted.in_effect.values())
        return f"here it is the same as '{best.name}'{f': {because}' if because else ''}"
    wanted, there = (count_gpus(each.serving.engine_arguments) for each in (arm, best))
    return f"it uses {wanted} GPUs and the defaults {there}" if wanted != there else ""


@dataclass(frozen=True)
class TuningPlanner:
    """Plans the stages.

    Args:
        checkpoint: served without quantization.
        defaults: the comparison of all candidates.
        policy: has the error rate and the workloads.
        workload: name of the workload, or the path of its file.
        candidates: candidates and settings of the screening.
        identities: environment name to identity digest.
        store: folder of the store.
        trust_remote_code: let the engine run Python code from the checkpoint's folder.
    """

    checkpoint: Checkpoint
    defaults: TunedArm
    policy: Policy
    workload: str
    candidates: CandidateFile
    identities: Mapping[str, str]
    store: Path
    trust_remote_code: bool = False

    def plan(self) -> Plan:
        """Return the plan with the engine defaults as baseline."""
        return Plan(policy=self.policy, shared={}, baseline=self.screen(self.defaults), variants=())

    def screen(self, arm: TunedArm) -> VariantPlan:
        """Plan a candidate's screening."""
        claim = self.claim(self.policy.alpha)
        rule = SpeedRule(
            kind="screening",
            alpha=claim.rule.alpha,
            blocks=self.candidates.repetitions,
            hit_rate=claim.workload.declared_hit_rate,
            starts="once",
        )
        stage = self._sides(arm).stage(replace(claim, gate=SCREENING), screen=rule)
        return self._variant(arm, {f"speed.{SCREENING}": stage})

    def confirm(self, winner: TunedArm, trial: Trial, run: str) -> VariantPlan:
        """Plan the speed gate of the winner against the engine defaults.

        The winner depends on chance, so another winner of the same screening does not start
        another attempt.
        """
        loads = speed_stages(self._sides(winner), trial, [self.claim(trial.level)], run)
        return self._variant(winner, loads)

    def claim(self, alpha: float) -> SpeedGatePlan:
        """Return the speed gate against the engine defaults under the declared workload.

        Raises:
            UsageError: the workload does not exist or cannot be measured.
        """
        longest = max_length_of(self.defaults.profile, self.checkpoint)
        return find_claim(self.policy, self.defaults.fitted, self.workload, alpha, longest)

    def trial(self) -> Trial:
        """Return the tuning's trial, identified by all candidates and the load."""
        served = self._identity(self.defaults).model_dump()
        load = dump_workload(self.claim(self.policy.alpha))[0]
        return trial_of(
            {"checkpoint": self.checkpoint.digest, "tuned for": self.workload},
            {"tuned": digest_json([served, load, self.candidates.model_dump(mode="json")])},
            self.policy,
        )

    def _sides(self, arm: TunedArm) -> Sides:
        name = BASELINE if arm == self.defaults else arm.name
        first = self._screen(BASELINE, self.defaults, {})
        heard = first if name == BASELINE else self._screen(name, arm, {"baseline": first})
        return Sides(
            SpeedSide(BASELINE, self._identity(self.defaults), first),
            SpeedSide(name, self._identity(arm), heard),
            tokenizer=self.checkpoint.path,
            environment=self.identities["serve"],
            machine=self.defaults.node.measured_on(self.defaults.profile.accelerator),
            other_weights=(SCREENING,),
        )

    def _variant(self, arm: TunedArm, loads: Mapping[str, StageSpec]) -> VariantPlan:
        candidate = self._sides(arm).candidate
        served = Arm(
            recipe=Recipe(
                name=candidate.variant,
                summary=arm.parameter,
                family="baseline",
                quantization=NoQuantization(),
            ),
            identity=candidate.identity,
            folder=self.checkpoint.path,
            max_length=max_length_of(arm.profile, self.checkpoint),
            arguments=arm.serving,
            trust_remote_code=self.trust_remote_code,
            ready_timeout_seconds=arm.profile.ready_timeout_seconds,
        )
        return served.plan({"screen": candidate.screen, **loads})

    def _screen(self, name: str, arm: TunedArm, before: dict[str, StageSpec]) -> StageSpec:
        return SCREEN.spec(name, self._identity(arm), before, ServerRuntime(), self.store)

    def _identity(self, arm: TunedArm) -> ServedModel:
        return ServedModel(
            checkpoint=self.checkpoint.digest,
            serving=arm.serving,
            engine=self.identities["serve"],
            hardware=self.defaults.node.hardware(self.defaults.profile.accelerator),
            trust_remote_code=self.trust_remote_code,
        )


def find_claim(
    policy: Policy,
    profile: ServingProfile,
    workload: str,
    alpha: float,
    max_length: int | None = None,
) -> SpeedGatePlan:
    """Return the speed gate that confirms a gain, without the policy's own gates."""
    claimed = claim_gain(policy, profile, workload)
    (claim,) = find_claims(claimed, profile, alpha=alpha, max_length=max_length)
    return claim


def claim_gain(policy: Policy, profile: ServingProfile, workload: str) -> Policy:
    """Return the policy with one speed gate in place of all others: faster than the defaults."""
    own = policy.speed.workloads if policy.speed else {}
    blocks = policy.speed.ratio.blocks if policy.speed and policy.speed.ratio else None
    name, found = workload, load_workload(workload, policy.speed, profile)[0]
    if "/" in workload or workload.endswith((".yaml", ".yml")):
        stem = re.sub("[^a-z0-9._-]", "-", Path(workload).stem.lower())
        name = stem.lstrip("._-")[:80] or "file"
        own = {**own, name: found}
    minimum = {"cpu": NO_GAIN, "cuda": NO_GAIN}
    given = {"blocks": blocks} if blocks else {}
    ratio = ThroughputRatioGate.model_validate({"min_ratio": minimum, "workloads": [name], **given})
    return policy.model_copy(update={"speed": SpeedPolicy(ratio=ratio, workloads=own)})


def first_workload(policy: Policy) -> str:
    """Return the first workload of the policy's ratio gate, otherwise "chat"."""
    ratio = policy.speed.ratio if policy.speed else None
    return ratio.workloads[0] if ratio else "chat"
