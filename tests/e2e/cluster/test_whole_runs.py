"""Whole runs of the demo model, to a promoted alias, on a Ray cluster and on Slurm.

Each once undisturbed, and once with a node killed while the variant's server answers; then the same
command elsewhere, which finds everything done. Real quantizer, real servers: some 20 minutes on two
cores. Environments are the user's own.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from slurm_nodes import SlurmNodes, node_of
from store_processes import left_after
from tiny_stages import TinyStages, wait_until
from whole_run import (
    ASKED_AND_JUDGED,
    CLAIM_ON_SPEED,
    MADE,
    POLICY,
    RECIPE,
    Ended,
    WholeRun,
    copy_store,
    guards_of_servers,
)

from eval_gates.answer_log import book_of_part
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors.slurm import SlurmJob, SlurmOptions, ask

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1200)]
DISTURBED_AT = 8
SECONDS_AWAY = 5


# --- on Ray ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayNodes]:
    made = RayNodes(2)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def done_on_ray(
    ray_nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory
) -> tuple[WholeRun, Ended]:
    """A run that began with nothing."""
    folder = tmp_path_factory.mktemp("ray")
    run = WholeRun(folder, on_ray(ray_nodes), str(folder / "store"))
    seen: list[str] = []
    ended = run.disturb(answers, lambda: seen.append(node_of_server(ray_nodes, run)))
    assert seen  # it was served under a raylet
    return run, ended


def on_ray(nodes: RayNodes) -> dict[str, str]:
    return {"kind": "ray", "address": nodes.address}


def node_of_server(nodes: RayNodes, run: WholeRun) -> str:
    [guard] = guards_of_servers(run.place)
    return nodes.node_above(guard)


def test_a_ray_cluster_undisturbed(done_on_ray: tuple[WholeRun, Ended]) -> None:
    run, ended = done_on_ray
    check_promoted(run, ended)
    assert set(ended.statuses().values()) == {"ran"}
    assert left_after(run.place) == []


def test_a_node_of_ray_killed_while_its_server_answers(
    done_on_ray: tuple[WholeRun, Ended], ray_nodes: RayNodes, tmp_path: Path
) -> None:
    copy_store(done_on_ray[0].place, tmp_path / "store", forget=ASKED_AND_JUDGED)
    run = WholeRun(tmp_path, on_ray(ray_nodes), str(tmp_path / "store"))
    planned = to_run(run.plan())

    def kill() -> None:
        [guard] = guards_of_servers(run.place)
        ray_nodes.kill(ray_nodes.node_above(guard))
        wait_until(lambda: not Path(f"/proc/{guard}").exists())

    ended = run.disturb(answers, kill)
    ray_nodes.add()
    assert any("lost" in note for note in ended.notes)
    check_promoted(run, ended)
    check_went_on(run, ended, planned)


def test_what_ray_did_slurm_finds_done(
    done_on_ray: tuple[WholeRun, Ended], slurm: SlurmNodes, tmp_path: Path
) -> None:
    check_all_reused(done_on_ray[0].elsewhere(tmp_path, *on_slurm(slurm)))


# --- on Slurm -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done_on_slurm(
    slurm: SlurmNodes,
    done_on_ray: tuple[WholeRun, Ended],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[WholeRun, Ended]:
    """A run that began with the baseline asked, and was followed from another process."""
    folder = tmp_path_factory.mktemp("slurm-run")
    copy_store(done_on_ray[0].place, folder / "store", forget=(*MADE, *ASKED_AND_JUDGED))
    executor, variables = on_slurm(slurm)
    run = WholeRun(folder, executor, str(folder / "store"), variables)
    with ThreadPoolExecutor() as threads:
        followers: list[Future[subprocess.CompletedProcess[bytes]]] = []
        ended = run.disturb(
            answers,
            lambda: followers.append(threads.submit(run.prepare, "runs", "attach", "--json")),
        )
        [attached] = [follower.result(timeout=60) for follower in followers]
    assert attached.returncode == 0
    assert json.loads(attached.stdout) == ended.report
    return run, ended


def on_slurm(nodes: SlurmNodes) -> tuple[dict[str, str], dict[str, str]]:
    executor = {"kind": "slurm", "partition": "all", "time": "20"}
    return executor, {"SLURM_CONF": str(nodes.configuration)}


def test_slurm_undisturbed_and_followed(done_on_slurm: tuple[WholeRun, Ended]) -> None:
    run, ended = done_on_slurm
    check_promoted(run, ended)
    check_variant_ran(ended)
    assert left_after(run.place) == []


def test_a_node_of_slurm_killed_while_its_server_answers(
    done_on_slurm: tuple[WholeRun, Ended], slurm: SlurmNodes, tmp_path: Path
) -> None:
    copy_store(done_on_slurm[0].place, tmp_path / "store", forget=ASKED_AND_JUDGED)
    executor, variables = on_slurm(slurm)
    run = WholeRun(tmp_path, executor, str(tmp_path / "store"), variables)
    planned = to_run(run.plan())
    killed: list[str] = []

    def kill() -> None:
        [guard] = guards_of_servers(run.place)
        killed.append(slurm.node_above(guard))
        slurm.kill(killed[0])
        wait_until(lambda: not Path(f"/proc/{guard}").exists())

    ended = run.disturb(answers, kill)
    slurm.start(killed[0])
    assert any("requeued" in note for note in ended.notes)
    check_promoted(run, ended)
    check_went_on(run, ended, planned)


def test_what_slurm_did_is_done_for_this_machine_alone(
    done_on_slurm: tuple[WholeRun, Ended], tmp_path: Path
) -> None:
    check_all_reused(done_on_slurm[0].elsewhere(tmp_path, {"kind": "local"}))


def test_a_pair_under_load_has_a_node_alone_and_goes_on_on_another(
    done_on_ray: tuple[WholeRun, Ended],
    slurm: SlurmNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Slurm, with a speed gate."""
    copy_store(done_on_ray[0].place, tmp_path / "store", forget=ASKED_AND_JUDGED)
    executor, variables = on_slurm(slurm)
    run = WholeRun(
        tmp_path, executor, str(tmp_path / "store"), variables, policy=POLICY + CLAIM_ON_SPEED
    )
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    others, seen = TinyStages(tmp_path), []

    def look_and_kill() -> None:
        guards = guards_of_servers(run.place)
        seen.append([slurm.node_above(guard) for guard in guards])
        [node] = set(seen[0])
        jobs = [submit_little(others, f"other{n}") for n in range(3)]
        others.wait_begun(2)
        seen.append([node_of(job) for job in jobs])
        others.let_go()
        wait_until(lambda: not any(map(node_of, jobs)))
        slurm.kill(node)
        begin_again_at_once(RECIPE)

    ended = run.disturb(lambda task, done: "speed" in task and done >= 1, look_and_kill)
    [first] = set(seen[0])
    slurm.start(first)
    assert len(seen[0]) == 2  # the baseline's and the variant's
    [other] = {"n1", "n2"} - {first}
    assert seen[1] == [other, other, ""]  # nothing next to the pair, though it left cores there
    check_promoted(run, ended)
    [claim] = ended.report["variants"][0]["speed"]
    assert claim["verdict"] == "pass"
    assert asked_twice(run.place) == []
    assert left_after(run.place) == []


