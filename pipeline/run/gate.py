"""Judges two external endpoints as `prepare model` judges a variant.

Nothing is quantized, served or promoted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from artifacts.requests import GateRequest
from artifacts.run_record import ResolvedOptions, RunReport
from eval_gates.suites.suite_kind import refuse_untried, without_uncontained
from pipeline.environments.definition import LOAD_GENERATOR, SUITE_ASKER
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.build import Builder
from pipeline.plan.choice import check_margins, find_gates
from pipeline.plan.data_sources import SourceResolver, check_known_clusters
from pipeline.plan.generation_settings import resolve_generation, with_lengths
from pipeline.plan.plan import Arm, Plan, PlanProgress
from pipeline.plan.speed_plan import find_speed_gates
from pipeline.preflight.generation_faults import form_notes, generation_faults
from pipeline.preflight.power import check_power
from pipeline.preflight.survey import refuse
from pipeline.run.loop import finish_plan
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from pipeline.serving.served_model import ExternalModel, ServedModel
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.verdict import exit_code_of
from prepare.digest import FileDigests, digest_json
from prepare.errors import PrepareError, UsageError
from prepare.events import Progress
from prepare.hardware import NodeInfo, this_node
from recipes.accelerator import Accelerator
from recipes.catalog import load_policy
from recipes.checkpoints.chat_template import UNKNOWN_TEMPLATE, ModelGeneration, folder_generation
from recipes.checkpoints.folder import SMALL_FILES
from recipes.policy import Policy
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import FAMILIES, Family, Recipe

APIS = ("auto", "completions", "chat")


@dataclass(frozen=True)
class GateChoice:
    """A request with its endpoints; `tokenizer` and `eval_data` are absolute paths."""

    asked: GateRequest
    baseline: OpenAIEndpoint
    candidate: OpenAIEndpoint
    family: Family
    tokenizer: Path | None  # needed for text completions
    eval_data: Path | None

    @property
    def by_chat(self) -> bool:
        """Whether both are asked by chat."""
        return self.asked.by_chat

    def resolved(self) -> ResolvedOptions:
        """Return what the run's record says of it."""
        return ResolvedOptions(
            checkpoint=f"{self.candidate.url} against {self.baseline.url}",
            recipes=("candidate",),
            policy=self.asked.policy,
            profile=f"endpoints, margins for {self.family}",
            asked_by="by the chat API" if self.by_chat else "",
        )


def choose_endpoints(request: GateRequest) -> GateChoice:
    """Return the request's endpoints; UsageError for an unknown family or API."""
    family = next((name for name in FAMILIES if name == request.family), None)
    if family is None:
        raise UsageError(
            f"there is no family '{request.family}'",
            where="--family",
            hint=f"known: {', '.join(FAMILIES)}",
        )
    if request.api not in APIS:
        raise UsageError(
            f"there is no API '{request.api}'", where="--api", hint=f"known: {', '.join(APIS)}"
        )
    tokenizer = request.tokenizer.expanduser().resolve() if request.tokenizer else None
    eval_data = request.eval_data.expanduser().resolve() if request.eval_data else None
    return GateChoice(
        asked=replace(request, tokenizer=tokenizer, eval_data=eval_data),
        baseline=OpenAIEndpoint.from_url(request.baseline, request.baseline_model),
        candidate=OpenAIEndpoint.from_url(request.candidate, request.candidate_model),
        family=family,
        tokenizer=tokenizer,
        eval_data=eval_data,
    )


