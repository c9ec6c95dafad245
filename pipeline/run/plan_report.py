"""A dry plan of `prepare model`.

Weights are hashed last: cached stages are unknown before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from artifacts.requests import ModelRequest
from eval_gates.gate_result import format_percent
from pipeline.environments.environment import EnvironmentStatus, status
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice, choose
from pipeline.plan.generation_settings import resolve_generation
from pipeline.plan.locator import Locator, demo_stage
from pipeline.plan.model_plan import make_plan
from pipeline.plan.plan import PlanProgress
from pipeline.plan.rungs import with_rungs
from pipeline.plan.serving_profile import draft_reference
from pipeline.preflight.chances import GatePower
from pipeline.preflight.durations import Expected, add_up
from pipeline.preflight.gpu_fit import spread_over_gpus
from pipeline.preflight.power import policy_power, recheck_notes
from pipeline.preflight.speed_power import BlockNoise, speed_power
from pipeline.preflight.survey import check_fitted, line, refusal, survey
from pipeline.run.expected_times import (
    SERVER,
    PlannedStage,
    assume_whole_run,
    median_seconds,
    planned_stages,
    seen_seconds,
)
from pipeline.stages.attempts import AttemptLedger
from pipeline.stages.speed import SPEED
from prepare.errors import ExitCode, HubError, PrepareError
from prepare.events import Progress
from prepare.hardware import this_node
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.hub import bytes_to_download
from recipes.checkpoints.weight_files import weight_files

DEMO_PARAMETERS = 134_515_008
HASHED_BYTES = 2 * 10**9  # at 250 MB/s and more, below 8 s
MIN_NOISE_BLOCKS = 6  # fewer values show too little of a spread
HASH_RATE = 250e6  # bytes a second


class NotHereError(Exception):
    """The checkpoint is not here or not hashed, so later stages have no key."""


@dataclass(frozen=True)
class PlanReport:
    """All that `prepare plan` reports."""

    choices: Choice
    checkpoint: Checkpoint | None  # None: refused, or not here
    stages: tuple[PlannedStage, ...]
    power: tuple[GatePower, ...]  # of the suites, then of the speed gates
    environments: tuple[EnvironmentStatus, ...]
    weights_bytes: dict[str, int]  # by variant; empty if unknown
    not_here: str  # why later stages are unknown
    source_bytes: int
    forms: dict[str, str]  # by suite, how it is asked
    faults: tuple[PrepareError, ...]
    exit_code: ExitCode  # of `prepare model`, if it would refuse to begin
    attempt: str
    order: tuple[str, ...]  # of a descent, from the largest down; empty if all are asked
    notes: tuple[str, ...]
    whole_run: tuple[Expected, ...]  # of every stage, by the model's size

    def to_dict(self) -> dict[str, Any]:
        checkpoint = self.checkpoint
        return {
            "schema_version": 1,
            "request": self.choices.asked.to_dict(),
            "resolved": self.choices.resolved().model_dump(mode="json"),
            "checkpoint": checkpoint.to_dict() if checkpoint else None,
            "estimated_weights_bytes": self.weights_bytes,
            "stages": [asdict(stage) for stage in self.stages],
            "forms": self.forms,
            "order": list(self.order),
            "given_back": {name: asdict(g) for name, g in self.choices.given_back.items()},
            "gates": [asdict(gate) for gate in self.power],
            "environments": [
                {"environment": env.key, "state": str(env.state), "size_bytes": env.size_bytes}
                for env in self.environments
            ],
            "expected_seconds": asdict(self.expected()),
            "refused": [fault.to_dict() for fault in self.faults],
            "not_here": self.not_here,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        name = self.choices.reference.text
        if (c := self.checkpoint) is not None:
            yield (
                f"{c.ref}: {c.architecture}, {c.parameters / 1e6:,.0f} M parameters, {c.dtype}, "
                f"{c.weights_bytes / 1e6:,.1f} MB, digest {c.digest[:12]}"
            )
        elif self.faults:
            yield f"{name}: refused"
        else:
            later = "what is cached of the later stages is known after that"
            yield f"{name}: {self.not_here}; {later}"
        yield from (f"would be refused: {line(fault)}" for fault in self.faults)
        yield f"policy {self.choices.policy.name}, profile {self.choices.profile.name}"
        for variant, size in self.weights_bytes.items():
            share = f"{100 * size / self.source_bytes:.0f} % of the source"
            yield f"{variant}: {size / 1e6:,.1f} MB, {share}"
            if given := self.choices.given_back.get(variant):
                yield f"  gives back {given.words}"
        if self.choices.asked.until_pass and len(self.choices.recipes) > 1:
            names = ", then ".join(self.order) or "the variants"
            yield (
                f"--until pass: {names}, from the largest down, each with an error rate of "
                f"{format_percent(self.choices.level, 1)}; it ends at the first that does not "
                "pass, and the last that passed is promoted"
            )

    def last_lines(self) -> Iterator[str]:
        if self.attempt:
            yield self.attempt
        if missing := [env.key for env in self.environments if env.state in ("missing", "broken")]:
            yield f"environments to build first: {', '.join(missing)}"
        yield from (f"note: {note}" for note in self.notes)
        if not (self.faults or self.not_here):
            to_run = sum(not stage.cached for stage in self.stages)
            stages = f"{to_run} stage{'s' if to_run != 1 else ''} to run"
            yield f"{stages}, {len(self.stages) - to_run} cached; {self.expected().words}"
        elif not self.faults:
            yield f"the whole run takes {self.expected().words}, if nothing of it is cached"

    def expected(self) -> Expected:
        """Sum over the stages to run; where they are not known yet, over all of a whole run."""
        if self.not_here:
            return add_up(self.whole_run)
        return add_up(stage.expected for stage in self.stages if not stage.cached)


def forecast(
    request: ModelRequest, settings: Settings, progress: Progress, *, hash_all: bool = False
) -> PlanReport:
    """Plan the request and look up what is cached; no stage is run.

    `hash_all` hashes weights of any size. PrepareError: bad options.
    """
    choices = choose(request, settings, this_node())
    if choices.profile.accelerator == "cuda":
        choices = spread_over_gpus(choices, settings)
    store = settings.open_store()
    profile = choices.profile
    early = survey(choices, settings, progress, registers=choices.asked.promote)
    choices = early.choices
    tried = choices.recipes
    faults = list(early.faults)
    preflight = early.preflight
    sources = early.sources
    policy = choices.policy
    if preflight is not None:
        policy = resolve_generation(policy, preflight.source.generation)
    checkpoint: Checkpoint | None = None
    not_here = ""
    attempt = ""
    specs = list[StageSpec]()
    level = choices.level
    order: tuple[str, ...] = ()

    def find_made(spec: StageSpec) -> Path:
        if store.find(spec.stage, spec.key) is None:
            raise NotHereError("to be made first")
        return store.stage_folder(spec.stage, spec.key) / "output"

    try:
        if not faults:  # else a run ends here, before it reads any weights
            sources.note_remarks(policy)
            _check_here(choices, settings, hash_all=hash_all)
            trusts_code = choices.asked.trust_remote_code
            known = choices.checkpoints
            locator = Locator(profile, settings, find_made, progress, known, trusts_code)
            located = locator.all(choices)
            checkpoint = located.source
            if choices.rungs:  # of weights that were dequantized
                choices = with_rungs(choices, checkpoint.recipe_source, progress)
                preflight = replace(preflight, choices=choices) if preflight is not None else None
            sizes = preflight.sizes if preflight is not None else {}
            plan = make_plan(choices, located, settings, sources, sizes=sizes)
            check_fitted(plan.policy, choices, checkpoint, sources)
            sources.note_remarks(plan.policy)
            policy = plan.policy
            level = plan.trial.level
            order = tuple(plan.trial.descent)
            state = PlanProgress(plan, store)
            attempt = AttemptLedger(store).history(plan.trial).words
            specs = state.stages()
            if preflight is not None:
                faults += preflight.disk_fault(state.made())
    except HubError as error:
        faults.append(error)
    except NotHereError as reason:
        not_here = str(reason)
        if choices.reference.kind == "demo":
            specs = [demo_stage(choices.reference, profile, settings)]
    parameters = DEMO_PARAMETERS if choices.reference.kind == "demo" else 0
    if checkpoint is not None:
        parameters = checkpoint.parameters
    elif preflight is not None:
        parameters = preflight.source.parameters
    seen = seen_seconds(store, choices.node.hardware(profile.accelerator), checkpoint)
    refused = refusal(faults)
    power: tuple[GatePower, ...] = ()
    if all(isinstance(fault, HubError) for fault in faults):  # they do not depend on the checkpoint
        power = (
            *policy_power(policy, tried, sources.known_of(policy), level),
            *speed_power(
                choices.policy,
                profile,
                level,
                median_seconds(seen, SERVER),
                _measured_noise(store, choices.node.machine),
                [recipe.family for recipe in tried],
            ),
        )
    return PlanReport(
        choices=choices,
        checkpoint=checkpoint,
        stages=tuple(planned_stages(specs, store, seen, parameters, profile.accelerator)),
        power=power,
        environments=tuple(
            status(name, profile.accelerator, settings) for name in choices.environments
        ),
        weights_bytes={r.name: preflight.weights[r.name].bytes for r in tried}
        if preflight is not None and not faults
        else {},
        not_here=not_here,
        source_bytes=preflight.source.weights_bytes if preflight else 0,
        forms={name: suite.prompt_format for name, suite in policy.suites.items()},
        faults=tuple(faults),
        exit_code=refused.exit_code if refused is not None else ExitCode.SUCCESS,
        attempt=attempt,
        order=order,
        notes=(
            *early.notes,
            *(recheck_notes(policy, tried, sources.known_of(policy)) if power else ()),
        ),
        whole_run=tuple(assume_whole_run(choices, parameters)),
    )


def _measured_noise(store: Store, machine: str) -> BlockNoise | None:
    """Return the noise of this machine's ratios of fresh starts, pooled over its gates."""
    squares = 0.0
    free = 0
    for record in store.records(SPEED.name, leave_out_damaged=True):
        asked = SPEED.parameters_of(record)
        result = SPEED.result_of(record)
        is_alike = asked.machine == machine and asked.rule.compares and asked.rule.starts == "fresh"
        if is_alike and result.deviation is not None and result.units > 1:
            squares += (result.units - 1) * result.deviation**2
            free += result.units - 1
    return BlockNoise(math.sqrt(squares / free), free) if free >= MIN_NOISE_BLOCKS else None


def _check_here(choices: Choice, settings: Settings, *, hash_all: bool) -> None:
    """Raise NotHereError for what must be fetched, or hashed slowly."""
    variants = (variant.reference for variant in choices.adopted)
    every = (choices.reference, draft_reference(choices.profile), *variants)
    references = [reference for reference in every if reference is not None]
    hub = [reference for reference in references if reference.kind == "hub"]
    if missing := sum(bytes_to_download(reference.name, reference.revision) for reference in hub):
        raise NotHereError(f"{decimal(missing)} to download first")
    folders = (
        Path(reference.name).expanduser() for reference in references if reference.kind == "folder"
    )
    size = settings.digests.bytes_to_hash([f for folder in folders for f in weight_files(folder)])
    if size > HASHED_BYTES and not hash_all:
        raise NotHereError(
            f"{decimal(size)} to hash first, in about {size / HASH_RATE / 60:.1f} minutes "
            "(--verbose hashes them now)"
        )
