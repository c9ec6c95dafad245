from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import IDENTITIES, FakeRun, Sources, equal, policy
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers
from some_node import NODE

from artifacts.candidate import PromotionRequest
from artifacts.evidence.tuning_check import check_tuning
from artifacts.promotion import choose_variants
from artifacts.requests import TuneRequest
from artifacts.run_outcome import headline, next_command, next_steps
from artifacts.run_record import ResolvedOptions, RunReport, ScreeningReport, TuningReport
from eval_gates.speed.load_run import LOADS, read_loads
from pipeline.environments.settings import Settings
from pipeline.plan.tuned_arm import add_candidate, gain_policy, make_defaults
from pipeline.preflight.machine import Machine
from pipeline.run.tune import PROFILE, Tuning
from prepare.errors import ExitCode, UsageError
from prepare.lots import Node
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile
from recipes.schema import ServingProfile
from recipes.tuning_candidates import CandidateFile

CPU = Machine(memory_bytes=2**34, free_disk_bytes=2**34)
PROFILE_KEYS: dict[str, Any] = {
    "name": "cpu",
    "summary": "s",
    "accelerator": "cpu",
    "kv_cache_dtype": "auto",
    "starts": "once",
    "engine_arguments": {"dtype": "bfloat16"},
    "workloads": {
        "chat": {
            "kind": "random",
            "input_tokens": 8,
            "output_tokens": 8,
            "arrivals": {"concurrency": 4},
            "seconds": 1,
        }
    },
}
FASTER = {"engine_arguments": {"max-num-batched-tokens": 512}}
OTHER = {"engine_arguments": {"max-num-batched-tokens": 4096}}
MEMORY = {"engine_arguments": {"block-size": 64}}


def profile(**changes: Any) -> ServingProfile:
    return ServingProfile.model_validate({**PROFILE_KEYS, **changes})


def candidates(**named: Any) -> CandidateFile:
    return CandidateFile.model_validate({"name": "c", "summary": "s", "candidates": named})


class Tried:
    def __init__(
        self, root: Path, models: PretendModels, found: CandidateFile, **keys: Any
    ) -> None:
        self.models, self.found, self.profile = models, found, profile(**keys)
        self.store = Store(root / "store")
        self.checkpoint = FakeRun(root / "store", models).checkpoint

    def run(self, to: Path | None = None) -> ExitCode:
        defaults = make_defaults(self.profile, self.found)
        settings = Settings(home=self.store.root.parent / "home", store=self.store.root)
        asked = TuneRequest(checkpoint="c")
        resolved = ResolvedOptions(checkpoint="c")
        run = PretendRun(asked, resolved, Accelerator.CPU, settings, Listener())
        run.models = self.models
        run.node = Node(self.store.root)
        self.log = run.log
        return Tuning(
            checkpoint=self.checkpoint,
            profile=self.profile,
            defaults=defaults,
            policy=gain_policy(policy(), self.profile, "chat"),
            candidates=self.found,
            identities=IDENTITIES,
            node=NODE,
            machine=CPU,
            sources=Sources(self.models),  # type: ignore[arg-type]
            servers=PretendServers(run),
        ).run(to)

    @property
    def report(self) -> TuningReport:
        found = self.log.report().tuning
        assert found is not None
        return found

    def screened(self, name: str) -> ScreeningReport:
        (found,) = [each for each in self.report.screening if each.name == name]
        return found


def tried(root: Path, seconds: dict[str, float], **named: Any) -> Tried:
    return Tried(root, PretendModels(equal, seconds=seconds), candidates(**named))


def test_a_gain_is_confirmed_on_lives_and_prompts_of_its_own(tmp_path: Path) -> None:
    made = tried(tmp_path, {"fast": 0.7}, fast=FASTER, other=OTHER)
    assert made.run(tmp_path / "tuned.yaml") == ExitCode.SUCCESS
    report = made.report
    assert (report.winner, report.verdict) == ("fast", "pass")
    assert report.confirmation is not None
    assert report.min_gain is not None
    assert 1 < report.min_gain <= 1 / 0.7 + 1e-9
    assert (report.confirmation.starts, report.confirmation.n) == ("fresh", 7)
    assert load_profile(str(tmp_path / "tuned.yaml")).starts == made.profile.starts == "once"
    # Stock raced, and is served again next to the winner.
    assert made.models.served[:3] == ["baseline", "fast", "other"]
    assert sorted(made.models.served[3:]) == ["baseline"] * 7 + ["fast"] * 7
    seeds: dict[str, set[int]] = {"screening": set(), "ratio": set()}
    for record in made.store.records("speed"):
        loads = read_loads(made.store.stage_folder("speed", record.key) / LOADS)
        seeds[record.parameters["rule"]["kind"]] |= {load.seed for load in loads}
    assert len(seeds["screening"]) == 3 + 3 + 3
    assert not seeds["screening"] & seeds["ratio"]


def test_a_profile_that_cannot_be_written_where_it_was_wanted_is_in_the_runs_folder(
    tmp_path: Path,
) -> None:
    made = tried(tmp_path, {"fast": 0.7}, fast=FASTER)
    with pytest.raises(UsageError) as error:
        made.run(tmp_path / "gone" / "tuned.yaml")
    assert error.value.where == f"--output {tmp_path / 'gone' / 'tuned.yaml'}"
    assert (made.report.verdict, made.report.profile) == ("pass", str(made.log.folder / PROFILE))


