"""Promoting from a finished run's record, with verdicts that the real judge gave."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_run import IDENTITIES, ONE, SERVING, TWO, FakeRun
from listener import Listener
from pretend_stages import PretendModels, edit
from spoilt_bundle import rewrite_manifest
from typer.testing import CliRunner

from artifacts import promotion, registry
from artifacts.evidence.verify import check_bundle, check_run, read_verdict
from artifacts.garbage_collection import find_garbage, remove
from artifacts.mlflow_store import MlflowStore
from artifacts.registry import Cause, Registry
from artifacts.requests import GateRequest
from artifacts.run_record import RunReport
from pipeline.cli.main import app
from prepare.errors import EvidenceError, RegistryError, StoreError, UsageError
from prepare.store import RECORD, RESERVE, RUN_RECORD, RunFolders
from recipes.checkpoints.weight_files import BUNDLE
from recipes.policy import PromotionRule
from recipes.speed import SpeedPolicy


@pytest.fixture
def mixed(tmp_path: Path) -> FakeRun:
    models = PretendModels(lambda variant, suite, number: float(number % 2 and variant != ONE))
    made = FakeRun(tmp_path / "store", models, recipes=(ONE, TWO))
    verdicts = {v.recipe: v.verdict for v in made.run().variants}
    assert verdicts == {ONE: "fail", TWO: "pass"}
    return made


@pytest.fixture
def good(tmp_path: Path) -> FakeRun:
    made = FakeRun(tmp_path / "store", recipes=(ONE, TWO))
    made.run()
    return made


FILES = (
    *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
    *("modeling_x.py", "consolidated.safetensors", "adapter/model.safetensors"),
)


GATE = GateRequest(baseline="http://a:1", candidate="http://b:1")


@pytest.mark.parametrize(
    ("order", "where"),
    [
        *(({"alias": alias}, "--alias") for alias in ("v1", "latest", "x y", "")),
        *(({"name": name}, "--name") for name in ("a/b", "a:b", " ")),
    ],
)
def test_a_name_that_no_registry_takes_is_refused_as_such(
    good: FakeRun, order: dict[str, str], where: str
) -> None:
    """Not as a fault of the registry, which the hint would replace."""
    with pytest.raises(UsageError) as caught:
        good.promote(**order)
    assert caught.value.where == where


class TestChangedFolder:
    """A user writes into the store between the verdict and a promotion."""

    def write(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text('{"changed": "since"}')

    @pytest.mark.parametrize("name", [*FILES, "model.safetensors"])
    def test_what_was_quantized(self, tmp_path: Path, name: str) -> None:
        made = FakeRun(tmp_path / "store", recipes=(ONE,))
        made.run()
        self.write(made.folder("quantize", ONE) / "output" / name)
        with pytest.raises(EvidenceError, match="not those that were judged") as caught:
            made.promote()
        assert "stages/quantize" in caught.value.where
        assert made.registry.names() == []

    @pytest.mark.parametrize("name", [*FILES, "model.safetensors", "README.md", f"{BUNDLE}/new"])
    def test_what_is_registered(self, tmp_path: Path, name: str) -> None:
        made = FakeRun(tmp_path / "store", recipes=(ONE,))
        made.run()
        made.promote()
        (before,) = made.registry.versions("model")
        self.write(Path(before.source) / name)
        with pytest.raises(EvidenceError, match=name) as caught:
            made.promote(alias="candidate")
        assert caught.value.where == before.source
        rewrite_manifest(Path(before.source))
        with pytest.raises(EvidenceError, match="not as it was"):
            made.promote(alias="candidate")
        assert made.registry.versions("model") == [before]


class TestChangedRecords:
    """A user writes into a record of the store: `prepare model` takes what is finished."""

    def test_of_the_verdict(self, mixed: FakeRun) -> None:
        def pass_it(record: dict[str, Any]) -> None:
            for verdict in (record["result"], *record["result"]["gates"]):
                verdict.update(verdict="pass", p_value=1e-9)

        edit(mixed.folder("judge", ONE) / RECORD, pass_it)
        assert {v.recipe: v.verdict for v in mixed.run().variants} == {ONE: "pass", TWO: "pass"}
        with pytest.raises(EvidenceError, match="does not give the verdict"):
            mixed.bundle(ONE)

    def test_of_the_attempts(self, good: FakeRun) -> None:
        (file,) = (good.root / "attempts").glob("*/*.json")
        edit(file, lambda kept: kept["trial"].update(criteria="other"))
        for check in check_run(good.report, good.store):
            assert "is not the one in the store's ledger" in check.differences[-1]


class TestPromoteRun:
    def test_what_passed(self, mixed: FakeRun) -> None:
        checkpoint = mixed.report.checkpoint
        assert checkpoint is not None
        pinned = checkpoint.model_copy(update={"revision": "commit on the Hub"})
        mixed.report = mixed.report.model_copy(update={"checkpoint": pinned})
        result = mixed.promote()
        assert (result["champion"], result["alias"], result["replaced"]) == (TWO, "champion", None)
        (version,) = mixed.registry.versions("model")
        assert version.tags["prepare.engine_version"] == "0.33.0"
        assert version.tags["prepare.environment.serve"] == IDENTITIES["serve"]
        assert version.tags["prepare.environment.quantize"] == IDENTITIES["quantize"]
        assert version.tags["prepare.environment.evaluate"] == IDENTITIES["evaluate"]
        assert json.loads(version.tags["prepare.serving"]) == SERVING
        assert version.tags["prepare.source.revision"] == "commit on the Hub"
        assert len(version.tags["prepare.weights"]) == 64
        (entry,) = mixed.registry.history("model")
        assert (entry.action, entry.run, entry.verdict) == ("promote", mixed.report.run, "pass")
        assert entry.reason == "the gate passed"

    def test_another_run_of_the_same_is_the_same_version(self, mixed: FakeRun) -> None:
        mixed.promote()
        mixed.run()
        mixed.promote(alias="candidate")
        (version,) = mixed.registry.versions("model")
        assert set(version.aliases) == {"candidate", "champion"}

    def test_a_variant_that_could_not_be_served_is_an_error_in_the_evidence(
        self, tmp_path: Path
    ) -> None:
        models = PretendModels(lambda variant, suite, number: float(number % 2))
        models.broken = {TWO}
        run = FakeRun(tmp_path / "store", models, recipes=(ONE, TWO))
        run.run()
        run.promote(variant=ONE)
        verdict = read_verdict(run.bundle(ONE) / BUNDLE)
        assert {one.recipe: one.verdict for one in verdict.variants} == {ONE: "pass", TWO: "error"}

    def test_a_second_promotion_of_the_same_moves_nothing(self, mixed: FakeRun) -> None:
        mixed.promote()
        again = mixed.promote()
        assert (again["moved"], again["replaced"]) == (False, None)
        assert len(mixed.registry.history("model")) == 1

    def test_two_identical_runs_at_once_register_once(self, mixed: FakeRun, tmp_path: Path) -> None:
        """Both looked before either registered: the manifests differ by the run's id."""
        mixed.promote()
        (version,) = mixed.registry.versions("model")
        tags = {**version.tags, "prepare.manifest": "f" * 64}
        folder = Path(version.source)
        assert mixed.registry.register("model", folder, tags) == version.version
        lost = mixed.registry.register("model", folder, tags, lambda version: False)
        assert lost != version.version, "a version whose files are gone is registered again"

    def test_a_champion_whose_files_are_gone_is_made_again(self, mixed: FakeRun) -> None:
        mixed.promote()
        (version,) = mixed.registry.versions("model")
        folder = Path(version.source)
        names = sorted(path.name for path in folder.iterdir())
        shutil.rmtree(folder)
        mixed.promote()
        assert sorted(path.name for path in folder.iterdir()) == names
        assert [known.version for known in mixed.registry.versions("model")] == [version.version]

    def test_what_failed_wants_a_reason(self, mixed: FakeRun) -> None:
        with pytest.raises(UsageError, match=f"'{ONE}'") as caught:
            mixed.promote(variant=ONE)
        assert "--override REASON" in caught.value.hint
        with pytest.raises(UsageError, match="--override"):
            mixed.promote(variant=ONE, override="  ")
        with pytest.raises(UsageError, match="--override"):
            mixed.promote(override="why not")
        mixed.promote(variant=ONE, override="why not")
        (entry,) = mixed.registry.history("model")
        assert (entry.action, entry.verdict, entry.reason) == ("override", "fail", "why not")

    def test_a_champion_that_is_not_the_one_named(self, good: FakeRun) -> None:
        good.promote(variant=ONE)
        with pytest.raises(RegistryError, match=r" 1, .* 8"):
            good.promote(variant=TWO, replaces="8")
        assert good.champion() == ONE

    def test_evidence_that_was_changed(self, mixed: FakeRun) -> None:
        """Not even with a reason: the record would tell a verdict that nobody found."""
        (run,) = RunFolders(mixed.store).all()
        edit(run / RUN_RECORD, lambda run: run["variants"][0].update(verdict="pass"))
        mixed.report = RunReport.model_validate_json((run / RUN_RECORD).read_text())
        for override in (None, "why not"):
            with pytest.raises(StoreError, match=f"'{ONE}'"):
                mixed.promote(variant=ONE, override=override)
        assert not Path(mixed.uri.removeprefix("sqlite:///")).exists()

    def test_a_variant_that_the_record_leaves_out(self, good: FakeRun) -> None:
        """With one left out Holm's correction would count fewer."""
        (run,) = RunFolders(good.store).all()
        edit(run / RUN_RECORD, lambda run: run["variants"].pop())
        good.report = RunReport.model_validate_json((run / RUN_RECORD).read_text())
        with pytest.raises(StoreError, match=f"'{TWO}' was tried"):
            good.promote(variant=ONE)
        assert not Path(good.uri.removeprefix("sqlite:///")).exists()
        assert all(check.differences for check in check_run(good.report, good.store))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"status": "running"}, "is not finished"),
            ({"request": GATE}, "no weights to promote"),
            ({"stages": []}, "judged no variant"),
        ],
    )
    def test_runs_that_have_nothing_to_promote(
        self, mixed: FakeRun, changes: dict[str, Any], words: str
    ) -> None:
        mixed.report = mixed.report.model_copy(update=changes)
        with pytest.raises(UsageError, match=words):
            mixed.promote()

    def test_a_misspelt_variant_gets_a_suggestion(self, mixed: FakeRun) -> None:
        with pytest.raises(UsageError, match=f"did you mean '{ONE}'"):
            mixed.promote(variant=ONE[:-1])


