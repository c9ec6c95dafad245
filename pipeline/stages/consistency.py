"""Checks that a verdict's evidence is of one baseline, variant, profile and trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eval_gates.clusters import labels_of, whole_end
from eval_gates.rows import Answer, Question
from eval_gates.suites.suite_kind import kind_of
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages import (
    AGAIN,
    CHECKED_WEIGHTS,
    FIRST_TEXTS,
    again_role,
    answers_role,
    questions_role,
    speed_role,
)
from pipeline.stages.attempts import trial_of
from pipeline.stages.evaluate import EVALUATE, REFERENCE, EvaluateResult
from pipeline.stages.evidence import Evidence
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.recall import RECALL
from pipeline.stages.recorded import RECORDED
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JudgeParameters
from prepare.stage import Stage, StageRecord, StageReference
from recipes.schema import ServingProfile

ASKING: Mapping[str, Stage[Any, Any, EvaluateResult]] = {
    EVALUATE.name: EVALUATE,
    RECALL.name: RECALL,
}
"""Stages of answers."""
SIDES = ("baseline", "candidate")


def find_faults(parameters: JudgeParameters, evidence: Evidence) -> Iterator[str]:
    """Yield where the evidence of a verdict does not belong together.

    EvidenceError: a record has another shape. LookupError: an input is missing.
    """
    trial = parameters.trial
    policy = parameters.policy
    if trial != trial_of(trial.baseline, trial.variants, policy, trial.asked, trial.descent):
        yield "the trial has other criteria than the policy"
    if trial.descent and sorted(trial.descent) != sorted(trial.variants):
        yield "the trial's order is not one of its variants"
    if parameters.recipe is not None and parameters.recipe not in trial.variants:
        yield f"the trial is of {', '.join(sorted(trial.variants))}, not of {parameters.recipe}"
    records = {role: evidence.record(role) for role in evidence.references}
    yield from find_mixed_sides(evidence.references, records)
    yield from find_other_forms(policy.suites, evidence)
    speed_gates = {
        speed_role(speed_gate.name) for speed_gate in policy.gates_on(parameters.accelerator)
    }
    for role, record in records.items():
        prefix, _, suite = role.partition(".")
        side = side_of(prefix, evidence.references)
        served: Mapping[str, ServedModel] = {}
        if record.stage == SPEED.name:
            served = SPEED.parameters_of(record).sides
            if role not in speed_gates:
                yield f"{role}: the policy has no such gate"
        elif record.stage == RECALL.name:
            yield from find_other_questions(
                role, record, evidence.answers(role), evidence.questions(questions_role(suite))
            )
        elif record.stage == EVALUATE.name:
            asked = EVALUATE.parameters_of(record)
            is_twice = prefix == "baseline" and kind_of(asked.suite).asks_baseline_twice
            if is_twice and REFERENCE not in record.inputs:
                yield f"{role}: it was compared with no other start of the baseline"
            served = {side: asked}
            if prefix == "candidate" and asked.rule != parameters.gates[suite]:
                yield f"{role}: asked by another rule than it is judged by"
            yield from find_other_questions(
                role, record, evidence.answers(role), evidence.questions(questions_role(suite))
            )
        elif record.stage == QUESTIONS.name:
            yield from find_wrong_counts(role, record, evidence.questions(role))
        for name, model in served.items():
            yield from find_served_otherwise(role, name, model, parameters.profile)


def find_other_forms(suites: Iterable[str], evidence: Evidence) -> Iterator[str]:
    """Yield suites asked by text completions and by chat."""
    for name in suites:
        records = [evidence.record(answers_role(side, name)) for side in SIDES]
        sides = [ASKING[record.stage].parameters_of(record) for record in records]
        forms = [served.endpoint is not None and served.endpoint.chat for served in sides]
        if forms[0] != forms[1]:
            yield f"{name}: the sides were asked in different forms"


def side_of(prefix: str, inputs: Mapping[str, StageReference]) -> str:
    """Return the side of a role with this prefix.

    `AGAIN` is the baseline, asked a second time; where that is on record, the candidate.
    """
    if prefix != AGAIN:
        return prefix
    return "candidate" if RECORDED.name in inputs else "baseline"


def find_mixed_sides(
    inputs: Mapping[str, StageReference], records: Mapping[str, StageRecord]
) -> Iterator[str]:
    """Yield stages of another baseline or variant.

    Each stage names its server's sanity stage, and a variant's answers the baseline's.
    """
    for side in SIDES:
        stages = [
            record
            for role, record in records.items()
            if side_of(role.partition(".")[0], inputs) == side and "." in role
        ]
        for role in (FIRST_TEXTS, CHECKED_WEIGHTS):
            named = {record.inputs[role].key if role in record.inputs else "" for record in stages}
            if len(named) > 1:
                yield f"{side}: its stages do not depend on the same '{role}'"
            for name, record in records.items():
                measured = record.inputs.get(side) if name.startswith(speed_role("")) else None
                if role == FIRST_TEXTS and measured is not None and {measured.key} != named:
                    yield f"{name}: it measured another {side} than was judged"
    recorded = inputs.get(RECORDED.name)
    of_record = {r.inputs[FIRST_TEXTS].key for r in records.values() if r.stage == RECALL.name}
    if of_record != ({recorded.key} if recorded is not None else set()):
        yield "baseline: its answers are not of the record that is named"
    for role, record in records.items():
        side, _, suite = role.partition(".")
        judged_with = {
            "baseline": answers_role("baseline", suite),
            "questions": questions_role(suite),
        }
        for other, other_role in judged_with.items():
            wanted = inputs.get(other_role)
            if side in SIDES and other in record.inputs and record.inputs[other] != wanted:
                yield f"{role}: it followed other '{other}' than were judged with it"
        reference = record.inputs.get(REFERENCE)
        if side == "baseline" and reference not in (None, inputs.get(again_role(suite))):
            yield f"{role}: it followed another reference than was judged with it"


def find_served_otherwise(
    role: str, side: str, served: ServedModel, profile: ServingProfile | None
) -> Iterator[str]:
    """Yield differences between a side's serving and the profile."""
    if profile is None:
        return
    drafted = profile.speculative.model if profile.speculative is not None else None
    wanted = ServingArguments.of(profile, is_baseline=side != "candidate", draft=drafted)
    if served.serving != wanted:
        yield f"{role}: its {side} was not served as the verdict's profile says"


