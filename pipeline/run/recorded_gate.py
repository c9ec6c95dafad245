"""Judges an endpoint against answers on record: is the model still what was promoted?

Nothing of the record is served or asked. Its evidence gives policy, questions, lengths and margins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from artifacts.deploy.on_fail import FailedCheck, Rollback
from artifacts.registry import Registry
from artifacts.requests import GateRequest
from artifacts.run_record import ResolvedOptions, RunReport
from eval_gates.suites.suite_kind import refuse_untried
from pipeline.environments.definition import SUITE_ASKER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.build import Builder
from pipeline.plan.choice import find_gates
from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.plan import Arm, Plan, PlanProgress
from pipeline.plan.recorded_arm import ARM, RecordedArm, open_record
from pipeline.preflight.power import check_power
from pipeline.run.gate import refuse_given, served_recipe, tokenizer_digest
from pipeline.run.loop import finish_plan
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.serving.openai_endpoint import DEFAULT_MAX_LENGTH, OpenAIEndpoint
from pipeline.serving.served_model import ExternalModel, ServedModel
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.verdict import exit_code_of
from prepare.digest import FileDigests
from prepare.errors import ServingError, UsageError
from prepare.events import Progress
from prepare.hardware import this_node
from recipes.accelerator import Accelerator
from recipes.policy import Policy
from recipes.schema import Family

TOKENIZER_FILES = ("tokenizer*", "chat_template*", "vocab*", "merges*", "special_tokens*")
OF_THE_RECORD = ("policy", "family", "eval_data", "max_length", "baseline_model")


@dataclass(frozen=True)
class RecordedChoice:
    """A request with its record, endpoint and tokenizer."""

    asked: GateRequest
    record: RecordedArm
    candidate: OpenAIEndpoint
    tokenizer: Path | None  # None by chat

    @property
    def policy(self) -> Policy:
        return self.record.policy

    @property
    def family(self) -> Family:
        return self.record.judged.family

    def resolved(self) -> ResolvedOptions:
        """Return what the run's record says of it."""
        return ResolvedOptions(
            checkpoint=f"{self.candidate.url} against {self.record.parameters.origin}, on record",
            recipes=("candidate",),
            policy=self.policy.name,
            profile=f"an endpoint, margins for {self.family}",
            asked_by="by the chat API" if self.record.by_chat else "",
        )


def run_recorded_gate(request: GateRequest, settings: Settings, progress: Progress) -> RunReport:
    """Judge the candidate against the record; `exit_code` is 0 pass, 4 fail, 5 undecided.

    PrepareError: the request or the evidence is invalid, or the endpoint cannot answer.
    """
    refuse_given(request, OF_THE_RECORD, "would change what is on record")
    registry = Registry(settings.registry_uri(request.registry))
    with TemporaryDirectory(prefix="prepare-recorded-") as scratch:
        record = open_record(request.baseline, registry, request.weights, settings, Path(scratch))
        sources = SourceResolver(
            None, identity(SUITE_ASKER, Accelerator.CPU, settings), settings.digests, progress
        )
        rollback = None
        if request.on_fail == "rollback":
            checked = record.parameters.origin.rpartition("@")[2]
            rollback = Rollback.of(registry, request.baseline, checked)
        record = leave_out(record, request.leave_out, sources, settings)
        choice = choose(request, record, settings.digests)
        run = Run(choice.asked, choice.resolved(), Accelerator.CPU, settings, progress)
        with run:
            tell(choice, run)
            plan = plan_of(choice, settings, sources, run)
            finish_plan(Servers(run), PlanProgress(plan, run.store))
            (report,) = run.log.variants()
            if rollback is not None and report.verdict == "fail":
                judge = run.log.report().judges.get(report.recipe, "")
                failed = FailedCheck(run.log.run_id, judge, report.reason)
                rollback.move_back(failed, run.progress.note)
            run.exit_code = exit_code_of([report.verdict])
    return run.log.report()


def leave_out(
    record: RecordedArm, wanted: Sequence[str], sources: SourceResolver, settings: Settings
) -> RecordedArm:
    """Return the record without suites that cannot be compared and that the user leaves out.

    UsageError: one was not named, or could be compared.
    """
    suites = record.judged.policy.suites
    lacking = dict(record.lacking(settings.open_store(), sources))
    for name in wanted:
        if name not in lacking:
            is_known = name in suites
            raise UsageError(
                f"the suite '{name}' can be compared: it decides, as it did then"
                if is_known
                else f"the recorded policy has no suite '{name}'",
                where=f"--leave-out {name}",
                hint="only suites whose recorded answers cannot be read are left out: "
                f"{', '.join(lacking) or 'here there are none'}",
            )
    for name, why in lacking.items():
        if name not in wanted:
            raise UsageError(
                f"the suite '{name}' cannot be compared: {why}",
                where=f"--baseline {record.parameters.origin}",
                hint="run where the store that made it can be read; or leave the suite out: "
                f"--leave-out {name}; the verdict then says so",
            )
    left = record.without(wanted)
    if not any(suite.tier == "critical" for suite in left.policy.suites.values()):
        raise UsageError(
            "no critical suite is left to compare",
            where="--leave-out",
            hint="run where the store that made the record can be read",
        )
    return left


