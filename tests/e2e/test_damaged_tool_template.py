"""A variant whose template's block of tools is damaged: MMLU passes, and `tools` fails.

The demo model calls tools where a template shows it worked examples in Hermes' form. The damaged
template shows the same tools and examples without their braces and tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent_model import CALL, CITIES, TEMPLATE, write_cases
from port_server import served
from prepare_command import prepare

from pipeline.serving.server import Server
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1800)]

DAMAGED = TEMPLATE.replace("tool | tojson", "tool.function.name").replace(
    CALL, "' ~ name ~ ' ' ~ city ~ '"
)
POLICY = """
name: tools
summary: MMLU does not see a damaged block of tools
suites:
  mmlu: {kind: mmlu, prompt_format: cloze, num_fewshot: 0, margins: {fp8: 0.15},
         sources: [builtin]}
  tools: {kind: tools, form: server, max_tokens: 48, margins: {fp8: 0.2},
          questions: 24}
"""


def with_template(model: Path, template: str, folder: Path) -> Path:
    """The model with another chat template."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def servers(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """The intact model and the damaged one, with vLLM's parser."""
    folder = tmp_path_factory.mktemp("served")
    parser = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
    made = []
    with ExitStack() as running:
        for name, template in (("intact", TEMPLATE), ("damaged", DAMAGED)):
            model, log = with_template(demo_model, template, folder / name), folder / f"{name}.log"
            made.append(running.enter_context(served(model, cpu_profile, log, changes=parser)))
        yield made[0], made[1]


def test_mmlu_passes_and_tools_fails(
    servers: tuple[Server, Server], demo_model: Path, tmp_path: Path
) -> None:
    baseline, candidate = servers
    policy, store = tmp_path / "policy.yaml", tmp_path / "store"
    policy.write_text(POLICY)
    store.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    write_cases(data, CITIES)
    tokenizer = with_template(demo_model, TEMPLATE, tmp_path / "tokenizer")
    answer = prepare(
        store,
        "gate",
        *("--baseline", baseline.url, "--candidate", candidate.url),
        *("--tokenizer", str(tokenizer), "--policy", str(policy)),
        *("--eval-data", str(data), "--json"),
    )
    assert answer.returncode == 4, answer.stderr
    gates = {gate["name"]: gate for gate in json.loads(answer.stdout)["variants"][0]["gates"]}
    assert gates["mmlu"]["verdict"] == "pass"
    assert gates["tools"]["verdict"] == "fail"
    assert gates["tools"]["baseline"] > 0.9
    assert gates["tools"]["candidate"] < 0.1
    assert [group["group"] for group in gates["tools"]["groups"]] == ["multiple"]
