"""A fake run for reports: two variants, asked three kinds of suites, in any words.

Any text can be another, so that a test can let a model say what it likes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fake_run import FakeRun, equal
from pretend_stages import PretendModels, Rows
from sample_reports import DIGEST, REQUEST, RESOLVED
from three_suites import three_suites

from recipes.checkpoints.source_info import SourceInfo
from recipes.speed import SpeedPolicy

WEIGHTS = {"fp8-dynamic": 150_000_000, "awq-w4a16": 100_000_000}
SUBJECTS = ("anatomy", "virology", "sociology", "jurisprudence")
QUESTIONS = {"mmlu": 64, "humaneval": 96, "rouge": 160}


@dataclass
class Texts:
    """What questions and models say."""

    question: str = "What is it?"
    answer: str = "It is what it is."
    subject: str = "virology"
    module: str = "model.layers.{layer}.mlp.up_proj"


@dataclass
class TalkingModels(PretendModels):
    """They say what the texts say; of 80 % right answers a variant gets a share wrong."""

    texts: Texts = field(default_factory=Texts)
    lost: float = 0.05

    def questions_of(self, suite: str) -> Rows:
        """As each suite lays them out."""
        return [self.question(suite, n) for n in range(QUESTIONS[suite])]

    def question(self, suite: str, n: int) -> dict[str, Any]:
        """A row of questions.jsonl."""
        text = self.texts.question
        if suite == "mmlu":
            subject = self.texts.subject if n % 4 == 1 else SUBJECTS[n % 4]
            return {
                "id": f"{SUBJECTS[n % 4]}/{n}",
                "group": subject,
                "subject": subject,
                "question": text,
                "choices": ["one", "the other", "both of them", "none"],
                "answer": n % 4,
                "prompt": f"{text}\nAnswer:",
            }
        if suite == "humaneval":
            return {"id": f"HumanEval/{n}", "prompt": text}
        return {"id": f"s/{n}", "title": "", "document": text, "references": [self.texts.answer]}

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        """As the suite's worker writes it."""
        n = int(question["id"].partition("/")[2])
        draw = random.Random(f"{suite} {n}")
        knows, loses = draw.random() < 0.8, draw.random() < self.lost and variant != "baseline"
        score = float(knows and not loses)
        if "subject" in question:  # asked again, too
            chosen = n % 4 if score else (n + 1) % 4
            likelihoods = [-1.0 if choice == chosen else -90.0 for choice in range(4)]
            return {"answer": likelihoods, "score": score, "group": question["subject"]}
        if suite == "humaneval":
            outcome = "passed" if score else "failed"
            answer = f"{self.texts.answer} {n} {score}"
            return {"answer": answer, "score": score, "outcome": outcome}
        score = 0.3 - 0.1 * loses
        answer = f"{self.texts.answer} {n} {score}"
        return {"answer": answer, "score": score, "rougeL": score, "unrelated": 0.05}

    def layers(self) -> Rows:
        """Two modules in each of four layers; one of them lost nothing."""
        return [
            {
                "name": name.format(layer=layer),
                "format": "float-quantized",
                "rows": 8,
                "columns": 8,
                "sqnr_db": None if (layer, name[-6:]) == (2, "q_proj") else 30.0 + layer,
            }
            for layer in range(4)
            for name in ("model.layers.{layer}.self_attn.q_proj", self.texts.module)
        ]


SPEED = SpeedPolicy.model_validate(
    {
        "ratio": {"min_ratio": 0.5, "workloads": ["short"]},
        "workloads": {
            "short": {
                "kind": "random",
                "input_tokens": 8,
                "output_tokens": 4,
                "arrivals": {"concurrency": 4},
                "seconds": 1,
            }
        },
    }
)


def reported_run(
    root: Path,
    texts: Texts | None = None,
    run: str = "20261121-100000-000001",
    lost: float = 0.05,
    engine_version: str = "0.32.0",
) -> FakeRun:
    """A finished run that is said to have promoted the second variant.

    Args:
        root: of the store.
        texts: of questions and models.
        run: its id.
        lost: share of right answers that a variant gets wrong.
        engine_version: as the engine tells it.
    """
    models = TalkingModels(equal, texts=texts or Texts(), lost=lost, engine_version=engine_version)
    models.seconds = dict.fromkeys(WEIGHTS, 0.5)  # twice as fast
    policy = three_suites().model_copy(update={"speed": SPEED})
    made = FakeRun(root, models, policy, tuple(WEIGHTS))
    promoted = {"promoted": True, "registry_version": "1"}
    variants = [
        variant.model_copy(
            update={"weights_bytes": WEIGHTS[variant.recipe]}
            | (promoted if variant.recipe == "awq-w4a16" else {})
        )
        for variant in made.run().variants
    ]
    made.save(
        run=run,
        variants=variants,
        notes=["a note"],
        request=replace(REQUEST, recipes=tuple(WEIGHTS)),
        resolved=RESOLVED.model_copy(update={"recipes": tuple(WEIGHTS)}),
        checkpoint=SourceInfo(ref=RESOLVED.checkpoint, digest=DIGEST),
        registered_name=RESOLVED.name,
    )
    return made
