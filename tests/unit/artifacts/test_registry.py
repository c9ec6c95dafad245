"""The registry in a SQLite file: the contract, races, first openings, and files that are none."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from registry_contract import Contract, processes, promote, race, register, roll_back, weights
from small_disk import fill, small_disk

from artifacts import mlflow_store
from artifacts.registry import MANIFEST_TAG, Move, Registered, Registry
from prepare.errors import RegistryError, UsageError

NAME = "model"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'made on first use' / 'registry.db'}"


class TestContract(Contract):
    def test_asking_makes_nothing(self, uri: str, name: str) -> None:
        registry = Registry(uri)
        registry.check(name)
        assert registry.names() == []
        assert registry.model(name) is None
        assert not Path(uri.removeprefix("sqlite:///")).parent.exists()

    def test_asking_does_not_import_mlflow(self, uri: str, name: str, folder: Path) -> None:
        """Importing it and opening a file takes seconds, and each run asks."""
        register(Registry(uri), name, folder, "a")
        program = (
            "import sys; from artifacts.registry import Registry; "
            f"print(len(Registry({uri!r}).versions({name!r})), 'mlflow' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.split() == ["1", "False"]

    def test_the_first_registration_says_nothing(self, uri: str, name: str, folder: Path) -> None:
        """MLflow told of its tables, as it was imported before it was silenced."""
        program = (
            "from pathlib import Path; from artifacts.registry import Registry; "
            f"Registry({uri!r}).register({name!r}, Path({str(folder)!r}), {{}}, lambda _: True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout + done.stderr == ""


class TestRaces:
    def test_of_two_promotions_one_wins(self, uri: str, tmp_path: Path) -> None:
        registry = Registry(uri)
        versions = register(registry, NAME, weights(tmp_path / "weights"), "abc")
        promote(registry, NAME, "1", None)
        for _ in range(20):
            current = registry.aliases(NAME)["champion"]
            told = race(uri, NAME, [each for each in versions if each != current], current)
            assert told.count(None) == 1
            (loser,) = filter(None, told)
            winner = registry.aliases(NAME)["champion"]
            assert f"points to version {winner}" in loser
            assert f"racer {winner}" in loser
        assert len(registry.history(NAME)) == 21

    def test_first_openings_in_three_processes(self, uri: str, tmp_path: Path) -> None:
        folder, answers, barrier = weights(tmp_path / "w"), processes.Queue(), processes.Barrier(3)

        def work() -> None:
            barrier.wait()
            answers.put(Registry(uri).register(NAME, folder, {MANIFEST_TAG: "a"}))

        started = [processes.Process(target=work) for _ in range(3)]
        for each in started:
            each.start()
        assert [answers.get(timeout=120) for _ in started] == ["1", "1", "1"]
        for each in started:
            each.join(60)

    @pytest.mark.parametrize("turn", range(3))
    def test_killed_while_the_tables_are_made(self, uri: str, tmp_path: Path, turn: int) -> None:
        def work() -> None:
            def die(file: Path) -> None:
                file.write_bytes(b"SQLite" * turn)
                os.kill(os.getpid(), signal.SIGKILL)

            mlflow_store.fill = die
            Registry(uri).register(NAME, tmp_path, {MANIFEST_TAG: "a"})

        process = processes.Process(target=work)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        registry = Registry(uri)
        assert registry.names() == []
        assert registry.register(NAME, weights(tmp_path / "w"), {MANIFEST_TAG: "a"}) == "1"
        file = Path(uri.removeprefix("sqlite:///"))
        assert sorted(each.name for each in file.parent.iterdir()) == [
            file.name,
            f"{file.name}.lock",
        ]


class TestFiles:
    def refused(self, uri: str, folder: Path) -> RegistryError:
        with pytest.raises(RegistryError) as caught:
            Registry(uri).check(NAME)
        with pytest.raises(RegistryError):
            Registry(uri).register(NAME, folder, {MANIFEST_TAG: "a"})
        assert caught.value.where == uri
        return caught.value

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "registry.db").write_text("hello, I am not a database" * 99)
        self.refused(f"sqlite:///{tmp_path / 'registry.db'}", tmp_path)

    def test_a_file_where_the_folder_should_be(self, tmp_path: Path) -> None:
        """Seen before anything runs, although no registry is there yet."""
        (tmp_path / "folder").write_text("a file")
        error = self.refused(f"sqlite:///{tmp_path / 'folder' / 'registry.db'}", tmp_path)
        assert f"{tmp_path / 'folder'} is not a folder" in error.message

    def test_a_named_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "registry.db")
        began = time.monotonic()
        self.refused(f"sqlite:///{tmp_path / 'registry.db'}", tmp_path)
        assert time.monotonic() - began < 30

    def test_a_source_that_is_no_checkpoint_is_not_copied(self, uri: str, tmp_path: Path) -> None:
        """Another user may have named a private folder."""
        registry = Registry(uri)
        (tmp_path / "private").mkdir()
        (tmp_path / "private" / "key").touch()
        registry.register(NAME, tmp_path / "private", {MANIFEST_TAG: "a"})
        with pytest.raises(RegistryError, match="not a checkpoint"):
            registry.fetch(registry.versions(NAME)[0], tmp_path)


UNFINISHED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
database.execute("BEGIN")
for number in range(2_000):
    database.execute("INSERT INTO registered_models (name) VALUES (?)", (f"{number:0500}",))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_in_a_commit(uri: str) -> Path:
    """Leave a journal whose writer has ended; the registry's file."""
    file = Path(uri.removeprefix("sqlite:///"))
    done = subprocess.run([sys.executable, "-c", UNFINISHED, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{file}-journal").stat().st_size
    return file


class TestAWriterKilledInItsCommit:
    def test_the_next_command_rolls_it_back(self, uri: str, tmp_path: Path) -> None:
        registry = Registry(uri)
        register(registry, NAME, weights(tmp_path / "weights"), "a")
        file = killed_in_a_commit(uri)
        assert Registry(uri).names() == [NAME]
        assert not Path(f"{file}-journal").exists()
        promote(Registry(uri), NAME, "1", None)
        assert Registry(uri).aliases(NAME) == {"champion": "1"}

    def test_a_user_who_may_not_write_is_told_why(
        self, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register(Registry(uri), NAME, weights(tmp_path / "weights"), "a")
        file = killed_in_a_commit(uri)
        real = mlflow_store._connect  # root may write every file
        monkeypatch.setattr(mlflow_store, "_connect", lambda path, mode: real(path, "ro"))
        with pytest.raises(RegistryError, match=f"{file}-journal has to be rolled back"):
            Registry(uri).names()


class TestGoneFiles:
    def test_no_rollback_to_a_version_without_its_files(self, uri: str, tmp_path: Path) -> None:
        registry = Registry(uri)
        folders = [weights(tmp_path / "versions" / each) for each in "ab"]
        for number, folder in enumerate(folders, start=1):
            registry.register(NAME, folder, {MANIFEST_TAG: folder.name, "prepare.run": "run-7"})
            promote(registry, NAME, str(number), str(number - 1) if number > 1 else None)
        shutil.rmtree(folders[0])
        with pytest.raises(RegistryError, match=r"files of version 1 .* are gone") as caught:
            roll_back(registry, NAME)
        assert "run-7" in (caught.value.hint or "")
        assert registry.aliases(NAME)["champion"] == "2"
        with pytest.raises(RegistryError, match="not on this machine, or are gone"):
            registry.fetch(registry.versions(NAME)[1], tmp_path)
        shutil.rmtree(tmp_path / "versions")  # the files of another machine
        assert roll_back(registry, NAME).version == "1"


def test_a_move_that_never_happened_is_no_history(uri: str, tmp_path: Path) -> None:
    """Killed after its note; the alias came there later, by another move."""
    registry = Registry(uri)
    register(registry, NAME, weights(tmp_path / "weights"), "abc")
    promote(registry, NAME, "1", None)
    with monkeypatched_aliases(), pytest.raises(KeyboardInterrupt):
        promote(Registry(uri), NAME, "2", "1")
    promote(registry, NAME, "3", "1")
    promote(registry, NAME, "2", "3")
    assert [(move.replaced, move.version) for move in registry.history(NAME)] == [
        (None, "1"),
        ("1", "3"),
        ("3", "2"),
    ]


@contextmanager
def monkeypatched_aliases() -> Iterator[None]:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_store.MlflowStore, "set_alias", interrupted)
        yield


def test_a_move_whose_end_is_not_noted_happened_if_the_alias_points_there() -> None:
    """Killed between the alias and the note that it is done."""

    def move(number: int, alias: str, version: str, *, done: bool) -> Move:
        return Move(
            number=number,
            alias=alias,
            version=version,
            replaced=None,
            previous_alias=None,
            action="promote",
            who="ci",
            when="2026-11-30T12:00:00Z",
            done=done,
        )

    moves = (
        move(1, "champion", "1", done=True),
        move(2, "champion", "2", done=False),
        move(3, "candidate", "3", done=False),
    )
    notes = tuple((f"note.{one.number}", one) for one in moves)
    points = Registered({"champion": "2", "candidate": "1"}, (), notes)
    assert [one.number for one in points.history] == [1, 2]
    assert points.last_move == 2


def test_a_full_disk_is_named_with_its_cure(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    with small_disk(disk):
        uri, files = f"sqlite:///{disk}/registry.db", weights(tmp_path / "weights")
        for number, letter in enumerate("ab"):
            register(Registry(uri), "m", files, letter)
            promote(Registry(uri), "m", str(number + 1), str(number) if number else None)
        fill(disk)
        command = [sys.executable, "-P", "-m", "prepare", "rollback", "m"]
        done = subprocess.run(
            [*command, "--registry", uri], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "disk is full" in done.stderr
        assert "free some space" in done.stderr
        assert "Traceback" not in done.stderr
        (disk / "ballast").unlink()
        assert Registry(uri).aliases("m") == {"champion": "2", "previous": "1"}


class TestAddresses:
    @pytest.mark.parametrize("uri", ["hf://my-org", "oci:///srv/models", "oci://host/repo"])
    def test_copies_are_no_registry(self, uri: str) -> None:
        with pytest.raises(UsageError) as caught:
            Registry(uri)
        assert uri in caught.value.where
        assert "prepare push" in caught.value.hint

    def test_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with pytest.raises(RegistryError) as caught:
            Registry("http://127.0.0.1:1").check(NAME)
        assert caught.value.where == "http://127.0.0.1:1"
        assert caught.value.message.endswith("Connection refused")
        assert "HTTPConnection" not in caught.value.message

    def test_a_server_that_wants_a_login_says_how(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from http_stand_in import HttpStandIn, SilentHandler

        class Refusing(SilentHandler):
            def do_GET(self) -> None:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()

        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with HttpStandIn(Refusing) as server, pytest.raises(RegistryError) as caught:
            Registry(server.url).check(NAME)
        assert "MLFLOW_TRACKING_TOKEN" in caught.value.hint


def sqlite(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        for each in statements:
            database.execute(each)
        database.commit()


class TestOddFiles:
    """A writer to a registry's file makes its reader work or wait."""

    @pytest.fixture
    def file(self, uri: str, tmp_path: Path) -> Path:
        register(Registry(uri), NAME, weights(tmp_path / "weights"), "ab")
        return Path(uri.removeprefix("sqlite:///"))

    def refused(self, uri: str) -> RegistryError:
        began = time.monotonic()
        with pytest.raises(RegistryError) as caught:
            Registry(uri).model(NAME)
        assert time.monotonic() - began < 30
        assert uri in caught.value.where
        return caught.value

    def test_a_view_without_an_end(self, uri: str, file: Path) -> None:
        sqlite(
            file,
            "PRAGMA foreign_keys = off",
            "ALTER TABLE model_versions RENAME TO other",
            "CREATE VIEW model_versions AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 "
            "FROM c) SELECT n AS version, 'm' AS name, '/x' AS source, '' AS current_stage FROM c",
        )
        assert "view" in self.refused(uri).message

    @pytest.mark.parametrize("end", ["-journal", "-wal", ".lock"])
    def test_a_pipe_beside_it(self, uri: str, file: Path, end: str) -> None:
        Path(f"{file}{end}").unlink(missing_ok=True)
        os.mkfifo(f"{file}{end}")
        self.refused(uri)

    def test_a_version_that_is_no_number(self, uri: str, file: Path) -> None:
        sqlite(file, "UPDATE model_versions SET version = 'abc' WHERE version = 2")
        assert "'abc'" in self.refused(uri).message

    @pytest.mark.parametrize(
        ("revision", "cure"), [("0584bdc529eb", "mlflow db upgrade"), ("f" * 12, "newer")]
    )
    def test_another_schema_is_named_with_its_cure(
        self, uri: str, file: Path, revision: str, cure: str
    ) -> None:
        sqlite(file, f"UPDATE alembic_version SET version_num = '{revision}'")
        error = self.refused(uri)
        assert revision in error.message
        assert mlflow_store.mlflow_revisions()[1] in error.message
        assert cure in error.hint


@pytest.mark.parametrize("name", ["a%20b", "a?b", "a#b"])
def test_a_file_has_the_name_that_is_given(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    registry = Registry(f"sqlite:///{place}/registry.db")
    assert register(registry, NAME, weights(tmp_path / "weights"), "a") == ["1"]
    assert [each.version for each in registry.versions(NAME)] == ["1"]
    assert {each.name for each in place.iterdir()} == {"registry.db", "registry.db.lock"}
    assert {each.name for each in tmp_path.iterdir()} == {name, "weights"}


class TestHeld:
    """Another process keeps what a promotion needs: an error with an end, and its cure."""

    @pytest.fixture
    def registry(self, uri: str, tmp_path: Path) -> Registry:
        registry = Registry(uri)
        register(registry, NAME, weights(tmp_path / "weights"), "a")
        return registry

    def test_the_lock(self, registry: Registry, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mlflow_store, "LOCK_S", 0.2)
        lock = f"{uri.removeprefix('sqlite:///')}.lock"
        holder = (
            "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", f"{holder}; input()", lock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(RegistryError, match="another process") as caught:
                promote(registry, NAME, "1", None)
            other.terminate()
        assert caught.value.where == lock
        promote(registry, NAME, "1", None)

    def test_the_file(self, registry: Registry, uri: str) -> None:
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(RegistryError) as caught:
                registry.aliases(NAME)
        assert "end it" in caught.value.hint
