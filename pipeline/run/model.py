"""One `prepare model` from request to report; run.json records every outcome."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.evidence.signing import Signer, find_signer
from artifacts.multiple_testing import exit_code_of
from artifacts.run_record import RunReport
from pipeline.capacity.gpu_request import spread_over_gpus
from pipeline.checkpoint.source_info import report_checkpoint
from pipeline.core.errors import ExitCode, PrepareError
from pipeline.core.events import Progress
from pipeline.environments.environment import Accelerator
from pipeline.environments.settings import Settings
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import locate, locate_draft, locate_variants
from pipeline.plan.generation_settings import form_notes
from pipeline.plan.plan import Plan
from pipeline.plan.resolved_options import ModelRequest, ResolvedOptions, choose, registry_uri
from pipeline.preflight.preflight import PreflightInput, refuse
from pipeline.preflight.run_preflight import (
    early_faults,
    late_faults,
    preflight_of,
    registry_faults,
)
from pipeline.run.ablation import AblationRun
from pipeline.run.executors import executor_of
from pipeline.run.promotion import promote_passed
from pipeline.run.runner import Runner
from pipeline.run.serving_node import find_node
from pipeline.run.session import RunSession
from pipeline.serving.argument_check import check_engine_arguments
from pipeline.stages.screen import SCREEN


def run_model(request: ModelRequest, settings: Settings, progress: Progress) -> RunReport:
    """Run the request to its end.

    Returns:
        the report with `exit_code` and `error`; also stored as run.json.

    Raises:
        PrepareError: the request is invalid, so there is no run.
        KeyboardInterrupt: raised again once servers are stopped and run.json is closed.
    """
    executor = executor_of(settings)
    node = find_node(executor, request.profile, settings.store, progress)
    choices = spread_over_gpus(choose(request, settings, node), settings)
    accelerator = Accelerator(choices.profile.accelerator)
    signer = find_signer(settings, sign=request.sign) if request.promote else None
    session = RunSession("model", choices.to_dict(), accelerator, settings, progress, executor)
    return session.run(lambda: run_choices(choices, session, signer))


def run_choices(
    choices: ResolvedOptions, session: RunSession, signer: Signer | None = None
) -> ExitCode:
    """Find the checkpoint, make the plan, run it."""
    settings, stages, progress = session.settings, session.stages, session.progress
    sources = find_data(choices, settings, progress)
    preflight = preflight_of(choices, settings)
    check_early(preflight, choices, progress, registry_faults(choices, settings))
    checkpoint = locate(choices, settings, stages.output_of, progress)
    session.log.note_checkpoint(report_checkpoint(checkpoint), choices.name)
    adopted = locate_variants(choices, checkpoint, settings, progress)
    draft = locate_draft(
        choices.profile,
        settings,
        stages.output_of,
        progress,
        trust_remote_code=choices.trust_remote_code,
    )

    run_id = session.log.run_id
    plan = make_plan(choices, checkpoint, settings, sources, run_id, draft, adopted)
    known = preflight or preflight_of(choices, settings)
    if known is not None:
        if preflight is None:
            check_early(known, choices, progress)
        refuse(late_faults(known, plan, stages.find_reusable))
    check_serving(plan, session)
    memory = known.memory_to_make() if known is not None else {}
    Runner(plan, stages, session.log, memory).run()
    if choices.ablate:
        AblationRun(plan, stages, session.log, choices.profile.kv_cache_note or "").run()
    if not choices.promote:
        return exit_code_of([report.verdict for report in session.log.variants()])
    return promote_passed(
        plan,
        session.log,
        stages.store,
        progress,
        name=choices.name,
        registry=registry_uri(choices.registry, settings),
        signer=signer,
    )


def check_serving(plan: Plan, session: RunSession) -> None:
    """Let the engine's parser read the arguments of what is to be served here.

    Raises:
        UsageError: it refuses one.
    """
    stages = session.stages
    planned = plan.stages(stages.find_reusable)
    if not stages.has_environments or all(map(stages.find_reusable, planned)):
        return
    served = [SCREEN.parameters_of(s) for s in planned if s.stage == SCREEN.name]
    check_engine_arguments(
        [(each.engine, each.serving) for each in served],
        stages.python_of,
        session.settings.home / "accepted-arguments",
    )


def check_early(
    preflight: PreflightInput | None,
    choices: ResolvedOptions,
    progress: Progress,
    others: Sequence[PrepareError] = (),
) -> None:
    """Refuse now what would fail after hours; note what could not be checked.

    Raises:
        PrepareError: lists every obstacle.
    """
    faults = list(others)
    if preflight is not None:
        generation = preflight.source.generation
        for note in (*preflight.notes(), *form_notes(choices.policy, generation)):
            progress.note(note)
        faults = early_faults(preflight, choices) + faults
    refuse(faults)
