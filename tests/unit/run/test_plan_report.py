"""What `prepare plan` tells: what is cached, how long the rest may take; and it does nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elsewhere import H100, Elsewhere
from finished_stage import put_record, stage_record
from listener import Listener
from quantized_checkpoint import SIZE, source_files
from sample_stages import PARAMETERS, RESULTS
from small_checkpoint import write_files

from pipeline.capacity.gpu_request import answer
from pipeline.capacity.gpu_schedule import schedule_on_gpus
from pipeline.capacity.stage_duration import ObservedDurations
from pipeline.capacity.timeline import Timeline
from pipeline.core.digest import digest_json
from pipeline.core.errors import CheckpointError, UsageError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.stage_record import StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.environments.settings import Settings
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.run.plan_report import PlanReport, forecast
from pipeline.run.serving_planner import ServingPlanner
from pipeline.stages import speed
from recipes import catalog

RECIPE = "fp8-dynamic"
SUITES = ("quiz", "humaneval", "rouge")
SERVED = ("coherence", *(f"evaluate {suite}" for suite in SUITES))
OF_BASELINE = (*SERVED, "evaluate quiz again")
QUESTIONS = tuple(f"questions {suite}" for suite in SUITES)
SPEED = "speed ratio.short"
STAGES = (*QUESTIONS, "quantize", "check_weights", *OF_BASELINE, *SERVED, SPEED, "judge")
MORE = "more rounds of questions may follow while gates are open"
ALONE = ResourceRequest(cpus="all", exclusive=True)
SHAPE = {
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}
SERVER_FACTS = {"server": {"ready_seconds": 50.0}}


class Planning:
    """A checkpoint's folder, an empty store, and forecasts about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "model"
        self.settings = Settings(home=folder / "home", store=folder / "store")
        self.store = Store(self.settings.store)
        self.policy = "demo"

    def request(self, **changes: Any) -> ModelRequest:
        options: dict[str, Any] = {
            "checkpoint": str(self.checkpoint),
            "recipes": (RECIPE,),
            "profile": "cpu",
            "policy": self.policy,
            "name": None,
            "registry": None,
            "eval_data": None,
            "trust_remote_code": False,
        }
        return ModelRequest(**(options | changes))

    def forecast(self, **changes: Any) -> PlanReport:
        return forecast(self.request(**changes), self.settings, Listener())

    def specs(self) -> list[StageSpec]:
        """The stages that a run would have, in a run's own way."""
        choices = choose(self.request(), self.settings)
        never_asked = Path("/none")
        checkpoint = locate(choices, self.settings, lambda spec: never_asked, Listener())
        plan = make_plan(
            choices,
            checkpoint,
            self.settings,
            find_data(choices, self.settings, Listener()),
        )
        return plan.stages(lambda spec: self.store.find(spec.stage, spec.key))

    def finish(self, spec: StageSpec, seconds: float = 1.0, *, more: bool = False) -> None:
        """As if the stage had been run, and left its gate open or not."""
        self.remember(spec.stage, spec.key, spec.parameters, seconds, more=more)

    def remember(
        self,
        stage: str,
        key: str,
        parameters: dict[str, Any],
        seconds: float,
        *,
        more: bool = False,
    ) -> None:
        found = {"coherence": SERVER_FACTS, "evaluate": {"has_more": more}}.get(stage, {})
        record = stage_record(
            stage=stage,
            key=key,
            parameters=PARAMETERS.get(stage, {}) | parameters,
            result=RESULTS[stage] | found,
            seconds=seconds,
            inputs={},
            input_digests={},
        )
        put_record(self.store, record)

    def files(self, folder: Path | None = None) -> dict[str, bytes]:
        """Everything there is, or is in that folder, by path."""
        found = (folder or self.folder).rglob("*")
        return {str(path): path.read_bytes() for path in found if path.is_file()}


def changed_demo(planning: Planning, **quiz: Any) -> str:
    """A file of the demo policy with other keys of the quiz."""
    path = planning.folder / "changed.yaml"
    policy = catalog.load_policy("demo").model_dump(exclude_none=True)
    policy["suites"]["quiz"] |= quiz
    path.write_text(json.dumps(policy))  # JSON is YAML
    return str(path)


