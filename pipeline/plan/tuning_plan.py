"""Plans `prepare tune`: a screening of serving arguments, and one speed gate on its winner.

Each candidate is a variant of one model with other serving arguments: a separate server start, a
screen stage and a load stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eval_gates.speed.screening import ScreeningRule
from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.digest import digest_json
from pipeline.core.errors import UsageError
from pipeline.core.hardware import NodeInfo, this_node
from pipeline.core.stage_record import StageSpec
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.plan.context_length import max_length_of
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
from recipes.engines import find_engine
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
class ScreeningCandidate:
    """Serving arguments that a screening measures."""

    name: str
    parameter: str
    profile: ServingProfile  # as its file would say it, for any machine of its kind
    fitted: ServingProfile  # as the node serves it
    node: NodeInfo  # that serves, or one of its kind
    changes_outputs: bool

    @property
    def serving(self) -> ServingArguments:
        """Arguments on this node."""
        return ServingArguments.of(self.fitted, is_baseline=False)


def make_defaults(
    profile: ServingProfile, candidates: CandidateFile, node: NodeInfo | None = None
) -> ScreeningCandidate:
    """Return the profile with engine defaults for every option or variable that a candidate sets.

    If a candidate sets whether kernels are compiled, they are, as the engine would by itself.

    Args:
        node: that serves; None: this machine.
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
    return _screened(
        ENGINE_DEFAULTS, ENGINE_DEFAULTS, bare, node or this_node(), changes_outputs=False
    )


def make_screened(
    name: str, candidate: ServingCandidate, defaults: ScreeningCandidate
) -> ScreeningCandidate:
    """Return the engine defaults with the candidate's options.

    Raises:
        UsageError: a profile may not set an option, or the engine does not have it.
    """
    base = defaults.profile
    where = f"candidates.{name}"
    try:
        check_arguments(candidate.engine_arguments, base.engine)
        check_variables(candidate.environment, base.engine)
        if (speculative := candidate.speculative) is not None:
            speculative.check(base.accelerator, base.engine)
            if unfit := speculative.unfit(base.engine):
                raise ValueError(f"nothing that is served so may be promoted: {unfit}")
    except ValueError as error:
        raise UsageError(
            str(error),
            where=where,
            hint="leave it out, or say with 'accelerator' which machines it is for",
        ) from error
    changed = base.model_copy(
        update={
            "engine_arguments": {**base.engine_arguments, **candidate.engine_arguments},
            "environment": {**base.environment, **candidate.environment},
            "kv_cache_dtype": candidate.kv_cache_dtype or base.kv_cache_dtype,
            "speculative": candidate.speculative,
        }
    )
    changes = candidate.changes_outputs
    return _screened(name, candidate.parameter, changed, defaults.node, changes_outputs=changes)


def make_profiled(profile: ServingProfile, defaults: ScreeningCandidate) -> ScreeningCandidate:
    """Return the unchanged profile as a candidate."""
    before = defaults.profile.engine_arguments
    changed = (n for n, value in profile.engine_arguments.items() if before.get(n) != value)
    changes = (
        profile.speculative is not None
        or profile.kv_cache_dtype != defaults.profile.kv_cache_dtype
        or change_answers(changed)
    )
    return _screened(AS_PROFILED, AS_PROFILED, profile, defaults.node, changes_outputs=changes)


def gpus_of(serving: ServingArguments) -> int:
    """Return the number of GPUs of one server."""
    return count_gpus(serving.engine_arguments)


def _screened(
    name: str, parameter: str, profile: ServingProfile, node: NodeInfo, *, changes_outputs: bool
) -> ScreeningCandidate:
    return ScreeningCandidate(
        name, parameter, profile, fit_profile(profile, node), node, changes_outputs
    )


