"""Who decides: a gate's verdict, a variant's and a run's; and the declaration of the stage `judge`.

- A gate's verdict: `judge_quality` (`eval_gates/quality_gate.py`), `judge_depth` (`depth.py`),
  `judge_decisions` (`decisions/gate.py`), `judge_speed` (`speed/report.py`) and `judge_cost`
  (`cost.py`).
- A variant's: `judge_variant`, from its gates. `judge_evidence` (`judge.py`) gives it the gates.
- A run's: `exit_code_of`, from its variants. `promote` (`artifacts/promotion.py`) chooses among
  those that passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from eval_gates.cost import CostResult
from eval_gates.decisions.gate import DecisionResult
from eval_gates.depth import DepthResult
from eval_gates.engine_metrics import SpecDecodeStats
from eval_gates.gate_result import GateResult, Verdict, not_shown, passed_on
from eval_gates.quality_gate import gate_rule_of
from eval_gates.quality_result import QualityResult
from eval_gates.speed.report import SpeedGateResult
from eval_gates.stopping import GateRule
from pipeline.stages.attempts import History, Trial
from prepare.digest import digest_json
from prepare.errors import ExitCode
from prepare.record import Record
from prepare.stage import Stage, StageRecord
from recipes.accelerator import Accelerator
from recipes.policy import Policy
from recipes.schema import Family, ServingProfile

AnyGate = Annotated[
    QualityResult | DecisionResult | DepthResult | SpeedGateResult | CostResult,
    Field(discriminator="kind"),
]


class JudgeParameters(Record):
    """All that a verdict and its gates' rules depend on."""

    policy: Policy
    recipe: str | None = Field(None, description="of the variant")
    trial: Trial = Field(description="that the variant belongs to")
    family: Family
    profile: ServingProfile | None = Field(
        None, description="that both sides are served by, as applied; None of endpoints"
    )

    @property
    def accelerator(self) -> Accelerator | None:
        """Both sides' accelerator; None for endpoints."""
        return self.profile.accelerator if self.profile is not None else None

    @property
    def gates(self) -> dict[str, GateRule]:
        level = self.trial.level
        return {
            name: gate_rule_of(suite, self.family, level)
            for name, suite in self.policy.suites.items()
        }


class JudgeRuntime(Record):
    """Recorded with an attempt that this stage counts."""

    run: str = Field("", description="id of the run that began the attempt")


class JudgeResult(Record):
    """The verdict on one variant alone."""

    verdict: Verdict
    reason: str
    p_value: float | None = None
    history: History = Field(description="what was judged against this baseline before")
    gates: list[AnyGate] = Field(
        fail_fast=True, description="in the policy's order: quality, speed, cost"
    )
    spec_decode: dict[str, SpecDecodeStats] = Field(
        {}, description="of the variant, by suite; nothing is decided by it"
    )


JUDGE = Stage("judge", 30, JudgeParameters, JudgeRuntime, JudgeResult)


def policy_digest(judge: StageRecord) -> str:
    """Return the digest of the policy as recorded."""
    return digest_json(judge.parameters.get("policy"))


def judge_variant(gates: Sequence[GateResult]) -> tuple[Verdict, str, float]:
    """Return a variant's verdict, reason and p-value; ValueError without quality gates.

    The p-value is the critical gates' largest: several gates need no correction (intersection-union
    test; Berger 1982, Technometrics 24:295-300).
    """
    suites = [gate for gate in gates if isinstance(gate, QualityResult)]
    if not suites:
        raise ValueError("no gates: nothing was shown")
    failed = [gate.shortfall for gate in gates if gate.blocks and gate.verdict == "fail"]
    undecided = [
        f"{gate.name}{gate.shown_losses}"
        for gate in gates
        if gate.blocks and gate.verdict == "undecided"
    ]
    # Speed alone shows nothing: a critical suite must have passed.
    critical = any(suite.tier == "critical" for suite in suites)
    p_values = [gate.p_value for gate in gates if gate.tier == "critical" and critical]
    p_value = max((value for value in p_values if value is not None), default=1.0)
    if failed:
        return "fail", f"failed on {', '.join(failed)}", p_value
    if undecided:
        return "undecided", f"{', '.join(undecided)} could not be decided", p_value
    if others := not_shown(gates):
        return "pass", f"passed on {passed_on(gates)}; {others}", p_value
    deciding = sum(gate.decides for gate in gates)
    words = f"all {deciding} gates" if deciding > 1 else "the gate"
    return "pass", f"{words} passed", p_value


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """Return a finished run's exit code."""
    if "pass" in verdicts:
        return ExitCode.SUCCESS
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED
