"""Keys of a plan: the same for the same work, and a change reaches its own branch only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from asked_run import choice_of
from listener import Listener
from quantized_checkpoint import inspected, source_files
from small_checkpoint import checkpoint_files, safetensors, write_files
from some_node import NODE
from three_suites import three_suites

from pipeline.plan.data_sources import SourceResolver
from pipeline.plan.locator import Located
from pipeline.plan.model_plan import ModelPlanner
from pipeline.plan.plan import Arm, Plan, PlanProgress
from pipeline.stages import again_role
from pipeline.stages.verdict import JudgeParameters
from prepare.digest import FileDigests
from prepare.hardware import NodeInfo
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.catalog import load_policy, load_profile, load_recipe
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.policy import RESERVED_SUITE_NAMES, Policy
from recipes.quantizers.awq import AwqQuantization
from recipes.schema import Recipe, ServingProfile

BASELINE, FP8, AWQ = "baseline", "fp8-dynamic", "awq-w4a16"
SUITES = ("mmlu", "humaneval", "rouge")
SERVED = ("first_texts", *SUITES)
SPEED = "speed.ratio.short"
OF_VARIANT = (*SERVED, SPEED)
AGAIN = again_role("mmlu")
MADE = ("weights", "checked_weights")
TEXTS = '{"text": "The old library stood at the corner."}\n'

Label = tuple[str, str]


@dataclass(frozen=True)
class Wanted:
    """Everything that a plan is made from."""

    checkpoint: Checkpoint
    calibration: Path
    store: Path
    policy: Policy = field(default_factory=lambda: policy())
    profile: ServingProfile = field(default_factory=lambda: load_profile("cpu"))
    identities: Mapping[str, str] = field(
        default_factory=lambda: {"quantize": "q", "serve": "s", "evaluate": "e"}
    )
    node: NodeInfo = NODE
    fp8: Mapping[str, Any] = field(default_factory=dict)
    awq: Mapping[str, Any] = field(default_factory=dict)
    eval_data: Path | None = None
    trust: bool = False
    names: tuple[str, ...] = (FP8, AWQ)

    def plan(self) -> Plan:
        digests = FileDigests(self.calibration.parent / "digests.json")
        recipes = tuple(self.recipe(name) for name in self.names)
        known = (recipes, self.profile, self.policy, self.node)
        choices = choice_of(*known, trust_remote_code=self.trust)
        environments = self.identities
        sources = SourceResolver(self.eval_data, environments["evaluate"], digests, Listener())
        found = Located(self.checkpoint)
        return ModelPlanner(choices, found, environments, sources, self.store).plan()

    def recipe(self, name: str) -> Recipe:
        recipe = load_recipe(name)
        if name == FP8:
            changes = dict(self.fp8)
        else:
            assert isinstance(recipe.quantization, AwqQuantization)
            texts = {"dataset": str(self.calibration), "column": "text"}
            calibration = recipe.quantization.calibration.model_copy(update=texts)
            changes = {"calibration": calibration, **self.awq}
        changed = recipe.quantization.model_copy(update=changes)
        return recipe.model_copy(update={"quantization": changed})

    def keys(self) -> dict[Label, str]:
        plan = self.plan()
        variants = (plan.baseline, *plan.variants)
        return (
            {("shared", role): spec.key for role, spec in plan.shared.items()}
            | {
                (variant.recipe.name, role): spec.key
                for variant in variants
                for role, spec in variant.stages.items()
            }
            | {(v.recipe.name, "judge"): judge_of(plan, v).key for v in plan.variants}
        )


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    checkpoint = inspected(write_files(tmp_path / "checkpoint", source_files()))
    calibration = tmp_path / "texts.jsonl"
    calibration.write_text(TEXTS)
    return Wanted(checkpoint, calibration, tmp_path / "store")


def judge_of(plan: Plan, variant: Arm) -> StageSpec:
    """The verdict of a run that has not begun."""
    return begun(plan).judge(variant)


def begun(plan: Plan) -> PlanProgress:
    """The progress of a run that has nothing in its store."""
    return PlanProgress(plan, Store(Path(plan.baseline.stages["first_texts"].store)))


def policy() -> Policy:
    """Three suites; MMLU's first questions are asked of the baseline twice."""
    demo = three_suites()
    counts: dict[str, Any] = {
        "questions": 128,
        "noise_floor_questions": 0,
    }
    suites = {name: suite.model_copy(update=counts) for name, suite in demo.suites.items()}
    suites["mmlu"] = suites["mmlu"].model_copy(update={"noise_floor_questions": 4})
    return demo.model_copy(update={"suites": suites})


def changed(before: Wanted, after: Wanted) -> set[Label]:
    old, new = before.keys(), after.keys()
    assert old.keys() == new.keys()
    return {label for label in old if old[label] != new[label]}


def of(variants: tuple[str, ...], roles: tuple[str, ...]) -> set[Label]:
    return {(variant, role) for variant in variants for role in roles}


def with_suite(wanted: Wanted, name: str, **changes: Any) -> Wanted:
    suite = wanted.policy.suites[name].model_copy(update=changes)
    suites = {**wanted.policy.suites, name: suite}
    return replace(wanted, policy=wanted.policy.model_copy(update={"suites": suites}))


def with_profile(wanted: Wanted, **changes: Any) -> Wanted:
    return replace(wanted, profile=wanted.profile.model_copy(update=changes))


ALL_SERVED = of((BASELINE, FP8, AWQ), SERVED) | {(BASELINE, AGAIN), (FP8, SPEED), (AWQ, SPEED)}
JUDGES = of((FP8, AWQ), ("judge",))


class TestStages:
    def test_what_there_is(self, wanted: Wanted) -> None:
        assert set(wanted.keys()) == (
            {("shared", f"questions.{name}") for name in SUITES}
            | ALL_SERVED
            | of((FP8, AWQ), (*MADE, "judge"))
        )

    def test_no_suite_can_take_another_stages_name(self, wanted: Wanted) -> None:
        plan = wanted.plan()
        stages = {name for variant in plan.variants for name in variant.stages}
        assert stages - {*SUITES, SPEED} <= set(RESERVED_SUITE_NAMES)

    def test_every_input_comes_before(self, wanted: Wanted) -> None:
        seen: set[tuple[str, str]] = set()
        for spec in begun(wanted.plan()).stages():
            assert {(i.stage, i.key) for i in spec.inputs.values()} <= seen
            seen.add((spec.stage, spec.key))
        assert len(seen) == len(wanted.keys())


class TestSame:
    def test_other_order_of_recipes(self, wanted: Wanted) -> None:
        assert changed(wanted, replace(wanted, names=(AWQ, FP8))) == set()

    def test_places_do_not_count(self, wanted: Wanted, tmp_path: Path) -> None:
        """The same content in other folders: checkpoint, store and evaluation data."""
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(wanted.checkpoint.path, elsewhere / "checkpoint")
        data = [tmp_path / "data", elsewhere / "data"]
        for folder in data:
            write_files(folder, {"mmlu_test.jsonl": b"{}", "summarization_test.jsonl": b"{}"})
        moved = replace(
            wanted,
            checkpoint=inspected(elsewhere / "checkpoint"),
            store=elsewhere / "store",
            eval_data=data[1],
        )
        here = replace(wanted, eval_data=data[0])
        assert changed(here, moved) == set()
        runtime = moved.plan().variants[0].stages["weights"].runtime
        assert runtime["checkpoint"]["path"] == str(elsewhere / "checkpoint")

    def test_how_many_requests_are_in_flight(self, wanted: Wanted) -> None:
        assert changed(wanted, with_suite(wanted, "mmlu", concurrency=2)) == JUDGES


