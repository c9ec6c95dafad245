from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from finished_stage import put_record, stage_record
from listener import Listener
from quantized_checkpoint import source_files
from sample_stages import PARAMETERS, RESULTS
from small_checkpoint import write_files
from sound_variants import safetensors_of, source_tensors

from artifacts.requests import ModelRequest
from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from pipeline.plan.locator import Locator
from pipeline.plan.model_plan import make_plan
from pipeline.plan.plan import PlanProgress
from pipeline.plan.rungs import write_rungs
from pipeline.preflight.survey import Survey, survey
from pipeline.run import plan_report
from pipeline.run.plan_report import PlanReport, forecast
from prepare.errors import ExitCode, UsageError
from prepare.stage import StageSpec
from prepare.store import Store
from recipes import catalog

RECIPE = "fp8-dynamic"
SUITES = ("quiz", "conversations", "humaneval", "rouge")
SERVED = ("sanity", *(f"evaluate {suite}" for suite in SUITES))
OF_BASELINE = (*SERVED, "evaluate quiz again")
QUESTIONS = tuple(f"questions {suite}" for suite in SUITES)
SPEED = "speed ratio.short"
STAGES = (*QUESTIONS, "quantize", "check_weights", *OF_BASELINE, *SERVED, SPEED, "judge")
SERVER_FACTS = {"server": {"ready_seconds": 50.0}}


class Planning:
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
        choices = choose(self.request(), self.settings)
        never_asked = Path("/none")
        locator = Locator(
            choices.profile,
            self.settings,
            lambda spec: never_asked,
            Listener(),
            choices.checkpoints,
        )
        found = locator.all(choices)
        early = survey(choices, self.settings, Listener())
        plan = make_plan(choices, found, self.settings, early.sources)
        return PlanProgress(plan, self.store).stages()

    def finish(self, spec: StageSpec, seconds: float = 1.0, *, more: bool = False) -> None:
        self.remember(spec.stage, spec.key, spec.parameters, seconds, more=more)

    def remember(
        self,
        stage: str,
        key: str,
        parameters: dict[str, Any],
        seconds: float,
        *,
        more: bool = False,
        **result: Any,
    ) -> None:
        found = {"sanity": SERVER_FACTS, "evaluate": {}}.get(stage, result)
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
        found = (folder or self.folder).rglob("*")
        return {str(path): path.read_bytes() for path in found if path.is_file()}


@pytest.fixture
def planning(tmp_path: Path) -> Planning:
    planning = Planning(tmp_path)
    write_files(planning.checkpoint, source_files())
    return planning


def rows(found: PlanReport, variant: str | None = None) -> dict[str, list[str]]:
    return {row[0]: row[2:] for row in (s.row for s in found.stages) if variant in (None, row[1])}


def last(found: PlanReport) -> str:
    return list(found.last_lines())[-1]


class TestNothingDone:
    def test_the_store_stays_as_it_is(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        before = planning.files(planning.settings.store)  # digests are kept elsewhere, in time
        assert before
        planning.forecast()
        assert planning.files(planning.settings.store) == before

    def test_bad_options_and_checkpoints_are_refused_as_a_run_would(
        self, planning: Planning
    ) -> None:
        with pytest.raises(UsageError) as caught:
            planning.forecast(recipes=("none",))
        assert caught.value.where == "--recipe none"
        (planning.checkpoint / "model.safetensors").unlink()
        found = planning.forecast()
        assert found.exit_code == ExitCode.USAGE
        assert "no .safetensors file" in str(found.faults[0])
        assert found.power == ()


class TestServers:
    def test_one_missing_answer_needs_the_server(self, planning: Planning) -> None:
        for spec in planning.specs():
            if not (spec.stage == "sanity" and spec.variant == "baseline"):
                planning.finish(spec)
        found = planning.forecast()
        to_run = [(stage.name, stage.variant) for stage in found.stages if not stage.cached]
        assert to_run == [("serve", "baseline"), ("sanity", "baseline")]


class TestCached:
    def test_all(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        found = planning.forecast()
        assert last(found) == f"0 stages to run, {len(STAGES)} cached; about 0.0 minutes"
        assert found.expected().high == 0

    def test_other_content_is_not_done(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.finish(spec)
        config = planning.checkpoint / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "other": 1}))
        found = planning.forecast()
        assert {stage.name for stage in found.stages if stage.cached} == set(QUESTIONS)


