from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, SERVING, FakeRun, policy
from pretend_stages import edit
from spoilt_bundle import check_bundle, opened

from artifacts.deploy.registered import open_version
from artifacts.evidence.verify import check_run
from pipeline.stages.evaluate import EVALUATE, round_of
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JUDGE
from recipes.checkpoints.weight_files import CARD
from recipes.speed import SpeedPolicy


@pytest.mark.parametrize(("margin", "minimum"), [(0.1, 0.8), (0.12, 0.7)])
def test_plan_worker_judge_card_verify_and_recheck_follow_the_policy(
    tmp_path: Path, margin: float, minimum: float
) -> None:
    made = FakeRun(tmp_path / "store", policy=policy(margins={"fp8": margin}))
    chat = {"kind": "random", "input_tokens": 8, "output_tokens": 4, "seconds": 1}
    chat |= {"arrivals": {"concurrency": 4}}
    ratio = {"min_ratio": minimum, "workloads": ["chat"]}
    speed = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": chat}})
    made.policy = made.policy.model_copy(update={"speed": speed})
    arguments = {**SERVING["engine_arguments"], "max-model-len": 16384}
    made.serving = {**SERVING, "engine_arguments": arguments}
    made.models.seconds = {ONE: 0.9}
    made.run()
    (variant,) = made.plan().variants
    # plan
    gate = EVALUATE.parameters_of(variant.stages["code"]).rule
    speed_gate = SPEED.parameters_of(variant.stages["speed.ratio.chat"]).rule
    assert gate is not None
    assert gate.margin.points == margin
    assert speed_gate.kind == "ratio"
    assert speed_gate.min_ratio == minimum
    # worker
    stopping = round_of(variant.stages["code"], made.store).stopping.rule
    assert stopping is not None
    assert stopping.comparison.size == margin
    # judge
    (report,) = made.report.variants
    assert report.gates[0].threshold == -margin
    assert report.speed[0].threshold == minimum
    assert report.speed[0].note == "measured on a CPU"
    # card and recheck
    folder = made.bundle(ONE)
    card = (folder / CARD).read_text()
    assert f"inside a margin of {100 * margin:.2f} points" in card
    assert f"at least {minimum:g} of the baseline's output tokens/s" in card
    version = made.registered(ONE)
    past = open_version(version, Path(version.source), trust_remote_code=False).judged
    assert past.judge.parameters.gates == {"code": gate}
    assert past.speed["speed.ratio.chat"].parameters.rule == speed_gate
    # verify
    (check,) = check_run(made.report, made.store)
    assert check.differences == ()
    (judge,) = made.store.records(JUDGE.name)

    def loosen(record: dict[str, Any]) -> None:
        record["parameters"]["policy"]["suites"]["code"]["margins"]["fp8"]["points"] = 0.2
        record["parameters"]["policy"]["speed"]["ratio"]["min_ratio"]["cpu"] = 0.1

    edit(made.store.stage_folder(judge.stage, judge.key) / "stage.json", loosen)
    (check,) = check_run(made.report, made.store)
    assert any("other criteria than the policy" in each for each in check.differences)
    assert check.computed is None


@pytest.mark.parametrize("length", [8192, 16384])
def test_plan_worker_card_tags_verify_and_recheck_follow_the_profile(
    tmp_path: Path, length: int
) -> None:
    made = FakeRun(tmp_path / "store")
    arguments = {**SERVING["engine_arguments"], "max-model-len": length}
    made.serving = {**SERVING, "engine_arguments": arguments}
    made.run()
    # plan
    (variant,) = made.plan().variants
    assert variant.identity.serving.engine_arguments == arguments
    # worker
    screen = SANITY.parameters_of(variant.stages["first_texts"])
    assert screen.serving == variant.identity.serving
    # card, tags and recheck
    folder = made.bundle(ONE)
    assert f"--max-model-len {length}" in (folder / CARD).read_text()
    version = made.registered(ONE)
    past = open_version(version, Path(version.source), trust_remote_code=False)
    assert past.deployable.serving == variant.identity.serving
    # verify
    assert check_bundle(folder).is_sound
    (asked,) = opened(folder).glob(f"sanity/{variant.stages['first_texts'].key}/stage.json")

    def lengthen(record: dict[str, Any]) -> None:
        record["parameters"]["serving"]["engine_arguments"]["max-model-len"] = 2 * length

    edit(asked, lengthen)
    assert not check_bundle(folder).is_sound