@pytest.mark.parametrize(
    ("kept", "moved"),
    [
        ("no-enable-prefix-caching", "enable-prefix-caching"),
        ("compilation-config.mode", "compilation-config"),
        ("compilation-config.mode", "compilation-config.cudagraph_mode"),
    ],
)
def test_stock_has_nothing_of_what_a_candidate_moves_however_it_is_written(
    kept: str, moved: str
) -> None:
    given = profile().model_copy(update={"engine_arguments": {"dtype": "bfloat16", kept: 3}})
    parameter = {"engine_arguments": {moved: True}}
    defaults = make_defaults(given, candidates(one=parameter))
    assert defaults.profile.engine_arguments == {"dtype": "bfloat16"}


def test_where_nothing_beats_stock_nothing_is_claimed(tmp_path: Path) -> None:
    made = tried(tmp_path, {"slow": 1.02}, slow=FASTER, equal=OTHER)
    assert made.run(tmp_path / "tuned.yaml") == ExitCode.GATES_FAILED
    assert (made.report.winner, made.report.verdict) == (None, "fail")
    assert made.report.profile is None
    assert not (tmp_path / "tuned.yaml").exists()


@pytest.mark.parametrize("fault", ["broken", "babbling"])
def test_a_failed_start_is_a_fact_and_ends_nothing(tmp_path: Path, fault: str) -> None:
    made = tried(tmp_path, {"fast": 0.7}, bad=OTHER, fast=FASTER)
    setattr(made.models, fault, {"bad"})
    assert made.run() == ExitCode.SUCCESS
    assert made.screened("bad").outcome == "failed"
    assert made.screened("bad").reason


def test_what_cannot_show_anything_here_is_dropped_with_its_reason(tmp_path: Path) -> None:
    made = tried(
        tmp_path,
        {},
        gpus={**OTHER, "accelerator": "cuda"},
        nothing={"kv_cache_dtype": "auto"},
        more={"engine_arguments": {"tensor-parallel-size": 2}},
    )
    made.run()
    for name, word in (("gpus", "cuda"), ("nothing", "the same as"), ("more", "GPUs")):
        assert made.screened(name).outcome == "dropped"
        assert word in made.screened(name).reason
        assert name not in made.models.served


def test_a_candidate_is_added_to_the_best_so_far(tmp_path: Path) -> None:
    slow = {"engine_arguments": {"max-num-seqs": 8}}
    seconds = {"step": 0.9, "slow": 0.95, "memory": 0.6}
    made = tried(tmp_path, seconds, step=FASTER, slow=slow, memory=MEMORY)
    assert made.run(tmp_path / "tuned.yaml") == ExitCode.SUCCESS
    assert made.report.winner == "memory"
    found = load_profile(str(tmp_path / "tuned.yaml")).engine_arguments
    assert found == {"dtype": "bfloat16", "max-num-batched-tokens": 512, "block-size": 64}


def test_run_again_it_measures_nothing_again(tmp_path: Path) -> None:
    made = tried(tmp_path, {"fast": 0.7}, fast=FASTER)
    made.run()
    served, before = list(made.models.served), made.report
    made.run()
    assert made.models.served == served
    after = made.report.model_copy(update={"profile": before.profile})
    assert after == before


class TestVerify:
    def test_another_bound_or_verdict_than_follows_is_named(self, tmp_path: Path) -> None:
        made = tried(tmp_path, {"fast": 0.7}, fast=FASTER)
        made.run()
        found = check_tuning(made.log.report(), made.store)
        assert (found.kept, found.computed, found.differences) == ("pass", "pass", ())
        assert made.report.confirmation is not None
        better = made.report.confirmation.model_copy(update={"lower": 1.2})
        for change, words in (
            ({"confirmation": better}, "lower: kept 1.2"),
            ({"verdict": "fail"}, "verdict: kept fail, computed pass"),
            ({"alpha": 0.5}, "has another error rate"),
            ({"engine_defaults": {"max-num-seqs": 1}}, "is not that of this run"),
            ({"stage": "0" * 64}, "is missing"),
            ({"served": made.report.served.model_copy(update={"starts": "once"})}, "another rule"),
        ):
            told = made.log.report().model_copy(
                update={"tuning": made.report.model_copy(update=change)}
            )
            assert words in "; ".join(check_tuning(told, made.store).differences)
        for nothing in ("winner", "confirmation"):
            told = made.log.report().model_copy(
                update={"tuning": made.report.model_copy(update={nothing: None})}
            )
            with pytest.raises(UsageError, match="measured no winner"):
                check_tuning(told, made.store)


def test_a_tuning_promotes_nothing(tmp_path: Path) -> None:
    made = tried(tmp_path, {"fast": 0.7}, fast=FASTER)
    made.run()
    made.log.finish("finished", 0)
    report = RunReport.model_validate_json(made.log.report().model_dump_json())
    assert report.kind == "tune"
    assert "fast against the defaults: pass" in headline(report)
    assert next_command(report) == f"prepare model c --profile {made.log.folder / PROFILE}"
    assert next_command(report) in next_steps(report)[0]
    with pytest.raises(UsageError) as error:
        choose_variants(report, PromotionRequest("sqlite:///x"))
    assert "prepare model CHECKPOINT" in error.value.hint


class TestSpeculation:
    NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3}  # noqa: RUF012

    def test_what_may_not_be_promoted_is_refused_before_anything_runs(self) -> None:
        pretends = {
            **self.NGRAM,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 2,
        }
        bad = candidates(bad={"speculative": pretends})
        with pytest.raises(UsageError) as error:
            add_candidate("bad", bad.candidates["bad"], make_defaults(profile(), bad))
        assert error.value.where == "candidates.bad"
