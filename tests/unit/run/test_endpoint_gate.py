from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint_stand_in import EndpointStandIn
from finished_stage import put_record, stage_record
from listener import Listener
from sample_stages import RESULTS
from some_node import NODE

from artifacts.requests import GateRequest
from pipeline.environments import environment
from pipeline.environments.settings import Settings
from pipeline.plan.plan import Plan
from pipeline.run import gate as endpoint_gate
from pipeline.run.gate import choose_endpoints, plan_of
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.evaluate import EVALUATE
from prepare.errors import UsageError
from prepare.store import Store
from recipes.catalog import load_policy


@pytest.fixture
def request_of(tmp_path: Path) -> GateRequest:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer_config.json", "tokenizer.json", "model.safetensors"):
        (tokenizer / name).write_text("{}")
    return GateRequest(
        baseline="http://a",
        candidate="http://b",
        baseline_model="m",
        candidate_model="m",
        policy="demo",
        tokenizer=tokenizer,
        deployment_id="s",
    )


def keys(request: GateRequest, run_id: str = "run") -> set[str]:
    home = request.tokenizer.parent
    settings = Settings(home=home / "home", store=home / "store")
    policy = load_policy(request.policy)
    plan = plan_of(choose_endpoints(request), policy, settings, run_id, Listener(), NODE)
    sides = (plan.baseline, *plan.variants)
    return {
        spec.key for side in sides for spec in side.stages.values() if spec.stage == EVALUATE.name
    }


def test_a_session_goes_on(request_of: GateRequest) -> None:
    assert keys(request_of, "one run") == keys(request_of, "another")
    alone = replace(request_of, deployment_id=None, policy=str(easy(request_of)))
    assert keys(alone, "one run").isdisjoint(keys(alone, "another"))
    # Which is what an interrupted one says that continues it.
    assert keys(replace(alone, deployment_id="one run"), "later") == keys(alone, "one run")


def easy(request: GateRequest, margin: float = 0.3, attempts: int | None = None) -> Path:
    file = request.tokenizer.parent / f"easy-{margin}.yaml"
    file.write_text(
        f"{{name: easy, summary: s, attempts: {attempts or 'null'},"
        f" suites: {{code: {{kind: humaneval, margins: {{fp8: {margin}}}}}}}}}"
    )
    return file


def plan_for(request: GateRequest, run_id: str) -> Plan:
    home = request.tokenizer.parent
    settings = Settings(home=home / "home", store=home / "store")
    policy = load_policy(request.policy)
    return plan_of(choose_endpoints(request), policy, settings, run_id, Listener(), NODE)


def begin(plan: Plan, request: GateRequest, number: int = 1) -> int:
    assert plan.trial is not None
    ledger = AttemptLedger(Store(request.tokenizer.parent / "store"))
    ledger.begin(Counted(trial=plan.trial, gate="code"), number)
    return ledger.history(plan.trial).attempt


def level(plan: Plan) -> float:
    return float(plan.variants[0].stages["code"].parameters["rule"]["alpha"])


@pytest.mark.parametrize(("attempts", "alpha"), [(None, 0.05), (4, 0.0125)])
def test_a_gate_that_is_tried_again_is_another_attempt(
    request_of: GateRequest, attempts: int | None, alpha: float
) -> None:
    policy = easy(request_of, attempts=attempts)
    again = replace(request_of, deployment_id=None, policy=str(policy))
    plans = [plan_for(again, f"run {number}") for number in range(3)]
    assert [begin(plan, again) for plan in plans] == [1, 2, 3]
    assert [level(p) for p in plans] == [pytest.approx(alpha)] * 3
    # On another port it is the same baseline; one deployment id is the same attempt.
    named = replace(again, deployment_id="s")
    moved = replace(named, baseline="http://c")
    assert [begin(plan_for(named, run), again) for run in ("x", "y")] == [4, 4]
    if attempts is not None:
        with pytest.raises(UsageError, match="allows 4 attempts"):
            plan_for(again, "run 5")
    else:
        assert begin(plan_for(moved, "z"), again) == 5


def finish_asking(plan: Plan, request: GateRequest) -> None:
    (variant,), store = plan.variants, Store(request.tokenizer.parent / "store")
    for spec in (plan.baseline.stages["code"], variant.stages["code"]):
        if (counted := EVALUATE.runtime_of(spec).counted) is not None:
            AttemptLedger(store).begin(counted, EVALUATE.parameters_of(spec).measurement_number)
        put_record(
            store,
            stage_record(
                stage="evaluate",
                key=spec.key,
                parameters=dict(spec.parameters),
                result=RESULTS["evaluate"],
                inputs={},
                input_digests={},
            ),
        )


