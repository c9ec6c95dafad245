"""A run on pretended models: the real runner, judge, store and log, and one suite of code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from listener import Listener
from pretend_stages import PretendExecutor, PretendModels, Score

from artifacts.run_record import RunReport, VariantReport
from artifacts.serving_arguments import ServingArguments
from pipeline.core.stage_key import stage_spec
from pipeline.core.store import Store
from pipeline.plan.data_sources import SuiteSource
from pipeline.plan.of_speed import Side, find_claims, speed_stages
from pipeline.plan.of_suites import EvaluationPlanner, Served
from pipeline.plan.plan import Plan, VariantPlan
from pipeline.run.run_log import RunLog
from pipeline.run.runner import Runner
from pipeline.run.stage_runner import StageRunner
from recipes.catalog import load_profile
from recipes.policy import Policy
from recipes.quantization import NoQuantization
from recipes.schema import Recipe

ONE, TWO = "one", "two"


def recipe(name: str) -> Recipe:
    family: Any = "baseline" if name == "baseline" else "fp8"
    return Recipe(name=name, summary="s", family=family, quantization=NoQuantization())


def policy(**changes: Any) -> Policy:
    suite = {
        "kind": "humaneval",
        "margins": {"fp8": 0.1},
        "batch": 16,
        "expected_flips": 0.1,
        **changes,
    }
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"code": suite},
            "throughput": {"minimum_ratio": {"cpu": 0.5}},
        }
    )


class Sources:
    """Every suite's questions come from one place, and how many is known."""

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def suite(self, name: str, suite: Any) -> SuiteSource:
        return SuiteSource({"kind": "pretended"}, questions=self.questions)


@dataclass
class Bench:
    """One store, and runs on it."""

    root: Path
    models: PretendModels
    policy: Policy
    recipes: tuple[str, ...] = (ONE,)
    rungs: tuple[str, ...] = ()
    dry_run: bool = False

    def plan(self) -> Plan:
        recipes = tuple(recipe(name) for name in self.recipes)
        planner = EvaluationPlanner(
            self.policy,
            recipes,
            Sources(self.models.questions),
            "e",
            self.root,  # type: ignore[arg-type]
        )
        baseline = self.side(planner, recipe("baseline"), None)
        variants = (self.side(planner, each, baseline) for each in recipes)
        return Plan(
            policy=self.policy,
            shared=planner.questions,
            baseline=baseline,
            variants=tuple(self.with_speed(each, baseline) for each in variants),
            accelerator="cpu",
            rungs=self.rungs,
        )

    def side(
        self, planner: EvaluationPlanner, of: Recipe, baseline: VariantPlan | None
    ) -> VariantPlan:
        made: dict[str, Any] = {}
        if baseline is not None:
            made["quantize"] = stage_spec("quantize", of.name, {"of": of.name}, {}, {}, self.root)
            made["check_weights"] = stage_spec(
                "check_weights", of.name, {}, {"weights": made["quantize"]}, {}, self.root
            )
            if self.dry_run:
                of_two = {"two layers of": of.name}
                made["dry_run"] = stage_spec("dry_run", of.name, of_two, {}, {}, self.root)
        weights = {"weights": made["check_weights"]} if made else {}
        coherence = stage_spec("coherence", of.name, {}, weights, {}, self.root)
        served = Served(
            of, {"trust_remote_code": False}, {**weights, "coherence": coherence}, self.root, 100
        )
        rounds = planner.rounds(served, baseline.rounds if baseline else None)
        stages = {
            "coherence": coherence,
            **{name: specs[0] for name, specs in rounds.items()},
            **({} if baseline else planner.repeats(rounds)),
            "benchmark": stage_spec("benchmark", of.name, {}, served.after, {}, self.root),
        }
        arguments = ServingArguments({}, {})
        return VariantPlan(of, self.root, arguments, {**made, **stages}, tuple(stages), rounds)

    def with_speed(self, variant: VariantPlan, baseline: VariantPlan) -> VariantPlan:
        """With the stages of the policy's claims on speed, where it has some."""
        sides = [Side(s.recipe.name, {}, s.stages["coherence"]) for s in (baseline, variant)]
        claims = find_claims(self.policy, load_profile("cpu"))
        place: dict[str, Any] = {"tokenizer": self.root, "environment": "e", "again": {}}
        return variant.measure_speed(speed_stages(claims, *sides, **place))

    def run(self) -> RunReport:
        store = Store(self.root)
        log = RunLog(store, "model", {"checkpoint": "c"})
        stages = StageRunner(
            store, PretendExecutor(store, self.models), lambda _: Path("python"), log, Listener()
        )
        Runner(self.plan(), stages, self.models).run()
        log.finish("finished", 0)
        return log.report()

    def asked(self, variant: str) -> int:
        return sum(number for who, _, number in self.models.asked if who == variant)

    def verdict(self, variant: str = ONE) -> VariantReport:
        (found,) = [report for report in self.run().variants if report.recipe == variant]
        return found


def equal(variant: str, suite: str, number: int) -> float:
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
