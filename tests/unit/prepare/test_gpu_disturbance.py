from __future__ import annotations

from pathlib import Path

import pytest

from prepare.gpus import disturbances, gpu_states

NAMES = ("sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")


def report(*gpus: tuple[str, tuple[int, ...], tuple[int, ...]]) -> str:
    parts = ""
    for uuid, counters, processes in gpus:
        parts += f'<gpu id="0">\n<uuid>{uuid}</uuid>\n'
        for name, us in zip(NAMES, counters, strict=False):
            tag = f"clocks_event_reasons_counters_{name}"
            parts += f"<{tag}>{us} us</{tag}>\n"
        for pid in processes:
            parts += f"<pid>{pid}</pid>\n\t<type>{'C' if pid > 9 else 'G'}</type>\n"
        parts += "</gpu>\n"
    return f"<nvidia_smi_log>\n{parts}</nvidia_smi_log>"


def test_a_load_without_a_disturbance(driver: Path) -> None:
    """A power limit, a display's process, and ends of processes are none."""
    driver.write_text(report(("GPU-1", (0, 0, 5, 5, 5), (20, 21))))
    before = gpu_states(["GPU-1"])
    driver.write_text(report(("GPU-1", (9_000_000, 0, 5, 5, 5), (20, 3))))
    assert list(disturbances(before, gpu_states(["GPU-1"]), 30.0)) == []


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ((0, 0, 3_000_000, 0, 0), "heat for 10 %"),
        ((9, 0, 0, 3_000_000, 0), "heat, in hardware for 10 %"),
        ((0, 0, 0, 0, 60_000_000), "power brake for 100 %"),
    ],
)
def test_a_gpu_that_was_slowed_down(driver: Path, counters: tuple[int, ...], words: str) -> None:
    driver.write_text(report(("GPU-1", (0,) * 5, ()), ("GPU-2", (0,) * 5, ())))
    before = gpu_states(["GPU-1", "GPU-2"])
    driver.write_text(report(("GPU-1", (0,) * 5, ()), ("GPU-2", counters, ())))
    (found,) = disturbances(before, gpu_states(["GPU-1", "GPU-2"]), 30.0)
    assert found["kind"] == "throttled"
    assert words in found["what"]
    assert found["what"].startswith("GPU-2")


def test_a_short_slowdown_and_a_power_limit_counted_twice_do_not_count(driver: Path) -> None:
    driver.write_text(report(("GPU-1", (0,) * 5, ())))
    before = gpu_states(["GPU-1"])
    driver.write_text(report(("GPU-1", (7_000_000, 0, 7_000_000, 200_000, 0), ())))
    assert list(disturbances(before, gpu_states(["GPU-1"]), 30.0)) == []


def test_a_process_that_came(driver: Path) -> None:
    driver.write_text(report(("GPU-1", (), (20,))))
    before = gpu_states(["GPU-1"])
    driver.write_text(report(("GPU-1", (), (20, 31))))
    assert list(disturbances(before, gpu_states(["GPU-1"]), 30.0)) == [
        {"kind": "other_process", "what": "process 31 began to use GPU-1"}
    ]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    answer, program = tmp_path / "answer.xml", tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in "-q -x -i GPU-"*) exec /bin/cat {answer};; esac\nexit 2\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return answer
