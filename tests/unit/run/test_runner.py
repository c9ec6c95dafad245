from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pretend_stages
import pytest
from fake_run import ONE, SERVING, TWO, FakeRun, equal, flipping, lost, policy
from measured_loads import requests_in_waves
from pretend_stages import PretendContext, PretendModels

from artifacts.evidence.recorded_loads import find_draw_mismatches
from artifacts.evidence.verify import check_run
from artifacts.run_record import RunReport
from eval_gates.ask import TooLongError
from eval_gates.speed.load_run import LOADS, LoadRun, format_lines, read_loads
from eval_gates.speed.schedule import arrival_times
from pipeline.stages.block import BLOCK
from pipeline.stages.judge import rule_of
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JUDGE
from prepare.digest import digest_file
from prepare.errors import PrepareError, ServingError
from prepare.store import Store
from recipes.catalog import load_policy
from recipes.policy import Policy
from recipes.speed import SpeedPolicy


@pytest.fixture
def bench(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "store", PretendModels(equal), policy())


class TestRounds:
    def test_a_clear_answer_stops_early(self, bench: FakeRun) -> None:
        verdict = bench.verdict()
        assert verdict.verdict == "pass"
        (gate,) = verdict.gates
        assert (gate.n, gate.planned, gate.look) == (100, 400, 1)
        assert bench.models.served == ["baseline", ONE]

    def test_that_the_server_lives_is_looked_at_after_every_stage(self, bench: FakeRun) -> None:
        """What answers in a dead server's place would else be believed."""
        bench.models.dies_at_look = 2
        with pytest.raises(ServingError):
            bench.run()
        assert bench.models.looks == 2

    def test_the_baseline_is_asked_the_whole_list_once(self, bench: FakeRun) -> None:
        bench.models.score = flipping(3)
        bench.models.questions = 4000
        verdict = bench.verdict()
        assert verdict.verdict == "pass"
        assert bench.models.served == ["baseline", ONE]
        asked = {
            v: sum(n for who, _, n in bench.models.asked if who == v) for v in ("baseline", ONE)
        }
        assert asked == {"baseline": 4000, ONE: verdict.gates[0].n}
        assert verdict.gates[0].look < 3

    def test_a_variant_that_is_far_better_is_undecided(self, bench: FakeRun) -> None:
        """30 against 70 % moved the alias: the two were not asked alike."""
        bench.models.score = lambda variant, suite, number: float(
            number % 10 < (3 if variant == "baseline" else 7)
        )
        verdict = bench.verdict()
        assert (verdict.verdict, verdict.gates[0].suspicious) == ("undecided", True)
        bench.policy = policy(max_gain=0.5)
        assert bench.verdict().verdict == "pass"

    def test_a_clear_loss_fails_early(self, bench: FakeRun) -> None:
        bench.models.score = lost(2)
        verdict = bench.verdict()
        assert verdict.verdict == "fail"
        assert verdict.gates[0].n < 200

    def test_a_failed_gate_fails_the_variant_whatever_the_others_show(self, bench: FakeRun) -> None:
        suites = {
            "code": bench.policy.suites["code"],
            # Not the same to be asked, or the two would share their stages.
            "more": bench.policy.suites["code"].model_copy(update={"max_tokens": 600}),
        }
        bench.policy = bench.policy.model_copy(update={"suites": suites})

        def score(variant: str, suite: str, number: int) -> float:
            return (lost(2) if suite == "code" else equal)(variant, suite, number)

        bench.models.score = score
        verdict = bench.verdict()
        assert (verdict.verdict, verdict.reason) == (
            "fail",
            "failed on code (-30.0 points; at most 10 may be lost)",
        )
        assert [gate.verdict for gate in verdict.gates] == ["fail", "pass"]
        assert {stage.status for stage in bench.run().stages} == {"reused"}


