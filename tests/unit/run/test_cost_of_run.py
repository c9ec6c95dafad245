from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun, equal
from fake_run import policy as fake_policy
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from artifacts.run_record import RunReport
from eval_gates.rows import COUNTS
from recipes.policy import Policy


@dataclass
class Wordy(PretendModels):
    longer: float = 1.0

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        length = 40 + int(question["id"]) % 20
        tokens = length if variant == "baseline" else round(self.longer * length)
        answer = super().answer(variant, suite, question)
        return answer | {"tokens": [tokens], **dict.fromkeys(COUNTS, 0)}


def policy(**cost: Any) -> Policy:
    plain = fake_policy(max_tokens=512).model_dump()
    given = {"suites": ["code"], "max_ratio": {"fp8": 1.15}, **cost}
    return Policy.model_validate({**plain, "cost": given})


def run(folder: Path, longer: float, **cost: Any) -> FakeRun:
    models = Wordy(equal, longer=longer, questions=600)  # its first look is at 150
    made = FakeRun(folder / "store", models, policy(**cost))
    made.run()
    return made


def only_cost(report: RunReport) -> Any:
    (cost,) = [gate for gate in report.variants[0].gates if gate.name == "cost code"]
    return cost


@pytest.mark.parametrize(
    ("longer", "tier", "verdict", "overall"),
    [
        (1.0, "supporting", "pass", "pass"),
        (1.4, "supporting", "fail", "fail"),
        (1.4, "advisory", "fail", "pass"),
    ],
)
def test_a_variant_with_longer_answers_does_not_pass(
    tmp_path: Path, longer: float, tier: str, verdict: str, overall: str
) -> None:
    made = run(tmp_path, longer, tier=tier)
    assert (only_cost(made.report).verdict, only_cost(made.report).n) == (verdict, 500)
    assert made.report.variants[0].gates[0].verdict == "pass"
    assert made.report.variants[0].verdict == overall
    (check,) = check_run(made.report, made.store)
    assert (check.computed, check.differences) == (overall, ())


def test_answers_without_tokens_are_no_evidence(tmp_path: Path) -> None:
    made = FakeRun(tmp_path / "store", PretendModels(equal), policy())
    report = made.run()
    assert "no number of tokens" in report.variants[0].reason
