"""The real `run_model`, from the request to the registry, on pretended models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers
from quantized_checkpoint import source_files
from small_checkpoint import write_files

from artifacts.requests import ModelRequest
from artifacts.run_record import RunReport
from pipeline.environments.settings import Settings
from pipeline.run import model as whole_run


def run_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    models: PretendModels,
    *,
    promote: bool = True,
    registry: str | None = None,
    run_id: str | None = None,
    until: Literal["pass"] | None = None,
    recipes: tuple[str, ...] = (),
) -> RunReport:
    """Ask one suite of two variants, `fp8-dynamic` and `second`, or of others."""
    monkeypatch.setattr(PretendRun, "models", models, raising=False)
    monkeypatch.setattr(whole_run, "Run", PretendRun)
    monkeypatch.setattr(whole_run, "Servers", PretendServers)
    policy = folder / "policy.yaml"
    margins = {"fp8": 0.1, "int4": 0.1}
    mmlu = {"kind": "mmlu", "sources": ["builtin"], "questions": 96, "margins": margins}
    policy.write_text(json.dumps({"name": "p", "summary": "s", "suites": {"mmlu": mmlu}}))
    second = folder / "second.yaml"
    other = {"quantization": {"ignore": ["lm_head", "re:second"]}}  # of which there is none
    second.write_text(json.dumps({"extends": "fp8-dynamic", "name": "second", **other}))
    if not (folder / "source").exists():
        write_files(folder / "source", source_files())
    request = ModelRequest(
        checkpoint=str(folder / "source"),
        recipes=recipes or ("fp8-dynamic", str(second)),
        profile="cpu",
        policy=str(policy),
        name="model",
        registry=registry,
        promote=promote,
        until=until,
    )
    settings = Settings(home=folder / "home", store=folder / "store", environments={})
    return whole_run.run_model(request, settings, Listener(), run_id)
