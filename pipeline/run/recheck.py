"""`prepare recheck`: judges a registered version on the present deployable tuple.

A verdict is about a tuple. If no member has changed, the verdict stands and nothing is measured.
Kernels are known, and compared, only if a server is started.
Else baseline and registered weights are served and measured as in `prepare model`, by the same
policy; nothing is quantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.deploy.deployment import check_files, find_version, folder_of
from artifacts.deploy.recheck_record import RecheckRecord, rechecks_of, record_of, stands
from artifacts.deploy.recorded_verdict import RecordedVerdict, read_past, refuse_code
from artifacts.deployable import Deployable, TupleDifference
from artifacts.evidence.verify import claims_of
from artifacts.multiple_testing import exit_code_of
from artifacts.registry import Registry, Version
from artifacts.run_record import RunReport, VariantReport
from artifacts.verdict_inputs import VerdictInputs
from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.errors import ExitCode, UsageError
from pipeline.core.events import Progress
from pipeline.core.hardware import NodeInfo, this_node
from pipeline.core.stage_record import StageSpec
from pipeline.environments.environment import Accelerator, ensure, identity
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import served_profile
from pipeline.plan.checkpoint_resolver import locate_draft
from pipeline.plan.resolved_options import find_gates, registry_uri
from pipeline.plan.serving_profile import choose_profile, refuse_unfit
from pipeline.plan.suitability import check_processor
from pipeline.run.remeasurement import Remeasurement, cut_short
from pipeline.run.session import RunSession
from pipeline.serving.engine_version import engine_version
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.attempts import Remeasured
from recipes.engines import find_engine
from recipes.schema import ServingProfile

WEIGHTS_COMMAND = "prepare recheck {reference} --weights FOLDER"


@dataclass(frozen=True)
class RecheckRequest:
    """The options of `prepare recheck`, as given."""

    reference: str
    registry: str | None = None
    weights: Path | None = None
    source: str | None = None
    profile: str | None = None
    eval_data: Path | None = None
    force: bool = False
    remeasured: tuple[str, ...] = ()  # gates
    trust_remote_code: bool = False

    def as_options(self) -> dict[str, str | bool | None]:
        return {
            "profile": self.profile,
            "source": self.source,
            "weights": str(self.weights) if self.weights else None,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass(frozen=True)
class RecheckOutcome:
    """What a recheck came to."""

    version: Version  # that was rechecked
    past: RecordedVerdict  # its verdict
    changed: tuple[TupleDifference, ...]  # members of the tuple that differ here
    # The run that measured; None where nothing had to be measured.
    report: RunReport | None = None
    # An earlier recheck of this very tuple, which did not stand.
    refuted: RecheckRecord | None = None

    @property
    def now(self) -> VariantReport | None:
        """The new verdict; None if nothing was measured, or the run failed before it."""
        return self.report.variants[0] if self.report and self.report.variants else None

    @property
    def stands(self) -> bool | None:
        """Whether the version's verdict holds here; None if unknown."""
        if self.report is None:
            return self.refuted is None
        return stands(self.past.bundle.variant.verdict, self.now.verdict) if self.now else None

    @property
    def run(self) -> str | None:
        if self.report is not None:
            return self.report.run
        return self.refuted.run if self.refuted else None

    @property
    def exit_code(self) -> int:
        if self.report is None:
            return exit_code_of([self.refuted.verdict]) if self.refuted else ExitCode.SUCCESS
        code = self.report.exit_code
        return ExitCode.UNEXPECTED if code is None else code

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "name": self.version.name,
            "version": self.version.version,
            "recipe": self.past.bundle.recipe,
            "changed": [change.to_dict() for change in self.changed],
            "measured": self.report is not None,
            "stands": self.stands,
            "exit_code": self.exit_code,
            "then": self.past.bundle.variant.model_dump(mode="json"),
            "now": self.now.model_dump(mode="json") if self.now else None,
            "run": self.run,
            "error": self.report.error if self.report else None,
        }


