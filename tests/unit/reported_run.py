"""A whole run in a store, as its stages leave it, for reports: real shapes, really judged.

Two variants of a checkpoint, asked three kinds of suites; any text can be another, so that a test
can let a model say what it likes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finished_stage import put_record, stage_record
from sample_reports import COMMAND, DIGEST, run_report, stage_report, variant_report
from sample_stages import PARAMETERS, RESULTS
from three_suites import three_suites

from artifacts.evidence.verdict import judge_evidence
from artifacts.kept_runs import RUN_RECORD
from artifacts.run_record import RunReport, StageReport
from artifacts.stages.judge import JudgeParameters
from eval_gates.answers import read_answers
from eval_gates.planned_bets import planned_bets_of
from eval_gates.speed.load import LOADS, read_loads
from eval_gates.suites.json_lines import write_rows
from pipeline.core.digest import digest_bytes
from pipeline.core.stage_record import StageRecord, StageReference
from pipeline.core.store import Store, write_atomically
from recipes.schema import Family

RECIPES: dict[str, Family] = {"fp8-dynamic": "fp8", "awq-w4a16": "int4"}
SUBJECTS = ("anatomy", "virology", "sociology", "jurisprudence")
QUESTIONS = {"mmlu": 64, "humaneval": 16, "rouge": 32}
METRICS = {"mmlu": "acc_norm", "humaneval": "pass@1", "rouge": "rougeL"}
SERVED = {
    "engine": "0" * 64,
    "serving": {"engine_arguments": {"max-model-len": 2048}, "environment": {"VLLM_X": "1"}},
    "hardware": {"accelerator": "cpu", "cpu": "a CPU", "cores": 2},
}
Rows = list[dict[str, Any]]


@dataclass
class Texts:
    """What questions and models say."""

    question: str = "What is it?"
    answer: str = "It is what it is."
    subject: str = "virology"
    module: str = "model.layers.{layer}.mlp.up_proj"


@dataclass
class ReportedRun:
    """The store and the record of the run in it."""

    store: Store
    texts: Texts = field(default_factory=Texts)
    stages: list[StageReport] = field(default_factory=list)
    report: RunReport = field(default_factory=run_report)

    def put(self, stage: str, variant: str, result: dict[str, Any], **more: Any) -> StageReference:
        """Lay a stage's record into the store and name it in the run."""
        name = more.pop("name", stage)
        key = f"{name}-{variant}".replace(" ", "-")
        asked = PARAMETERS.get(stage, {}) | more.pop("parameters", {})
        more = {"parameters": asked, "inputs": {}, "input_digests": {}} | more
        result = RESULTS.get(stage, {}) | result
        put_record(
            self.store, stage_record(stage=stage, variant=variant, key=key, result=result, **more)
        )
        self.stages.append(stage_report(name=name, variant=variant, key=key))
        return StageReference(stage=stage, key=key)

    def folder(self, reference: StageReference) -> Path:
        return self.store.stage_folder(reference.stage, reference.key)

    def record(self, reference: StageReference) -> StageRecord:
        found = self.store.find(reference.stage, reference.key)
        assert found is not None
        return found

    def save(self, **changes: Any) -> RunReport:
        """Write the run's record with these changes."""
        self.report = self.report.model_copy(update=changes)
        folder = self.store.root / "runs" / self.report.run
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RUN_RECORD, self.report.model_dump_json())
        return self.report


def reported_run(
    root: Path, texts: Texts | None = None, run: str = "20261121-100000-000001", lost: float = 0.05
) -> ReportedRun:
    """A finished run that promoted the second variant.

    Args:
        root: of the store.
        texts: of questions and models.
        run: its id.
        lost: share of right answers that a variant gets wrong.
    """
    made = ReportedRun(Store(root), texts or Texts())
    questions = {suite: put_questions(made, suite) for suite in QUESTIONS}
    baseline = put_side(made, "baseline", questions, 0.0)
    variants = []
    for recipe, family in RECIPES.items():
        made.put(
            "quantize",
            recipe,
            {"weights_digest": DIGEST, "weights_bytes": 10**8, "versions": {"torch": "2.13"}},
            parameters={"environment": "1" * 64},
        )
        put_layers(made, recipe)
        candidate = put_side(made, recipe, questions, lost)
        result = put_verdict(made, recipe, family, questions, baseline, candidate)
        variants.append(
            variant_report(
                **result,
                recipe=recipe,
                weights_bytes=150_000_000 if family == "fp8" else 100_000_000,
                promoted=family == "int4",
            )
        )
    made.save(
        run=run,
        variants=variants,
        stages=made.stages,
        command=COMMAND | {"recipes": list(RECIPES)},
        notes=["a note"],
    )
    return made


def put_questions(made: ReportedRun, suite: str) -> StageReference:
    rows = [question(made.texts, suite, n) for n in range(QUESTIONS[suite])]
    reference = made.put(
        "questions", suite, {"questions": len(rows), "guessing": 0.25 if suite == "mmlu" else 0.0}
    )
    write_rows(made.folder(reference) / "questions.jsonl", rows)
    return reference