def two_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's program tells of two."""
    lines = "\n".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})" for n in range(2))
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in\n-L) echo '{lines}';;\n"
        "*name,driver_version*) echo 'NVIDIA H100 80GB HBM3, 580.9, 81559 MiB';;\n"
        "*compute_cap*) echo 9.0;;\n*) exit 2;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def pieces(timeline: Timeline) -> dict[str, tuple[ResourceRequest, set[str]]]:
    """What each piece of work needs, and waits for."""
    return {each.piece.name: (each.piece.needs, {*each.piece.after}) for each in timeline.placed}


def is_little(name: str) -> bool:
    return "questions" in name or name.endswith("judge")


@pytest.fixture
def planning(tmp_path: Path) -> Planning:
    planning = Planning(tmp_path)
    write_files(planning.checkpoint, source_files())
    return planning


def rows(found: PlanReport, variant: str | None = None) -> dict[str, list[str]]:
    """State and expected time by stage, of one variant."""
    return {row[0]: row[2:] for row in found.stage_rows() if variant in (None, row[1])}


class TestNothingDone:
    def test_no_work_and_no_store(self, planning: Planning) -> None:
        before = planning.files()
        found = planning.forecast()
        assert not planning.settings.store.exists()
        new = {path for path in planning.files() if path not in before}
        # What it may leave is the cache of digests, for the run that follows.
        assert {Path(path).name for path in new} <= {"digests.json", "digests.json.lock"}
        assert {path: content for path, content in planning.files().items() if path in before} == (
            before
        )
        assert all(not environment.size_bytes for environment in found.environments)

    def test_the_store_stays_as_it_is(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        before = planning.files(planning.settings.store)  # digests are kept elsewhere, in time
        assert before
        planning.forecast()
        assert planning.files(planning.settings.store) == before

    def test_every_stage_of_a_run(self, planning: Planning) -> None:
        found = planning.forecast()
        assert [stage.name for stage in found.stages if stage.name != "serve"] == list(STAGES)
        assert len(STAGES) == len(planning.specs())
        assert [row[2] for row in found.stage_rows()] == ["to run"] * (len(STAGES) + 2)

    def test_bad_options_and_checkpoints_are_refused_as_a_run_would(
        self, planning: Planning
    ) -> None:
        with pytest.raises(UsageError) as caught:
            planning.forecast(recipes=("none",))
        assert caught.value.where == "--recipe none"
        (planning.checkpoint / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
            planning.forecast()

    def test_what_is_not_checked_is_a_note(self, planning: Planning) -> None:
        (note,) = planning.forecast().notes
        assert "memory is not checked before the run: config.json lacks hidden_size" in note


class TestServers:
    def test_one_start_a_variant_before_what_needs_it(self, planning: Planning) -> None:
        stages = planning.forecast().stages
        for variant in ("baseline", RECIPE):
            names = [stage.name for stage in stages if stage.variant == variant]
            assert names.count("serve") == 1
            assert names.index("serve") + 1 == names.index("coherence")

    def test_none_where_all_that_it_answers_is_cached(self, planning: Planning) -> None:
        for spec in planning.specs():
            if spec.variant == "baseline" or spec.stage == "questions":
                planning.finish(spec)
        servers = [stage.variant for stage in planning.forecast().stages if stage.name == "serve"]
        assert servers == [RECIPE]

    def test_one_missing_answer_needs_the_server(self, planning: Planning) -> None:
        for spec in planning.specs():
            if not (spec.stage == "coherence" and spec.variant == "baseline"):
                planning.finish(spec)
        found = planning.forecast()
        to_run = [(stage.name, stage.variant) for stage in found.stages if not stage.cached]
        assert to_run == [("serve", "baseline"), ("coherence", "baseline")]


class TestCached:
    def test_some(self, planning: Planning) -> None:
        for spec in planning.specs():
            if spec.stage in ("questions", "quantize"):
                planning.finish(spec)
        found = planning.forecast()
        cached = {stage.name for stage in found.stages if stage.cached}
        assert cached == {*QUESTIONS, "quantize"}
        assert rows(found)["quantize"] == ["cached", "-"]
        assert found.total().startswith(f"{len(STAGES) + 2 - 4} stages to run, 4 cached;")

    def test_all(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        found = planning.forecast()
        assert found.total() == f"0 stages to run, {len(STAGES)} cached; about 0.0 minutes"
        assert not found.may_ask_more
        assert found.expected_seconds() == 0

    def test_one_that_is_being_written_is_not_done(self, planning: Planning) -> None:
        (spec,) = [spec for spec in planning.specs() if spec.stage == "quantize"]
        folder = planning.store.stage_folder(spec.stage, spec.key)
        folder.with_name(f"{folder.name}.partial").mkdir(parents=True)
        assert rows(planning.forecast())["quantize"][0] == "to run"

    def test_other_content_is_not_done(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        (planning.checkpoint / "chat_template.jinja").write_text("{{ other }}")
        found = planning.forecast()
        assert {stage.name for stage in found.stages if stage.cached} == set(QUESTIONS)


class TestDisturbed:
    def test_speed_that_a_run_continues_is_not_cached(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
            if spec.stage == "speed":
                record = planning.store.find(spec.stage, spec.key)
                assert record is not None
                result = {**record.result, "state": "disturbed"}
                put_record(planning.store, record.model_copy(update={"result": result}))
                speed = StageReference(stage=spec.stage, key=spec.key)
                digests = {"speed.ratio.short": digest_json(result)}
            elif spec.stage == "judge":
                record = planning.store.find(spec.stage, spec.key)
                assert record is not None
                rests_on = {"inputs": {"speed.ratio.short": speed}, "input_digests": digests}
                put_record(planning.store, record.model_copy(update=rests_on))
        found = planning.forecast()
        to_run = {(row[0], row[2]) for row in found.stage_rows() if row[2] != "cached"}
        assert to_run == {("serve", "to run"), (SPEED, "to continue"), ("judge", "to run")}
        assert {each.name for each in found.stages if each.continued} == {SPEED}
        assert found.timeline is not None
        assert len(found.timeline.placed) == 2


class TestTimes:
    def test_none_seen_yet(self, planning: Planning) -> None:
        found = planning.forecast()
        assert {row[3] for row in found.stage_rows()} == {"not measured here yet"}
        assert found.expected_seconds() is None
        assert found.total().endswith("time not known yet")

    def test_the_median_of_such_stages(self, planning: Planning) -> None:
        preset = {"quantization": {"kind": "preset", "scheme": "FP8_DYNAMIC"}}
        awq = {"quantization": {"kind": "awq", "calibration": {}}}
        for number, seconds in enumerate((10.0, 20.0, 90.0)):
            planning.remember("quantize", f"old{number}", preset, seconds)
        planning.remember("quantize", "awq", awq, 1000.0)
        planning.remember("evaluate", "old", {"suite": {"kind": "rouge"}}, 33.0)
        planning.remember("coherence", "old", {}, 2.0)
        for variant, served in ((RECIPE, SERVED), ("baseline", OF_BASELINE)):
            of = rows(planning.forecast(), variant)
            assert of["evaluate rouge"] == ["to run", "33 s"]
            assert of["evaluate quiz"] == ["to run", "not measured here yet"]
            assert of["coherence"] == ["to run", "2 s"]
            assert of["serve"] == ["to run", "50 s"]
            assert of.keys() >= {"serve", *served}
        assert rows(planning.forecast())["quantize"] == ["to run", "20 s"]
        assert planning.forecast().expected_seconds() is None

    def test_speed_under_another_load_is_not_comparable(self, planning: Planning) -> None:
        for name, seconds in (("short", 40.0), ("chat", 900.0)):
            parameters = {"name": name, "rule": PARAMETERS["speed"]["rule"]}
            planning.remember("speed", f"old {name}", parameters, seconds)
        assert rows(planning.forecast())[SPEED] == ["to run", "40 s"]

    def test_the_sum_when_every_kind_was_seen(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.remember(spec.stage, f"old {spec.key}", spec.parameters, 6.0)
        found = planning.forecast()
        assert found.expected_seconds() == 6.0 * len(STAGES) + 2 * 50
        minutes = (6.0 * len(STAGES) + 2 * 50) / 60
        assert found.total().endswith(f"about {minutes:.1f} minutes")

    def test_a_damaged_record_is_no_reason_not_to_plan(self, planning: Planning) -> None:
        planning.remember("check_weights", "old", {}, 4.0)
        planning.remember("check_weights", "damaged", {}, 400.0)
        (planning.store.stage_folder("check_weights", "damaged") / "stage.json").write_text("{")
        assert rows(planning.forecast())["check_weights"] == ["to run", "4 s"]


class TestRounds:
    @pytest.fixture
    def planning(self, planning: Planning) -> Planning:
        """By a policy whose first round of the quiz is not all the 120 questions there are."""
        policy = changed_demo(
            planning, questions=120, batch=16, margins={"fp8": 0.2}, expected_flips=0.02
        )
        planning.policy = policy
        return planning

    def test_it_is_said_that_more_may_follow(self, planning: Planning) -> None:
        found = planning.forecast()
        assert found.may_ask_more
        assert found.total().endswith(MORE)
        assert found.to_dict()["more_rounds_may_follow"] is True

    def test_an_open_gate_calls_for_another_until_there_is_none(self, planning: Planning) -> None:
        asked = 0
        while planning.forecast().may_ask_more:
            for spec in planning.specs():
                is_open = spec.variant == RECIPE and spec.stage == "evaluate"
                planning.finish(spec, more=is_open and spec.runtime["suite"].startswith("quiz"))
            asked += 1
            found = planning.forecast()
            to_run = [(stage.name, stage.variant) for stage in found.stages if not stage.cached]
            assert to_run == [
                ("serve", "baseline"),
                (f"evaluate quiz, round {asked + 1}", "baseline"),
                ("serve", RECIPE),
                (f"evaluate quiz, round {asked + 1}", RECIPE),
                ("judge", RECIPE),
            ]
        assert asked >= 2
        assert MORE not in planning.forecast().total()

    def test_a_decided_gate_calls_for_none(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        found = planning.forecast()
        assert not found.may_ask_more
        assert all(stage.cached for stage in found.stages)


class TestGates:
    def test_what_they_can_show(self, planning: Planning) -> None:
        found = planning.forecast(recipes=(RECIPE, "awq-w4a16"))
        assert [(gate.suite, gate.family) for gate in found.power] == [
            (suite, family) for suite in SUITES for family in ("fp8", "int4")
        ]
        assert found.power[0].alpha == pytest.approx(0.0225)
        assert found.to_dict()["gates"][0]["chance_of_pass"] == found.power[0].chance_of_pass

    def test_the_number_of_questions_is_the_sources(self, planning: Planning) -> None:
        data = write_files(planning.folder / "data", {"summarization_test.jsonl": b"{}\n" * 20})
        by_suite = {gate.suite: gate for gate in planning.forecast(eval_data=data).power}
        assert by_suite["rouge"].questions == 20
        assert by_suite["humaneval"].questions == 16

    def test_of_a_checkpoint_that_is_not_here_yet(self, planning: Planning) -> None:
        demo = planning.forecast(checkpoint="demo:smollm2-135m")
        assert demo.power == planning.forecast().power
        planning.policy = changed_demo(planning, questions=50, margins={"fp8": 0.01})
        with pytest.raises(UsageError) as caught:
            planning.forecast(checkpoint="demo:smollm2-135m")
        assert caught.value.where == "policy key suites.quiz.margins.fp8"


class TestWords:
    def test_headline_and_sizes(self, planning: Planning) -> None:
        found = planning.forecast()
        assert found.headline().startswith(f"{planning.checkpoint}: LlamaForCausalLM, 0 M")
        assert "bfloat16" in found.headline()
        ((recipe, size, share),) = found.size_rows()
        assert (recipe, size) == (RECIPE, "0.0 MB")
        plain = 2 * (32 * SIZE + 2 * SIZE)
        estimated = plain + 4 * (SIZE * SIZE + 2 * SIZE)
        assert found.weights_bytes == {RECIPE: estimated}
        source = (planning.checkpoint / "model.safetensors").stat().st_size
        assert share == f"{100 * estimated / source:.0f} % of the source"

    def test_as_json(self, planning: Planning) -> None:
        found = json.loads(json.dumps(planning.forecast().to_dict()))
        assert found["schema_version"] == 1
        assert found["options"]["recipes"] == [RECIPE]
        assert found["checkpoint"]["architecture"] == "LlamaForCausalLM"
        assert found["expected_seconds"] is None
        assert {env["environment"] for env in found["environments"]} == {
            "quantize-cpu",
            "serve-cpu",
            "evaluate",
        }
        assert {env["state"] for env in found["environments"]} == {"missing"}
        first = found["stages"][0]
        assert first.keys() == {"name", "variant", "cached", "continued", "expected_seconds"}


class TestDemo:
    def test_it_is_to_be_made_first(self, planning: Planning) -> None:
        found = planning.forecast(checkpoint="demo:smollm2-135m")
        assert [(s.name, s.cached) for s in found.stages] == [("demo_checkpoint", False)]
        assert "to be made first" in found.headline()
        assert (found.size_rows(), found.to_dict()["checkpoint"]) == ([], None)
        assert not planning.settings.store.exists()


def test_the_rungs_of_a_ladder_that_are_made_only_if_none_before_passes(planning: Planning) -> None:
    ladder = planning.folder / "ladder.yaml"
    ladder.write_text("name: mine\nsummary: s\nrecipes: [awq-w4a16, awq-w4a16-mse, gptq-w4a16]\n")
    found = planning.forecast(recipes=(str(ladder),))
    assert found.rungs_that_may_follow() == ["awq-w4a16-mse", "gptq-w4a16"]
    assert found.to_dict()["rungs_that_may_follow"] == ["awq-w4a16-mse", "gptq-w4a16"]
    assert found.total().endswith("while no rung of the ladder passes: awq-w4a16-mse, gptq-w4a16")
    assert "ladder" not in planning.forecast().total()


class TestSchedule:
    """What would run side by side, and what waits for what."""

    def work(self, found: PlanReport) -> dict[str, dict[str, Any]]:
        schedule = found.to_dict()["schedule"]
        return {each["name"]: each for each in schedule["work"]}

    def test_on_the_cores_of_one_machine(self, planning: Planning) -> None:
        work = self.work(planning.forecast())
        shared = [f"{suite}: questions {suite}" for suite in SUITES]
        made = [f"{RECIPE}: quantize", f"{RECIPE}: check_weights"]
        asked = ["baseline: asked", f"{RECIPE}: asked"]
        assert sorted(work) == sorted([*shared, *made, *asked, f"{RECIPE}: judge"])
        assert work[made[0]]["waits_for"] == shared
        assert set(work[made[1]]["waits_for"]) == {made[0], *shared}
        assert {"baseline: asked", made[1]} <= set(work[asked[1]]["waits_for"])
        assert work[asked[1]]["stages"] == [*SERVED, SPEED]
        assert work[asked[1]]["needs"] == ALONE.model_dump()
        assert work[asked[1]]["concurrent_with"] == []
        assert {name for name, each in work.items() if each["needs"]["cpus"] == "all"} == {
            made[0],
            *asked,
        }

    def test_the_wall_time_once_all_was_seen(self, planning: Planning) -> None:
        specs = planning.specs()
        for spec in specs:
            planning.remember(spec.stage, f"other {spec.key[:4]}", spec.parameters, 10.0)
        found = planning.forecast()
        assert found.timeline is not None
        wall = found.timeline.wall_seconds
        assert wall is not None
        expected = found.expected_seconds()
        assert expected is not None
        assert wall < expected  # questions are laid out side by side

    def test_recipes_on_gpus(
        self, planning: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With room for several, all goes side by side; loads take their GPUs, not the node.

        The model's size is not known, so each side has a separate GPU under load.
        """
        two_h100(tmp_path, monkeypatch)
        recipes = (RECIPE, "int8-w8a8")
        found = planning.forecast(profile="h100", recipes=recipes)
        work = self.work(found)
        assert found.to_dict()["schedule"]["gpus"] == 2
        for name in recipes:
            assert work[f"{name}: quantize"]["needs"]["gpus"] == 1
            assert work[f"{name}: loads"]["needs"] == ResourceRequest(gpus=2).model_dump()
            assert work[f"{name}: asked"]["needs"] == ResourceRequest(gpus=1).model_dump()
        assert f"{recipes[1]}: quantize" in work[f"{recipes[0]}: quantize"]["concurrent_with"]
        assert found.to_dict()["schedule"]["max_concurrent"] >= 2

    def test_the_ratio_alone_takes_the_gpus_of_both_sides(
        self, planning: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Questions and limits have those of one server."""
        two_h100(tmp_path, monkeypatch)
        slo = {"workload": "short", "rate": 9.0, "limits": {"latency_ms_p50": 900.0}}
        ratio = {"min_ratio": 1.0, "workloads": ["short"]}
        policy = catalog.load_policy("demo").model_dump(exclude_none=True)
        path = planning.folder / "fast.yaml"
        path.write_text(
            json.dumps(policy | {"speed": policy["speed"] | {"ratio": ratio, "slo": [slo]}})
        )
        request = planning.request(profile="h100", policy=str(path))
        choices = choose(request, planning.settings)
        checkpoint = locate(choices, planning.settings, lambda spec: Path("/none"), Listener())
        sources = find_data(choices, planning.settings, Listener())
        plan = make_plan(choices, checkpoint, planning.settings, sources)
        (variant,) = plan.variants
        stages: Any = SimpleNamespace(
            store=planning.store,
            accelerator="cuda",
            executor=SimpleNamespace(count_room=lambda needs: 2 // max(1, needs.gpus)),
        )
        asked = plan.served_stages(variant, lambda spec: None)
        loads = [spec for spec in asked if spec.stage == speed.SPEED.name]
        of_ratio = [spec for spec in loads if speed.SPEED.parameters_of(spec).is_apart]
        assert len(loads) == 2 * len(of_ratio) == 2
        planner = ServingPlanner(plan, stages)
        work = [planner.lay_out(variant, specs) for specs in (asked, loads, of_ratio)]
        assert [each.needs.gpus for each in work] == [1, 1, 2]

    @pytest.mark.parametrize("fits", [True, False])
    def test_a_refused_plan_names_the_servers_mode_too(
        self, planning: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
    ) -> None:
        two_h100(tmp_path, monkeypatch)
        config = planning.checkpoint / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | (SHAPE if fits else {})))
        (planning.checkpoint / "tokenizer.json").unlink()
        found = planning.forecast(profile="h100")
        assert found.faults
        assert [each.server_mode for each in found.claims] == ["concurrent" if fits else "swapped"]

    @pytest.mark.parametrize("gpus", [1, 2])
    @pytest.mark.parametrize("dry_run", [True, False])
    def test_on_gpus_that_are_only_asked_about_it_is_the_same(
        self,
        planning: Planning,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        gpus: int,
        dry_run: bool,
    ) -> None:
        """But for what takes no GPU and seconds only."""
        two_h100(tmp_path, monkeypatch)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1" if gpus == 2 else "0")
        config = planning.checkpoint / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | SHAPE))
        asked = planning.request(
            profile="h100", recipes=(RECIPE, "int8-w8a8", "fp8-static"), dry_run=dry_run
        )
        there = forecast(asked, planning.settings, Listener())
        monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no GPU any more
        thought = answer(asked, planning.settings, "h100", gpus, None)
        assert there.timeline is not None
        assert thought.timeline is not None
        assert pieces(thought.timeline) == {
            name: (needs, {other for other in after if not is_little(other)})
            for name, (needs, after) in pieces(there.timeline).items()
            if not is_little(name)
        }

    def test_no_work_ends_before_it_begins(self, planning: Planning) -> None:
        """Where few of the runs that were seen came to their loads, these took longer than most."""
        config = planning.checkpoint / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | SHAPE))
        asked = planning.request(profile="h100", recipes=(RECIPE,))
        thought = answer(asked, planning.settings, "h100", 2, None)
        seconds = {"serve": [5.0], "measure": [60.0, 60.0, 600.0], "speed": [540.0]}
        seen = ObservedDurations({(stage, RECIPE): times for stage, times in seconds.items()})
        plan = replace(thought, seen=seen, minutes=())
        recipes, policy = [catalog.load_recipe(RECIPE)], catalog.load_policy("default")
        timeline = schedule_on_gpus(plan, recipes, policy, dry_run=False)
        assert timeline is not None
        assert f"{RECIPE}: asked" in {each.piece.name for each in timeline.placed}
        assert all(each.start <= each.end for each in timeline.placed)

    def test_nothing_is_left_to_do(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        found = planning.forecast()
        assert found.timeline is not None
        assert found.timeline.placed == ()


def test_a_cluster_s_plan_is_laid_out_for_its_nodes(
    planning: Planning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this machine has, or lacks, says nothing of them."""
    (gpu,) = H100.gpus
    node = H100.model_copy(update={"gpus": (replace(gpu, driver="470.1"),)})
    monkeypatch.setattr("pipeline.run.plan_report.executor_of", lambda _: Elsewhere(node))
    found = planning.forecast(profile="auto")
    assert found.choices.profile.name == "h100"
    told = " ".join(fault.message for fault in found.faults)
    assert "the NVIDIA driver is 470.1" in told
