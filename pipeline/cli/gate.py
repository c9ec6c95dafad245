"""`prepare gate`: judges two running endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipeline.cli.ci import CiOption, CiReporting, JunitOption, OutputsOption, is_in_ci
from pipeline.cli.options import (
    PATH,
    EvalDataOption,
    JsonOption,
    RemeasureOption,
    StoreOption,
    option,
    setting,
)
from prepare.credentials import strip_credentials
from prepare.errors import UsageError

if TYPE_CHECKING:
    from artifacts.run_record import RunReport
    from pipeline.environments.settings import Settings
    from prepare.events import Progress


def gate(
    baseline: Annotated[
        str,
        setting(
            "--baseline", "URL of the unquantized model.", parser=strip_credentials, metavar="URL"
        ),
    ],
    candidate: Annotated[
        str,
        setting(
            "--candidate", "URL of the model to judge.", parser=strip_credentials, metavar="URL"
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        setting(
            "--tokenizer",
            "Folder with the models' tokenizer, such as the checkpoint's. Without one both are "
            "asked by the chat API.",
            **PATH,
        ),
    ] = None,
    api: Annotated[
        str,
        setting(
            "--api",
            "How both are asked: completions, chat, or auto (completions with --tokenizer, else "
            "chat).",
            show_default=True,
        ),
    ] = "auto",
    policy: Annotated[
        str, setting("--policy", "Policy name or YAML file.", show_default=True)
    ] = "default",
    family: Annotated[
        str,
        setting("--family", "Whose margins apply: fp8, int8, int4 or fp4.", show_default=True),
    ] = "fp8",
    baseline_model: Annotated[
        str | None, option("--baseline-model", "The model to ask, if the endpoint serves several.")
    ] = None,
    candidate_model: Annotated[
        str | None, option("--candidate-model", "The model to ask, if the endpoint serves several.")
    ] = None,
    max_length: Annotated[
        int | None,
        option(
            "--max-length",
            "Tokens of a prompt with its answer. Default: what the endpoints say.",
            min=128,
        ),
    ] = None,
    deployment_id: Annotated[
        str | None,
        setting(
            "--deployment-id",
            "Continue from the answers stored under this id. Default: ask everything again.",
        ),
    ] = None,
    eval_data: EvalDataOption = None,
    store: StoreOption = None,
    remeasure: RemeasureOption = None,
    as_json: JsonOption = False,
    ci: CiOption = None,
    junit: JunitOption = None,
    outputs: OutputsOption = None,
) -> None:
    """Judge a candidate endpoint against a baseline endpoint, suite by suite.

    Both are running OpenAI-compatible servers. Nothing is quantized or promoted,
    and load is measured only if the policy has speed gates.
    Every answer is kept, and `prepare verify` computes the verdict again.
    --remeasure measures one gate of a --deployment-id again.

    Examples

      prepare gate --baseline http://a:8000 --candidate http://b:8000 --tokenizer ./my-checkpoint

      prepare gate --baseline URL --candidate URL --tokenizer DIR --policy strict --json

      prepare gate --baseline URL --candidate URL --api chat --policy ./answers.yaml

    Exit codes: 0 passed, 1 error, 2 usage, 3 unexpected error,
    4 a gate failed, 5 undecided, 130 interrupted.
    """
    from pipeline.run.gate import APIS, GateRequest, run_gate
    from pipeline.serving.openai_endpoint import OpenAIEndpoint
    from recipes.schema import FAMILIES

    def judge(settings: Settings, progress: Progress) -> RunReport:
        if family not in FAMILIES:
            raise UsageError(
                f"there is no family '{family}'",
                where="--family",
                hint=f"known: {', '.join(FAMILIES)}",
            )
        if api not in APIS:
            raise UsageError(
                f"there is no API '{api}'", where="--api", hint=f"known: {', '.join(APIS)}"
            )
        request = GateRequest(
            baseline=OpenAIEndpoint.from_url(baseline, baseline_model),
            candidate=OpenAIEndpoint.from_url(candidate, candidate_model),
            policy=policy,
            family=family,
            tokenizer=tokenizer.expanduser().resolve() if tokenizer else None,
            max_length=max_length,
            eval_data=eval_data.expanduser().resolve() if eval_data else None,
            deployment_id=deployment_id,
            remeasured=tuple(remeasure or ()),
            api=api,
        )
        return run_gate(request, settings, progress)

    reporting = CiReporting("gate", is_in_ci(ci), junit, outputs, as_json)
    asked = {"checkpoint": f"{candidate} against {baseline}"}
    reporting.carry_out(judge, asked, store)