class TestTimes:
    def test_the_median_of_such_stages(self, planning: Planning) -> None:
        of_variant = {s.stage: s.parameters for s in planning.specs() if s.variant == RECIPE}
        quantize = of_variant["quantize"]
        for number, seconds in enumerate((10.0, 20.0, 90.0)):
            planning.remember("quantize", f"old{number}", quantize, seconds)
        awq = {**quantize, "quantization": {"kind": "awq", "calibration": {}}}
        planning.remember("quantize", "awq", awq, 1000.0)
        asked = {**of_variant["evaluate"], "suite": {"kind": "rouge"}}
        planning.remember("evaluate", "old", asked, 33.0)
        planning.remember("sanity", "old", of_variant["sanity"], 2.0)
        for variant, served in ((RECIPE, SERVED), ("baseline", OF_BASELINE)):
            of = rows(planning.forecast(), variant)
            assert of["evaluate rouge"] == ["to run", "33 s"]
            assert of["evaluate quiz"][1].endswith("s, assumed")
            assert of["sanity"] == ["to run", "2 s"]
            assert of["serve"] == ["to run", "50 s"]
            assert of.keys() >= {"serve", *served}
        assert rows(planning.forecast())["quantize"] == ["to run", "20 s"]
        expected = planning.forecast().expected()
        assert 0 < expected.low < expected.high

    @pytest.mark.parametrize(
        ("ratio", "gpu", "counts"),
        [(1.1, None, True), (1.3, None, False), (0.7, None, False), (1.1, "NVIDIA L4", False)],
    )
    def test_another_model_counts_at_a_like_size_on_this_hardware(
        self, planning: Planning, ratio: float, gpu: str | None, counts: bool
    ) -> None:
        of_variant = {s.stage: s.parameters for s in planning.specs() if s.variant == RECIPE}
        size = planning.forecast().checkpoint
        assert size is not None
        other = {"checkpoint": "f" * 64}
        facts = {"weights_bytes": int(size.weights_bytes * ratio / 2), "size_ratio": 0.5}
        planning.remember("check_weights", "c", of_variant["check_weights"] | other, 4.0, **facts)
        planning.remember("quantize", "q", of_variant["quantize"] | other, 20.0)
        served = of_variant["sanity"] | other
        if gpu is not None:
            served |= {"hardware": {"accelerator": "cuda", "gpu": gpu}}
        planning.remember("sanity", "s", served, 2.0)
        shown = rows(planning.forecast(), RECIPE)
        assert (shown["quantize"] == ["to run", "20 s"]) is counts
        assert (shown["sanity"] == ["to run", "2 s"]) is counts

    def test_the_sum_when_every_kind_was_seen(self, planning: Planning) -> None:
        for spec in planning.specs():
            planning.remember(spec.stage, f"old {spec.key}", spec.parameters, 6.0)
        found = planning.forecast()
        assert found.expected().low == found.expected().high == 6.0 * len(STAGES) + 2 * 50
        minutes = (6.0 * len(STAGES) + 2 * 50) / 60
        assert last(found).endswith(f"about {minutes:.1f} minutes")

    def test_a_damaged_record_is_no_reason_not_to_plan(self, planning: Planning) -> None:
        for spec in planning.specs():
            if spec.stage in ("check_weights", "sanity"):
                planning.remember(spec.stage, f"old {spec.key}", spec.parameters, 4.0)
        planning.remember("check_weights", "damaged", {}, 400.0)
        (planning.store.stage_folder("check_weights", "damaged") / "stage.json").write_text("{")
        assert rows(planning.forecast())["check_weights"] == ["to run", "4 s"]


class TestNoise:
    @pytest.mark.parametrize(
        ("gates", "changes", "source"),
        [
            (2, {}, "5.0 % (measured here in 8 blocks)"),
            (1, {}, "(assumed)"),  # five values show too little of a spread
            (2, {"machine": "another"}, "(assumed)"),
            (2, {"starts": "once"}, "(assumed)"),
        ],
        ids=["measured", "too few", "of another machine", "of one start"],
    )
    def test_the_noise_of_this_machine_takes_the_place_of_the_assumed_one(
        self, planning: Planning, gates: int, changes: dict[str, str], source: str
    ) -> None:
        profile = planning.folder / "fresh.yaml"
        carried = Path(catalog.__file__).parent / "profiles" / "cpu.yaml"
        profile.write_text(carried.read_text().replace("starts: once", "starts: fresh"))
        (measured,) = [spec.parameters for spec in planning.specs() if spec.stage == "speed"]
        rule = measured["rule"] | {"starts": changes.get("starts", "fresh")}
        asked = measured | {"rule": rule, "machine": changes.get("machine", measured["machine"])}
        for number in range(gates):
            facts = {"units": 5, "deviation": 0.05}
            planning.remember("speed", f"gate{number}", asked, 1.0, **facts)
        found = planning.forecast(profile=str(profile))
        (speed,) = [gate.words for gate in found.power if gate.family is None]
        assert source in speed


class TestWithoutIt:
    def test_large_weights_are_hashed_where_asked(
        self, planning: Planning, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_report, "HASHED_BYTES", 1)
        found = planning.forecast()
        assert "kB to hash first" in next(found.lines())
        assert not any("to run" in line for line in found.last_lines())
        assert last(found).startswith("the whole run takes about ")
        assert 0 < found.expected().low < found.expected().high
        assert (found.stages, found.faults) == ((), ())
        assert found.weights_bytes.keys() == {RECIPE}
        assert found.power
        request, settings = planning.request(), planning.settings
        assert forecast(request, settings, Listener(), hash_all=True).stages


