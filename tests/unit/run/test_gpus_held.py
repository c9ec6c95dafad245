"""What a run holds GPUs for: each minute of one is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun
from pretend_stages import PretendRun, PretendServers

from prepare.lots import NOTHING, Lot, Needs
from prepare.stage import StageSpec


def test_weights_are_checked_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_now = [NOTHING]
    gpus_held: dict[str, int] = {}

    def take(self: PretendServers, needs: Needs, **how: Any) -> Lot | None:
        needs_now.append(needs)
        return super(PretendServers, self).take(NOTHING, **how)  # this machine may have no GPU

    def execute_stage(self: PretendRun, spec: StageSpec, servers: Any = None) -> bool:
        gpus_held[spec.stage] = needs_now[-1].gpus
        return execute(self, spec, servers)

    execute = PretendRun.execute_stage
    monkeypatch.setattr(PretendRun, "is_on_gpus", True)
    monkeypatch.setattr(PretendServers, "take", take)
    monkeypatch.setattr(PretendRun, "execute_stage", execute_stage)
    FakeRun(tmp_path / "store").run()
    assert gpus_held["quantize"] == 1
    assert gpus_held["check_weights"] == 0
    assert gpus_held["sanity"] == gpus_held["evaluate"] == 1
    assert gpus_held["questions"] == gpus_held["judge"] == 0