class TestRecipe:
    """All verdicts name the attempt, and with it all its variants."""

    def test_fp8(self, wanted: Wanted) -> None:
        other = replace(wanted, fp8={"ignore": ["lm_head", "model.layers.0.mlp.down_proj"]})
        assert changed(wanted, other) == of((FP8,), (*MADE, *OF_VARIANT)) | JUDGES

    @pytest.mark.parametrize("change", [{"grid_points": 5}, {"symmetric": True}, {"bits": 8}])
    def test_awq(self, wanted: Wanted, change: dict[str, Any]) -> None:
        other = replace(wanted, awq=change)
        assert changed(wanted, other) == of((AWQ,), (*MADE, *OF_VARIANT)) | JUDGES

    def test_content_of_the_calibration_file(self, wanted: Wanted) -> None:
        before = wanted.keys()
        wanted.calibration.write_text(TEXTS * 2)
        after = wanted.keys()
        different = {label for label in before if before[label] != after[label]}
        assert different == of((AWQ,), (*MADE, *OF_VARIANT)) | JUDGES

    @pytest.mark.parametrize(("points", "is_limited"), [(3, True), (20, False)])
    def test_the_profiles_limit_on_awqs_candidates(
        self, wanted: Wanted, points: int, is_limited: bool
    ) -> None:
        limit = wanted.profile.calibration_limit
        assert limit is not None
        free = with_profile(
            wanted, calibration_limit=limit.model_copy(update={"grid_points": None})
        )
        limited = with_profile(
            wanted, calibration_limit=limit.model_copy(update={"grid_points": points})
        )
        made = of((AWQ,), (*MADE, *OF_VARIANT)) if is_limited else set()
        assert changed(free, limited) == made | JUDGES  # a verdict has the profile

    def test_the_profiles_limit_on_calibration(self, wanted: Wanted) -> None:
        other = with_profile(wanted, calibration_limit=None)
        assert changed(wanted, other) == of((AWQ,), (*MADE, *OF_VARIANT)) | JUDGES


class TestPolicy:
    def test_margin(self, wanted: Wanted) -> None:
        """Where asking stops; the baseline's questions are as many, up to the grid of rounds."""
        margin = wanted.policy.suites["rouge"].margins["fp8"]
        nearly = margin.model_copy(update={"points": (margin.points or 0) * 1.001})
        margins = {**wanted.policy.suites["rouge"].margins, "fp8": nearly}
        other = with_suite(wanted, "rouge", margins=margins)
        assert changed(wanted, other) == {(FP8, "rouge")} | JUDGES

    def test_alpha(self, wanted: Wanted) -> None:
        other = replace(wanted, policy=wanted.policy.model_copy(update={"alpha": 0.0499}))
        assert changed(wanted, other) == of((FP8, AWQ), (*SUITES, SPEED)) | JUDGES

    def test_cap(self, wanted: Wanted) -> None:
        """More questions go on from the same answers: neither questions nor repeats change."""
        other = with_suite(wanted, "mmlu", questions=8)
        assert changed(wanted, other) == of((BASELINE, FP8, AWQ), ("mmlu",)) | JUDGES

    def test_tier_and_claim(self, wanted: Wanted) -> None:
        other = with_suite(wanted, "mmlu", tier="advisory")
        assert changed(wanted, other) == of((FP8, AWQ), ("mmlu",)) | JUDGES


class TestRules:
    def test_each_variant_follows_the_baseline(self, wanted: Wanted) -> None:
        plan = with_suite(wanted, "mmlu", questions=99).plan()
        for variant in plan.variants:
            for suite in plan.policy.suites:
                theirs = plan.baseline.stages[suite]
                assert variant.stages[suite].inputs["baseline"].key == theirs.key
        assert plan.baseline.stages["mmlu"].parameters["max_questions"] == 99

    def test_asking_and_judging_have_the_same_rules(self, wanted: Wanted) -> None:
        plan = wanted.plan()
        for variant in plan.variants:
            judge = JudgeParameters.model_validate(judge_of(plan, variant).parameters)
            rules = {name: variant.stages[name].parameters["rule"] for name in plan.policy.suites}
            assert (
                {name: rule.model_dump(mode="json") for name, rule in judge.gates.items()}
                == rules
                != {}
            )


