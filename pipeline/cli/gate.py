"""`prepare gate`: judges two running endpoints."""

from __future__ import annotations

from artifacts.requests import GateRequest
from pipeline.cli.ci import CiOption, CiReporting, JunitOption, OutputsOption, is_in_ci
from pipeline.cli.options import JsonOption, StoreOption, asks


@asks(GateRequest)
def gate(
    request: GateRequest,
    store: StoreOption = None,
    as_json: JsonOption = False,
    ci: CiOption = None,
    junit: JunitOption = None,
    outputs: OutputsOption = None,
) -> None:
    """Judge a candidate endpoint against a baseline endpoint, or answers on record.

    Endpoints are running OpenAI-compatible servers. Nothing is quantized or promoted,
    and load is measured only if the policy has speed gates.
    With --baseline NAME@ALIAS or RUN:VARIANT only the candidate is asked. Its answers are
    compared with those on record, by their policy, questions and lengths.
    Every answer is kept, and `prepare verify` computes the verdict again.
    --remeasure measures one gate of a --deployment-id again.

    Examples

      prepare gate --baseline http://a:8000 --candidate http://b:8000 --tokenizer ./my-checkpoint

      prepare gate --baseline URL --candidate URL --tokenizer DIR --policy strict --json

      prepare gate --baseline URL --candidate URL --api chat --policy ./answers.yaml

      prepare gate --baseline llama-8b@champion --candidate http://new-engine:8000

    Exit codes: 0 passed, 1 error, 2 usage, 3 unexpected error,
    4 a gate failed, 5 undecided, 130 interrupted.
    """
    reporting = CiReporting(request, is_in_ci(ci), junit, outputs, as_json)
    with reporting.opened(store) as (settings, progress):
        from pipeline.plan.recorded_arm import is_recorded
        from pipeline.run.gate import run_gate
        from pipeline.run.recorded_gate import run_recorded_gate

        run = run_recorded_gate if is_recorded(request.baseline) else run_gate
        report = run(request, settings, progress)
    reporting.finish(report, settings, progress)