def question(texts: Texts, suite: str, n: int) -> dict[str, Any]:
    """A row of questions.jsonl, as the suite lays it out."""
    if suite == "mmlu":
        return {
            "id": f"{SUBJECTS[n % 4]}/{n}",
            "subject": texts.subject if n % 4 == 1 else SUBJECTS[n % 4],
            "question": texts.question,
            "choices": ["one", "the other", "both of them", "none"],
            "answer": n % 4,
            "examples": "",
        }
    if suite == "humaneval":
        return {"id": f"HumanEval/{n}", "prompt": texts.question, "request": texts.question}
    return {"id": f"s{n}", "title": "", "document": texts.question, "references": [texts.answer]}


def put_side(
    made: ReportedRun, variant: str, questions: dict[str, StageReference], lost: float
) -> dict[str, StageReference]:
    """Coherence, answers and load test of one side."""
    made.put("coherence", variant, {"perplexity": 20.0}, parameters=SERVED)
    found = {}
    for suite in questions:
        rows = answers(made.texts, suite, lost)
        reference = made.put(
            "evaluate",
            variant,
            {
                "metric": METRICS[suite],
                "n": len(rows),
                "score": sum(row["score"] for row in rows) / len(rows),
            },
            name=f"evaluate {suite}",
            parameters={"environment": "2" * 64},
        )
        put_answers(made, reference, rows)
        found[suite] = reference
    seconds = 0.02 if variant == "baseline" else 0.01
    found["benchmark"] = made.put(
        "benchmark",
        variant,
        {
            "output_tokens_per_s": 1 / seconds,
            "requests": 8,
            "failed_requests": 0,
            "engine_version": "0.32.0",
            "ttft_ms_p50": 100.0,
            "tpot_ms_p50": 1000 * seconds,
            "itl_ms_p50": 1000 * seconds,
        },
        parameters={"machine": "m"},
    )
    timings = {
        "ttfts": [0.1] * 8,
        "itls": [[seconds] * 4] * 8,
        "output_lens": [5] * 8,
        "errors": [""] * 8,
    }
    (made.folder(found["benchmark"]) / "requests.json").write_text(json.dumps(timings))
    return found


def put_answers(made: ReportedRun, reference: StageReference, rows: Rows) -> None:
    """Keep answers, with their digest in the stage's record."""
    write_rows(made.folder(reference) / "answers.jsonl", rows)
    content = (made.folder(reference) / "answers.jsonl").read_bytes()
    record = made.record(reference)
    put_record(
        made.store,
        record.model_copy(
            update={"result": record.result | {"answers_digest": digest_bytes(content)}}
        ),
    )


def answers(texts: Texts, suite: str, lost: float) -> Rows:
    """Rows as the suite's worker writes them; of 80 % right ones, this share is lost."""
    rows = []
    draw = random.Random(suite)
    for n in range(QUESTIONS[suite]):
        knows, loses = draw.random() < 0.8, draw.random() < lost
        score = float(knows and not loses)
        row: dict[str, Any] = {"id": question(texts, suite, n)["id"], "prompt_sha256": f"p{n}"}
        if suite == "mmlu":
            chosen = n % 4 if score else (n + 1) % 4
            row |= {
                "answer": [-1.0 if c == chosen else -90.0 for c in range(4)],
                "subject": question(texts, suite, n)["subject"],
            }
        elif suite == "humaneval":
            row |= {"answer": f"{texts.answer} {score}", "outcome": "passed" if score else "failed"}
        else:
            score = 0.3 - 0.1 * loses
            row |= {"answer": f"{texts.answer} {score}", "rougeL": score, "unrelated": 0.05}
        rows.append(row | {"score": score})
    return rows


def put_layers(made: ReportedRun, recipe: str) -> None:
    """The stage check_weights with its table of layers."""
    reference = made.put(
        "check_weights",
        recipe,
        {
            "weights_bytes": 10**8,
            "size_ratio": 0.5,
            "sqnr": {"median_db": 31.0, "floor_db": 25.0, "worst": []},
        },
    )
    rows = [
        {
            "name": name.format(layer=layer),
            "format": "float-quantized",
            "rows": 8,
            "columns": 8,
            "sqnr_db": None if (layer, name[-6:]) == (2, "q_proj") else 30.0 + layer,
        }
        for layer in range(4)
        for name in ("model.layers.{layer}.self_attn.q_proj", made.texts.module)
    ]
    write_rows(made.folder(reference) / "layers.jsonl", rows)


def put_verdict(
    made: ReportedRun,
    recipe: str,
    family: Family,
    questions: dict[str, StageReference],
    baseline: dict[str, StageReference],
    candidate: dict[str, StageReference],
) -> dict[str, Any]:
    """Judge as the stage does, and keep it."""
    inputs = {
        **{f"questions.{suite}": reference for suite, reference in questions.items()},
        **{f"baseline.{suite}": reference for suite, reference in baseline.items()},
        **{f"candidate.{suite}": reference for suite, reference in candidate.items()},
    }
    asked = JudgeParameters(
        policy=three_suites(),
        family=family,
        planned_bets=planned_bets_of(three_suites(), family),
        accelerator="cpu",
    )
    parameters = asked.model_dump(mode="json")
    found = judge_evidence(
        asked,
        set(inputs),
        lambda role: read_answers(made.folder(inputs[role])),
        lambda role: made.record(inputs[role]),
        lambda role: read_loads(made.folder(inputs[role]) / LOADS),
    )
    result = found.model_dump(mode="json")
    made.put(
        "judge",
        recipe,
        result,
        parameters=parameters,
        inputs=inputs,
        input_digests=dict.fromkeys(inputs, DIGEST),
    )
    return result
