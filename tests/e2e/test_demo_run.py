"""The whole way, for real: killed in the middle of an evaluation, interrupted in another, finished.

Real llm-compressor, real vLLM, real lm-eval on the demo model; about ten minutes on two cores.
Other places to be killed at: tests/unit/run/test_killed_anywhere.py, without models.
Environments are built in (and reused from) the user's own PREPARE_HOME; the store is the test's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from free_port import free_port
from store_processes import left_after, processes_of

from artifacts.deploy.recheck_record import rechecks_of
from artifacts.deploy.registered import find_version
from artifacts.registry import Registry
from eval_gates.speed.load_run import read_loads
from prepare.hardware import cpu_features
from recipes.checkpoints.checkpoint import read_folder
from recipes.checkpoints.layers import STORED, Stored, read_layers, sequence_bytes
from recipes.checkpoints.model_shape import model_shape
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]

PREPARE = [sys.executable, "-P", "-m", "prepare"]
SUITES = {"quiz", "conversations", "humaneval", "rouge"}
RECIPES = {"fp8-dynamic", "awq-w4a16"}
MODEL = ["model", "demo:smollm2-135m", "--profile", "cpu", "--json"]
KINDS_OF_PROCESS = ("VLLM::Worker", "supervisor.py", "worker_protocol.py")


@dataclass
class Demo:
    """The finished demo run and the store it lies in."""

    store: Path
    report: dict[str, Any]
    interrupted_code: int
    left_behind: dict[str, list[str]]
    alive_at_the_kill: str

    def prepare(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PREPARE, *arguments],
            env=environment(self.store),
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def environment(store: Path) -> dict[str, str]:
    return {**os.environ, "PREPARE_STORE": str(store)}


def start(store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PREPARE, *MODEL],
        env=environment(store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs, and so all that CI starts there, inherit it as ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def stop_when(
    store: Path, reached: Callable[[str, int], bool], number: signal.Signals
) -> tuple[int, str]:
    """Run until an event says so, then send the signal to the command alone.

    Returns:
        its exit code, and the processes that were alive then.
    """
    process = start(store)
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        event = json.loads(line)
        if event["event"] == "progress" and reached(event["task"], event["done"]):
            alive = "\n".join(processes_of(store))
            process.send_signal(number)
            break
    else:
        pytest.fail(f"the run ended before it got there:\n{''.join(seen[-20:])}")
    process.communicate(timeout=60)
    return process.returncode, alive


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    store = tmp_path_factory.mktemp("demo") / "store"
    left: dict[str, list[str]] = {}

    _, evaluating = stop_when(
        store, lambda task, done: task == "baseline: quiz" and done >= 20, signal.SIGKILL
    )
    left["evaluation"] = left_after(store)
    interrupted, _ = stop_when(
        store, lambda task, done: task == "baseline: rouge" and done >= 1, signal.SIGINT
    )
    left["interruption"] = left_after(store, seconds=1)

    process = start(store)
    output, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors[-4000:]
    left["success"] = left_after(store, seconds=1)
    return Demo(store, json.loads(output), interrupted, left, evaluating)


def test_nothing_outlives_the_command(demo: Demo) -> None:
    # There was something to end, and it is seen while it lives.
    assert all(kind in demo.alive_at_the_kill for kind in KINDS_OF_PROCESS)
    assert demo.left_behind == {place: [] for place in demo.left_behind}


def test_interruption_has_its_exit_code_and_record(demo: Demo) -> None:
    assert demo.interrupted_code == 130
    runs = json.loads(demo.prepare("runs", "--json").stdout)
    assert [run["status"] for run in runs][-2:] == ["interrupted", "finished"]


def test_finished_stages_were_not_repeated(demo: Demo) -> None:
    status = {(s["name"], s["variant"]): s["status"] for s in demo.report["stages"]}
    assert status["quantize", "fp8-dynamic"] == "reused"
    assert status["quantize", "awq-w4a16"] == "reused"
    assert status["evaluate quiz", "baseline"] == "reused"
    assert status["evaluate rouge", "baseline"] == "ran"


def suites_of(variant: dict[str, Any]) -> list[dict[str, Any]]:
    """The variant's gates on quality."""
    return [gate for gate in variant["gates"] if gate["kind"] == "quality"]


