"""A whole run on pretended models, for every test that needs one: its store, its record, its files.

What a model would answer is up to the test; quantizing, serving and asking are pretended
(`pretend_stages.py`). All else is the real code: planning, the runner, the evaluate stage with its
answer log, judging, evidence, promotion. So a run of any shape is made by saying how it answers::

    FakeRun(folder / "store").run()                        # one variant, passes
    FakeRun(store, PretendModels(lost(2))).run()           # fails
    FakeRun(store, PretendModels(flipping(2), 64)).run()   # undecided
    FakeRun(store, PretendModels(equal, broken={ONE}))     # an error
    judged_run(store, {"fp8-dynamic": 0, "awq-w4a16": 40})    # real names, answers lost by each

    made = judged_run(store)
    made.report                                               # of its last life; `run()` again
    made.folder("quantize", "fp8-dynamic")                    # what a stage left
    made.bundle("fp8-dynamic")                                # the folder to deploy
    made.promote(variant="fp8-dynamic")                       # into the store's own registry
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asked_run import choice_of
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers, Score
from sample_reports import REQUEST, RESOLVED
from small_checkpoint import checkpoint_files, write_files
from some_node import NODE, node_of

from artifacts.candidate import PromotionRequest, evidence_tags, find_candidate
from artifacts.evidence.verify import read_verdict
from artifacts.promotion import promote_run
from artifacts.registry import MANIFEST_TAG, Registry, Version
from artifacts.run_record import RunReport, VariantReport
from artifacts.version_folder import make_version
from eval_gates.suites.sources import QuestionSource, SuiteSource
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import AdoptedVariant, with_facts
from pipeline.plan.choice import with_kv_formats
from pipeline.plan.locator import Located
from pipeline.plan.model_plan import ModelPlanner
from pipeline.plan.plan import Plan, PlanProgress
from pipeline.run.copies import JoinedRun
from pipeline.run.loop import finish_plan
from pipeline.run.screening import compare_arms
from pipeline.stages.evidence import Evidence
from prepare.digest import FileDigests
from prepare.errors import ExitCode
from prepare.lots import Node
from prepare.private_files import write_atomically
from prepare.store import RUN_RECORD, Store
from recipes.accelerator import Accelerator
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder
from recipes.checkpoints.source_info import describe_source
from recipes.checkpoints.weight_files import BUNDLE
from recipes.policy import Policy
from recipes.quantization import Calibration
from recipes.quantizers.preset import PresetQuantization
from recipes.quantizers.unquantized import NoQuantization
from recipes.schema import Recipe, ServingProfile
from recipes.speculative import SpeculativeConfig

ONE, TWO = "one", "two"
NAME = "model"
RECIPE = "fp8-dynamic"
IDENTITIES = {"quantize": "0" * 64, "serve": "1" * 64, "evaluate": "2" * 64}
HARDWARE = NODE.hardware("cpu").model_dump()
SERVING: dict[str, Any] = {
    "engine_arguments": {"dtype": "bfloat16", "enforce-eager": True, "kv-cache-dtype": "fp8"},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}


def equal(variant: str, suite: str, number: int) -> float:
    """All answer alike, half of it right."""
    return float(number % 2)


def lost(one_in: int) -> Score:
    """The variants lose every `one_in`-th question that the baseline gets right."""

    def score(variant: str, suite: str, number: int) -> float:
        right = number % 2 == 0
        return float(right and (variant == "baseline" or number % (2 * one_in) != 0))

    return score


def flipping(one_in: int) -> Score:
    """The variants lose as many as they gain."""

    def score(variant: str, suite: str, number: int) -> float:
        right = number % 2 == 0
        flips = variant != "baseline" and number // 2 % one_in == 0
        return float(right != flips)

    return score


def recipe(name: str) -> Recipe:
    """One of FP8, whose weights are its own; or the baseline's."""
    if name == "baseline":
        return Recipe(name=name, summary="s", family="baseline", quantization=NoQuantization())
    ignore = ["lm_head", f"re:{name}"]  # of which the checkpoint has none
    quantization = PresetQuantization(
        kind="preset", scheme="FP8", ignore=ignore, calibration=Calibration(dataset="builtin")
    )
    return Recipe(name=name, summary="s", family="fp8", quantization=quantization)


def policy(**changes: Any) -> Policy:
    """One suite of own questions."""
    suite = {
        "kind": "humaneval",
        "margins": {"fp8": 0.1},
        **changes,
    }
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"code": suite},
        }
    )


def profile(serving: Mapping[str, Any], accelerator: Any, starts: Any = None) -> ServingProfile:
    """Serves baseline and variants alike; what drafts, drafts for variants alone."""
    arguments = dict(serving["engine_arguments"])
    cache = arguments.pop("kv-cache-dtype")
    made = ServingProfile(
        name="cpu",
        summary="s",
        accelerator=accelerator,
        starts=starts or ("once" if accelerator == "cpu" else "fresh"),
        kv_cache_dtype=cache,
        baseline_kv_cache_dtype=serving.get("baseline_kv_cache_dtype", cache),
        speed_note="measured on a CPU",
        speculative=SpeculativeConfig.model_validate(serving["speculative"])
        if "speculative" in serving
        else None,
    )
    # Unchecked: evidence may come from somewhere else.
    return made.model_copy(
        update={"engine_arguments": arguments, "environment": serving["environment"]}
    )