def run_gate(request: GateRequest, settings: Settings, progress: Progress) -> RunReport:
    """Judge the candidate against the baseline; `exit_code` is 0 pass, 4 fail, 5 undecided.

    PrepareError: the request is invalid, or an endpoint cannot answer; nothing is stored.
    """
    refuse_given(request, ("leave_out", "weights", "on_fail"), "is about answers on record")
    choice = choose_endpoints(request)
    wanted, left_out = without_uncontained(check_policy(choice))
    model = model_of(choice, wanted)
    choice = resolve_models(choice)
    for side, endpoint in (("baseline", choice.baseline), ("candidate", choice.candidate)):
        if endpoint.adapts:
            refuse_untried(wanted, f"a LoRA adapter of {endpoint.adapts}", f"--{side}-model")
        if wanted.gates_on(None):
            endpoint.check_stream()
    refuse(generation_faults(wanted, model, length_of(choice)))
    # The accelerator of an external server does not matter for the questions.
    run = Run(choice.asked, choice.resolved(), Accelerator.CPU, settings, progress)
    with run:
        if choice.by_chat:
            run.progress.note("both endpoints are asked by the chat API")
        for note in (*left_out, *form_notes(wanted, model)):
            run.progress.note(note)
        policy = resolve_generation(wanted, model)
        policy = with_lengths(policy, length_of(choice), run.progress.note)
        node = this_node()  # this node's load generator loads them
        plan = plan_of(choice, policy, settings, run.log.run_id, run.progress, node)
        finish_plan(Servers(run), PlanProgress(plan, run.store))
        (report,) = run.log.variants()
        run.exit_code = exit_code_of([report.verdict])
    return run.log.report()


def refuse_given(request: GateRequest, names: Collection[str], why: str) -> None:
    """Raise UsageError for the first of these options that was given."""
    defaults = {field.name: field.default for field in dataclasses.fields(request)}
    for name in names:
        if getattr(request, name) != defaults[name]:
            flag = request.options()[name].flag
            raise UsageError(
                f"the option {flag} {why}", where=flag, hint="leave it out, and run the rest again"
            )


def model_of(choice: GateChoice, policy: Policy) -> ModelGeneration:
    """Return what is known of the models' template."""
    model = ModelGeneration("the endpoints' own templates")
    if choice.tokenizer:
        model = folder_generation(choice.tokenizer)
    faults: list[PrepareError] = []
    if choice.by_chat:  # the endpoint has a template, which may be unknown here
        model = replace(model, template=model.template or UNKNOWN_TEMPLATE)
        faults += [
            UsageError(
                f"the suite '{name}' is text to continue, and the chat API takes messages",
                where=f"policy key suites.{name}.prompt_format",
                hint="write 'prompt_format: auto' there, or give endpoints with text completions "
                "and --tokenizer",
            )
            for name, suite in policy.suites.items()
            if suite.prompt_format == "completion"
        ]
    refuse([*faults, *generation_faults(policy, model, choice.asked.max_length)])
    return model


def plan_of(
    choice: GateChoice,
    policy: Policy,
    settings: Settings,
    run_id: str,
    progress: Progress,
    node: NodeInfo,
) -> Plan:
    """Return the plan of suites and speed gates."""
    identities = {SUITE_ASKER: identity(SUITE_ASKER, Accelerator.CPU, settings)}
    if policy.speed:
        identities[LOAD_GENERATOR] = identity(LOAD_GENERATOR, Accelerator.CPU, settings)
    sources = SourceResolver(choice.eval_data, identities[SUITE_ASKER], settings.digests, progress)
    sources.note_unread(policy)
    asked_as = {
        "deployment_id": choice.asked.deployment_id or run_id,
        "tokenizer": tokenizer_digest(choice.tokenizer, settings.digests)
        if choice.tokenizer
        else "",
    }
    baseline, candidate = (
        Arm(
            recipe=recipe,
            # A model that is judged against itself is asked twice, as each side.
            identity=ServedModel(
                endpoint=ExternalModel(
                    side=recipe.name,
                    url=endpoint.url,
                    model=endpoint.model,
                    chat=choice.by_chat,
                    **asked_as,
                )
            ),
            folder=choice.tokenizer or Path(),
            max_length=length_of(choice),
        )
        for recipe, endpoint in (
            (served_recipe("baseline", "baseline"), choice.baseline),
            (served_recipe("candidate", choice.family), choice.candidate),
        )
    )
    plan = Builder(
        policy=policy,
        baseline=baseline,
        variants=[candidate],
        # Not the URL: its port differs each time, and so would the baseline.
        reference={"model": choice.baseline.model, "tokenizer": asked_as["tokenizer"]},
        sources=sources,
        identities=identities,
        store=settings.store,
        machine=node.machine,
        run=run_id,
        remeasured=find_gates(choice.asked.remeasure, policy, None),
    ).build()
    known = sources.known_of(policy)
    check_known_clusters(policy, sources, progress)
    check_power(policy, (candidate.recipe,), known, plan.trial.level)
    AttemptLedger(settings.open_store()).check_allowed(plan.trial)
    return plan


