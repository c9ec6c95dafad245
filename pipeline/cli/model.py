"""`prepare model`: from a checkpoint to a promoted variant."""

from __future__ import annotations

from artifacts.requests import ModelRequest
from pipeline.cli.ci import CiOption, CiReporting, JunitOption, OutputsOption, is_in_ci
from pipeline.cli.options import (
    CopiesOption,
    JsonOption,
    OnOption,
    RetryOption,
    RunOption,
    StoreOption,
    asks,
)
from prepare.errors import UsageError


@asks(ModelRequest)
def model(
    request: ModelRequest,
    store: StoreOption = None,
    as_json: JsonOption = False,
    run: RunOption = None,
    retry: RetryOption = False,
    on: OnOption = None,
    copies: CopiesOption = None,
    ci: CiOption = None,
    junit: JunitOption = None,
    outputs: OutputsOption = None,
) -> None:
    """Quantize, serve, gate and promote a checkpoint; run it again to continue.

    Finished stages are kept in the store and reused, so a run that was killed
    continues where it stopped, and a changed recipe runs only its own branch.

    Examples

      prepare model demo:smollm2-135m

      prepare model ./my-checkpoint --recipe fp8-dynamic --profile h100

      prepare model meta-llama/Llama-3.1-8B-Instruct@main --policy strict.yaml --json

      prepare model org/name --on slurm --store /shared/store

      prepare model org/name --variant vendor/name-FP8 --variant ./name-AWQ

      prepare model org/name --recipe fp8-dynamic --recipe awq-w4a16 --screen

    --variant judges weights that others quantized against the checkpoint,
    and --served-variant the checkpoint's own weights with further engine arguments.

    Several processes can work on one run: on one machine one is started for each
    GPU, and with --on a cluster's engine starts them. With --run, any process joins.

    With --no-promote nothing is registered; `prepare promote RUN` does it later.
    --screen orders candidates without judging any, with --ablate the weights and the
    KV cache of each alone, too; --until pass gates them from the largest down.
    If a disturbed machine left a gate undecided, the same command continues its
    measurement; --remeasure repeats any gate's. In a CI job (--ci) a JUnit file and
    a summary report the outcome.

    Exit codes: 0 promoted, 1 error, 2 usage, 3 unexpected error,
    4 a gate failed, 5 undecided, 130 interrupted. A joined process: 0 done.
    """
    is_joining = request.checkpoint is None
    if (retry or is_joining) and run is None:
        missing = "--run ID" if retry else "CHECKPOINT"
        raise UsageError(f"{missing} is missing", where="prepare model", hint="see --help")

    if is_joining:  # joining a run may change the working folder
        junit = junit and junit.absolute()
        outputs = outputs and outputs.absolute()
    reporting = CiReporting(request, is_in_ci(ci), junit, outputs, as_json)
    with reporting.opened(store) as (settings, progress):
        if on is not None:
            from pipeline.run.launchers import launch

            report = launch(request, on, copies, run, settings, progress, retry=retry)
        else:
            from pipeline.run.model import run_model

            report = run_model(request, settings, progress, run, retry=retry)
    reporting.finish(report, settings, progress)
