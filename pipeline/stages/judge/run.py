"""Computes a variant's verdict."""

from __future__ import annotations

from pipeline.core.errors import EvaluationDataError
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.context import StageContext
from pipeline.stages.judge import JudgeParameters, JudgeResult, JudgeRuntime
from pipeline.stages.judge.verdict import StageInputs, judge_evidence


def run(context: StageContext[JudgeParameters, JudgeRuntime]) -> JudgeResult:
    """Judge every suite and every speed gate."""
    # If all answers were there already, nothing has recorded the attempt yet.
    trial, ledger = context.parameters.trial, AttemptLedger(context.store)
    ledger.begin(Counted(trial=trial, gate="", run=context.runtime.run))
    inputs = StageInputs(context.store, context.spec.inputs)
    try:
        return judge_evidence(context.parameters, inputs, ledger.history(trial))
    except ValueError as error:
        raise EvaluationDataError(
            f"the answers of baseline and variant cannot be compared: {error}",
            where=", ".join(str(context.input_folder(role)) for role in context.spec.inputs),
            hint="delete these folders and run the command again: what is missing is asked again",
        ) from error
