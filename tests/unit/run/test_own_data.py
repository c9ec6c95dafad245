"""Two suites of one kind, each with its own file: planned, asked and judged apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, FakeRun
from listener import Listener
from pretend_stages import PretendModels, Rows

from eval_gates.questions_worker import run as lay_out
from eval_gates.suites.json_lines import read_rows
from pipeline.plan.data_sources import SourceResolver
from pipeline.stages.questions import QUESTIONS, QuestionsParameters
from prepare.digest import FileDigests
from recipes.catalog import load_policy

SUITES = ("capitals", "rivers")
POLICY = """
name: mine
summary: two suites of choices
suites:
  capitals: {kind: mmlu, margins: {fp8: 0.25}, num_fewshot: 0, data: capitals.jsonl}
  rivers: {kind: mmlu, margins: {fp8: 0.25}, num_fewshot: 0, data: more/rivers.jsonl}
"""


class Readers(PretendModels):
    """Models that read the questions; the variant knows no capital."""

    def __init__(self, run: OwnData) -> None:
        super().__init__(lambda *_: 0.0)
        self.run = run
        self.read: dict[str, set[str]] = {suite: set() for suite in SUITES}

    def questions_of(self, suite: str) -> Rows:
        """What the real worker lays out of the planned source."""
        task = self.run.policy.suites[suite]
        source = self.run.sources.suite(suite, task)
        parameters = QuestionsParameters(suite=task, source=source.identity, seed=1)
        output = self.run.root.parent / f"laid-out-{suite}"
        output.mkdir(exist_ok=True)
        lay_out({**parameters.model_dump(), "folder": str(source.folder)}, Listener(), output)
        return [row for _, row in read_rows(output / "questions.jsonl")]

    def guessing_of(self, suite: str) -> float:
        """Four choices each."""
        return 0.25

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        """Right, unless the variant is asked about a capital."""
        self.read[suite].add(question["question"].split()[1])
        is_lost = variant == ONE and "capital" in question["question"]
        number = float(question["id"].rpartition("/")[2])
        score = 0.0 if is_lost else 1.0
        return {"answer": [number], "score": score, "group": question.get("group", "")}


class OwnData(FakeRun):
    """A run whose questions are those of the policy's files."""

    @property
    def sources(self) -> SourceResolver:
        digests = FileDigests(self.root.parent / "sources.json")
        return SourceResolver(None, "evaluate", digests, Listener())


@pytest.fixture
def run(tmp_path: Path) -> OwnData:
    (tmp_path / "more").mkdir()
    for noun, file in (("capital", "capitals.jsonl"), ("river", "more/rivers.jsonl")):
        rows = [
            {
                "question": f"Which {noun} has the number {n}?",
                "choices": [f"{noun} {n + place}" for place in range(4)],
                "answer": n % 4,
                "subject": "geography",
            }
            for n in range(80)
        ]
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(POLICY)
    made = OwnData(tmp_path / "store", policy=load_policy(str(tmp_path / "mine.yaml")))
    made.models = Readers(made)
    return made


def test_each_suite_has_its_own_questions(run: OwnData) -> None:
    plan = run.plan()
    shared = plan.shared.values()
    specs = {spec.variant: spec for spec in shared if spec.stage == QUESTIONS.name}
    sources = [QUESTIONS.parameters_of(specs[suite]).source for suite in SUITES]
    assert sources[0].digest != sources[1].digest
    assert specs["capitals"].key != specs["rivers"].key

    report = run.run()
    assert isinstance(run.models, Readers)
    assert run.models.read == {"capitals": {"capital"}, "rivers": {"river"}}
    (variant,) = report.variants
    verdicts = {gate.name: gate.verdict for gate in variant.gates}
    assert verdicts == {"capitals": "fail", "rivers": "pass"}