def served_recipe(name: str, family: Family | Literal["baseline"]) -> Recipe:
    """Return the recipe of an endpoint's model."""
    return Recipe(
        name=name,
        summary="served by someone else",
        family=family,
        quantization=NoQuantization(),
    )


def tokenizer_digest(folder: Path, digests: FileDigests) -> str:
    """Return the digest of files that decide a prompt's tokens."""
    files = {path for pattern in SMALL_FILES for path in folder.glob(pattern) if path.is_file()}
    return digest_json([[path.name, digests.digest(path)] for path in sorted(files)])


def length_of(choice: GateChoice) -> int:
    """Return the limit for prompt and answer in tokens."""
    return choice.asked.max_length or min(choice.baseline.max_length, choice.candidate.max_length)


def check_policy(choice: GateChoice) -> Policy:
    """Return the policy, with margins for that family."""
    policy = load_policy(choice.asked.policy)
    check_margins(served_recipe("candidate", choice.family), policy)
    refuse_unjudged_ratios(policy)
    find_speed_gates(policy, None)
    find_gates(choice.asked.remeasure, policy, None)
    if choice.asked.remeasure and choice.asked.deployment_id is None:
        raise UsageError(
            "without a deployment id everything is asked again: there is no gate to remeasure",
            where="--remeasure",
            hint="name the id of the answers with --deployment-id",
        )
    if choice.tokenizer is None and not choice.by_chat:
        raise UsageError(
            "text completions are asked with token ids, which need the models' tokenizer",
            where="--api completions",
            hint="name its folder with --tokenizer, or take --api auto",
        )
    if choice.tokenizer is None and policy.gates_on(None):
        raise UsageError(
            "performance gates send text completions, whose prompts need the models' tokenizer",
            where="policy key speed",
            hint="name the tokenizer's folder with --tokenizer, or take a policy without 'speed': "
            f"`prepare show {choice.asked.policy} > mine.yaml`, and remove the key",
        )
    if choice.tokenizer and not (choice.tokenizer / "tokenizer_config.json").is_file():
        raise UsageError(
            "there is no tokenizer in that folder",
            where=f"--tokenizer {choice.tokenizer}",
            hint="name the checkpoint's folder: it holds tokenizer_config.json and tokenizer.json",
        )
    return policy


def refuse_unjudged_ratios(policy: Policy) -> None:
    """Raise UsageError for a throughput ratio that endpoints would not be judged by."""
    ratio = policy.speed.ratio if policy.speed is not None else None
    if ratio is not None and not ratio.is_about(None):
        known = ", ".join(f"{name}: {least:g}" for name, least in ratio.min_ratio.items())
        raise UsageError(
            "the hardware of endpoints is unknown, so they are judged by the smallest ratio for "
            "GPUs, and the policy has none",
            where="policy key speed.ratio.min_ratio",
            hint=f"write 'min_ratio: {{{known}, cuda: 0.95}}', or remove 'ratio', and 'speed' if "
            "it has no 'slo'",
        )


def resolve_models(choice: GateChoice) -> GateChoice:
    """Return the choice with the endpoints' model names."""
    if choice.baseline.url == choice.candidate.url and not (
        choice.baseline.model and choice.candidate.model
    ):
        raise UsageError(
            "baseline and candidate are the same endpoint",
            where=f"--baseline and --candidate {choice.baseline.url}",
            hint="name two endpoints; of one that serves both, name the models with "
            "--baseline-model and --candidate-model",
        )
    return replace(
        choice,
        baseline=choice.baseline.resolve_model(),
        candidate=choice.candidate.resolve_model(),
    )