def test_both_variants_are_judged_on_every_suite_and_their_speed(demo: Demo) -> None:
    variants = {variant["recipe"]: variant for variant in demo.report["variants"]}
    assert set(variants) == RECIPES
    for variant in variants.values():
        gates = suites_of(variant)
        assert {gate["name"] for gate in gates} == SUITES
        for gate in gates:
            # Once all of a benchmark is asked the three are one number, in three ways of adding.
            assert gate["bound"] - 1e-12 <= gate["estimate"] <= gate["upper_bound"] + 1e-12
            assert gate["baseline"] > 0 or gate["tier"] == "advisory"
            assert 0 <= gate["p_value"] <= 1
            if gate["tier"] == "critical":
                assert gate["verdict"] != "undecided", gate["reason"]
                assert "insensitive" not in gate["reason"]
        (speed,) = (gate for gate in variant["gates"] if gate["kind"] == "speed")
        if any(gate["verdict"] == "fail" for gate in gates):
            assert speed["reason"].startswith(
                "not measured"
            )  # who has failed is not put under load
        else:
            assert speed["verdict"] == "pass", speed["reason"]
            assert 0.02 < speed["lower"] < speed["estimate"]
            assert not any(load["failed"] for load in speed["loads"])
            assert "not a GPU's" in speed["note"]
        assert variant["verdict"] in {"pass", "fail", "undecided"}, variant["reason"]


def test_one_variant_is_promoted_and_the_other_refused_by_name_and_figure(demo: Demo) -> None:
    """What everybody sees first: damage is found, and named."""
    variants = {variant["recipe"]: variant for variant in demo.report["variants"]}
    assert variants["fp8-dynamic"]["promoted"]
    refused = variants["awq-w4a16"]
    if "avx512f" not in cpu_features():  # the cache is not FP8, and so less is lost
        assert refused["verdict"] in ("fail", "undecided")
        return
    assert refused["verdict"] == "fail"
    assert refused["reason"].startswith("failed on conversations (keeps ")
    assert "at most 15 may be lost" in refused["reason"]