class TestAtTheEndOfARun:
    """What `prepare model` promotes by itself replaces only what it saw as it began."""

    def test_the_alias_moved_meanwhile(self, good: FakeRun) -> None:
        good.promote(variant=ONE)
        with pytest.raises(RegistryError, match=r"points to version 1, not to no version"):
            good.promote(variant=TWO, since=0)
        assert good.champion() == ONE
        good.promote(variant=TWO, since=1)
        assert good.champion() == TWO

    @pytest.mark.parametrize("hours", [-2, 2])
    def test_another_machines_clock_decides_nothing(
        self, good: FakeRun, monkeypatch: pytest.MonkeyPatch, hours: int
    ) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(hours=hours)

        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(registry, "datetime", Clock)
            good.promote(variant=ONE)
        with pytest.raises(RegistryError, match=r"points to version 1, not to no version"):
            good.promote(variant=TWO, since=0)
        good.promote(variant=TWO, since=1)
        assert good.champion() == TWO

    def test_a_rollback_is_not_undone(self, good: FakeRun) -> None:
        good.promote(variant=ONE)
        good.promote(variant=TWO)
        cause = Cause("rollback", "bob", reason="too slow")
        good.registry.roll_back("model", "champion", cause)
        with pytest.raises(RegistryError, match=r"rolled back by bob .*too slow") as caught:
            good.promote(variant=TWO, since=3)
        assert f"prepare promote {good.report.run}" in caught.value.hint
        assert good.champion() == ONE
        good.promote(variant=TWO)
        assert good.champion() == TWO


