"""The stage that computes a variant's verdict, a pure function of stored evidence.

`prepare verify` repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator

from eval_gates.cost import cost_rule_of, judge_cost
from eval_gates.decisions.gate import judge_decisions
from eval_gates.depth import DepthSuite, judge_depth
from eval_gates.gate_result import GateResult
from eval_gates.quality_gate import judge_quality
from eval_gates.speed.report import SpeedGateResult, judge_speed
from eval_gates.speed.rules import SpeedRule, apply_gate_rate, build_rule
from eval_gates.suites.suite_kind import kind_of
from pipeline.stages import FIRST_TEXTS, again_role, answers_role, questions_role, speed_role
from pipeline.stages.attempts import AttemptLedger, Counted, History
from pipeline.stages.consistency import SIDES, find_faults
from pipeline.stages.context import StageContext
from pipeline.stages.evaluate import EVALUATE
from pipeline.stages.evidence import Evidence
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.recorded import words_of
from pipeline.stages.speed import SPEED
from pipeline.stages.starts import StartLedger
from pipeline.stages.verdict import JUDGE as JUDGE
from pipeline.stages.verdict import JudgeParameters, JudgeResult, JudgeRuntime, judge_variant
from prepare.errors import EvaluationDataError
from prepare.stage import StageRecord
from recipes.speed import SpeedGate
from recipes.workload import read_pinned, without_place


def judge_evidence(parameters: JudgeParameters, inputs: Evidence, history: History) -> JudgeResult:
    """Return the verdict; `history` decides nothing.

    ValueError: the evidence does not belong together. EvidenceError, StoreError: as `Evidence`.
    """
    if faults := list(find_faults(parameters, inputs)):
        raise ValueError("; ".join(faults))
    policy = parameters.policy
    results = {
        name: EVALUATE.result_of(inputs.record(answers_role("candidate", name)))
        for name in policy.suites
    }
    gates: list[GateResult] = []
    for name, result in results.items():
        gates += suite_gates(parameters, inputs, name, result.metric)
    gates += speed_gates(parameters, inputs)
    gates += cost_gates(parameters, inputs)
    if policy.undecided_supporting == "hold":
        gates = [gate.model_copy(update={"holds": gate.tier == "supporting"}) for gate in gates]
    verdict, reason, p_value = judge_variant(gates)
    recorded = inputs.recorded
    against = words_of(recorded.parameters) if recorded is not None else ""
    return JudgeResult(
        verdict=verdict,
        reason="; ".join(filter(None, (reason, against, history.words))),
        p_value=p_value,
        history=history,
        gates=gates,
        spec_decode={
            name: result.spec_decode
            for name, result in results.items()
            if result.spec_decode is not None
        },
    )


def suite_gates(
    parameters: JudgeParameters, inputs: Evidence, name: str, metric: str
) -> Iterator[GateResult]:
    """Yield a suite's gate, and those beyond a depth and on decisions, if it has any."""
    suite = parameters.policy.suites[name]
    rule = parameters.gates[name]
    baseline = inputs.answers(answers_role("baseline", name))
    candidate = inputs.answers(answers_role("candidate", name))
    guessing = QUESTIONS.result_of(inputs.record(questions_role(name))).guessing
    again = again_role(name)
    yield judge_quality(
        name,
        suite,
        rule,
        metric=metric,
        baseline=baseline,
        candidate=candidate,
        again=inputs.answers(again) if again in inputs.references else [],
        guessing=guessing,
        asked_twice="baseline" if inputs.recorded is None else "candidate",
    )
    if isinstance(suite, DepthSuite) and suite.at_depth is not None:
        yield judge_depth(
            name,
            suite,
            rule,
            baseline=baseline,
            candidate=candidate,
            guessing=guessing,
            depth_of=kind_of(suite).depth,
        )
    yield from judge_decisions(name, suite, parameters.family, rule.alpha, baseline, candidate)


def cost_gates(parameters: JudgeParameters, inputs: Evidence) -> Iterator[GateResult]:
    """Yield the gate on costs of each suite that has one."""
    cost = parameters.policy.cost
    if cost is None:
        return
    for name in cost.suites:
        asked = EVALUATE.parameters_of(inputs.record(answers_role("candidate", name)))
        alpha = parameters.gates[name].alpha
        rule = cost_rule_of(cost, asked.suite, parameters.family, alpha, asked.max_length)
        yield judge_cost(name, rule, *(inputs.answers(answers_role(s, name)) for s in SIDES))


def speed_gates(parameters: JudgeParameters, inputs: Evidence) -> Iterator[SpeedGateResult]:
    """Yield each speed gate's report, undecided without a measurement.

    ValueError: it was measured by another rule.
    """
    for speed_gate in parameters.policy.gates_on(parameters.accelerator):
        role = speed_role(speed_gate.name)
        measured = inputs.record(role) if role in inputs.references else None
        yield judge_speed(
            speed_gate.name,
            rule_of(parameters, speed_gate, measured),
            workload=speed_gate.workload,
            tier=speed_gate.tier,
            loads=inputs.loads(role) if measured is not None else [],
            starts=SPEED.result_of(measured).starts if measured is not None else None,
            traffic=read_pinned(SPEED.parameters_of(measured).workload).load if measured else "",
            at=speed_gate.at,
            note=parameters.profile.speed_note if parameters.profile is not None else None,
        )


def rule_of(
    parameters: JudgeParameters, speed_gate: SpeedGate, measured: StageRecord | None
) -> SpeedRule:
    """Return a speed gate's rule; ValueError if measured by another."""
    level = parameters.trial.level
    accelerator = parameters.accelerator
    profile = parameters.profile
    if measured is None:
        return build_rule(speed_gate, level, accelerator, None, profile)
    loaded = SPEED.parameters_of(measured)
    speed = parameters.policy.speed
    own = speed.workloads if speed is not None else {}
    known = own[speed_gate.workload] if speed_gate.workload in own else read_pinned(loaded.workload)
    workload = apply_gate_rate(speed_gate, known)
    rule = build_rule(speed_gate, level, accelerator, workload, profile)
    wanted = (speed_gate.workload, without_place(workload), rule)
    if (loaded.name, loaded.workload, loaded.rule) != wanted:
        raise ValueError(
            f"{speed_role(speed_gate.name)}: measured by another rule than the policy's"
        )
    return rule


def run(context: StageContext[JudgeParameters, JudgeRuntime]) -> JudgeResult:
    """Judge every suite and every speed gate."""
    # If all answers were there already, nothing has recorded the attempt yet.
    trial = context.parameters.trial
    ledger = AttemptLedger(context.store)
    ledger.begin(Counted(trial=trial, gate="", run=context.runtime.run))
    inputs = Evidence(context.store, context.spec.inputs)
    sanity_keys = {
        inputs.record(answers_role("candidate", suite)).inputs[FIRST_TEXTS].key
        for suite in context.parameters.policy.suites
    }
    (sanity_key,) = sanity_keys if len(sanity_keys) == 1 else ("",)  # others are refused below
    starts = StartLedger(context.store, sanity_key).count()
    history = ledger.history(trial).model_copy(update={"starts": starts})
    try:
        return judge_evidence(context.parameters, inputs, history)
    except ValueError as error:
        raise EvaluationDataError(
            f"the answers of baseline and variant cannot be compared: {error}",
            where=", ".join(str(context.input_folder(role)) for role in context.spec.inputs),
            hint="delete these folders and run the command again: what is missing is asked again",
        ) from error
