"""A run whose policy splits the questions by a field: one lost value is no pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, FakeRun
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from artifacts.run_record import find_run
from prepare.errors import EvaluationDataError
from prepare.store import Store
from recipes.policy import Policy

TONGUES = ("en", "fr", "de", "it", "ja", "pl", "sv", "fi", "nl", "cs", "da", "el", "hu", "sw")


class ManyTongues(PretendModels):
    """Models that are asked in several languages, of which the variant has lost one."""

    def __init__(self, *, are_named: bool) -> None:
        super().__init__(loses_swahili, questions=1400)
        self.are_named = are_named

    def questions_of(self, suite: str) -> list[dict[str, Any]]:
        rows = [{"id": row["id"]} for row in super().questions_of(suite)]
        if self.are_named:
            rows = [{**row, "part": tongue_of(row["id"])} for row in rows]
        return rows

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        score = self.score(variant, suite, int(question["id"]))
        return {**question, "answer": f"x {question['id']}", "score": score, "unrelated": 0.0}


class LongTexts(ManyTongues):
    """Each language has texts with five questions; some of Swahili's have forty, others one."""

    def __init__(self) -> None:
        super().__init__(are_named=True)
        texts = [(f"{tongue}{n}", tongue, 5) for tongue in TONGUES[:-1] for n in range(50)]
        texts += [(f"sw{n}", "sw", 40 if n < 20 else 1) for n in range(65)]
        self.rows = [
            {"id": f"{text}/{n}", "cluster": text, "part": tongue}
            for text, tongue, questions in sorted(texts)
            for n in range(questions)
        ]

    def questions_of(self, suite: str) -> list[dict[str, Any]]:
        return self.rows

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        is_lost = variant == ONE and question["part"] == "sw" and self.is_long(question["cluster"])
        score = float(not is_lost)
        return {**question, "answer": f"x {question['id']}", "score": score, "unrelated": 0.0}

    def is_long(self, text: str) -> bool:
        return int(text.removeprefix("sw")) < 20


def tongue_of(question: str) -> str:
    return TONGUES[int(question) % len(TONGUES)]


def loses_swahili(variant: str, suite: str, number: int) -> float:
    return float(variant != ONE or tongue_of(str(number)) != "sw")


@pytest.mark.parametrize(("field", "verdict"), [("tongue", "fail"), (None, "pass")])
def test_one_lost_language_fails(tmp_path: Path, field: str | None, verdict: str) -> None:
    """A fourteenth of the questions is 7 points; 10 may be lost on average."""
    suite = {"kind": "rouge", "margins": {"fp8": 0.1}, "parts_by": field}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"notes": suite}})
    models = ManyTongues(are_named=field is not None)
    run = FakeRun(tmp_path / "store", models, policy=policy)
    run.run()
    (variant,) = run.report.variants
    assert variant.verdict == verdict, variant.reason
    assert ("sw loses at least" in variant.gates[0].reason) == (field is not None)
    assert (variant.quality[0].n == 1400) == (field is not None)  # else the first look decides
    assert variant.not_shown == ""
    assert ("(lost: sw)" in variant.reason) == (field is not None)
    store = Store(run.root)
    (check,) = check_run(find_run(store, "latest"), store)
    assert check.differences == ()


def test_a_lost_language_fails_where_its_loss_puts_the_mean_on_the_margin(tmp_path: Path) -> None:
    """The mean is not shown to be inside: more questions were asked for, and cannot help."""
    suite = {"kind": "rouge", "margins": {"fp8": 0.1}, "parts_by": "tongue"}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"notes": suite}})
    models = ManyTongues(are_named=True)
    models.questions = 364
    run = FakeRun(tmp_path / "store", models, policy=policy)
    run.run()
    (gate,) = run.report.variants[0].quality
    assert (gate.verdict, gate.lost) == ("fail", ["sw"])
    assert gate.bound < gate.threshold


def test_a_language_that_is_lost_in_a_few_long_texts_fails(tmp_path: Path) -> None:
    """45 of its 65 texts have one question each; 800 of its 845 questions are lost."""
    suite = {"kind": "rouge", "margins": {"fp8": 0.1}, "cluster_by": "text", "parts_by": "tongue"}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"notes": suite}})
    models = LongTexts()
    run = FakeRun(tmp_path / "store", models, policy=policy)
    run.run()
    (gate,) = run.report.variants[0].quality
    assert gate.verdict == "fail", gate.reason
    assert gate.lost == ["sw"]


def test_a_pass_names_a_language_that_may_be_lost(tmp_path: Path) -> None:
    """With 20 questions of it the loss is shown at the level of one part, not of all 14."""
    suite = {"kind": "rouge", "margins": {"fp8": 0.15}, "parts_by": "tongue"}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"notes": suite}})
    models = ManyTongues(are_named=True)
    models.questions = 280
    models.score = lambda variant, suite, number: float(
        variant != ONE or tongue_of(str(number)) != "sw" or number // len(TONGUES) % 2 == 0
    )
    run = FakeRun(tmp_path / "store", models, policy=policy)
    run.run()
    (variant,) = run.report.variants
    assert variant.verdict == "pass"
    assert variant.short_verdict == "pass (not shown: notes)"
    assert variant.reason.startswith("passed on notes; looked at alone: notes, sw loses at least ")


def test_a_limit_that_leaves_a_language_out_is_no_verdict(tmp_path: Path) -> None:
    """Its loss would be unseen, and the variant would pass."""
    suite = {"kind": "rouge", "margins": {"fp8": 0.1}, "parts_by": "tongue", "questions": 13}
    policy = Policy.model_validate({"name": "p", "summary": "s", "suites": {"notes": suite}})
    run = FakeRun(tmp_path / "store", ManyTongues(are_named=True), policy=policy)
    with pytest.raises(EvaluationDataError, match="none of the parts"):
        run.run()