def choose(request: GateRequest, record: RecordedArm, digests: FileDigests) -> RecordedChoice:
    """Return the request with its endpoint and tokenizer.

    UsageError: another form, or no tokenizer. ServingError: the endpoint takes less.
    """
    form = "chat" if record.by_chat else "completions"
    if request.api not in ("auto", form):
        raise UsageError(
            f"the recorded answers were asked by {form}",
            where=f"--api {request.api}",
            hint="leave it out",
        )
    tokenizer = None if record.by_chat else find_tokenizer(request, record, digests)
    candidate = OpenAIEndpoint.from_url(request.candidate, request.candidate_model).resolve_model()
    told = candidate.max_length
    if told < record.facts.max_length and told != DEFAULT_MAX_LENGTH:
        raise ServingError(
            f"the endpoint takes {told:,} tokens of prompt and answer, and the record has up to "
            f"{record.facts.max_length:,}",
            where=request.candidate,
            hint="serve it with the recorded length (vLLM: --max-model-len)",
        )
    if candidate.adapts:
        what = f"a LoRA adapter of {candidate.adapts}"
        refuse_untried(record.policy, what, "--candidate-model")
    if request.remeasure and request.deployment_id is None:
        raise UsageError(
            "without a deployment id everything is asked again: there is no gate to remeasure",
            where="--remeasure",
            hint="name the id of the answers with --deployment-id",
        )
    asked = replace(request, tokenizer=tokenizer)
    return RecordedChoice(asked, record, candidate, tokenizer)


def find_tokenizer(request: GateRequest, record: RecordedArm, digests: FileDigests) -> Path:
    """Return the tokenizer's folder: that of the recorded weights, or the given one."""
    given = request.tokenizer.expanduser().resolve() if request.tokenizer else None
    folder = given or record.tokenizer
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        raise UsageError(
            "the tokenizer of the recorded answers is not on this machine",
            where=f"--tokenizer {folder or ''}".rstrip(),
            hint="name the folder of the checkpoint that was asked: it holds "
            "tokenizer_config.json and tokenizer.json",
        )
    if given is not None and (fault := find_other_tokenizer(given, record, digests)):
        raise UsageError(
            f"the tokenizer is not that of the recorded answers: {fault}",
            where=f"--tokenizer {given}",
            hint="leave the option out where the record's own is on this machine, or name the "
            "earlier folder",
        )
    return folder


def find_other_tokenizer(given: Path, record: RecordedArm, digests: FileDigests) -> str:
    """Return how a given tokenizer differs from the recorded one, as far as that is known."""
    endpoint = record.facts.served.endpoint
    if endpoint is not None and endpoint.tokenizer:
        digest = tokenizer_digest(given, digests)
        return "" if digest == endpoint.tokenizer else "its files are others"
    if record.tokenizer is None:
        return ""
    names = {
        path.name
        for folder in (given, record.tokenizer)
        for pattern in TOKENIZER_FILES
        for path in folder.glob(pattern)
    }
    for name in sorted(names):
        files = [folder / name for folder in (record.tokenizer, given)]
        contents = [file.read_bytes() if file.is_file() else None for file in files]
        if contents[0] != contents[1]:
            return f"{name} is another"
    return ""


def tell(choice: RecordedChoice, run: Run) -> None:
    """Note what is compared with what."""
    engine = choice.candidate.tell_engine()
    for words in (
        *words_of_record(choice.record),
        f"candidate: {engine or 'an engine that does not tell its version'}",
    ):
        run.progress.note(words)


def words_of_record(record: RecordedArm) -> Iterator[str]:
    """Yield what is on record, and what of it is not compared."""
    then = record.facts
    served = f"engine {then.engine_version}" if then.engine_version else "an unknown engine"
    yield f"on record: {record.parameters.origin}, asked on {served}; nothing of it is served"
    for name in record.parameters.left_out:
        yield f"{name} is left out, as you asked: it is not compared"
    if (speed := record.judged.policy.speed) is not None:
        gates = ", ".join(speed.tiers)
        yield f"{gates}: left out, since speed is measured on two living servers"


def plan_of(choice: RecordedChoice, settings: Settings, sources: SourceResolver, run: Run) -> Plan:
    """Return the plan of the record and one endpoint."""
    record = choice.record
    policy = choice.policy
    folder = choice.tokenizer or Path()
    digest = tokenizer_digest(choice.tokenizer, settings.digests) if choice.tokenizer else ""
    endpoint = ExternalModel(
        side="candidate",
        url=choice.candidate.url,
        model=choice.candidate.model,
        chat=record.by_chat,
        deployment_id=choice.asked.deployment_id or run.log.run_id,
        tokenizer=digest,
    )
    baseline = Arm(
        recipe=served_recipe(ARM, "baseline"),
        identity=record.facts.served,
        folder=folder,
        max_length=record.facts.max_length,
        recorded=record,
    )
    candidate = Arm(
        recipe=served_recipe("candidate", choice.family),
        identity=ServedModel(endpoint=endpoint),
        folder=folder,
        max_length=record.facts.max_length,
    )
    plan = Builder(
        policy=policy,
        baseline=baseline,
        variants=[candidate],
        reference=record.reference,
        sources=sources,
        identities={SUITE_ASKER: sources.environment},
        store=settings.store,
        machine=this_node().machine,
        run=run.log.run_id,
        remeasured=find_gates(choice.asked.remeasure, policy, None),
    ).build()
    check_power(policy, (candidate.recipe,), record.known(), plan.trial.level)
    AttemptLedger(settings.open_store()).check_allowed(plan.trial)
    return plan