class Sources:
    """Questions and calibration texts come from one place, and how many questions is known."""

    def __init__(self, models: PretendModels) -> None:
        self.models = models

    def suite(self, name: str, suite: Any) -> SuiteSource:
        """Where the suite's questions come from."""
        known = len(self.models.questions_of(name))
        return SuiteSource(QuestionSource(kind="builtin"), questions=known)

    def calibration(self, wanted: Calibration, *_: Any) -> tuple[Calibration, dict[str, Any], Path]:
        """The texts that a recipe calibrates with, what they are, and their file."""
        return wanted, {"kind": "pretended"}, Path("texts.jsonl")


@dataclass
class FakeRun:
    """One store, and runs on it.

    Args:
        root: of the store; the checkpoint is made next to it.
        models: what answers.
        policy: gates and margins.
        recipes: names of the variants.
        serving: engine arguments and environment of baseline and variants.
        hardware: that it is judged on.
        identities: of the environments.
        trust_remote_code: serve with code of the checkpoint's own.
        uri: of the registry that the run names; a file in the store if not given.
        screen: measure every variant once, without gates.
        ablate: and the weights and the KV cache of each alone.
        kv: formats of the KV cache with which each variant is served, as pairs.
        until_pass: gate one variant after another, as long as they pass.
        sizes: expected bytes of weights by recipe; the order as named without any.
        adopted: variants that are not quantized here.
        run_id: of a run that other processes work on as well.
    """

    root: Path
    models: PretendModels = field(default_factory=lambda: PretendModels(equal))
    policy: Policy = field(default_factory=policy)
    recipes: tuple[str, ...] = (ONE,)
    serving: Mapping[str, Any] = field(default_factory=lambda: SERVING)
    hardware: Mapping[str, Any] = field(default_factory=lambda: HARDWARE)
    identities: Mapping[str, str] = field(default_factory=lambda: IDENTITIES)
    trust_remote_code: bool = False
    uri: str = ""
    ablate: bool = False
    kv: tuple[str, ...] = ()
    screen: bool = False
    until_pass: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    starts: str | None = None  # of servers whose speed is compared; None: the accelerator's
    adopted: tuple[AdoptedVariant, ...] = ()
    run_id: str | None = None
    report: RunReport = field(init=False)

    def __post_init__(self) -> None:
        self.uri = self.uri or f"sqlite:///{self.root / 'registry.db'}"

    @property
    def store(self) -> Store:
        """Where everything lies."""
        return Store(self.root)

    @property
    def node(self) -> Node:
        """Its locks; no other test's."""
        folder = self.root.parent / "node-locks"
        folder.mkdir(exist_ok=True)
        return Node(folder)

    @property
    def checkpoint(self) -> Checkpoint:
        """What is quantized."""
        source = self.root.parent / "source"
        if not source.exists():
            write_files(source, checkpoint_files())
            (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# a model\n")
        digests = FileDigests(self.root.parent / "digests.json")
        return inspect_folder(source, digests)

    @property
    def fetched(self) -> dict[str, Checkpoint]:
        """The checkpoints of adopted variants."""
        digests = FileDigests(self.root.parent / "digests.json")
        return {
            each.recipe.name: inspect_folder(
                Path(each.reference.name), digests, ref=each.reference.text
            )
            if each.reference
            else self.checkpoint
            for each in self.adopted
        }

    @property
    def sources(self) -> Any:
        """Where questions and texts come from."""
        return Sources(self.models)

    def plan(self, run: str = "", remeasured: Collection[str] = ()) -> Plan:
        """The real planner's."""
        pairs = [with_kv_formats(recipe(name), self.kv) for name in self.recipes]
        choices = choice_of(
            (
                *(made for each in pairs for made in each.values()),
                *(each.recipe for each in with_facts(self.adopted, self.fetched)),
            ),
            profile(self.serving, self.hardware["accelerator"], self.starts),
            self.policy,
            node_of(self.hardware),
            trust_remote_code=self.trust_remote_code,
            remeasured=tuple(remeasured),
            until="pass" if self.until_pass else None,
        )
        named = {made.name: form for each in pairs for form, made in each.items() if form}
        choices = replace(choices, kv_formats=named)
        return ModelPlanner(
            choices,
            Located(self.checkpoint, self.fetched),
            self.identities,
            self.sources,
            self.root,
            sizes=self.sizes,
            run=run,
        ).plan()

    def run(self, remeasured: frozenset[str] = frozenset()) -> RunReport:
        """Run, or run again.

        Args:
            remeasured: gates that are measured again though it is over.
        """
        checkpoint = self.checkpoint
        recipes = (*self.recipes, *(each.recipe.name for each in self.adopted))
        named = {"checkpoint": checkpoint.ref, "recipes": recipes, "name": NAME}
        request = replace(REQUEST, **named, registry=self.uri)
        resolved = RESOLVED.model_copy(update=named)
        settings = Settings(home=self.root.parent / "home", store=self.root)
        joined = JoinedRun(request, self.run_id)
        run = PretendRun(request, resolved, Accelerator.CPU, settings, Listener(), joined)
        run.models = self.models
        run.node = self.node
        run.log.update(checkpoint=describe_source(checkpoint), registered_name=NAME)
        plan = self.plan(run.log.run_id, remeasured)
        state = PlanProgress(plan, run.store)
        servers = PretendServers(run)
        code = ExitCode.SUCCESS
        if self.screen:
            code = compare_arms(servers, state, checkpoint.weights_bytes, ablate=self.ablate)
        else:
            finish_plan(servers, state)
            for served in ("baseline", *recipes):
                log = run.log.folder / f"server.{served}.log"
                log.write_text(f"the server of {served}\n")
        run.log.finish("finished", code)
        self.report = run.log.report()
        return self.report

    def save(self, **changes: Any) -> RunReport:
        """Write the run's record with these changes."""
        self.report = self.report.model_copy(update=changes)
        folder = self.root / "runs" / self.report.run
        folder.mkdir(exist_ok=True)
        write_atomically(folder / RUN_RECORD, self.report.model_dump_json())
        return self.report

    def copy_to(self, root: Path) -> FakeRun:
        """The same run in another store, to change as one likes."""
        shutil.copytree(self.root, root)
        made = replace(self, root=root)
        made.report = self.report
        return made

    @property
    def registry(self) -> Registry:
        """The one that the run names."""
        return Registry(self.uri)

    def promote(self, registry: str = "", **order: Any) -> dict[str, Any]:
        """Promote a variant of the last run, as `prepare promote` does."""
        wanted = PromotionRequest(registry or self.uri, **order)
        return promote_run(self.report, self.store, wanted, Listener()).model_dump()

    def champion(self) -> str:
        """The recipe of the version that has the alias."""
        number = self.registry.aliases(NAME)["champion"]
        versions = {v.version: v for v in self.registry.versions(NAME)}
        return versions[number].tags["prepare.recipe"]

    def bundle(self, recipe: str = RECIPE, **order: Any) -> Path:
        """The folder to deploy: weights, card and evidence."""
        wanted = PromotionRequest(self.uri, **order)
        (variant,) = [each for each in self.report.variants if each.recipe == recipe]
        candidate = find_candidate(self.report, variant, self.store, wanted)
        return make_version(candidate, self.report, self.store)

    def registered(self, recipe: str = RECIPE, **changes: str) -> Version:
        """A version as a promotion registers it, with some of its tags changed."""
        folder = self.bundle(recipe)
        judged = Evidence.of_variant(self.store, self.folder("judge", recipe).name)
        verdict = read_verdict(folder / BUNDLE)
        tags = {**evidence_tags(judged, verdict), MANIFEST_TAG: folder.name, **changes}
        return Version(NAME, "1", ("champion",), str(folder), tags)

    def folder(self, stage: str, variant: str) -> Path:
        """What that variant's stage left; of a suite, what is judged."""
        records = [r for r in self.store.records(stage) if r.variant == variant]
        last = max(records, key=lambda record: record.result.get("n", 0))
        return self.store.stage_folder(stage, last.key)

    def asked(self, variant: str) -> int:
        """How many questions the variant was asked, in all lives of the run."""
        return sum(number for who, _, number in self.models.asked if who == variant)

    def verdict(self, variant: str = ONE) -> VariantReport:
        """Run; what came out for the variant."""
        (found,) = [report for report in self.run().variants if report.recipe == variant]
        return found


def judged_run(
    root: Path,
    lost: Mapping[str, int] | None = None,
    broken: tuple[str, ...] = (),
    engine_version: str = "0.33.0",
    first: int = 0,
    kernels: Mapping[str, str] | None = None,
    **more: Any,
) -> FakeRun:
    """A finished run, all of whose 96 questions were asked.

    Args:
        root: of the store.
        lost: by recipe, how many answers of the variant are wrong where the baseline's are right.
        broken: recipes that get no verdict.
        engine_version: as the engine tells it.
        first: number of the first question whose answer is lost.
        kernels: as the server's log names them.
        more: of the `FakeRun`.
    """
    wrong = {"fp8-dynamic": 0, "awq-w4a16": 0} if lost is None else lost

    def score(variant: str, suite: str, number: int) -> float:
        return float(number % 2 and not first <= number < first + 2 * wrong.get(variant, 0))

    models = PretendModels(score, questions=96, broken=set(broken), engine_version=engine_version)
    models.kernels = dict(kernels or {})
    made = FakeRun(root, models, policy(), (*wrong, *broken), **more)
    made.run()
    return made
