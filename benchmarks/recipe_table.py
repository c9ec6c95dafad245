"""What each recipe makes of the demo model: size, SQNR, MMLU-cloze, ROUGE-L, minutes.

    .venv/bin/python benchmarks/recipe_table.py
    .venv/bin/python benchmarks/recipe_table.py --recipe fp8-dynamic --recipe gptq-w4a16

One real `prepare model` makes, verifies, serves and measures a variant by every recipe that the
package carries, all on the same questions (recipe_table.yaml), beside the unquantized baseline.
What cannot be served here is made and verified only, and the table says so. A run that was stopped
goes on where it was. Takes about 5 minutes a recipe on 2 cores; prints the table of
docs/recipes.md, and last a JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline import catalog
from pipeline.settings import load_settings
from pipeline.store import Store
from recipes.schema import Recipe

POLICY = Path(__file__).with_suffix(".yaml")
MODEL = "demo:smollm2-135m"
COLUMNS = ("recipe", "size", "SQNR", "MMLU-cloze", "ROUGE-L", "minutes to make", "needs")


def main() -> int:
    """Run, then print; 1 where a recipe failed that this machine can serve."""
    arguments = parse_arguments()
    names = arguments.recipe or catalog.recipe_names()
    report = run(names, arguments)
    store = Store(load_settings(arguments.store).store)
    rows = [baseline_row(report), *(row_of(name, report, store) for name in names)]
    print_markdown(rows)
    print(json.dumps({"model": MODEL, "rows": rows}))
    return 1 if any("failed" in row for row in rows) else 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", action="append", help="only these (default: all carried)")
    parser.add_argument("--store", type=Path, help="where stages are kept (default: prepare's)")
    parser.add_argument("--eval-data", type=Path, help="folder with questions, as for prepare")
    return parser.parse_args()


def run(names: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """The report of one `prepare model` over all recipes."""
    command = [sys.executable, "-m", "pipeline.cli.main", "model", MODEL, "--json"]
    command += ["--policy", str(POLICY), "--name", "recipe-table"]
    for name in names:
        command += ["--recipe", name]
    for option in ("store", "eval_data"):
        if getattr(arguments, option):
            command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads(done.stdout)
    if report.get("error"):
        raise SystemExit(f"prepare model failed: {report['error']}")
    return dict(report)


def baseline_row(report: dict[str, Any]) -> dict[str, Any]:
    """The unquantized model's scores, as every variant was compared with."""
    gates = next(variant["gates"] for variant in report["variants"] if variant["gates"])
    return {"recipe": "baseline", **{gate["suite"]: gate["baseline"] for gate in gates}}


def row_of(name: str, report: dict[str, Any], store: Store) -> dict[str, Any]:
    """One recipe's figures; what was not measured is left out."""
    variant = next(each for each in report["variants"] if each["recipe"] == name)
    row: dict[str, Any] = {"recipe": name, "needs": needs(catalog.load_recipe(name))}
    for stage in ("quantize", "verify"):
        record = kept(stage, name, report, store)
        if record is None:
            return {**row, "failed": variant["reason"]}
        if stage == "quantize":
            row |= {"bytes": record.result["weights_bytes"], "seconds": record.seconds}
        else:
            row["sqnr_db"] = record.result["sqnr"]["median_db"]
    if not variant["gates"]:
        return {**row, "not_served": variant["reason"]}
    return row | {gate["suite"]: gate["candidate"] for gate in variant["gates"]}


def kept(stage: str, variant: str, report: dict[str, Any], store: Store) -> Any:
    """The record of that stage of the variant; None where it did not end well."""
    for each in report["stages"]:
        if (each["name"], each["variant"]) == (stage, variant) and each["status"] != "failed":
            return store.find(stage, each["key"])
    return None


def needs(recipe: Recipe) -> str:
    """What a recipe asks of GPU and data, in words."""
    capability = recipe.minimum_compute_capability
    data = "calibration" if recipe.quantization.calibration else "no data"
    return f"compute capability {capability:g}, {data}" if capability else data


def print_markdown(rows: list[dict[str, Any]]) -> None:
    """The table as docs/recipes.md has it."""
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