def find_other_questions(
    role: str, record: StageRecord, answers: Sequence[Answer], questions: Sequence[Question]
) -> Iterator[str]:
    """Yield where answers are to other questions."""
    theirs, wanted = (
        [(row.id, row.cluster, row.group, row.part) for row in rows]
        for rows in (answers, questions[: len(answers)])
    )
    if theirs != wanted:
        yield f"{role}: its answers are not those to the first of the questions"
    result = EVALUATE.result_of(record)
    if result.n != len(answers):
        yield f"{role}: its record counts {result.n} answers, and there are {len(answers)}"
    if record.stage == RECALL.name:  # all that is on record, which the evidence says
        return
    parameters = EVALUATE.parameters_of(record)
    if parameters.rule is None:
        required = min(parameters.max_questions or len(questions), len(questions))
        required = whole_end(labels_of(questions), required)
        if len(answers) != required:
            yield f"{role}: {required} questions had to be asked, and {len(answers)} were answered"


def find_wrong_counts(
    role: str, record: StageRecord, questions: Sequence[Question]
) -> Iterator[str]:
    """Yield differences between a stage's record and its questions."""
    told = QUESTIONS.result_of(record)
    suite = QUESTIONS.parameters_of(record).suite
    if told.questions != len(questions):
        yield f"{role}: its record counts {told.questions} questions of {len(questions)}"
    if suite.cluster_by and told.clusters != len(set(labels_of(questions))):
        yield f"{role}: its record counts other clusters than its questions have"
    if bool(suite.parts_by) != all(question.part for question in questions):
        yield f"{role}: not each of its questions names its part, as the policy says"
    if not suite.cluster_by and told.clusters:
        yield f"{role}: its record counts clusters, and the suite has none"
    # A larger share only makes the gate harder to pass.
    least = kind_of(suite).guessing
    if least and not least <= told.guessing <= 1:
        yield f"{role}: its record says that guessing scores {told.guessing}"
