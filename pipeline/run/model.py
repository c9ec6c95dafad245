"""One `prepare model`, or one copy of it; run.json has every outcome."""

from __future__ import annotations

import os

from artifacts.candidate import PromotionRequest
from artifacts.evidence.signing import Signer, find_signer
from artifacts.promotion import promote
from artifacts.registry import Registry
from artifacts.requests import ModelRequest
from artifacts.run_record import NOT_PREFERRED, RunReport
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice, choose
from pipeline.plan.locator import Locator
from pipeline.plan.model_plan import make_plan
from pipeline.plan.plan import Plan, PlanProgress
from pipeline.plan.rungs import with_rungs, write_rungs
from pipeline.preflight.gpu_fit import spread_over_gpus
from pipeline.preflight.survey import check_early, check_fitted, refuse, survey
from pipeline.run.copies import JoinedRun, check_plan, copy_index, join_run, write_request
from pipeline.run.expected_times import expected_run
from pipeline.run.loop import finish_plan
from pipeline.run.run import Run
from pipeline.run.screening import compare_arms
from pipeline.run.servers import Servers
from pipeline.serving.argument_check import check_engine_arguments
from pipeline.stages.sanity import SANITY
from pipeline.stages.verdict import exit_code_of
from prepare.errors import ExitCode
from prepare.events import NullProgress, Progress
from prepare.file_locks import remark_on_work
from prepare.hardware import this_node
from prepare.lots import Needs
from prepare.process_environment import registry_variables
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.source_info import describe_source


def run_model(
    request: ModelRequest,
    settings: Settings,
    progress: Progress,
    run_id: str | None = None,
    *,
    retry: bool = False,
) -> RunReport:
    """Run the request to its end, or join a run.

    A request without a checkpoint means that of the run. `retry` tries failed pieces again.

    PrepareError: the request is invalid, so there is no run. KeyboardInterrupt: after servers are
    stopped and run.json is closed.
    """
    # A store or a copy's number that cannot be used is refused before there is a run.
    store = settings.open_store()
    copy_index()
    joined = JoinedRun(request)
    if run_id is not None:
        joined = join_run(request, run_id, store, retry=retry)
    if joined.ended is not None:
        return joined.ended
    if joined.index:  # it promotes nothing
        for variable in registry_variables(os.environ):
            del os.environ[variable]
    node = this_node()
    if joined.nodes:
        node = node.model_copy(update={"machine": ""})
    choices = choose(joined.request, settings, node)
    if choices.profile.accelerator == "cuda":
        choices = spread_over_gpus(choices, settings)
    accelerator = choices.profile.accelerator
    promotes = joined.request.promote and not joined.index
    signer = find_signer(settings, sign=joined.request.sign) if promotes else None
    run = Run(choices.asked, choices.resolved(), accelerator, settings, progress, joined)
    with run:
        if run_id is None:
            write_request(run.log.folder, joined.request)
        run.exit_code = run_choices(choices, run, signer)
    report = run.log.report()
    if run.log.is_main or report.exit_code:
        return report
    return report.model_copy(update={"status": "running", "exit_code": None})  # the main copy tells