class TestSpeed:
    @pytest.fixture
    def fast(self, bench: FakeRun) -> FakeRun:
        ratio = {"min_ratio": 0.8, "workloads": ["chat"], "blocks": 5}
        chat = {"kind": "random", "input_tokens": 8, "output_tokens": 4}
        chat |= {"arrivals": {"concurrency": 4}, "seconds": 1}
        speed = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": chat}})
        bench.policy = bench.policy.model_copy(update={"speed": speed})
        bench.recipes = (ONE, TWO)
        arguments = {**SERVING["engine_arguments"], "max-model-len": 16384}
        bench.serving = {**SERVING, "engine_arguments": arguments}
        return bench

    def states(self, fast: FakeRun) -> dict[str, str]:
        records = Store(fast.root).records()
        return {r.variant: r.result["state"] for r in records if r.stage == "speed"}

    def test_each_server_starts_once_and_all_are_measured_in_the_same_blocks(
        self, fast: FakeRun
    ) -> None:
        fast.models.seconds = {ONE: 0.9, TWO: 2.0}
        fast.run()
        assert fast.models.served == ["baseline", ONE, TWO]
        assert (fast.models.most_open, fast.models.open_now) == (3, set())
        blocks = [BLOCK.typed(record).result for record in fast.store.records("block")]
        assert {frozenset(block.arms) for block in blocks} == {frozenset(("baseline", ONE, TWO))}
        one, two = self.loads_of(fast, ONE), self.loads_of(fast, TWO)
        shared = [[each.seconds for each in of if each.side == "baseline"] for of in (one, two)]
        assert shared[0] == shared[1]
        assert self.states(fast) == {ONE: "pass", TWO: "fail"}
        verdicts = {
            r.recipe: (r.verdict, [s.verdict for s in r.speed]) for r in fast.run().variants
        }
        assert verdicts == {ONE: ("pass", ["pass"]), TWO: ("fail", ["fail"])}

    def test_verify_computes_it_again_from_the_kept_timings(self, fast: FakeRun) -> None:
        report, store = fast.run(), Store(fast.root)
        assert all(not check.differences for check in check_run(report, store))
        record = next(r for r in store.records() if r.stage == "speed" and r.variant == ONE)
        file = store.stage_folder(record.stage, record.key) / LOADS
        loads = read_loads(file)
        slower = [
            load.model_copy(update={"requests": requests_in_waves(10, 4, seconds=9.0)})
            if load.side == "candidate"
            else load
            for load in loads
        ]
        file.write_text("".join(format_lines(slower)))
        (one, two) = check_run(report, store)
        assert not two.differences
        assert one.computed == "fail"
        assert any("the file was changed" in each for each in one.differences)
        assert any(each.startswith("gates[1].verdict") for each in one.differences)
        file.unlink()
        assert any("is missing" in each for each in check_run(report, store)[0].differences)

    @pytest.mark.parametrize("hardware", ["cpu", "cuda"])
    def test_verify_sees_blocks_that_were_changed_though_every_digest_is_right(
        self, fast: FakeRun, hardware: str
    ) -> None:
        """As one who can write the whole store, and cannot measure, could leave it."""
        fast.hardware = {**fast.hardware, "accelerator": hardware}
        fast.recipes = (ONE,)
        fast.run()
        (record,) = Store(fast.root).records("speed")
        loads = self.loads_of(fast, ONE)
        blocks = [loads[start : start + 2] for start in range(0, len(loads), 2)]
        other = {"baseline": "candidate", "candidate": "baseline"}

        def found(changed: list[list[LoadRun]], **result: Any) -> str:
            result = {"units": len(changed), **result}
            forged = record.model_copy(update={"result": {**record.result, **result}})
            kept = [load for block in changed for load in block]
            return "; ".join(find_draw_mismatches("speed.ratio.chat", forged, kept))

        assert found(blocks) == ""
        assert "did not end" in found(blocks[:-1])
        assert "did not end" in found(blocks, state="open")
        for changed in (
            [blocks[1], blocks[0], *blocks[2:]],
            [*blocks, *blocks],
            [
                [load.model_copy(update={"side": other[load.side]}) for load in each]
                for each in blocks
            ],
            [
                [load.model_copy(update={"server_run": load.server_run + n % 2}) for load in each]
                for n, each in enumerate(blocks)
            ],
        ):
            assert "is not what its seed drew" in found(changed)
        assert found([*blocks[:1], *blocks[2:]])

    @pytest.mark.parametrize(
        ("measured_s", "more", "otherwise"), [(30.0, 0, False), (29.0, 0, True), (30.0, 1, True)]
    )
    def test_verify_sees_requests_that_came_otherwise(
        self, fast: FakeRun, measured_s: float, more: int, otherwise: bool
    ) -> None:
        fast.recipes = (ONE,)
        fast.run()
        (record,) = Store(fast.root).records("speed")
        arrivals = {"rate": 4.0, "concurrency": None}
        timed = {"arrivals": arrivals, "seconds": 30, "warmup_seconds": 2}
        workload = {"workload": {**record.parameters["workload"], **timed}}
        changed = record.model_copy(update={"parameters": {**record.parameters, **workload}})
        loads = []
        for load in self.loads_of(fast, ONE):
            sent = len(arrival_times(load.seed, 4.0, measured_s + 4)) + more
            at_rate = {**arrivals, "arrivals": "rate", "warmup_s": 2.0, "measured_s": measured_s}
            requests = requests_in_waves(sent, 1)
            loads.append(load.model_copy(update={**at_rate, "requests": requests}))
        faults = list(find_draw_mismatches("speed", changed, loads))
        assert any("came otherwise" in each for each in faults) == otherwise

    @pytest.mark.parametrize("rule", [{"blocks": 100}, {"alpha": 0.2}, {"must_count_hits": True}])
    def test_verify_finds_loads_that_another_rule_measured(
        self, fast: FakeRun, rule: dict[str, Any]
    ) -> None:
        fast.recipes = (ONE,)
        fast.run()
        (record,), (judge,) = (list(Store(fast.root).records(name)) for name in ("speed", "judge"))
        judged = JUDGE.parameters_of(judge)
        assert judged.policy.speed is not None
        (speed_gate,) = judged.policy.speed.gates
        assert rule_of(judged, speed_gate, record) == SPEED.parameters_of(record).rule
        changed = {**record.parameters, "rule": {**record.parameters["rule"], **rule}}
        with pytest.raises(ValueError, match=r"speed\.ratio\.chat"):
            rule_of(judged, speed_gate, record.model_copy(update={"parameters": changed}))

    def test_a_workloads_file_is_named_from_its_policy_on_with_its_digest(
        self, fast: FakeRun, tmp_path: Path
    ) -> None:
        """So the evidence says what was sent, and nothing of this machine."""
        fast.recipes = (ONE,)
        folder = tmp_path / "policies"
        folder.mkdir()
        (folder / "asked.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": "Who?"}\n')
        plain = fast.policy.model_dump(mode="json", exclude_none=True)
        chat = {"kind": "requests", "file": "asked.jsonl", "output_tokens": 4, "seconds": 1}
        plain["speed"]["workloads"]["chat"] = {**chat, "arrivals": {"concurrency": 4}}
        (folder / "own.yaml").write_text(json.dumps(plain))
        fast.policy = load_policy(str(folder / "own.yaml"))
        report, store = fast.run(), Store(fast.root)
        assert [check.differences for check in check_run(report, store)] == [()]
        (judge,), (record,) = (list(store.records(name)) for name in ("judge", "speed"))
        named = judge.parameters["policy"]["speed"]["workloads"]["chat"]
        digest = digest_file(folder / "asked.jsonl")
        assert (named["file"], named["sha256"]) == ("asked.jsonl", digest)
        assert record.parameters["workload"]["file"] == digest
        assert str(tmp_path) not in json.dumps(judge.parameters)

    def test_a_variant_that_has_failed_is_not_put_under_load(self, fast: FakeRun) -> None:
        fast.models.score = lost(2)
        report = fast.run()
        assert list(Store(fast.root).records("speed")) == []
        for variant in report.variants:
            (speed_gate,) = variant.speed
            assert (variant.verdict, variant.reason) == (
                "fail",
                "failed on code (-30.0 points; at most 10 may be lost)",
            )
            assert (speed_gate.verdict, speed_gate.reason.startswith("not measured")) == (
                "undecided",
                True,
            )
        assert all(check.differences == () for check in check_run(report, fast.store))
        assert {stage.status for stage in fast.run().stages} == {"reused"}

    def loads_of(self, fast: FakeRun, variant: str) -> list[LoadRun]:
        store = Store(fast.root)
        record = next(r for r in store.records("speed") if r.variant == variant)
        return read_loads(store.stage_folder(record.stage, record.key) / LOADS)

    def test_a_server_that_dies_under_load_costs_the_block_and_no_other(
        self, fast: FakeRun
    ) -> None:
        """Else each death is another chance of lucky blocks, which nobody counts."""
        died: list[int] = []

        def is_lost(variant: str, when: str) -> bool:
            is_now = variant == ONE and when == "load" and fast.models.loads > 12 and not died
            died.extend([fast.models.loads] * is_now)
            return is_now

        fast.models.is_lost = is_lost
        report = fast.run()
        assert [each.verdict for each in report.variants] == ["pass", "pass"]
        assert sorted(fast.models.served) == sorted(["baseline", ONE, ONE, TWO])
        one, two = self.loads_of(fast, ONE), self.loads_of(fast, TWO)
        assert len({load.block for load in one} - {load.block for load in two}) == 1
        assert (len(one), len(two)) == (10, 10)
        by_name = {each.recipe: each for each in report.variants}
        starts = by_name[ONE].speed[0].server_starts
        assert (starts["candidate"].failed, starts["baseline"].failed) == (1, 0)
        assert all(not check.differences for check in check_run(report, Store(fast.root)))

    def test_a_server_that_ends_unasked_is_started_again_and_counted(self, fast: FakeRun) -> None:
        fast.recipes = (ONE,)
        fast.models.dies_at_look = 7  # after a block
        report = fast.run()
        (variant,) = report.variants
        assert variant.verdict == "pass"
        assert len(fast.models.served) == 3
        failed = [each.failed for each in variant.speed[0].server_starts.values()]
        assert sorted(failed) == [0, 1]

    def test_no_server_is_up_while_weights_are_made(self, fast: FakeRun) -> None:
        """Both would need the memory; with --until pass making comes after blocks."""
        fast.until_pass = True
        making: list[set[str]] = []
        made = pretend_stages.quantized

        def quantized(*given: Any) -> dict[str, Any]:
            making.append(set(fast.models.open_now))
            return made(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pretend_stages, "quantized", quantized)
            fast.run()
        assert making == [set(), set()]

    @pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
    def test_disturbed_blocks_are_measured_again(self, fast: FakeRun, accelerator: str) -> None:
        fast.hardware = {**fast.hardware, "accelerator": accelerator}
        fast.recipes = (ONE,)
        fast.models.disturbed_loads = 6
        report, store = fast.run(), Store(fast.root)
        (variant,) = report.variants
        (speed_gate,) = variant.speed
        assert (variant.verdict, speed_gate.n) == ("pass", 5)
        assert speed_gate.repeats["disturbed"] >= 1
        assert speed_gate.with_disturbed == pytest.approx(speed_gate.estimate)
        assert len(self.loads_of(fast, ONE)) == 2 * (5 + speed_gate.repeats["disturbed"])
        assert [check.differences for check in check_run(report, store)] == [()]
        assert {stage.status for stage in fast.run().stages} == {"reused"}

    def test_a_machine_that_is_never_quiet_decides_nothing(self, fast: FakeRun) -> None:
        fast.recipes = (ONE,)
        fast.models.disturbed_loads = 100_000
        report = fast.run()
        (variant,) = report.variants
        assert (variant.verdict, variant.speed[0].repeats) == ("undecided", {"disturbed": 10})
        assert all(not check.differences for check in check_run(report, Store(fast.root)))

    def test_on_a_gpu_each_load_has_a_fresh_start(self, fast: FakeRun) -> None:
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        fast.models.seconds = {ONE: 0.9, TWO: 2.0}
        report = fast.run()
        assert self.states(fast) == {ONE: "pass", TWO: "fail"}
        (speed_gate,) = next(each for each in report.variants if each.recipe == ONE).speed
        assert (speed_gate.starts, speed_gate.verdict) == ("fresh", "pass")
        one, two = self.loads_of(fast, ONE), self.loads_of(fast, TWO)
        assert [load.block for load in one[::2]] == list(range(speed_gate.n))
        baseline = [[each for each in of if each.side == "baseline"] for of in (one, two)]
        assert [load.seconds for load in baseline[0]] == [load.seconds for load in baseline[1]]
        # The server that answered the suites is none of these, and both share the baseline's.
        for variant in ("baseline", ONE, TWO):
            assert fast.models.served.count(variant) == speed_gate.n + 1
        assert all(not check.differences for check in check_run(report, Store(fast.root)))
        fast.models.served.clear()
        assert {stage.status for stage in fast.run().stages} == {"reused"}
        assert fast.models.served == []

    def test_a_block_that_died_is_drawn_again_and_no_other(self, fast: FakeRun) -> None:
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        fast.recipes = (ONE,)
        fast.models.dies_under_load = {"baseline"}
        with pytest.raises(ServingError):
            fast.run()
        fast.models.dies_under_load.clear()
        report = fast.run()
        assert [each.verdict for each in report.variants] == ["pass"]
        loads = self.loads_of(fast, ONE)
        assert [load.server_run for load in loads[::2]] == [1, 0, 0, 0, 0]
        assert "blocks begun again after a kill: 1" in report.variants[0].speed[0].reason
        assert all(not check.differences for check in check_run(report, Store(fast.root)))

    def test_an_arm_that_dies_twice_fails_and_the_others_blocks_stay(self, fast: FakeRun) -> None:
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        fast.models.dies_under_load = {ONE}
        report = fast.run()
        assert {each.recipe: each.verdict for each in report.variants} == {
            ONE: "fail",
            TWO: "pass",
        }
        gate = next(each for each in report.variants if each.recipe == ONE).speed[0]
        assert gate.server_starts["candidate"].failed == 2
        assert all(not check.differences for check in check_run(report, Store(fast.root)))
        assert fast.models.served.count("baseline") == 5 + 1
        assert fast.models.served.count(ONE) == 1 + 2

    def test_an_arm_that_dies_once_is_measured_in_another_block(self, fast: FakeRun) -> None:
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        fast.models.dies_once = {ONE}
        report = fast.run()
        assert [each.verdict for each in report.variants] == ["pass", "pass"]
        assert fast.models.served.count(ONE) == 1 + 6
        assert any(note.startswith(f"{ONE}: a start of its server failed") for note in report.notes)
        assert all(not check.differences for check in check_run(report, Store(fast.root)))

    def test_other_loads_share_the_starts_and_support_the_verdict(self, fast: FakeRun) -> None:
        """4 bits are fast at one request and slow at 256: one load shows neither."""
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        plain = fast.policy.model_dump(mode="json")
        plain["speed"]["ratio"]["also"] = ["single"]
        one = {**plain["speed"]["workloads"]["chat"], "arrivals": {"concurrency": 1}}
        plain["speed"]["workloads"]["single"] = one
        fast.policy = Policy.model_validate(plain)
        fast.models.seconds = {ONE: 0.9, TWO: 2.0}
        report = fast.run()
        chat, single = next(each for each in report.variants if each.recipe == ONE).speed
        assert (chat.n, single.n, single.tier) == (5, 3, "supporting")
        assert "4 concurrent requests, 8 tokens in, 4 out" in chat.counted
        assert "1 concurrent request" in single.counted
        for variant in ("baseline", ONE, TWO):
            assert fast.models.served.count(variant) == 5 + 1
        records = [r for r in Store(fast.root).records("speed") if r.variant == ONE]
        files = [fast.store.stage_folder("speed", record.key) / LOADS for record in records]
        first, second = ({load.seed for load in read_loads(file)} for file in files)
        assert first.isdisjoint(second)  # else the second's prompts would be in the cache
        assert all(not check.differences for check in check_run(report, Store(fast.root)))
        fast.models.served.clear()
        assert {stage.status for stage in fast.run().stages} == {"reused"}

    def test_a_variant_that_is_added_gets_fresh_starts_of_the_baseline(self, fast: FakeRun) -> None:
        fast.hardware = {**fast.hardware, "accelerator": "cuda"}
        fast.recipes = (ONE,)
        fast.run()
        fast.models.served.clear()
        fast.recipes = (ONE, TWO)
        fast.run()
        assert fast.models.served.count("baseline") == 5