@pytest.mark.parametrize("kill_at", range(1, 13))
def test_the_same_promotion_completes_a_killed_one(good: FakeRun, kill_at: int) -> None:
    """Killed at each of its writes: of the folders, of the list of registries, of MLflow."""
    good.promote(variant=ONE, name="other")  # its tables are made

    def work() -> None:
        writes = 0

        def counted(do: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal writes
                writes += 1
                if writes == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return do(*arguments, **options)

            return call

        store = MlflowStore
        for name in ("create_version", "set_model_tag", "set_alias"):
            setattr(store, name, counted(getattr(store, name)))
        Path.rename = counted(Path.rename)  # type: ignore[method-assign]
        promotion.note_registration = counted(promotion.note_registration)
        good.promote()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(120)
    assert process.exitcode in ((0, -signal.SIGKILL) if kill_at > 9 else (-signal.SIGKILL,))
    promoted = good.promote()
    assert good.registry.aliases("model") == {"champion": promoted["versions"][good.champion()]}
    assert len(good.registry.versions("model")) == 2
    assert len(good.registry.history("model")) == 1
    for version in good.registry.versions("model"):
        assert check_bundle(Path(version.source)).is_sound
    for each in find_garbage(good.store, [], 0, Listener()):
        remove(each, good.store)
    folders = {each.name for each in (good.root / "versions").iterdir()}
    named = [v for n in ("model", "other") for v in good.registry.versions(n) if v.aliases]
    assert folders == {version.tags["prepare.manifest"] for version in named}


def test_what_a_killed_removal_and_killed_writers_leave_is_collected(good: FakeRun) -> None:
    good.promote()
    run = RunFolders(good.store).all()[0]
    half = run.with_name(f".{run.name}.removed")
    shutil.copytree(run, half)
    (half / RUN_RECORD).unlink()
    (attempts,) = (good.root / "attempts").iterdir()
    lefts = [attempts / ".000009.json.0af3", run / f".{RUN_RECORD}.77", run / RESERVE]
    for left in lefts:
        left.write_text("{")
    heard = Listener()
    assert half not in RunFolders(good.store).all()
    for each in find_garbage(good.store, [], 0, heard):
        remove(each, good.store)
    assert not half.exists()
    assert not any(left.exists() for left in lefts)
    assert (run / RUN_RECORD).exists()
    assert not [path for path in run.parent.iterdir() if path.name.startswith(".")]
    assert heard.notes == []
    assert list(attempts.iterdir())


def test_a_collection_waits_for_a_promotion(good: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would remove files between their check and the move of the alias."""
    seen = []
    real = Registry.move

    def move(*arguments: Any, **more: Any) -> Any:
        seen.append(good.store.is_in_use)
        return real(*arguments, **more)

    monkeypatch.setattr(Registry, "move", move)
    good.promote(variant=ONE)
    assert seen == [True]


def test_an_interrupted_rollback_says_what_it_did(
    good: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated for want of these words, it would go one further."""
    good.promote(variant=ONE)
    good.promote(variant=TWO)
    real = Registry.roll_back

    def interrupted(*arguments: Any, **more: Any) -> Any:
        move = real(*arguments, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return move

    monkeypatch.setattr(Registry, "roll_back", interrupted)
    monkeypatch.setenv("PREPARE_STORE", str(good.store.root))
    result = CliRunner().invoke(app, ["rollback", "model"])
    assert "model@champion is version 1 again, replacing version 2" in result.stdout
    assert result.exit_code != 0
    assert good.champion() == ONE


def test_the_command(good: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPARE_STORE", str(good.store.root))
    monkeypatch.setenv("GITHUB_ACTOR", "ann")
    result = CliRunner().invoke(app, ["promote", f"latest:{TWO}"], catch_exceptions=False)
    assert result.stdout.splitlines()[0] == f"model@champion is version 1 ({TWO})"
    arguments = ["promote", f"{good.report.run}:{ONE}", "--json", "--if-current", "1"]
    told = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert told["versions"] == {ONE: "2"}
    assert told["replaced"] == "1"
    assert [entry.who for entry in good.registry.history("model")] == ["ann", "ann"]


class TestCollection:
    def paths(self, site: FakeRun, days: float = 0) -> set[str]:
        garbage = find_garbage(site.store, [], days, Listener())
        return {f"{g.kind} {g.path.parent.name}/{g.path.name}" for g in garbage}

    def test_what_is_young_stays(self, good: FakeRun) -> None:
        assert self.paths(good, days=1) == set()

    def test_nothing_is_named(self, good: FakeRun) -> None:
        kinds = {path.split()[0] for path in self.paths(good)}
        assert kinds == {"stage", "run", "answers"}
        for each in find_garbage(good.store, [], 0, Listener()):
            remove(each, good.store)
        left = [p for p in good.store.root.rglob("*") if p.is_file() and p.suffix != ".lock"]
        # A later measurement has to find what was measured before.
        kept = {p.relative_to(good.store.root).parts[0] for p in left}
        assert kept - {"measurements"} == {"attempts", "lock", "locks", "starts"}

    def test_what_a_history_names_stays(self, good: FakeRun) -> None:
        """The run is named, and with it all that it used; another run's branch goes."""
        good.promote(variant=ONE)
        stages_before = {s.key for s in good.report.stages}
        first, good.recipes = good.report, ("three",)
        three = good.run()
        own = {str(s.key) for s in three.stages} - stages_before
        gone = self.paths(good)
        assert {path.rpartition("/")[2] for path in gone if path.startswith("stage ")} == own
        assert f"run runs/{three.run}" in gone
        assert f"run runs/{first.run}" not in gone
        logs = {p.name for p in (good.store.root / "answers").glob("*.jsonl")}
        logs_gone = {p.rpartition("/")[2] for p in gone if p.startswith("answers")}
        assert logs_gone < logs
        assert len({name.partition(".")[0] for name in logs_gone}) == 1
        for each in find_garbage(good.store, [], 0, Listener()):
            remove(each, good.store)
        good.report = first
        good.promote(variant=TWO)  # everything is still there
        assert self.paths(good) == set()

    def test_what_a_killed_stage_left_goes(self, good: FakeRun) -> None:
        good.promote(variant=ONE)
        left = good.store.stage_folder("quantize", "abc.partial")
        left.mkdir()
        (left / "file").write_text("x")
        assert self.paths(good) == {"unfinished stage quantize/abc.partial"}
        with good.store.hold("abc"):  # it is being written again
            for each in find_garbage(good.store, [], 0, Listener()):
                remove(each, good.store)
        assert left.is_dir()
        for each in find_garbage(good.store, [], 0, Listener()):
            remove(each, good.store)
        assert not left.exists()

    def test_a_file_with_several_names_counts_once(self, good: FakeRun) -> None:
        folders = [good.store.root / "versions" / "x", good.store.stage_folder("quantize", "x")]
        for folder in folders:
            folder.mkdir(parents=True)
        (folders[1] / "weights").write_bytes(b"x" * 5000)
        (folders[0] / "weights").hardlink_to(folders[1] / "weights")
        (folders[0] / "card").write_bytes(b"x" * 100)
        found = find_garbage(good.store, [], 0, Listener())
        sizes = [each.size for each in found if each.path in folders]
        assert sum(sizes) == 5100
        (good.store.root / "deployed").hardlink_to(folders[1] / "weights")  # a name that stays
        found = find_garbage(good.store, [], 0, Listener())
        assert [each.size for each in found if each.path in folders] == [100, 0]

    def test_what_any_registry_names_stays(self, good: FakeRun, tmp_path: Path) -> None:
        """Also one of another address than the store's own, and a version that was left."""
        there = f"sqlite:///{tmp_path / 'another' / 'registry.db'}"
        good.promote(variant=ONE)
        good.promote(there, variant=ONE, name="team")
        good.promote(there, variant=TWO, name="team")
        named = [*good.registry.versions("model"), *Registry(there).versions("team")]
        for each in find_garbage(good.store, [], 0, Listener()):
            remove(each, good.store)
        assert len(named) == 3
        for version in named:
            assert check_bundle(Path(version.source)).is_sound

    def test_a_registry_that_hides_a_promoted_name(self, good: FakeRun) -> None:
        good.promote(variant=ONE)
        good.registry._store._client.delete_registered_model("model")
        with pytest.raises(RegistryError, match="'model' was promoted there") as caught:
            self.paths(good)
        assert str(good.root / "registries.jsonl") in caught.value.hint

    def test_a_registry_that_does_not_answer(self, good: FakeRun) -> None:
        """What it names is not known, so nothing goes."""
        good.promote(variant=ONE)
        Path(good.uri.removeprefix("sqlite:///")).write_text("no database" * 1000)
        with pytest.raises(RegistryError):
            self.paths(good)

    def test_a_list_of_registries_that_is_a_pipe_or_has_odd_names(self, good: FakeRun) -> None:
        good.promote(variant=ONE, name="a\u2028b")
        self.paths(good)
        (good.store.root / "registries.jsonl").unlink()
        os.mkfifo(good.store.root / "registries.jsonl")
        with pytest.raises(StoreError, match="registries"):
            self.paths(good)

    def test_the_command(
        self, good: FakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
        arguments = ["gc", "--older-than", "0", "--store", str(good.store.root), "--json"]
        told = json.loads(
            CliRunner().invoke(app, [*arguments, "--dry-run"], catch_exceptions=False).stdout
        )
        assert told["dry_run"]
        assert told["bytes"] == sum(each["bytes"] for each in told["removed"]) > 0
        assert all(Path(each["path"]).exists() for each in told["removed"])
        again = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
        assert again["removed"] == told["removed"]
        assert not any(Path(each["path"]).exists() for each in told["removed"])


@pytest.mark.parametrize(
    ("prefer", "seconds", "champion", "words"),
    [
        ("throughput", {ONE: 1.0, TWO: 0.5}, TWO, "by throughput: x 2.00 of the baseline's"),
        ("throughput", {ONE: 0.5, TWO: 0.5}, None, "by size, as throughput does not decide: "),
        ("throughput", {}, None, "by size, as throughput does not decide: "),
        ("smallest", {ONE: 1.0, TWO: 0.5}, None, "by smallest: "),
    ],
)
def test_what_decided_for_the_alias_is_said(
    tmp_path: Path, prefer: str, seconds: dict[str, float], champion: str | None, words: str
) -> None:
    made = FakeRun(tmp_path / "store", recipes=(ONE, TWO))
    changes: dict[str, Any] = {"promotion": PromotionRule(prefer=prefer)}
    if seconds:
        chat = {"kind": "random", "input_tokens": 8, "output_tokens": 4}
        chat |= {"arrivals": {"concurrency": 4}, "seconds": 1}
        ratio = {"min_ratio": 0.8, "workloads": ["chat"], "blocks": 5}
        changes["speed"] = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": chat}})
    made.policy = made.policy.model_copy(update=changes)
    made.models.seconds = seconds
    arguments = {**SERVING["engine_arguments"], "max-model-len": 16384}
    made.serving = {**SERVING, "engine_arguments": arguments}
    made.run()
    promoted = made.promote()
    assert promoted["preferred"].startswith(f"preferred of 2 that passed, {words}")
    if champion is not None:
        assert made.champion() == champion