class TestDemo:
    def test_it_is_to_be_made_first(self, planning: Planning) -> None:
        found = planning.forecast(checkpoint="demo:smollm2-135m")
        assert [(s.name, s.cached) for s in found.stages] == [("demo_checkpoint", False)]
        assert "to be made first" in next(found.lines())
        assert "minutes, by the model's size" in last(found)
        assert (found.weights_bytes, found.to_dict()["checkpoint"]) == ({}, None)
        assert not planning.settings.store.exists()


class TestUntilPass:
    """Named from the smallest up, FP8 is asked first."""

    NAMED = ("awq-w4a16", "fp8-dynamic")

    def told(self, found: PlanReport) -> list[str]:
        return [line for line in found.lines() if line.startswith("--until pass: ")]

    def test_the_order_and_the_whole_level_are_told(self, planning: Planning) -> None:
        found = planning.forecast(recipes=self.NAMED, until="pass")
        assert found.order == ("fp8-dynamic", "awq-w4a16")
        assert found.to_dict()["order"] == list(found.order)
        (line,) = self.told(found)
        assert "fp8-dynamic, then awq-w4a16" in line
        shared = planning.forecast(recipes=self.NAMED)
        assert not self.told(shared)
        levels = [{gate.alpha for gate in report.power} for report in (found, shared)]
        assert min(levels[0]) == pytest.approx(2 * min(levels[1]))

    def test_before_the_checkpoint_is_made_the_order_is_not_known(self, planning: Planning) -> None:
        found = planning.forecast(checkpoint="demo:smollm2-135m", recipes=self.NAMED, until="pass")
        assert found.order == ()
        assert len(self.told(found)) == 1


@pytest.fixture
def layered(planning: Planning) -> Planning:
    """With layers whose columns the groups divide, and values of every matrix."""
    weights = safetensors_of(source_tensors())
    (planning.checkpoint / "model.safetensors").write_bytes(weights)
    return planning


RUNG = ("awq-w4a16", "awq-w4a16+10", "fp8-dynamic")


class TestRungs:
    def test_size_and_modules_of_a_rung_are_planned(self, layered: Planning) -> None:
        found = layered.forecast(recipes=RUNG, until="pass")
        assert not found.faults
        sizes = found.weights_bytes
        small, rung = (sizes[name] for name in ("awq-w4a16", "awq-w4a16-plus-10"))
        assert small < rung <= small * 1.1 < sizes["fp8-dynamic"]
        assert found.order == ("fp8-dynamic", "awq-w4a16-plus-10", "awq-w4a16")
        given = found.choices.given_back["awq-w4a16-plus-10"]
        assert given.more_bytes == rung - small
        assert any(given.sets[0].place[0] in line for line in found.lines())
        assert found.to_dict()["given_back"]["awq-w4a16-plus-10"]["scheme"] == "FP8_DYNAMIC"

    def test_the_recipe_in_the_run_makes_the_same_weights(self, layered: Planning) -> None:
        def found(*recipes: str) -> tuple[Survey, dict[str, str]]:
            settings = layered.settings
            choices = choose(layered.request(recipes=recipes), settings)
            early = survey(choices, settings, Listener())
            locator = Locator(
                *(choices.profile, settings, lambda spec: Path("/none")),
                *(Listener(), choices.checkpoints),
            )
            plan = make_plan(early.choices, locator.all(choices), settings, early.sources)
            return early, {arm.recipe.name: arm.stages["weights"].key for arm in plan.variants}

        early, first = found("awq-w4a16+10")
        write_rungs(early.choices, layered.folder)
        [file] = (layered.folder / "recipes").iterdir()
        _, again = found(str(file))
        assert first == again
        edited = file.read_text().replace("FP8_DYNAMIC", "W8A16")
        file.write_text(edited)
        assert found(str(file))[1] != first
        assert layered.forecast(recipes=(str(file),)).faults == ()

    def test_the_profile_says_in_which_format(self, layered: Planning) -> None:
        file = layered.folder / "old.yaml"
        file.write_text("extends: cpu\nname: old\ngives_back: W8A16\n")
        found = layered.forecast(recipes=("gptq-w4a16+10",), profile=str(file))
        assert {g.scheme for g in found.choices.given_back.values()} == {"W8A16"}
        assert found.choices.recipes[0].minimum_compute_capability == 7.5

    @pytest.mark.parametrize(
        ("recipe", "words"),
        [
            ("awq-w4a16+0.01", "the smallest set of modules takes"),
            ("awq-w4a16+100", "give back all"),
        ],
    )
    def test_a_share_that_is_too_small_or_enough_for_all(
        self, layered: Planning, recipe: str, words: str
    ) -> None:
        found = layered.forecast(recipes=(recipe,))
        [fault] = found.faults
        assert words in fault.message
        assert fault.hint
        assert found.exit_code == ExitCode.USAGE

    def test_pairs_with_kv_caches_share_the_weights(self, layered: Planning) -> None:
        found = layered.forecast(recipes=("awq-w4a16+10",), kv=("fp8,auto",))
        names = [f"awq-w4a16-plus-10.kv-{kv}" for kv in ("fp8", "auto")]
        first, second = found.choices.recipes
        assert [first.name, second.name] == list(found.choices.given_back) == names
        assert first.quantization == second.quantization