def run_recheck(request: RecheckRequest, settings: Settings, progress: Progress) -> RecheckOutcome:
    """Compare, and measure if something changed.

    Returns:
        the outcome; an error of the measurement is in its report.

    Raises:
        PrepareError: the version, its files or its evidence are unavailable or invalid, or
            this machine cannot measure it.
    """
    registry = Registry(registry_uri(request.registry, settings))
    version = find_version(registry, request.reference)
    folder = folder_of(version, request.weights, settings.store, WEIGHTS_COMMAND)
    check_files(version, folder, settings.digests, public_key=settings.signing.public_key)
    past = read_past(version, folder)
    if not request.trust_remote_code:
        refuse_code(version, past)
    node = this_node()
    if request.profile:
        profile = choose_profile(request.profile, node)
        if profile.accelerator == "cuda" and profile.gpus_a_copy is None:
            profile = profile.spread_as(past.profile)
    else:
        profile = past.profile
    profile = served_profile(profile, past.recipe)
    refuse_without_gpu(profile, node, request)
    if profile.accelerator == "cpu":
        check_processor(profile, node.cpu_features)
    refuse_unfit(profile, request.profile or profile.name)
    draft = locate_draft(
        profile,
        settings,
        find_made(settings),
        progress,
        trust_remote_code=request.trust_remote_code,
    )
    here = deployable_here(past, profile, node, draft, settings, progress)
    changed = changes(version, past, here)
    gates = frozenset(find_gates(request.remeasured, past.policy, profile.accelerator))
    if not changed and not request.force and not gates:
        of_this = [each for each in rechecks_of(version) if each.tuple_digest == here.digest]
        refuted = next((each for each in of_this if not each.stands), None)
        return RecheckOutcome(version, past, changed, refuted=refuted)
    for change in changed:
        progress.note(f"changed: {change}")
    speed, runs = past.policy.speed, frozenset[str]()
    if request.force:
        gates = frozenset([*past.policy.suites, *(speed.tiers if speed is not None else ())])
        runs = cut_short(settings.open_store(), request.registry, version)
    measurement = Remeasurement(
        version=version,
        registry=request.registry,
        past=past,
        folder=folder,
        source=request.source or past.source,
        profile=profile,
        node=node,
        eval_data=request.eval_data,
        # Where nothing changed, the verdict depends on the first measurement of what is here.
        remeasured=Remeasured(gates, runs, least=1 if changed else 2),
        draft=draft,
    )
    choices = measurement.choices()
    command = measurement.command(choices, list(map(str, changed)))
    command["force"] = request.force
    command["remeasured"] = list(request.remeasured)
    command["requested"] = request.as_options()
    accelerator = Accelerator(profile.accelerator)
    session = RunSession("recheck", command, accelerator, settings, progress)

    differing = [*changed]

    def measure() -> ExitCode:
        measurement.run(choices, session)
        (report,) = session.log.variants()
        kernels = measured_kernels(session)
        for change in past.deployable.kernel_differences(kernels or {}) if kernels else ():
            progress.note(f"changed: {change}")
            differing.append(change)
        served = here.model_copy(update={"kernels": kernels})
        record = record_of(past, served, differing, report, session.log.run_id)
        if record is not None:
            registry.set_tags(version.name, version.version, record.tags())
        return exit_code_of([report.verdict])

    report = session.run(measure)
    return RecheckOutcome(version, past, tuple(differing), report)


def measured_kernels(session: RunSession) -> dict[str, str] | None:
    """Return the kernels of the server that the run measured; None if not known.

    Raises:
        EvidenceError: a record is incomplete.
    """
    store, judges = session.stages.store, claims_of(session.log.report()).judges
    for key in judges.values():
        return VerdictInputs.load_by_key(store.find, key).deployable(store.find).kernels
    return None


def refuse_without_gpu(profile: ServingProfile, node: NodeInfo, request: RecheckRequest) -> None:
    """Raise UsageError before a GPU environment is built for a node without one."""
    if profile.accelerator == "cuda" and node.gpu_name is None:
        raise UsageError(
            "it was judged on a GPU, and this machine has none"
            if request.profile is None
            else f"the profile '{profile.name}' is for a GPU, and this machine has none",
            where="--profile",
            hint="run it on the machine that is to serve, or name that of this machine: "
            "--profile cpu",
        )


def deployable_here(
    past: RecordedVerdict,
    profile: ServingProfile,
    node: NodeInfo,
    draft: Checkpoint | None,
    settings: Settings,
    progress: Progress,
) -> Deployable:
    """Return the node's deployable tuple; build the serving environment here."""
    accelerator = Accelerator(profile.accelerator)
    serve = ensure(find_engine(profile.engine).environment, accelerator, settings, progress)
    return past.deployable.model_copy(
        update={
            "engine_version": engine_version(profile.engine, serve.python),
            "serve_environment": serve.identity,
            "evaluate_environment": identity("evaluate", accelerator, settings),
            "serving": ServingArguments.of(
                profile, is_baseline=False, draft=draft.digest if draft else None
            ),
            "hardware": node.hardware(profile.accelerator),
        }
    )


def find_made(settings: Settings) -> Callable[[StageSpec], Path]:
    """Return a lookup of made demo checkpoints: nothing is made before a change is known."""

    def find(spec: StageSpec) -> Path:
        store = settings.open_store()
        if store.find(spec.stage, spec.key) is None:
            raise UsageError(
                "the demo that drafts is not made yet",
                where="key speculative.model",
                hint="`prepare model` with this profile makes it",
            )
        return store.stage_folder(spec.stage, spec.key) / "output"

    return find


def changes(
    version: Version, past: RecordedVerdict, here: Deployable
) -> tuple[TupleDifference, ...]:
    """Return the differences from the tags or the evidence, which normally agree."""
    found = [*Deployable.of_tags(version).differences(here), *past.deployable.differences(here)]
    return tuple({change.member: change for change in reversed(found)}.values())[::-1]
