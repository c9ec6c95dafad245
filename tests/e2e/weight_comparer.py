"""The worker that compares weights, as one process that takes a comparison a line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import BUILTIN_CALIBRATION
from pipeline.stages.check_weights import VerificationResult, account_variant, judge_numbers
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.errors import from_dict
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.quantization import Quantization
from recipes.weights.accounting import WeightComparison

Compare = Callable[[WeightComparison], Mapping[str, Any]]

LOOP = """
import json, runpy, sys, traceback
from pathlib import Path

runpy.run_path(sys.argv[1])["register_packages"](Path(sys.argv[1]).resolve().parents[1])
from prepare.errors import PrepareError
from prepare.events import NullProgress
from recipes.weights.check_weights_worker import run

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    try:
        answer = {"result": run(json.loads(line), NullProgress(), Path(sys.argv[2]))}
    except PrepareError as error:
        answer = {"error": error.to_dict()}
    except Exception:
        answer = {"defect": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


def check_variant(
    source: Path, variant: Path, recipe: Quantization, compare: Compare
) -> VerificationResult:
    """Check a variant as the stage does."""
    verified, comparison = account_variant(source, variant, recipe)
    if comparison is not None:
        judge_numbers(verified, comparison, recipe, compare(comparison))
    return verified


@contextmanager
def comparer(folder: Path) -> Iterator[Compare]:
    """Yield what compares; `folder` gets its log and what it writes meanwhile."""
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    command = [str(python), "-c", LOOP, str(BOOTSTRAP), str(folder)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):

        def compare(comparison: WeightComparison) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            spec = {"texts": str(BUILTIN_CALIBRATION), "trust_remote_code": False}
            print(
                json.dumps({**spec, "comparison": asdict(comparison)}),
                file=process.stdin,
                flush=True,
            )
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()[-3000:]
            answer = json.loads(line)
            assert "defect" not in answer, answer["defect"]
            if "error" in answer:
                raise from_dict(answer["error"])
            found: dict[str, Any] = answer["result"]
            return found

        yield compare
        assert process.stdin is not None
        process.stdin.close()
