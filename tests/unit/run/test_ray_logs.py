"""What is sent of the logs that a node of Ray has, and where it is put."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from pipeline.core.errors import StoreError
from pipeline.run.executors import ray_logs
from pipeline.run.executors.ray_logs import KeptLogs, SentLog, UnsentLogs


def test_each_word_of_a_log_is_sent_once(tmp_path: Path) -> None:
    logs, log = UnsentLogs("n"), tmp_path / "a.log"
    log.write_bytes(b"earlier ")
    logs.skip(tmp_path)
    assert list(logs.take(tmp_path)) == []
    with log.open("ab") as file:
        file.write(b"first ")
        file.flush()
        assert list(logs.take(tmp_path)) == [SentLog(str(log), b"first ", "n")]
        file.write(b"second")
    (tmp_path / "b.log").write_bytes(b"new")
    logs.skip(tmp_path)  # other work of the same run begins
    assert [sent.content for sent in logs.take(tmp_path)] == [b"second", b"new"]
    log.write_bytes(b"anew")
    assert [sent.content for sent in logs.take(tmp_path)] == [b"anew"]


def test_what_is_no_log_any_more_does_not_end_the_work(tmp_path: Path) -> None:
    logs = UnsentLogs("n")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "link.log").symlink_to(tmp_path / "none")
    logs.skip(tmp_path)
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "x").mkdir()
            (tmp_path / "x" / "a.log").write_text("said")
            shutil.rmtree(tmp_path / "x")

    coming = threading.Thread(target=come_and_go)
    coming.start()
    try:
        for _ in range(300):
            assert all(log.path.endswith("a.log") for log in logs.take(tmp_path))
    finally:
        over.set()
        coming.join()


def test_what_is_left_out_of_much_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_logs, "MOST_LOG_BYTES", 10)
    logs, log = UnsentLogs("n"), tmp_path / "a.log"
    log.write_bytes(b"a" * 90 + b"b" * 10)
    (sent,) = logs.take(tmp_path)
    assert sent.content.endswith(b"\n" + b"b" * 10)
    assert b" 90 bytes " in sent.content
    assert list(logs.take(tmp_path)) == []


def test_a_full_disk_of_the_driver_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("/dev/full")
    with pytest.raises(StoreError, match="No space left"):
        KeptLogs().keep(SentLog(str(tmp_path / "a.log"), b"said", "n"))


def test_each_agent_s_words_stand_under_its_name(tmp_path: Path) -> None:
    log, kept = tmp_path / "a.log", KeptLogs()
    for content, agent in ((b"1\n2", "here"), (b"3\n", "here"), (b"4\n", "there")):
        kept.keep(SentLog(str(log), content, agent))
    assert log.read_text() == "==> here <==\n1\n23\n\n==> there <==\n4\n"