@dataclass(frozen=True)
class TuningPlanner:
    """Plans the stages.

    Args:
        checkpoint: served without quantization.
        engine_defaults: the comparison of all candidates.
        policy: has the error rate and the workloads.
        workload: name of the workload, or the path of its file.
        candidates: candidates and settings of the screening.
        identities: environment name to identity digest.
        store: folder of the store.
        trust_remote_code: let the engine run Python code from the checkpoint's folder.
    """

    checkpoint: Checkpoint
    engine_defaults: ScreeningCandidate
    policy: Policy
    workload: str
    candidates: CandidateFile
    identities: Mapping[str, str]
    store: Path
    trust_remote_code: bool = False

    def plan(self) -> Plan:
        """Return the plan with the engine defaults as baseline."""
        return Plan(
            policy=self.policy,
            shared={},
            baseline=self.screen(self.engine_defaults, None),
            variants=(),
        )

    def screen(self, screened: ScreeningCandidate, leader: float | None) -> VariantPlan:
        """Plan a candidate's screening; `leader`: best output tokens a second so far."""
        claim = self.claim(self.policy.alpha)
        rule = ScreeningRule(
            repetitions=self.candidates.repetitions,
            leader=leader,
            prune_margin=self.candidates.prune_margin,
            hit_rate=claim.workload.declared_hit_rate,
        )
        sides = self._sides(screened)
        screening = sides.stage(replace(claim, gate=SCREENING), screen=rule)
        return self._variant(screened, {f"speed.{SCREENING}": screening})

    def confirm(self, winner: ScreeningCandidate, trial: Trial, run: str) -> VariantPlan:
        """Plan the confirmation that the winner is faster than the engine defaults.

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
        return find_claim(
            self.policy,
            self.engine_defaults.fitted,
            self.workload,
            alpha,
            max_length_of(self.engine_defaults.profile, self.checkpoint),
        )

    def claimed(self) -> Policy:
        """Return the policy with that speed gate alone."""
        return claim_gain(self.policy, self.engine_defaults.fitted, self.workload)

    def trial(self) -> Trial:
        """Return the tuning's trial, identified by all candidates and the load."""
        served = self._identity(self.engine_defaults).model_dump()
        load = dump_workload(self.claim(self.policy.alpha))[0]
        return trial_of(
            {"checkpoint": self.checkpoint.digest, "tuned for": self.workload},
            {"tuned": digest_json([served, load, self.candidates.model_dump(mode="json")])},
            self.policy,
        )

    def _sides(self, screened: ScreeningCandidate) -> Sides:
        name = BASELINE if screened == self.engine_defaults else screened.name
        first = self._screen(BASELINE, self.engine_defaults, {})
        heard = first if name == BASELINE else self._screen(name, screened, {"baseline": first})
        return Sides(
            SpeedSide(BASELINE, self._identity(self.engine_defaults), first),
            SpeedSide(name, self._identity(screened), heard),
            tokenizer=self.checkpoint.path,
            environment=self.identities["serve"],
            machine=self.engine_defaults.node.measured_on(self.engine_defaults.profile.accelerator),
            other_weights=(SCREENING,),
        )

    def _variant(self, screened: ScreeningCandidate, loads: Mapping[str, StageSpec]) -> VariantPlan:
        candidate = self._sides(screened).candidate
        recipe = Recipe(
            name=candidate.variant,
            summary=screened.parameter,
            family="baseline",
            quantization=NoQuantization(),
        )
        stages = {"screen": candidate.screen, **loads}
        return VariantPlan(
            recipe=recipe,
            model=self.checkpoint.path,
            arguments=screened.serving,
            stages=stages,
            served=tuple(stages),
            trust_remote_code=self.trust_remote_code,
            ready_timeout_seconds=screened.profile.ready_timeout_seconds,
        )

    def _screen(
        self, name: str, screened: ScreeningCandidate, before: dict[str, StageSpec]
    ) -> StageSpec:
        return SCREEN.spec(name, self._identity(screened), before, ServerRuntime(), self.store)

    def _identity(self, screened: ScreeningCandidate) -> ServedModel:
        return ServedModel(
            checkpoint=self.checkpoint.digest,
            serving=screened.serving,
            engine=self.identities["serve"],
            hardware=self.engine_defaults.node.hardware(self.engine_defaults.profile.accelerator),
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


def identities_of(profile: ServingProfile, settings: Settings) -> dict[str, str]:
    """Return the locks of the environments that take part."""
    accelerator = Accelerator(profile.accelerator)
    names = {"serve", str(find_engine(profile.engine).environment)}
    return {name: identity(name, accelerator, settings) for name in names}


def list_candidates(
    candidates: CandidateFile, profile: ServingProfile, defaults: ScreeningCandidate
) -> Iterator[tuple[str, ServingCandidate | None]]:
    """Yield the profile, if it differs from the defaults, and then the candidates."""
    if ServingArguments.of(profile, is_baseline=False) != ServingArguments.of(
        defaults.profile, is_baseline=False
    ):
        yield AS_PROFILED, None
    yield from candidates.candidates.items()