def run_choices(choices: Choice, run: Run, signer: Signer | None = None) -> ExitCode:
    """Find the checkpoint, plan, and finish the plan."""
    settings = run.settings
    is_main = run.log.is_main
    registers = choices.asked.promote and is_main
    early = check_early(choices, settings, run.progress, registers=registers)
    choices = early.choices
    if registers:
        model = Registry(settings.registry_uri(choices.asked.registry)).model(choices.name)
        run.log.update(moves_before=model.last_move if model is not None else 0)
    trusts_code = choices.asked.trust_remote_code
    checkpoints = choices.checkpoints
    locator = Locator(
        choices.profile, settings, run.output_of, run.progress, checkpoints, trusts_code
    )
    located = locator.all(choices)
    checkpoint = describe_source(located.source)
    run.log.update(checkpoint=checkpoint, registered_name=choices.name)
    known = early.preflight
    if known is None or choices.rungs:  # a demo, or weights in 16 bits, which are here by now
        if choices.rungs:
            choices = with_rungs(choices, located.source.recipe_source, run.progress)
        late = survey(choices, settings, NullProgress())
        known = late.preflight
        refuse(late.faults)
    if choices.given_back:
        for name, given in choices.given_back.items():
            run.progress.note(f"{name} gives back {given.words}")
        write_rungs(choices, run.log.folder)
    # Without gates no attempt is made.
    run_id = "" if choices.asked.is_screening else run.log.run_id
    sizes = known.sizes if known is not None else {}
    plan = make_plan(choices, located, settings, early.sources, run_id, sizes)
    check_fitted(plan.policy, choices, located.source, early.sources)
    check_plan(run.log.folder, plan, choices.node.kind(choices.profile.accelerator))
    if known is not None:
        refuse(known.disk_fault(PlanProgress(plan, run.store).made()))
    state = PlanProgress(plan, run.store)
    check_serving(state, run)
    tell_expected_time(state, choices, run, located.source)
    if choices.asked.is_screening:
        if not is_main:
            return ExitCode.SUCCESS
        size = located.source.weights_bytes
        return compare_arms(Servers(run), state, size, ablate=choices.asked.ablate)
    memory = known.memory_to_make() if known is not None else 0
    copies = count_copies(plan, choices, run, memory)
    finish_plan(Servers(run), state, further_copies=copies - 1)
    run.log.take_over()
    if not run.log.is_main:
        return ExitCode.SUCCESS  # the main copy tells what came of it
    if not choices.asked.promote:
        return exit_code_of([report.verdict for report in run.log.variants()])
    return promote_passed(plan, choices, run, signer)


def tell_expected_time(
    state: PlanProgress, choices: Choice, run: Run, checkpoint: Checkpoint
) -> None:
    """Tell runs that wait for this one about how long it takes, unless it is all done."""
    stages = state.stages()
    if state.is_done(stages):
        return
    accelerator = choices.profile.accelerator
    hardware = choices.node.hardware(accelerator)
    expected = expected_run(stages, run.store, hardware, checkpoint, accelerator)
    remark_on_work(f"needs {expected.words}")


def count_copies(plan: Plan, choices: Choice, run: Run, memory: int) -> int:
    """Return how many copies this machine's GPUs can have; one without GPUs.

    `memory` is what making a variant takes, in bytes.
    """
    if run.log.is_numbered or choices.profile.accelerator != "cuda" or not choices.node.machine:
        return 1
    gpus = choices.profile.gpus_a_copy or 1
    lots = run.node.count_lots(Needs(gpus=gpus))
    by_memory = choices.node.memory_bytes // memory if memory else lots
    return max(1, min(lots, by_memory, 1 + len(plan.variants)))


def check_serving(state: PlanProgress, run: Run) -> None:
    """Let the engine parse the arms' arguments, or raise UsageError."""
    planned = state.stages()
    if state.is_done(planned):
        return
    served = [SANITY.parameters_of(s) for s in planned if s.stage == SANITY.name]
    check_engine_arguments(
        [(model.engine, model.serving) for model in served],
        run.python_of,
        run.settings.home / "accepted-arguments",
    )


def promote_passed(plan: Plan, choices: Choice, run: Run, signer: Signer | None) -> ExitCode:
    """Promote a passed variant; return the exit code; raises as `promote`."""
    report_of_run = run.log.report()
    # In the plan's order: the verdicts' order is chance.
    order = [variant.recipe.name for variant in plan.variants]
    passed = sorted(
        (report for report in report_of_run.variants if report.verdict == "pass"),
        key=lambda report: order.index(report.recipe),
    )
    if not passed:
        return exit_code_of([report.verdict for report in report_of_run.variants])
    # A champion that was set during the measurement may not be meant to be replaced.
    registry = run.settings.registry_uri(choices.asked.registry)
    since = report_of_run.moves_before
    request = PromotionRequest(registry, name=choices.name, since=since, signer=signer)
    promoted = promote(report_of_run, passed, run.store, request, run.progress)
    for report in passed:
        is_champion = report.recipe == promoted.champion
        reason = f"{report.reason}{NOT_PREFERRED}{promoted.champion} was {promoted.preferred}"
        changes = {
            "promoted": is_champion,
            "registry_version": promoted.versions[report.recipe],
            "reason": report.reason if is_champion else reason,
        }
        run.log.note_variant(report.model_copy(update=changes))
    return ExitCode.SUCCESS