class TestWhatIsKept:
    def test_again_asks_nothing(self, bench: FakeRun) -> None:
        first = bench.run()
        bench.models.asked.clear()
        bench.models.served.clear()
        second = bench.run()
        assert bench.models.asked == []
        assert bench.models.served == []
        assert {stage.status for stage in second.stages} == {"reused"}
        assert second.variants == first.variants

    def test_a_wider_margin_judges_the_same_answers_without_a_server(self, bench: FakeRun) -> None:
        bench.models.score = flipping(4)
        bench.run()
        bench.models.served.clear()
        bench.policy = policy(margins={"fp8": 0.11})
        assert bench.verdict().verdict == "pass"
        assert bench.models.served == []

    def test_a_higher_cap_goes_on_where_it_stopped(self, bench: FakeRun) -> None:
        bench.models.score = flipping(3)
        bench.models.questions = 4000
        bench.policy = policy(questions=48)
        assert bench.verdict().verdict == "undecided"
        bench.models.asked.clear()
        bench.policy = policy()
        verdict = bench.verdict()
        assert verdict.verdict == "pass"
        assert bench.asked(ONE) == verdict.gates[0].n - 48

    def test_no_answer_of_weights_that_are_gone_is_judged(
        self, bench: FakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert bench.verdict().verdict == "pass"

        # The same recipe gives other weights, which lost all.
        bench.models.score = lambda variant, suite, number: (
            equal(variant, suite, number) if variant == "baseline" else 0.0
        )
        shutil.rmtree(bench.root / "stages" / "quantize")
        found = pretend_stages.result_of

        def result_of(context: PretendContext, models: PretendModels) -> dict[str, Any]:
            other = context.spec.stage in ("quantize", "check_weights")
            return found(context, models) | ({"weights_digest": "others"} if other else {})

        monkeypatch.setattr(pretend_stages, "result_of", result_of)
        again = bench.run()
        assert again.variants[0].verdict == "fail"
        assert all(not check.differences for check in check_run(again, Store(bench.root)))


class TestSeveralVariants:
    def test_one_that_does_not_speak_fails(self, bench: FakeRun) -> None:
        bench.models.babbling = {ONE}
        verdict = bench.verdict()
        assert (verdict.verdict, verdict.reason) == ("fail", "it babbles")
        assert ONE not in {who for who, _, _ in bench.models.asked}

    def test_one_whose_answers_are_empty_has_an_error_and_no_verdict(self, bench: FakeRun) -> None:
        bench.recipes = (ONE, TWO)
        bench.models.silent = {ONE}
        found = {report.recipe: report for report in bench.run().variants}
        assert (found[ONE].verdict, found[TWO].verdict) == ("error", "pass")
        assert "are empty" in str(found[ONE].reason)

    @pytest.mark.parametrize(("fault", "told"), [("babbling", "babbles"), ("silent", "are empty")])
    def test_a_broken_baseline_ends_the_run(self, bench: FakeRun, fault: str, told: str) -> None:
        setattr(bench.models, fault, {"baseline"})
        with pytest.raises(PrepareError, match=told):
            bench.run()


class TestLongPrompts:
    @pytest.mark.parametrize(("ends", "verdict"), [(1, "pass"), (2, "error")])
    def test_an_engine_that_ends_is_started_once_more_with_half(
        self, bench: FakeRun, ends: int, verdict: str
    ) -> None:
        suite = {"kind": "fidelity", "margins": {"fp8": 0.1}}
        keys = {"name": "p", "summary": "s", "suites": {"conversations": suite}}
        bench.policy = Policy.model_validate(keys)
        bench.models.nats = {"baseline": 0.0, ONE: 0.0}
        left = [ends]

        def score(variant: str, suite: str, number: int) -> float:
            if variant == ONE and left[0]:
                left[0] -= 1
                raise TooLongError("the engine ended")
            return 1.0

        bench.models.score = score
        assert bench.verdict().verdict == verdict
        assert bench.models.served == ["baseline", ONE, ONE]


class TestMaking:
    def test_one_that_fails_stops_its_own_variant_alone(self, bench: FakeRun) -> None:
        bench = replace(bench, recipes=(ONE, TWO))
        bench.models.unquantizable = {TWO}
        report = bench.run()
        verdicts = {variant.recipe: variant for variant in report.variants}
        assert verdicts[ONE].verdict == "pass"
        assert verdicts[TWO].verdict == "error"
        assert "cannot be quantized" in verdicts[TWO].reason
        assert bench.models.served == ["baseline", ONE]


class TestFloor:
    def test_the_baseline_is_asked_again(self, bench: FakeRun) -> None:
        bench.policy = policy(noise_floor_questions=32)
        (gate,) = bench.verdict().gates
        assert gate.noise_floor is not None
        assert (gate.noise_floor.n, gate.noise_floor.flips) == (32, 0)


class TestVerify:
    @pytest.fixture
    def run(self, bench: FakeRun) -> RunReport:
        bench.models.score = flipping(4)
        bench.recipes = (ONE, TWO)
        bench.policy = policy(noise_floor_questions=16)
        return bench.run()

    def differences(self, bench: FakeRun, run: RunReport) -> str:
        return "\n".join(line for c in check_run(run, Store(bench.root)) for line in c.differences)

    def test_as_kept(self, bench: FakeRun, run: RunReport) -> None:
        checks = check_run(run, Store(bench.root))
        assert [(c.recipe, c.kept, c.computed) for c in checks] == [
            (ONE, "pass", "pass"),
            (TWO, "pass", "pass"),
        ]
        assert self.differences(bench, run) == ""
        assert all(check.answers > 32 for check in checks)

    def test_what_only_led_to_its_inputs_may_be_gone(self, bench: FakeRun, run: RunReport) -> None:
        store = Store(bench.root)
        inputs = [each for judge in store.records("judge") for each in judge.inputs.values()]
        deeper = [each for near in inputs for each in store.get(near).inputs.values()]
        gone = {(each.stage, each.key) for each in deeper} - {(e.stage, e.key) for e in inputs}
        assert gone
        for stage, key in gone:
            shutil.rmtree(store.stage_folder(stage, key))
        assert self.differences(bench, run) == ""

    def test_a_verdict_edited_afterwards(self, bench: FakeRun, run: RunReport) -> None:
        better = run.variants[0].model_copy(update={"verdict": "fail", "reason": "I say so"})
        edited = run.model_copy(update={"variants": [better, run.variants[1]]})
        assert "verdict: kept 'fail', computed 'pass'" in self.differences(bench, edited)

    def test_a_pass_without_a_judge(self, bench: FakeRun, run: RunReport) -> None:
        stages = [stage for stage in run.stages if (stage.name, stage.variant) != ("judge", ONE)]
        bare = run.variants[0].model_copy(update={"gates": []})
        edited = run.model_copy(update={"stages": stages, "variants": [bare, run.variants[1]]})
        assert "names no stage 'judge'" in self.differences(bench, edited)
