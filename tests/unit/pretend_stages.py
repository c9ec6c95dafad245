"""An executor that runs stages in this process, with models whose every answer a test decides.

What is pretended is what needs other environments: quantizing, serving, asking. Evaluating (the
answer book, when to stop), judging and everything between stages are the real code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from listener import Listener
from small_checkpoint import safetensors

from eval_gates.answers import AnswerBook, Rows
from eval_gates.stopping import Stopping
from eval_gates.suites.json_lines import read_rows, write_rows
from pipeline.core.digest import digest_bytes, digest_json
from pipeline.core.errors import ServingError, StageError
from pipeline.core.events import Progress
from pipeline.core.stage_record import StageRecord, StageSpec
from pipeline.core.store import RECORD, Store, write_atomically
from pipeline.plan.plan import VariantPlan
from pipeline.stages import stage_module
from pipeline.stages.context import StageContext
from pipeline.workers.evaluate import ask_until_over

Score = Callable[[str, str, int], float]
"""(variant, suite, number of the question in file order) to a score."""


@dataclass
class PretendModels:
    """What the models answer, and what they were asked.

    Args:
        score: of each answer.
        questions: how many each suite has.
        broken: variants whose server does not come up.
        incoherent: variants that do not speak.
        unquantizable: variants whose dry run fails.
        asked: (variant, suite, questions asked) of each worker's life.
        served: variants, in the order in which their servers were opened.
    """

    score: Score
    questions: int = 400
    broken: set[str] = field(default_factory=set)
    incoherent: set[str] = field(default_factory=set)
    unquantizable: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    # --- as endpoints ---------------------------------------------------------------------------

    open_now: str | None = None
    looks: int = 0
    dies_at_look: int | None = None

    def open_variant(self, variant: VariantPlan) -> dict[str, Any]:
        """Bring the variant's pretended server up."""
        name = variant.recipe.name
        if name in self.broken:
            raise ServingError(f"the server of {name} does not come up")
        if self.open_now != name:
            assert self.open_now is None, "two servers at once"
            self.open_now = name
            self.served.append(name)
        return {"url": "http://127.0.0.1:1", "model": "model", "server": {"ready_seconds": 1.0}}

    def check_alive(self) -> None:
        """It is, unless the test says that it died after so many looks."""
        self.looks += 1
        if self.dies_at_look == self.looks:
            raise ServingError("the model server ended with exit code 9")

    def hold_machine(self) -> PretendModels:
        """Only one server is up at a time; see `open_variant`."""
        return self

    def __enter__(self) -> None:
        assert self.open_now is None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the server down."""
        self.open_now = None


@dataclass
class PretendExecutor:
    """Runs a stage while it is being submitted."""

    store: Store
    models: PretendModels

    def submit(self, spec: Path, log: Path) -> PretendJob:
        """Run the stage; what goes wrong is told by the job."""
        described = StageSpec.model_validate_json(spec.read_text())
        try:
            run_stage(described, self.store, self.models)
        except StageError as error:
            return PretendJob(error)
        return PretendJob(None)


@dataclass
class PretendJob:
    """A stage that has run."""

    failure: StageError | None

    def wait(self, progress: Progress) -> None:
        """Nothing to wait for."""
        if self.failure is not None:
            raise self.failure

    def cancel(self) -> None:
        """Nothing to end."""


class PretendContext(StageContext):
    """A stage's context whose evaluate worker asks the pretended models."""

    models: PretendModels

    def run_worker(
        self, worker: str, worker_spec: dict[str, Any], *, output: Path | None = None, **_: Any
    ) -> dict[str, Any]:
        """Ask as the real worker does, without lm-eval."""
        assert worker == "evaluate"
        suite, variant = self.spec.runtime["suite"].partition(",")[0], self.spec.variant
        assert self.models.open_now == variant
        ids = [row["id"] for _, row in read_rows(Path(worker_spec["questions"]))]
        asked = 0

        def ask(batch: range) -> Rows:
            nonlocal asked
            asked += len(batch)
            return [
                {
                    "id": ids[place],
                    "prompt_sha256": f"digest of {ids[place]}",
                    "answer": "x",
                    "score": self.models.score(variant, suite, int(ids[place])),
                    "subject": "anatomy",
                }
                for place in batch
            ]

        book = AnswerBook(Path(worker_spec["book"]), ids)
        stopping = Stopping(**worker_spec["stopping"])
        ended = ask_until_over(book, stopping, ask, worker_spec["minutes"], self.progress)
        self.models.asked.append((variant, suite, asked))
        return {"ended_by": ended, "requests": {}}


def run_stage(spec: StageSpec, store: Store, models: PretendModels) -> None:
    """Run one stage into the store."""
    with store.open_for_writing(spec.stage, spec.key) as folder:
        assert folder is not None
        context = PretendContext(spec, folder, store, Listener())
        context.models = models
        record = StageRecord(
            **spec.model_dump(include={"stage", "variant", "key", "parameters", "inputs"}),
            input_digests=context.input_digests(),
            result=result_of(context, models),
            notes=context.notes,
            seconds=0.1,
            finished="2026-11-21T10:00:00+00:00",
        )
        write_atomically(folder / RECORD, record.model_dump_json())


def result_of(context: PretendContext, models: PretendModels) -> dict[str, Any]:
    """What the stage finds: pretended, or by its own code."""
    stage, variant = context.spec.stage, context.spec.variant
    if stage in ("adopt", "evaluate", "judge"):
        result: dict[str, Any] = stage_module(stage).run(context)
        return result
    if stage == "questions":
        rows = [{"id": str(number)} for number in range(models.questions)]
        random.Random(1).shuffle(rows)  # as the real one lays them out
        write_rows(context.folder / "questions.jsonl", rows)
        content = (context.folder / "questions.jsonl").read_bytes()
        return {"questions": len(rows), "questions_digest": digest_bytes(content), "guessing": 0.0}
    if stage == "dry_run" and variant in models.unquantizable:
        raise StageError(f"{variant} cannot be quantized")
    if stage == "quantize":
        weights = context.output_folder() / "model.safetensors"
        weights.write_bytes(safetensors({f"{variant}.weight": ("BF16", (2, 2))}))
        digest = digest_json([[weights.name, digest_bytes(weights.read_bytes())]])
        return {"weights_digest": digest, "weights_bytes": 1000}
    if stage == "check_weights":
        return {"weights_digest": context.input_record("weights").result["weights_digest"]}
    return {
        "dry_run": {"layers": [0, 1]},
        "coherence": {
            "perplexity": 10.0,
            "incoherent": "it babbles" if variant in models.incoherent else "",
        },
        "benchmark": {
            "output_tokens_per_s": 100.0,
            "ttft_ms_p50": 1.0,
            "tpot_ms_p50": 1.0,
            "itl_ms_p50": 1.0,
            "requests": 8,
            "failed_requests": 0,
            "engine_version": "0.33.0",
        },
    }[stage]


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