class TestMachine:
    def test_kv_dtype_of_variants(self, wanted: Wanted) -> None:
        other = with_profile(wanted, kv_cache_dtype="fp8_e5m2")
        assert changed(wanted, other) == of((FP8, AWQ), (*OF_VARIANT, "judge"))

    def test_kv_dtype_of_the_baseline(self, wanted: Wanted) -> None:
        """The screen of a variant is relative to the baseline's, so all that is served follows."""
        other = with_profile(wanted, baseline_kv_cache_dtype="fp8")
        assert changed(wanted, other) == ALL_SERVED | JUDGES

    def test_cpu_overrides(self, wanted: Wanted) -> None:
        """What is calibrated, served and judged is another; what only streams is the same."""
        other = replace(wanted, profile=wanted.profile.fit_to(("avx2",)))
        calibrated = of((AWQ,), MADE)
        assert changed(wanted, other) == ALL_SERVED | JUDGES | calibrated
        awq = next(v for v in other.plan().variants if v.recipe.name == AWQ)
        assert awq.stages["weights"].parameters["compute"] == {
            "dtype": "float32",
            "environment": {},
        }
        assert awq.identity.serving.engine_arguments["kv-cache-dtype"] == "auto"
        assert awq.identity.serving.engine_arguments["dtype"] == "float32"
        judge = begun(other.plan()).judge(awq)
        assert set(judge.parameters["profile"]["cpu_overrides"]) == {"float32", "kv-cache-not-fp8"}

    def test_hardware(self, wanted: Wanted) -> None:
        other = replace(wanted, node=NODE.model_copy(update={"cores": 64}))
        assert changed(wanted, other) == ALL_SERVED | JUDGES

    def test_workload(self, wanted: Wanted) -> None:
        speed = load_policy("demo").speed
        assert speed is not None
        short = speed.workloads["short"]
        longer = short.model_copy(update={"seconds": short.seconds + 1})
        speed = speed.model_copy(update={"workloads": {"short": longer}})
        other = replace(wanted, policy=wanted.policy.model_copy(update={"speed": speed}))
        assert changed(wanted, other) == of((FP8, AWQ), (SPEED,)) | JUDGES

    @pytest.mark.parametrize(
        ("name", "roles"),
        [("serve", SERVED), ("evaluate", SUITES), ("quantize", ())],
    )
    def test_environment(self, wanted: Wanted, name: str, roles: tuple[str, ...]) -> None:
        other = replace(wanted, identities={**wanted.identities, name: "another"})
        expected = of((BASELINE, FP8, AWQ), roles) | JUDGES
        if "mmlu" in roles:
            expected |= {(BASELINE, AGAIN)}
        if name == "serve":
            expected |= of((FP8, AWQ), (SPEED,))
        if name == "quantize":
            expected |= of((FP8, AWQ), (*MADE, *OF_VARIANT))
        if name == "evaluate":
            # Their questions come out of the environment's own packages.
            expected |= {("shared", "questions.mmlu"), ("shared", "questions.humaneval")}
        assert changed(wanted, other) == expected


class TestCheckpoint:
    def test_other_content(self, wanted: Wanted, tmp_path: Path) -> None:
        files = source_files() | {"chat_template.jinja": b"{{ other }}"}
        other = replace(wanted, checkpoint=inspected(write_files(tmp_path / "other", files)))
        expected = ALL_SERVED | JUDGES | of((FP8, AWQ), MADE)
        assert changed(wanted, other) == expected

    def test_running_its_code(self, wanted: Wanted) -> None:
        other = replace(wanted, trust=True)
        assert changed(wanted, other) == ALL_SERVED | JUDGES | of((FP8, AWQ), MADE)


LAYER = "model.layers.0"
MOE_MODEL: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("BF16", (32, 128)),
    f"{LAYER}.self_attn.q_proj.weight": ("BF16", (128, 128)),
    f"{LAYER}.block_sparse_moe.gate.weight": ("BF16", (4, 128)),
    f"{LAYER}.block_sparse_moe.experts.0.w1.weight": ("BF16", (128, 128)),
    "lm_head.weight": ("BF16", (32, 128)),
}
ROUTERS = r"re:(.*\.)?(gate|router|shared_expert_gate)(\..*)?$"


def test_routers_are_ignored_by_both_stages_and_said(wanted: Wanted, tmp_path: Path) -> None:
    files = checkpoint_files()
    config = json.loads(files["config.json"]) | {"num_hidden_layers": 1}
    changed = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": safetensors(MOE_MODEL),
    }
    folder = write_files(tmp_path / "moe", files | changed)
    plan = replace(wanted, checkpoint=inspected(folder), names=(FP8,)).plan()
    quantize, check_weights = (plan.variants[0].stages[role] for role in MADE)
    made, checked = (each.parameters["quantization"] for each in (quantize, check_weights))
    assert made["ignore"] == ["lm_head", ROUTERS]
    assert checked == made
    assert quantize.runtime["recipe"]["name"] == FP8
