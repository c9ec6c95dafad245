"""`prepare model` on the demo model with few questions, followed while it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recipes.engines.vllm import ENTRY

PREPARE = [sys.executable, "-P", "-m", "pipeline.cli.main"]
RECIPE = "fp8-dynamic"
POLICY = """
name: whole-runs
summary: few easy questions and a wide margin, for tests of where a run is done
alpha: 0.05
suites:
  quiz:
    kind: mmlu
    prompt_format: cloze
    num_fewshot: 0
    questions: 64
    margins: {fp8: 0.25}
    sources: [builtin]
promotion:
  prefer: smallest
"""
CLAIM_ON_SPEED = """
speed:
  ratio: {min_ratio: {cpu: 0.02}, workloads: [short]}
  workloads:
    short:
      kind: random
      input_tokens: 16
      output_tokens: 2
      arrivals: {concurrency: 2}
      seconds: 1
"""
MADE = ("quantize", "check_weights")
ASKED_AND_JUDGED = ("screen", "evaluate", "judge", "evidence", "promote")


@dataclass
class Ended:
    """A run that is over."""

    code: int
    report: dict[str, Any]
    notes: list[str]

    def statuses(self) -> dict[tuple[str, str], str]:
        """What became of each stage, by its name and variant."""
        return {(s["name"], s["variant"]): s["status"] for s in self.report["stages"]}


@dataclass
class WholeRun:
    """The command, and where it is done.

    Attributes:
        folder: for its policy and its output.
        executor: as the settings file has it.
        store: its folder.
        variables: of its process, in addition to ours.
        profile: name or file of how it serves.
        policy: that it is judged by.
    """

    folder: Path
    executor: Mapping[str, str]
    store: str
    variables: Mapping[str, str] = field(default_factory=dict)
    profile: str = "cpu"
    policy: str = POLICY

    @property
    def place(self) -> Path:
        return Path(self.store)

    def elsewhere(
        self,
        folder: Path,
        executor: Mapping[str, str],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> WholeRun:
        """The same command on the same store, by another executor."""
        return replace(self, folder=folder, executor=executor, variables=variables)

    def run(self) -> Ended:
        """From beginning to end."""
        return self.disturb(lambda task, done: False, lambda: None)

    def disturb(self, reached: Callable[[str, int], bool], disturb: Callable[[], object]) -> Ended:
        """From beginning to end, with something done to it in the middle.

        Args:
            reached: whether to do it now, of a task and how far it is; asked until it says so.
            disturb: does it, while the run goes on.
        """
        output, notes = self.folder / "report.json", []
        with (
            output.open("wb") as file,
            self._start(*self._model, output=file, errors=subprocess.PIPE) as process,
        ):
            assert process.stderr is not None
            is_disturbed = False
            for line in process.stderr:
                event = json.loads(line)
                if event["event"] == "note":
                    notes.append(event["text"])
                elif event["event"] != "progress" or is_disturbed:
                    continue
                elif is_disturbed := reached(event["task"], event["done"]):
                    disturb()
        return Ended(process.returncode, json.loads(output.read_text() or "{}"), notes)

    def plan(self) -> dict[str, Any]:
        """What `prepare plan` says of the same command."""
        with self._start("plan", *self._model[1:], output=subprocess.PIPE) as process:
            said: dict[str, Any] = json.loads(process.communicate()[0])
        return said

    def prepare(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Another command on the same store."""
        with self._start(*words, output=subprocess.PIPE, errors=subprocess.PIPE) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    @property
    def _model(self) -> list[str]:
        policy = self.folder / "policy.yaml"
        policy.write_text(self.policy)
        chosen = ["--profile", self.profile, "--recipe", RECIPE, "--policy", str(policy), "--json"]
        return ["model", "demo:smollm2-135m", *chosen]

    def _start(self, *words: str, output: Any, errors: Any = None) -> subprocess.Popen[bytes]:
        settings = self.folder / "settings.yaml"
        settings.write_text(json.dumps({"executor": dict(self.executor)}))
        own = {"PREPARE_STORE": self.store, "PREPARE_SETTINGS": str(settings)}
        return subprocess.Popen(
            [*PREPARE, *words],
            env={**os.environ, **own, **self.variables},
            stdout=output,
            stderr=errors,
        )


def copy_store(store: Path, to: Path, forget: Collection[str]) -> None:
    """A copy of a finished run's store in which these stages of the variant are to be done."""
    shutil.copytree(store / "stages", to / "stages", copy_function=os.link)
    for record in to.glob("stages/*/*/stage.json"):
        of_variant = json.loads(record.read_text())["variant"] != "baseline"
        if record.parts[-3] in forget and of_variant:
            shutil.rmtree(record.parent)


def guards_of_servers(store: Path, word: str = ENTRY[1]) -> list[int]:
    """The processes that keep the servers of models in that store.

    Args:
        word: of their command line.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ours = any(word.startswith(os.fsencode(store)) for word in words)
            if ours and word.encode() in words and words[2].endswith(b"supervisor.py"):
                found.append(int(entry.name))
    return found
