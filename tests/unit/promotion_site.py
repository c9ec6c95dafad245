"""A finished run with everything that promoting it needs, and a registry to promote it to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import ONE, TWO, Bench, policy
from listener import Listener
from pretend_stages import PretendModels

from artifacts.kept_runs import RUN_RECORD
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.run_record import RunReport
from artifacts.serving_arguments import ServingArguments
from pipeline.core.stage_key import stage_spec
from pipeline.core.store import Store, write_atomically
from pipeline.plan.of_suites import EvaluationPlanner, Served
from pipeline.plan.plan import VariantPlan
from pipeline.release.promotion import Order, promote_run
from recipes.schema import Recipe

SERVING = {"engine_arguments": {"kv-cache-dtype": "fp8"}, "environment": {}}
DIGEST = "c" * 64  # of the source
IDENTITY = {
    "checkpoint": DIGEST,
    "serving": SERVING,
    "engine": "digest of serve",
    "hardware": {"accelerator": "cpu", "cpu": "x", "cores": 2},
    "trust_remote_code": False,
}
WORKLOAD = {"requests": 8, "input_tokens": 128, "output_tokens": 32, "concurrency": 4}


class WholeBench(Bench):
    """Runs whose stages tell how they were served, as those of a checkpoint do."""

    def side(
        self, planner: EvaluationPlanner, of: Recipe, baseline: VariantPlan | None
    ) -> VariantPlan:
        made: dict[str, Any] = {}
        if baseline is not None:
            parameters = {
                "of": of.name,
                "environment": "digest of quantize",
                "quantization": {"kind": "none", "ignore": []},
            }
            made["quantize"] = stage_spec("quantize", of.name, parameters, {}, {}, self.root)
            weights = {"weights": made["quantize"]}
            made["check_weights"] = stage_spec("check_weights", of.name, {}, weights, {}, self.root)
        weights = {"weights": made["check_weights"]} if made else {}
        parameters = {**IDENTITY, "checkpoint": DIGEST}
        coherence = stage_spec("coherence", of.name, parameters, weights, {}, self.root)
        served = Served(of, IDENTITY, {**weights, "coherence": coherence}, self.root, 100)
        rounds = planner.rounds(served, baseline.rounds if baseline else None)
        stages = {
            "coherence": coherence,
            **{name: specs[0] for name, specs in rounds.items()},
            **({} if baseline else planner.repeats(rounds)),
            "benchmark": stage_spec(
                "benchmark",
                of.name,
                {**IDENTITY, "workload": WORKLOAD},
                served.after,
                {},
                self.root,
            ),
        }
        arguments = ServingArguments({}, {})
        return VariantPlan(of, self.root, arguments, {**made, **stages}, tuple(stages), rounds)


def one_is_bad(variant: str, suite: str, number: int) -> float:
    return 0.0 if variant == ONE else float(number % 2)


def both_good(variant: str, suite: str, number: int) -> float:
    return float(number % 2)


class Site:
    """A store with a judged run, and a registry."""

    def __init__(self, root: Path, score: Callable[[str, str, int], float]) -> None:
        self.store = Store(root / "store")
        self.bench = WholeBench(self.store.root, PretendModels(score), policy(), (ONE, TWO))
        self.uri = f"sqlite:///{self.store.root / 'registry.db'}"
        self.run = self.judged()

    def judged(self) -> RunReport:
        """Run, or run again; the weights have a file."""
        report = self.bench.run()
        source = {"ref": "org/model", "digest": DIGEST, "revision": "commit on the Hub"}
        checkpoint = {"ref": "org/model", "digest": DIGEST, "source": source}
        command = {"checkpoint": "org/model", "registry": self.uri, "name": "model"}
        report = RunReport.model_validate(
            {**report.model_dump(), "checkpoint": checkpoint, "command": command}
        )
        folder = self.store.root / "runs" / report.run
        write_atomically(folder / RUN_RECORD, report.model_dump_json())
        for stage in report.stages:
            if stage.name == "quantize":
                output = self.store.stage_folder("quantize", str(stage.key)) / "output"
                output.mkdir(exist_ok=True)
                (output / "config.json").write_text(stage.variant)
        return report

    def promote(self, **order: Any) -> dict[str, Any]:
        wanted = Order(self.uri, **order)
        return promote_run(self.run, self.store, wanted, Listener()).result

    def registry(self) -> MlflowRegistry:
        return MlflowRegistry(self.uri)

    def champion(self) -> str:
        aliases = self.registry().aliases("model")
        versions = {v.version: v.tags["prepare.recipe"] for v in self.registry().versions("model")}
        return versions[aliases["champion"]]
