"""What each recipe makes of the demo model: size, SQNR, MMLU-cloze, ROUGE-L, minutes.

    .venv/bin/python benchmarks/recipe_table.py
    .venv/bin/python benchmarks/recipe_table.py --recipe fp8-dynamic --recipe gptq-w4a16

One real `prepare model` makes, verifies, serves and measures a variant by every recipe that the
package carries, all on the same questions (recipe_table.yaml), next to the unquantized baseline.
What cannot be served here is made and verified only, and the table says so. A run that was stopped
goes on where it was. Takes about 5 minutes a recipe on 2 cores; prints the table of
docs/how-to/recipes-and-profiles.md, and last a JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import Checkpoint
from pipeline.cli.display import open_display
from pipeline.core.errors import PrepareError
from pipeline.environments.environment import Accelerator
from pipeline.environments.settings import Settings, load_settings
from pipeline.inspection.header_source import read_folder
from pipeline.inspection.variant_size import variant_weights
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.plan import VariantPlan
from pipeline.plan.resolved_options import ModelRequest, ResolvedOptions, choose
from pipeline.preflight.checks import find_unsuitable
from pipeline.run.session import RunSession
from pipeline.run.stage_runner import StageRunner
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.quantize import QUANTIZE
from recipes import catalog
from recipes.schema import Recipe

POLICY = Path(__file__).with_suffix(".yaml")
MODEL = "demo:smollm2-135m"
COLUMNS = ("recipe", "size", "SQNR", "MMLU-cloze", "ROUGE-L", "minutes to make", "needs")


def main() -> int:
    """Run, then print; 1 where a recipe failed."""
    arguments = parse_arguments()
    settings = load_settings(arguments.store)
    names = arguments.recipe or [
        name
        for name in catalog.recipe_names()
        if catalog.load_recipe(name).quantization.weights == "safetensors"  # vLLM serves them
    ]
    table = RecipeResults(settings, tuple(names), arguments.eval_data)
    rows = table.rows()
    print_markdown(rows)
    print(json.dumps({"model": MODEL, "rows": rows}))
    return 1 if any("failed" in row for row in rows) else 0


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", action="append", help="only these (default: all carried)")
    parser.add_argument("--store", type=Path, help="where stages are kept (default: prepare's)")
    parser.add_argument("--eval-data", type=Path, help="folder with questions, as for prepare")
    return parser.parse_args()


class RecipeResults:
    """The figures of some recipes.

    Args:
        settings: where things are kept.
        names: of the recipes.
        eval_data: folder with questions, if any.
    """

    def __init__(self, settings: Settings, names: tuple[str, ...], eval_data: Path | None) -> None:
        self._settings = settings
        self._names = names
        self._eval_data = eval_data

    def rows(self) -> list[dict[str, Any]]:
        """Return the baseline's figures, then every recipe's; what was not measured is left out."""
        request = ModelRequest(
            checkpoint=MODEL,
            recipes=self._names,
            profile="auto",
            policy=str(POLICY),
            name="recipe-table",
            registry=None,
            eval_data=self._eval_data,
            trust_remote_code=False,
        )
        choices = choose(request, self._settings)
        accelerator = Accelerator(choices.profile.accelerator)
        with open_display() as progress:
            stages = RunSession(
                "model", choices.to_dict(), accelerator, self._settings, progress
            ).stages
            sources = find_data(choices, self._settings, progress)
            checkpoint = locate(choices, self._settings, stages.output_of, progress)
            plan = make_plan(choices, checkpoint, self._settings, sources)
            reasons = self._find_refused(choices, checkpoint)
            scores = self._measure([name for name in self._names if name not in reasons])
            rows = [{"recipe": catalog.BASELINE, **scores.get(catalog.BASELINE, {})}]
            for variant in plan.variants:
                name = variant.recipe.name
                row = {"recipe": name, "needs": needs(variant.recipe)}
                row |= self._of_weights(variant, stages) | scores.get(name, {})
                rows.append(row | ({"not_served": reasons[name]} if name in reasons else {}))
            return rows

    def _of_weights(self, variant: VariantPlan, stages: StageRunner) -> dict[str, Any]:
        """Return the figures of making and verifying the variant; reuse measured ones."""
        try:
            made = stages.run(variant.stages["quantize"])
            verified = stages.run(variant.stages["check_weights"])
        except PrepareError as error:
            return {"failed": str(error)}
        sqnr = CHECK_WEIGHTS.result_of(verified).sqnr
        return {
            "bytes": QUANTIZE.result_of(made).weights_bytes,
            "seconds": made.seconds,
            "sqnr_db": sqnr.median_db if sqnr is not None else None,
        }

    def _find_refused(self, choices: ResolvedOptions, checkpoint: Checkpoint) -> dict[str, str]:
        """By recipe, what the preflight would refuse it for on this model and machine."""
        source = read_folder(checkpoint.path)
        found = {
            recipe.name: [
                fault.message
                for fault in find_unsuitable(
                    recipe,
                    source,
                    variant_weights(source.tensors, recipe.quantization, source.config),
                    choices.profile,
                )
            ]
            for recipe in choices.recipes
        }
        return {name: faults[0] for name, faults in found.items() if faults}

    def _measure(self, names: list[str]) -> dict[str, dict[str, float]]:
        """Scores by recipe and suite, the baseline's too, by one `prepare model`."""
        if not names:
            return {}
        command = [sys.executable, "-m", "pipeline.cli.main", "model", MODEL, "--json"]
        command += ["--policy", str(POLICY), "--name", "recipe-table", "--no-promote"]
        command += ["--store", str(self._settings.store)]
        command += [part for name in names for part in ("--recipe", name)]
        if self._eval_data:
            command += ["--eval-data", str(self._eval_data)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        report = json.loads(done.stdout)
        if report.get("error"):
            raise SystemExit(f"prepare model failed: {report['error']}")
        scores: dict[str, dict[str, float]] = {}
        for variant in report["variants"]:
            for gate in variant["gates"]:
                scores.setdefault(variant["recipe"], {})[gate["suite"]] = gate["candidate"]
                scores.setdefault(catalog.BASELINE, {})[gate["suite"]] = gate["baseline"]
        return scores


def needs(recipe: Recipe) -> str:
    """Describe a recipe's needs of GPU and data."""
    capability = recipe.minimum_compute_capability
    data = "calibration" if recipe.quantization.calibration else "no data"
    return f"compute capability {capability:g}, {data}" if capability else data


def print_markdown(rows: list[dict[str, Any]]) -> None:
    """Return the table as docs/how-to/recipes-and-profiles.md has it."""
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS))
    for row in rows:
        cells = (
            row["recipe"],
            f"{row['bytes'] / 1e6:.0f} MB" if "bytes" in row else "",
            f"{row['sqnr_db']:.1f} dB" if "sqnr_db" in row else "",
            *(score(row, suite) for suite in ("mmlu", "rouge")),
            f"{row['seconds'] / 60:.1f}" if "seconds" in row else "",
            row.get("needs", ""),
        )
        print("| " + " | ".join(cells) + " |")


def score(row: dict[str, Any], suite: str) -> str:
    """In per cent, or why there is none."""
    if suite in row:
        return f"{100 * row[suite]:.1f} %"
    return "failed" if "failed" in row else "not served"


if __name__ == "__main__":
    sys.exit(main())