def submit_little(stages: TinyStages, name: str) -> SlurmJob:
    task = stages.task(name)
    return SlurmOptions().open().find_room(ResourceRequest()).submit(task, task.with_suffix(".log"))


def begin_again_at_once(name: str) -> None:
    """Slurm itself would wait for two minutes with a job of that name whose node is lost."""

    def waiting() -> list[str]:
        lines = ask("squeue", "--noheader", "--states=PENDING", "--format=%i %j").splitlines()
        return [line.split()[0] for line in lines if name in line]

    wait_until(waiting, 120)
    [number] = waiting()
    ask("scontrol", "update", f"JobId={number}", "StartTime=now")


# --- what all are held to -------------------------------------------------------------------------


def answers(task: str, done: int) -> bool:
    """Whether the variant's server has answered some of its questions."""
    return task == f"{RECIPE}: quiz" and done >= DISTURBED_AT


def check_promoted(run: WholeRun, ended: Ended) -> None:
    """The variant has the alias, on evidence from which its verdict follows."""
    assert ended.code == 0, ended.report.get("error") or ended.notes
    [variant] = ended.report["variants"]
    assert variant["promoted"]
    versions = json.loads(run.prepare("registry", "list", "--json").stdout)
    [champion] = [version for version in versions if "champion" in version["aliases"]]
    assert champion["version"] == variant["registry_version"]
    assert json.loads(run.prepare("verify", "latest", "--json").stdout)["same"]


def check_variant_ran(ended: Ended) -> None:
    """Nothing of the variant was there before."""
    of_it = {name: status for (name, side), status in ended.statuses().items() if side == RECIPE}
    assert {*MADE, *ASKED_AND_JUDGED[2:]} - {"promote"} <= {*of_it}
    assert set(of_it.values()) == {"ran"}


def to_run(plan: dict[str, Any]) -> set[tuple[str, str]]:
    """The stages that a plan says are to be run."""
    return {(each["name"], each["variant"]) for each in plan["stages"] if not each["cached"]}


def check_went_on(run: WholeRun, ended: Ended, planned: set[tuple[str, str]]) -> None:
    """What was planned was run, nothing that was done was done again, and nothing is left."""
    of_the_end = {("evidence", RECIPE), ("promote", "registry")}
    ran = [(s["name"], s["variant"]) for s in ended.report["stages"] if s["status"] == "ran"]
    assert {*ran} - of_the_end == planned
    repeated = {stage for stage in ran if ran.count(stage) > 1}
    assert repeated <= {("serve", RECIPE)}
    assert asked_twice(run.place) == []
    assert left_after(run.place) == []


def asked_twice(store: Path) -> list[tuple[str, str]]:
    """Book and question of those that a model was asked more than once."""
    asked = Counter(
        (book_of_part(file), json.loads(line)["id"])
        for file in (store / "answers").glob("*.jsonl")
        for line in file.read_text().splitlines()
    )
    return [question for question, times in asked.items() if times > 1]


def check_all_reused(run: WholeRun) -> None:
    """Nothing is done again, and no server starts."""
    ended = run.run()
    check_promoted(run, ended)
    assert set(ended.statuses().values()) == {"reused"}
    assert left_after(run.place) == []
