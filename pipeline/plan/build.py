"""Builds the plan of two or more arms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_gates.cost import MIN_PROBLEMS
from eval_gates.depth import EVERY_VALUE, DepthSuite
from eval_gates.quality_gate import gate_rule_of
from eval_gates.suites.suite_kind import kind_of
from pipeline.environments.definition import LOAD_GENERATOR, SUITE_ASKER
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import Arm, Plan
from pipeline.plan.speed_plan import SpeedGatePlan, dump_workload, find_speed_gates, pin_files
from pipeline.serving.served_model import ServerRuntime
from pipeline.stages import CHECKED_WEIGHTS, FIRST_TEXTS, again_role, questions_role, speed_role
from pipeline.stages.attempts import AttemptLedger, Counted, Trial, trial_of
from pipeline.stages.block import BASELINE, BlockParameters, LoadParameters
from pipeline.stages.evaluate import (
    EVALUATE,
    REFERENCE,
    EvaluateParameters,
    EvaluateRuntime,
)
from pipeline.stages.questions import (
    QUESTION_SEED,
    QUESTIONS,
    QuestionsParameters,
    QuestionsRuntime,
)
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedRuntime
from prepare.digest import digest_json
from prepare.errors import UsageError
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.engine_arguments import memory_share
from recipes.policy import Policy, Suite
from recipes.schema import DEFAULT_CONCURRENCY, ServingProfile


@dataclass(frozen=True)
class Builder:
    """Builder of a plan.

    `reference` identifies the baseline for attempts. `profile` is None for endpoints. The error
    rate is divided by `tried`, unless the trial descends: then the variants are in their order,
    the largest first. `run` is '' to look ahead only. A gate measured again has at least the
    number `least_number`. Both sides are measured again for `other_weights`.
    """

    policy: Policy
    baseline: Arm
    variants: Sequence[Arm]
    reference: Mapping[str, str]
    sources: SourceResolver
    identities: Mapping[str, str]
    store: Path
    machine: str
    profile: ServingProfile | None = None
    tried: Sequence[str] = ()
    descends: bool = False
    run: str = ""
    remeasured: Collection[str] = ()
    least_number: int = 1
    other_weights: Sequence[str] = ()

    def build(self) -> Plan:
        """Return the plan; EvaluationDataError if a suite has no questions."""
        policy = self.policy
        self._check_room()
        baseline = self._with_record(self.baseline) or self._with_sanity(self.baseline)
        variants = [self._with_sanity(arm, baseline) for arm in self.variants]
        questions = {name: self._questions(name) for name in policy.suites}
        pinned = pin_files(policy, self.profile.accelerator if self.profile else None)
        trial = self._trial(questions, variants, pinned)
        asked: dict[str, dict[str, StageSpec]] = {arm.recipe.name: {} for arm in variants}
        first = {}
        for name, spec in questions.items():
            first[name], others = self._numbered(name, spec, baseline, variants, trial)
            for arm, stage in zip(variants, others, strict=True):
                asked[arm.recipe.name][name] = stage
        shared = {questions_role(name): spec for name, spec in questions.items()}
        if baseline.recorded is not None:  # taken out of the evidence, before anything is asked
            shared["recorded"] = baseline.stages[FIRST_TEXTS]
            shared |= {f"recall.{name}": spec for name, spec in first.items()}
            baseline = _with(baseline, first)
            variants = [self._with_floors(arm, asked[arm.recipe.name]) for arm in variants]
        else:
            asked_again = {
                again_role(name): self._ask_again(name, spec)
                for name, spec in first.items()
                if policy.suites[name].noise_floor_questions
            }
            references = {
                again_role(name): self._reference(
                    name, questions[name], baseline, EVALUATE.parameters_of(spec).measurement_number
                )
                for name, spec in first.items()
                if REFERENCE in spec.inputs
            }
            baseline = _with(baseline, {**references, **first, **asked_again})
        return Plan(
            policy=pinned,
            shared=shared,
            baseline=baseline,
            variants=tuple(
                _with(arm, {**asked[arm.recipe.name], **self._speed(arm, baseline, trial)})
                for arm in variants
            ),
            trial=trial,
            profile=self.profile,
            run=self.run,
        )

    def _with_record(self, arm: Arm) -> Arm | None:
        """Return a recorded arm with its evidence in the place of a test of its server."""
        if arm.recorded is None:
            return None
        return replace(arm, stages={FIRST_TEXTS: arm.recorded.stage(self.store)})

    def _with_sanity(self, arm: Arm, baseline: Arm | None = None) -> Arm:
        inputs = {} if baseline is None else {"baseline": baseline.stages[FIRST_TEXTS]}
        if CHECKED_WEIGHTS in arm.stages:
            inputs[CHECKED_WEIGHTS] = arm.stages[CHECKED_WEIGHTS]
        spec = SANITY.spec(arm.recipe.name, arm.identity, inputs, ServerRuntime(), self.store)
        return _with(arm, {FIRST_TEXTS: spec})

    def _with_floors(self, arm: Arm, asked: Mapping[str, StageSpec]) -> Arm:
        """Return our arm with its second answers, which another start gives first."""
        if not arm.is_ours:
            return arm
        recorded = self.baseline.recorded
        assert recorded is not None
        floors = {
            again_role(name): self._ask_again(name, spec, recorded.answered(name))
            for name, spec in asked.items()
            if self.policy.suites[name].noise_floor_questions
        }
        return _with(arm, floors)

    def _questions(self, name: str) -> StageSpec:
        suite = self.policy.suites[name]
        if self.baseline.recorded is not None:
            return self.baseline.recorded.questions_stage(name, self.store, self.sources)
        source = self.sources.suite(name, suite)
        return QUESTIONS.spec(
            name,
            QuestionsParameters(suite=suite, source=source.identity, seed=QUESTION_SEED),
            {},
            QuestionsRuntime(
                folder=str(source.folder) if source.folder else None,
                environment=SUITE_ASKER,
                suite=name,
            ),
            self.store,
        )

    def _trial(
        self, questions: Mapping[str, StageSpec], variants: Sequence[Arm], pinned: Policy
    ) -> Trial:
        """Return the trial, with what critical gates depend on."""
        speed = self.policy.speed
        tiers = speed.tiers if speed is not None else {}
        asked = {
            "environment": self.identities[SUITE_ASKER],
            **{n: q.key for n, q in questions.items() if self.policy.suites[n].tier == "critical"},
            # Even another number of blocks is another chance of a lucky pass.
            **{
                speed_role(c.gate): digest_json([c.name, dump_workload(c)[0], c.rule.model_dump()])
                for c in find_speed_gates(self.policy, self.profile)
                if tiers[c.gate] == "critical"
            },
        }
        keys = {arm.recipe.name: arm.stages[FIRST_TEXTS].key for arm in variants}
        forms = {arm.recipe.name: [arm.recipe.family, arm.max_length] for arm in variants}
        others = {name: "" for name in self.tried if name not in keys}
        return trial_of(
            dict(self.reference),
            {**keys, **others},
            pinned,
            digest_json([asked, forms]),
            [arm.recipe.name for arm in variants] if self.descends else (),
        )

    def _numbered(
        self, name: str, questions: StageSpec, baseline: Arm, variants: Sequence[Arm], trial: Trial
    ) -> tuple[StageSpec, list[StageSpec]]:
        """Return the suite's stages in its current or next measurement."""
        number, is_followed = self._number(trial, name)
        first, others = self._ask_all(name, questions, baseline, variants, trial, number)
        if is_followed and self._are_done(others):
            return self._ask_all(name, questions, baseline, variants, trial, number + 1)
        return first, others

    def _ask_all(
        self,
        name: str,
        questions: StageSpec,
        baseline: Arm,
        variants: Sequence[Arm],
        trial: Trial,
        number: int,
    ) -> tuple[StageSpec, list[StageSpec]]:
        """Return the suite's stages in one measurement: the baseline's, and the variants'."""
        first = self._ask(name, questions, baseline, number, trial)
        return first, [self._ask(name, questions, arm, number, trial, first) for arm in variants]

    def _number(self, trial: Trial, gate: str) -> tuple[int, bool]:
        """Return a gate's measurement number, and whether the next follows once that is done.

        One that this run began is continued.
        """
        latest, runs = AttemptLedger(Store(self.store)).latest_measurement(trial, gate)
        is_asked = gate in self.remeasured and self.run not in runs
        # Blocks have numbers of their own, by `other_weights`.
        if is_asked and not runs and gate in self.policy.suites:
            latest = max(latest, self.least_number)
        return latest, is_asked and bool(runs)

    def _are_done(self, specs: Sequence[StageSpec]) -> bool:
        store = Store(self.store)
        return all(store.find_current(spec.stage, spec.key) for spec in specs)

    def _ask(
        self,
        name: str,
        questions: StageSpec,
        arm: Arm,
        number: int,
        trial: Trial,
        against: StageSpec | None = None,
    ) -> StageSpec:
        suite = self.policy.suites[name]
        inputs = {FIRST_TEXTS: arm.stages[FIRST_TEXTS], "questions": questions}
        if arm.recorded is not None:
            return arm.recorded.recall_stage(name, inputs, self.store)
        if CHECKED_WEIGHTS in arm.stages:
            inputs[CHECKED_WEIGHTS] = arm.stages[CHECKED_WEIGHTS]
        rule = counted = None
        least = 0
        kind = kind_of(suite)
        if kind.asks_baseline_twice:
            least = EVERY_VALUE
            if against is None:
                inputs[REFERENCE] = self._reference(name, questions, arm, number)
        if against is not None and arm.recipe.family != "baseline":
            inputs["baseline"] = against
            rule = gate_rule_of(suite, arm.recipe.family, trial.level)
            counted = Counted(trial=trial, gate=name, run=self.run)
            if self.policy.cost is not None and name in self.policy.cost.suites:
                least = max(least, MIN_PROBLEMS)
            if isinstance(suite, DepthSuite) and suite.at_depth is not None:
                least = EVERY_VALUE
        return EVALUATE.spec(
            arm.recipe.name,
            EvaluateParameters(
                **dict(arm.identity),
                suite=suite,
                environment=self.identities[SUITE_ASKER],
                max_length=arm.max_length,
                max_questions=suite.questions,
                min_values=least,
                rule=rule,
                measurement_number=number,
            ),
            inputs,
            EvaluateRuntime(
                tokenizer=str(arm.folder),
                environment=SUITE_ASKER,
                suite=name,
                concurrency=suite.concurrency or self._in_flight,
                counted=counted,
            ),
            self.store,
        )

    @property
    def _in_flight(self) -> int:
        """Requests in flight of suites that name no number."""
        return self.profile.concurrency if self.profile else DEFAULT_CONCURRENCY

    def _reference(self, name: str, questions: StageSpec, baseline: Arm, number: int) -> StageSpec:
        """Return the stage whose answers all others are compared with, from another start."""
        suite = self.policy.suites[name]
        return EVALUATE.spec(
            baseline.recipe.name,
            EvaluateParameters(
                **dict(baseline.identity),
                suite=suite,
                environment=self.identities[SUITE_ASKER],
                max_length=baseline.max_length,
                max_questions=suite.questions,
                is_again=True,
                measurement_number=number,
            ),
            {FIRST_TEXTS: baseline.stages[FIRST_TEXTS], "questions": questions},
            EvaluateRuntime(
                tokenizer=str(baseline.folder),
                environment=SUITE_ASKER,
                suite=f"{name} again",
                concurrency=self._slower(suite),
            ),
            self.store,
        )

    def _slower(self, suite: Suite) -> int:
        """Return the requests in flight of a second asking: other neighbors in the batches."""
        return max(1, (suite.concurrency or self._in_flight) // 2)

    def _ask_again(self, name: str, first: StageSpec, most: int | None = None) -> StageSpec:
        """Return the stage that asks the first questions again, at most those on record."""
        suite = self.policy.suites[name]
        wanted = suite.noise_floor_questions
        again = {
            "max_questions": wanted if most is None else min(wanted, most),
            "min_values": 0,
            "rule": None,
            "is_again": True,
        }
        slower = {"suite": f"{name} again", "concurrency": self._slower(suite)}
        return EVALUATE.spec(
            first.variant,
            EVALUATE.parameters_of(first).model_copy(update=again),
            first.inputs,
            EVALUATE.runtime_of(first).model_copy(update={**slower, "counted": None}),
            self.store,
        )

    def _speed(self, arm: Arm, baseline: Arm, trial: Trial) -> dict[str, StageSpec]:
        """Return the speed gates' stages by role."""
        level = trial.level
        longest = arm.max_length
        stages = {}
        speed_gates = find_speed_gates(self.policy, self.profile, alpha=level, max_length=longest)
        for speed_gate in speed_gates:
            number, is_followed = self._number(trial, speed_gate.gate)
            load = self._load(speed_gate, speed_gates, arm, baseline, number, trial)
            if is_followed and self._are_done([load]):
                load = self._load(speed_gate, speed_gates, arm, baseline, number + 1, trial)
            stages[speed_role(speed_gate.gate)] = load
        return stages

    def _measured(self, speed_gate: SpeedGatePlan, number: int) -> dict[str, Any]:
        """Return the parameters of a gate's loads."""
        return {
            "name": speed_gate.name,
            "workload": dump_workload(speed_gate)[0],
            "rule": speed_gate.rule,
            "environment": self.identities[LOAD_GENERATOR],
            "machine": self.machine,
            "other_weights": list(self.other_weights),
            "measurement_number": number,
        }

    def _load(
        self,
        speed_gate: SpeedGatePlan,
        speed_gates: Sequence[SpeedGatePlan],
        arm: Arm,
        baseline: Arm,
        number: int,
        trial: Trial,
    ) -> StageSpec:
        """Return the stage of a speed gate; `speed_gates` are all of the arm."""
        compares = speed_gate.rule.compares
        sides = {"candidate": arm, **({"baseline": baseline} if compares else {})}
        # A gate that is measured again has separate blocks.
        is_first = number == 1
        main = next((c for c in speed_gates if is_first and c.gate == speed_gate.main), speed_gate)
        others = [c for c in speed_gates if is_first and c.main == main.gate]
        first = {BASELINE: baseline.stages[FIRST_TEXTS].key} if compares else {}
        measurement = BlockParameters(
            **self._measured(main, number),
            arms={**first, **{name: key for name, key in trial.variants.items() if key}},
            also=[LoadParameters(**self._measured(other, number)) for other in others],
        )
        return SPEED.spec(
            arm.recipe.name,
            SpeedParameters(
                **self._measured(speed_gate, number),
                sides={side: side_arm.identity for side, side_arm in sides.items()},
            ),
            {side: side_arm.stages[FIRST_TEXTS] for side, side_arm in sides.items()},
            SpeedRuntime(
                tokenizer=str(baseline.folder),
                environment=LOAD_GENERATOR,
                gate=speed_gate.gate,
                file=dump_workload(speed_gate)[1],
                counted=Counted(trial=trial, gate=speed_gate.gate, run=self.run),
                measurement=measurement,
                arm=arm.recipe.name,
                first_file=dump_workload(main)[1],
            ),
            self.store,
        )

    def _check_room(self) -> None:
        """Raise UsageError if the servers that stay up do not fit on their GPUs together."""
        profile = self.profile
        if profile is None or profile.starts != "once" or profile.accelerator != "cuda":
            return
        if not any(gate.kind == "ratio" for gate in self.policy.gates_on(Accelerator.CUDA)):
            return
        servers = 1 + len(self.variants)
        share = memory_share(profile.engine_arguments)
        if servers * share > 1:
            raise UsageError(
                f"with 'starts: once' {servers} servers share each GPU, and the profile gives one "
                f"of them {share:g} of its memory",
                where=f"profile {profile.name}, key engine_arguments.gpu-memory-utilization",
                hint=f"set it to at most {1 / servers:.2f}, ask for fewer variants, or write "
                "'starts: fresh'",
            )


def _with(arm: Arm, further: Mapping[str, StageSpec]) -> Arm:
    """Return the arm with further stages."""
    return replace(arm, stages={**arm.stages, **further})