def test_a_gate_of_a_session_is_measured_again_on_request(request_of: GateRequest) -> None:
    named = replace(request_of, policy=str(easy(request_of)))
    again = replace(named, remeasure=("code",))

    def planned(request: GateRequest, run_id: str) -> tuple[int, float]:
        plan = plan_for(request, run_id)
        return EVALUATE.parameters_of(plan.variants[0].stages["code"]).measurement_number, level(
            plan
        )

    first, second = (1, pytest.approx(0.05)), (2, pytest.approx(0.05))
    assert planned(again, "run 1") == first  # nothing is over yet
    finish_asking(plan_for(named, "run 1"), named)
    assert planned(named, "run 2") == first
    assert planned(again, "run 2") == second
    finish_asking(plan_for(again, "run 2"), named)
    assert planned(again, "run 2") == planned(named, "run 3") == second
    assert planned(again, "run 3") == (3, pytest.approx(0.05))


def test_a_ratio_without_a_number_for_endpoints_is_refused_with_the_line(
    request_of: GateRequest, tmp_path: Path
) -> None:
    """It was left out without a word."""
    file = tmp_path / "cpu-only.yaml"
    text = easy(request_of).read_text().rstrip("}")
    ratio = "speed: {ratio: {min_ratio: {cpu: 0.5}, workloads: [chat]}}"
    file.write_text(f"{text}}}}}}}, {ratio}}}")
    with pytest.raises(UsageError) as caught:
        endpoint_gate.check_policy(choose_endpoints(replace(request_of, policy=str(file))))
    assert caught.value.where == "policy key speed.ratio.min_ratio"
    assert "cpu: 0.5, cuda: 0.95" in caught.value.hint
    assert endpoint_gate.check_policy(choose_endpoints(request_of)).gates_on(None)


@pytest.mark.parametrize("changes", [{"remeasure": ("none",)}, {"deployment_id": None}])
def test_a_gate_that_cannot_be_measured_again_is_refused_by_name(
    request_of: GateRequest, changes: dict[str, Any]
) -> None:
    request = replace(request_of, policy=str(easy(request_of)), remeasure=("code",))
    with pytest.raises(UsageError) as caught:
        endpoint_gate.check_policy(choose_endpoints(replace(request, **changes)))
    assert caught.value.where == "--remeasure"


def test_other_questions_or_another_way_to_ask_them_is_another_attempt(
    request_of: GateRequest, tmp_path: Path
) -> None:
    """With one deployment id, too: each is another chance of a lucky pass."""
    policy = tmp_path / "summaries.yaml"
    policy.write_text(
        "{name: mine, summary: s,"
        " suites: {rouge: {kind: rouge, margins: {fp8: 0.3, int4: 0.4}, questions: 400}}}"
    )
    folders = [tmp_path / name for name in ("one", "two", "copy of one")]
    for folder in folders:
        folder.mkdir()
        rows = [
            {"document": f"Text {n} of {folder.name[-3:]}.", "summary": "Text."} for n in range(400)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "summarization_test.jsonl").write_text(lines)

    def number(**changes: Any) -> int:
        asked = replace(request_of, policy=str(policy), **{"eval_data": folders[0], **changes})
        return begin(plan_for(asked, "run"), request_of)

    assert [number(eval_data=folder) for folder in folders] == [1, 2, 1]
    assert number(family="int4") == 3
    assert number(max_length=512) == 4
    assert number() == 1


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_another_tokenizer_asks_anew(request_of: GateRequest, file: str) -> None:
    before = keys(request_of)
    (request_of.tokenizer / file).write_text('{"other": 1}')
    assert keys(request_of).isdisjoint(before)


def test_where_the_tokenizer_lies_is_of_no_account(request_of: GateRequest) -> None:
    before = keys(request_of)
    moved = request_of.tokenizer.rename(request_of.tokenizer.parent / "moved")
    (moved / "model.safetensors").write_text("weights are not of the tokenizer")
    assert keys(replace(request_of, tokenizer=moved)) == before


def test_a_policy_that_cannot_decide_is_refused_before_an_environment_is_built(
    request_of: GateRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("an environment was built")

    monkeypatch.setattr(environment, "ensure", never)
    policy = tmp_path / "tight.yaml"
    policy.write_text(
        "{name: tight, summary: s, suites: {code: {kind: humaneval, margins: {fp8: 0.001}}}}"
    )
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    with EndpointStandIn() as one, EndpointStandIn() as other:
        sides = {"baseline": one.url, "candidate": other.url}
        names = {"baseline_model": None, "candidate_model": None}
        request = replace(request_of, policy=str(policy), **sides, **names)
        report = endpoint_gate.run_gate(request, settings, Listener())
    assert report.exit_code == 2
    assert report.error is not None
    assert "cannot decide its margin" in report.error["message"]