def test_a_gate_is_decided_at_a_planned_look(demo: Demo) -> None:
    (gate,) = [
        gate
        for variant in demo.report["variants"]
        for gate in variant["gates"]
        if (variant["recipe"], gate["name"]) == ("fp8-dynamic", "quiz")
    ]
    assert 1 <= gate["look"] <= 3, gate["reason"]
    assert (
        gate["n"] == [gate["planned"] // 4, gate["planned"] // 2, gate["planned"]][gate["look"] - 1]
    )
    # The baseline is asked some questions twice: what serving alone changes.
    assert gate["noise_floor"]["n"] > 0
    assert {group["group"] for group in gate["groups"] if group["kind"] == "union"} <= {
        "not in MMLU",
    }


def test_what_was_asked_before_the_kill_was_not_asked_again(demo: Demo) -> None:
    """The baseline was killed in the middle of MMLU; its log has each question once."""
    logs = [
        [json.loads(line)["id"] for line in answer_log.read_text().splitlines()]
        for answer_log in (demo.store / "answers").glob("*.jsonl")
    ]
    assert all(len(set(ids)) == len(ids) for ids in logs)
    assert max(len(ids) for ids in logs) >= 64


def test_every_verdict_follows_from_the_kept_answers(demo: Demo) -> None:
    verified = demo.prepare("verify", "latest", "--json")
    assert verified.returncode == 0, verified.stdout
    checked = json.loads(verified.stdout)
    assert checked["same"]
    assert {variant["recipe"] for variant in checked["variants"]} == RECIPES


def test_one_variant_holds_the_alias(demo: Demo, cpu_profile: ServingProfile) -> None:
    promoted = [v for v in demo.report["variants"] if v["promoted"]]
    assert len(promoted) == 1
    versions = json.loads(demo.prepare("registry", "--json").stdout)
    (champion,) = [v for v in versions if "champion" in v["aliases"]]
    assert champion["version"] == promoted[0]["registry_version"]
    assert champion["tags"]["prepare.recipe"] == promoted[0]["recipe"]
    serving = json.loads(champion["tags"]["prepare.serving"])["engine_arguments"]
    assert serving["kv-cache-dtype"] == cpu_profile.kv_cache_dtype
    assert serving["dtype"] == cpu_profile.engine_arguments["dtype"]
    features = json.loads(champion["tags"]["prepare.hardware"])["cpu_features"]
    assert features == list(cpu_features())
    weights = Path(champion["source"])
    assert sum(f.stat().st_size for f in weights.glob("*.safetensors")) < 270e6


def test_every_request_of_the_loads_is_kept_with_its_start(demo: Demo) -> None:
    found = list((demo.store / "stages" / "speed").glob("*/loads.jsonl"))
    assert found
    for file in found:
        loads = read_loads(file)
        assert {load.side for load in loads} == {"baseline", "candidate"}
        assert all(len(load.requests) >= 10 * (load.concurrency or 1) for load in loads)


def test_every_answer_is_kept_with_its_prompt(demo: Demo) -> None:
    for stage in demo.report["stages"]:
        if stage["name"].startswith("evaluate"):
            folder = demo.store / "stages" / "evaluate" / stage["key"]
            lines = (folder / "answers.jsonl").read_text(encoding="utf-8").strip().split("\n")
            rows = [json.loads(line) for line in lines]
            assert rows
            for row in rows:
                assert len(row["prompt_sha256"]) == 64
                assert 0 <= row["score"] <= 1
                assert row["answer"] is not None


def test_variants_were_served_with_the_kv_cache_that_this_cpu_has(
    demo: Demo, cpu_profile: ServingProfile
) -> None:
    """FP8, or what the profile falls back to; and that is said."""
    avx512 = "avx512f" in cpu_features()
    assert ("kv-cache-not-fp8" in demo.report["resolved"]["cpu_overrides"]) is not avx512
    dtype = "fp8" if avx512 else "auto"
    times = (4 if "float32" in cpu_profile.in_effect else 2) if avx512 else 1
    facts = {}
    for stage in demo.report["stages"]:
        if stage["name"] == "sanity":
            record = demo.store / "stages" / "sanity" / stage["key"] / "stage.json"
            facts[stage["variant"]] = json.loads(record.read_text())["result"]
    for recipe in RECIPES:
        command = facts[recipe]["server"]["command"]
        assert command[command.index("--kv-cache-dtype") + 1] == dtype
        # An FP8 cache holds twice the tokens of a bf16 cache of the same size.
        tokens = int(facts[recipe]["server"]["kv_cache_tokens"])
        assert tokens == pytest.approx(
            times * int(facts["baseline"]["server"]["kv_cache_tokens"]), rel=0.05
        )
        assert facts[recipe]["nats_lost"] < 0.7


def test_the_plan_knows_the_engines_kv_cache(demo: Demo, cpu_profile: ServingProfile) -> None:
    """Tokens that the engine logged, in its own type and FP8, against those of `prepare plan`."""
    (made,) = (demo.store / "stages" / "demo_checkpoint").glob("*/output")
    config = read_folder(made).config
    layers = read_layers(config, model_shape(config, "config.json"), "config.json")
    profile = cpu_profile
    seen = set()
    for stage in demo.report["stages"]:
        if stage["name"] == "sanity":
            record = demo.store / "stages" / "sanity" / stage["key"] / "stage.json"
            server = json.loads(record.read_text())["result"]["server"]
            command = server["command"]
            dtype = command[command.index("--kv-cache-dtype") + 1]
            is_wide = dtype == "auto" and "float32" in profile.in_effect
            size = Stored(4) if is_wide else STORED[dtype]
            context = int(profile.engine_arguments["max-model-len"])
            block = int(profile.engine_arguments["block-size"])
            one = sequence_bytes(layers, context, size, block=block)
            memory = int(profile.environment["VLLM_CPU_KVCACHE_SPACE"]) * 2**30
            assert memory / one * context == pytest.approx(int(server["kv_cache_tokens"]), rel=0.02)
            seen.add((stage["variant"], dtype))
    assert seen == {("baseline", "auto"), *((recipe, profile.kv_cache_dtype) for recipe in RECIPES)}


def test_the_report_is_kept(demo: Demo) -> None:
    shown = json.loads(demo.prepare("runs", "latest", "--json").stdout)
    assert shown == demo.report
    assert demo.report["schema_version"] == 1
    assert demo.report["checkpoint"]["ref"] == "demo:smollm2-135m"


def test_running_again_reuses_every_stage(demo: Demo) -> None:
    again = demo.prepare(*MODEL)
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert {stage["status"] for stage in report["stages"]} == {"reused"}
    # No server was started, and blocks are collected by the stage 'speed'.
    stages = [s for s in demo.report["stages"] if s["stage"] not in ("serve", "block")]
    assert len(report["stages"]) == len(stages)


def test_a_changed_recipe_runs_only_its_own_branch(demo: Demo, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    shown = demo.prepare("show", "awq-w4a16").stdout
    own.write_text(
        shown.replace("grid_points: 20", "grid_points: 5").replace("name: awq-w4a16", "name: own")
    )
    planned = demo.prepare(
        "plan",
        "demo:smollm2-135m",
        "--profile",
        "cpu",
        "--recipe",
        str(own),
        "--recipe",
        "fp8-dynamic",
        "--json",
    )
    stages = json.loads(planned.stdout)["stages"]
    # The other is tried once more, so it has a smaller share of the error rate: judged again, and
    # perhaps asked more, for which it is served, as for its speed, whose rule has that share; but
    # nothing is made, nor checked, again.
    again = [s["name"] for s in stages if not s["cached"] and s["variant"] != "own"]
    assert {name.partition(" ")[0] for name in again} <= {
        "evaluate",
        "judge",
        "serve",
        "speed",
    }
    assert {s["name"] for s in stages if s["variant"] == "own" and s["cached"]} == set()


def test_the_champion_is_served_as_judged(demo: Demo) -> None:
    """By `prepare serve`, until Ctrl-C; the server does not outlive it."""
    name = demo.report["registered_name"]
    server = subprocess.Popen(
        [*PREPARE, "serve", f"{name}@champion", "--port", str(free_port()), "--json"],
        env=environment(demo.store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line:
            pytest.fail(server.communicate(timeout=60)[1][-4000:])
        served = json.loads(line)
        question = {"model": served["model"], "prompt": "The capital of France is", "max_tokens": 4}
        answer = httpx.post(
            f"{served['url']}/completions", json=question, timeout=120, trust_env=False
        ).raise_for_status()
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait(60)
    assert answer.json()["choices"][0]["text"]
    assert served["differences"] == []
    assert server.returncode == 130
    assert left_after(demo.store, seconds=5) == []


def test_the_alias_moves_back_and_forth(demo: Demo, tmp_path: Path) -> None:
    """Last: what is promoted by hand is not what the run above had promoted."""

    def told(*arguments: str) -> Any:
        done = demo.prepare(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (champion,) = [v["recipe"] for v in demo.report["variants"] if v["promoted"]]
    (other,) = RECIPES - {champion}
    run = demo.report["run"]
    before = told("promote", f"{run}:{champion}")["versions"][champion]
    if [v["verdict"] for v in demo.report["variants"] if v["recipe"] == other] == ["pass"]:
        moved = told("promote", f"{run}:{other}")
    else:
        moved = told("promote", f"{run}:{other}", "--override", "to see it move")
    assert moved["replaced"] == before
    name = demo.report["registered_name"]
    assert told("rollback", name, "--reason", "back again")["version"] == before
    actions = [entry["action"] for entry in told("registry", name, "--history")]
    assert actions[-1] == "rollback"
    pulled = told("pull", f"{name}@champion", str(tmp_path / "pulled"))
    assert pulled["version"] == before
    assert told("serve", f"{name}@champion", "--check")["differences"] == []
    garbage = told("gc", "--older-than", "0", "--dry-run")["removed"]
    assert not [each for each in garbage if "/quantize/" in each["path"]]


def test_a_champion_is_rechecked(demo: Demo, tmp_path: Path) -> None:
    """Its speed is measured again; all answers hold, because the machine is the same."""
    name = demo.report["registered_name"]
    copy = tmp_path / "registry.db"
    shutil.copyfile(demo.store / "registry.db", copy)
    registry = Registry(f"sqlite:///{copy}")
    command = ["recheck", f"{name}@champion", "--registry", registry.uri, "--json"]

    def rechecked(*options: str) -> tuple[int, dict[str, Any]]:
        done = demo.prepare(*command, *options, seconds=900)
        assert done.stdout, done.stderr[-4000:]
        return done.returncode, json.loads(done.stdout)

    code, unchanged = rechecked()
    assert (code, unchanged["changed"], unchanged["measured"]) == (0, [], False)

    code, outcome = rechecked("--remeasure", "speed.ratio.short")
    assert outcome["error"] is None
    assert outcome["engine"] is None  # nothing that answers depend on has changed
    verdict = outcome["source"]["verdict"]
    assert code == {"pass": 0, "fail": 4, "undecided": 5}[verdict]
    assert {gate["name"] for gate in suites_of(outcome["source"])} == SUITES
    # The same answers give the same gates; only speed was measured again.
    assert [g["estimate"] for g in suites_of(outcome["source"])] == [
        g["estimate"] for g in suites_of(outcome["then"])
    ]
    shown = json.loads(demo.prepare("runs", outcome["run"], "--json").stdout)
    status = {(s["name"], s["variant"]): s["status"] for s in shown["stages"]}
    assert not [stage for stage, _ in status if stage == "quantize"]
    recipe = outcome["recipe"]
    assert status["adopt", recipe] == status["speed ratio.short", recipe] == "ran"
    # The baseline is served next to the variant; its answers hold.
    assert {n for (n, variant), s in status.items() if (variant, s) == ("baseline", "ran")} == {
        "serve"
    }
    assert demo.prepare("verify", outcome["run"]).returncode == 0
    version = find_version(registry, f"{name}@champion")
    (kept,) = rechecks_of(version)
    assert (kept.runs, kept.report.verdict) == ([outcome["run"]], verdict)
    assert demo.prepare("verify", f"{name}@champion").returncode == 0

    hardware = {**json.loads(version.tags["prepare.hardware"]), "cores": 640}
    registry.set_tags(name, version.version, {"prepare.hardware": json.dumps(hardware)})
    refused = demo.prepare(*command)
    assert refused.returncode == 1
    assert "prepare.hardware" in refused.stderr
