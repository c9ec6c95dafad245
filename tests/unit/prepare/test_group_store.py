from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from finished_stage import stage_record
from sample_reports import REQUEST, RESOLVED
from some_attempt import some_trial

from artifacts.mlflow_store import make_database
from artifacts.run_record import find_run
from eval_gates.answer_log import AnswerLog
from eval_gates.rows import Answer
from pipeline.run.recorder import RunRecorder
from pipeline.stages.attempts import AttemptLedger, Counted
from pipeline.stages.evaluate import answer_log_file, open_answer_log
from prepare.errors import PrepareError, StoreError
from prepare.private_files import private_umask, write_atomically
from prepare.store import RECORD, Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
GROUP, ANN, BOB, STRANGER = 31_400, 31_401, 31_402, 31_403
IDS = [f"q/{number}" for number in range(4)]
KILLED = "killed"


def act(user: int, what: Callable[..., Any], *arguments: Any, umask: int = 0o022) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([] if user == STRANGER else [GROUP])
            os.setgid(user)
            os.setuid(user)
            os.umask(umask)
            answer = what(*arguments)
        except PrepareError as error:
            answer = {**error.to_dict(), "trace": traceback.format_exc()}
        except BaseException:
            answer = RuntimeError(traceback.format_exc())
        os.write(write, pickle.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    answer = pickle.loads(sent) if sent else KILLED
    if isinstance(answer, RuntimeError):
        raise answer
    return answer


def refused(user: int, what: Callable[..., Any], *arguments: Any) -> dict[str, str]:
    error = act(user, what, *arguments)
    assert isinstance(error, dict)
    assert error["kind"] == StoreError.__name__
    return error


@pytest.fixture
def root() -> Iterator[Path]:
    above = Path(tempfile.mkdtemp(prefix="prepare-group-"))
    above.chmod(0o755)
    store = above / "store"
    store.mkdir()
    os.chown(store, ANN, GROUP)
    store.chmod(0o2770)
    yield store
    shutil.rmtree(above)


def begin_attempt(root: Path, what: str) -> int:
    ledger, trial = AttemptLedger(Store(root)), some_trial(variants={"a": what})
    ledger.begin(Counted(trial=trial, gate="mmlu"))
    return ledger.history(trial).attempt


def finish(root: Path, key: str, text: str) -> None:
    with private_umask(root), Store(root).open_for_writing("judge", key) as folder:
        assert folder is not None
        (folder / "output" / "below").mkdir(parents=True)
        weights = os.open(folder / "output" / "below" / "weights", os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(weights, text.encode())
        write_atomically(folder / RECORD, stage_record(key=key).model_dump_json())


def read(root: Path, key: str) -> str | None:
    store = Store(root)
    if store.find("judge", key) is None:
        return None
    file = store.stage_folder("judge", key) / "output" / "below" / "weights"
    (root / f"link of {os.getuid()} to {key}").hardlink_to(file)  # as evidence links weights
    return file.read_text()


def test_what_was_made_before_it_was_shared(root: Path) -> None:
    """The group cannot read it: who finds it is told what its owner has to do, which helps."""
    root.chmod(0o700)
    act(ANN, finish, root, "a" * 64, "old")
    root.chmod(0o2770)
    for what in (read, finish):
        arguments = (root, "a" * 64, "new")[: 2 if what is read else 3]
        error = refused(BOB, what, *arguments)
        assert str(root) in error["where"]
        assert "chmod" in error["hint"]
    act(ANN, share_below, root)
    assert act(BOB, read, root, "a" * 64) == "old"


def die_while_writing(root: Path, key: str) -> None:
    with private_umask(root), Store(root).open_for_writing("judge", key, ["kept"]) as folder:
        assert folder is not None
        (folder / "other").mkdir()
        (folder / "other" / "file").write_text("half")
        (folder / "kept").write_text("measured")
        os._exit(1)


def go_on(root: Path, key: str) -> str:
    with private_umask(root), Store(root).open_for_writing("judge", key, ["kept"]) as folder:
        assert folder is not None
        assert [path.name for path in folder.iterdir()] == ["kept"]
        write_atomically(folder / RECORD, stage_record(key=key).model_dump_json())
        return (folder / "kept").read_text()


def answer(root: Path, first: int) -> list[str]:
    store = Store(root)
    answer_log = answer_log_file(store, "answer_log")
    with private_umask(root), open_answer_log(store, answer_log, lambda _: None):
        kept = AnswerLog(answer_log, IDS, writer=1)
        kept.rows()
        kept.append([Answer(IDS[first], "p", 1.0)])
        return [row.id for row in kept.rows()]


def begin_run(root: Path, end: str) -> str:
    log = RunRecorder(Store(root), REQUEST, RESOLVED)
    if end == "finished":
        log.finish("finished", 0)
    return log.run_id


def keep_a_note(root: Path) -> int:
    make_database(root / "registry.db")
    with closing(sqlite3.connect(root / "registry.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS notes (text)")
        database.execute("INSERT INTO notes VALUES ('x')")
        return int(database.execute("SELECT count(*) FROM notes").fetchone()[0])


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_what_one_user_has_done_another_uses(root: Path, umask: int) -> None:
    act(ANN, finish, root, "abc", "ann's", umask=umask)
    assert act(BOB, read, root, "abc", umask=umask) == "ann's"
    act(BOB, finish, root, "def", "bob's", umask=umask)
    assert act(ANN, read, root, "def", umask=umask) == "bob's"
    assert act(BOB, lambda: Store(root).discard("judge", "abc"), umask=umask) is None
    assert act(ANN, read, root, "abc", umask=umask) is None
    act(ANN, finish, root, "abc", "again", umask=umask)


def test_a_killed_users_stage_is_gone_on_with(root: Path) -> None:
    assert act(ANN, die_while_writing, root, "abc") == KILLED
    assert act(BOB, go_on, root, "abc") == "measured"


def test_answers_attempts_runs_and_the_registry_are_everybodys(root: Path, tmp_path: Path) -> None:
    # The other users may not read this Python's packages, so they are imported before.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, as they are imported
        make_database(tmp_path / "first.db")
    assert act(ANN, answer, root, 0) == IDS[:1]
    assert act(BOB, answer, root, 1) == IDS[:2]
    assert act(ANN, answer, root, 2) == IDS[:3]
    numbers = [act(user, begin_attempt, root, str(user)) for user in (ANN, BOB, ANN)]
    assert numbers == [1, 2, 1]
    for end, status in (("finished", "finished"), ("", "killed")):
        run = act(ANN, begin_run, root, end)
        assert act(BOB, lambda r=run: find_run(Store(root), r).status) == status
    assert [act(user, keep_a_note, root) for user in (ANN, BOB, ANN)] == [1, 2, 3]


def test_strangers_are_kept_out_and_told_the_folder_and_the_hint(root: Path) -> None:
    act(ANN, finish, root, "abc", "ann's")
    for what in (lambda: finish(root, "xyz", "x"), lambda: read(root, "abc")):
        error = refused(STRANGER, what)
        assert str(root) in error["where"]
        assert "chgrp" in error["hint"] or "chmod" in error["hint"]
    for path in root.rglob("*"):
        assert not path.stat().st_mode & 0o007


def test_what_is_not_shared_stays_its_owners(root: Path) -> None:
    own = root.parent / "own"
    own.mkdir()
    os.chown(own, ANN, GROUP)
    own.chmod(0o755)
    act(ANN, finish, own, "abc", "ann's", umask=0o002)
    assert own.stat().st_mode & 0o077 == 0
    assert str(own) in refused(BOB, finish, own, "abc", "bob's")["where"]
    # A store that is made in a shared folder is no shared one.
    act(ANN, finish, root / "new", "abc", "ann's")
    assert (root / "new").stat().st_mode & 0o077 == 0


def share_below(root: Path) -> None:
    script = 'chgrp -R "$1" "$2" && chmod -R g+rwX "$2" && find "$2" -type d -exec chmod g+s {} +'
    subprocess.run(["sh", "-c", script, "sh", str(GROUP), str(root)], check=True)
