"""Command lines in files of containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.lint.command_lint import take_apart
from pipeline.lint.container_command import command_lines

DEPLOYMENT = """
apiVersion: v1
kind: Service
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
      - image: busybox
        command: [sh, -c, "sleep 1; echo ready"]
      containers:
      - image: {image}
        {words}
        env:
        - name: VLLM_USE_V1
          value: "1"
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: token, key: token}}
"""
COMPOSE = """
services:
  vllm:
    image: vllm/vllm-openai:latest
    environment:
      VLLM_USE_V1: 1
    command:
      - --model=org/name
      - --max-num-seqs
      - 64
"""
LISTED = """
services:
  vllm:
    image: mine
    environment: [VLLM_USE_V1=1]
    entrypoint: [python3, -m, vllm.entrypoints.openai.api_server]
    command: --model=org/name --max-num-seqs 64
"""

BLOCK = """
          echo ---
          ---
          vllm serve m --max-num-seqs 64
          ---
          --portt 80
"""


def deployment(words: str, image: str = "mine:1") -> str:
    return DEPLOYMENT.replace("{image}", image).replace("{words}", words)


@pytest.mark.parametrize(
    "text",
    [
        deployment('args: ["--max-num-seqs", "64"]', "vllm/vllm-openai:v0.8.0"),
        deployment('command: [vllm, serve]\n        args: [org/name, --max-num-seqs, "64"]'),
        deployment("command: [sh, -c, vllm serve org/name --max-num-seqs 64 && echo over]"),
        deployment("command: [sh, -c]\n        args: [vllm serve org/name --max-num-seqs 64]"),
        deployment("command: [bash, -lc, 'set -e; vllm serve org/name --max-num-seqs 64']"),
        deployment("""command: [sh, -c, 'exec vllm serve m "$@"', --, --max-num-seqs, "64"]"""),
        deployment(
            """command: [sh, -c, 'vllm serve m $@', --]\n        args: [--max-num-seqs, 64]"""
        ),
        deployment("command: [sh, -c]\n        args: [vllm serve m --max-num-seqs 64, --x]"),
        deployment("command: [sh, -c]\n        args:\n        - |\n" + BLOCK),
        deployment("""command: [vllm, serve, m, -cc, '{"mode": 3}', --max-num-seqs, 64]""").replace(
            "\n---\n", "\n--- # the next\n"
        ),
        "--- {image: mine, environment: {VLLM_USE_V1: 1}, command: vllm serve --max-num-seqs 64}",
        COMPOSE,
        LISTED,
    ],
)
def test_the_server_of_a_container(text: str) -> None:
    found = take_apart(text)
    assert dict(found.options)["--max-num-seqs"] == "64"
    assert found.variables["VLLM_USE_V1"] == "1"
    assert {name for name, _ in found.options} <= {"--max-num-seqs", "--model", "-cc"}


def test_a_container_without_a_server_has_none() -> None:
    with pytest.raises(UsageError):
        take_apart(deployment("args: [--max-num-seqs, '64', vllm serve]"))


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.gpu }}\n" + COMPOSE + "{{- end }}",
        COMPOSE.replace("  vllm:", "\tvllm:"),
        COMPOSE + "    image: vllm/vllm-openai:v0.8.0\n",  # a key twice
        COMPOSE + "#" * 20_000,
    ],
)
def test_a_file_that_cannot_be_read_whole_is_not_taken_for_good(text: str) -> None:
    with pytest.raises(UsageError):
        take_apart(text)


@pytest.mark.parametrize("text", ["vllm serve org/name --max-num-seqs 64", "a: [", "- 1", ""])
def test_other_texts_have_no_containers(text: str) -> None:
    assert command_lines(text) == []


@given(st.text(alphabet="ab: -[]{}\n'\"&*!|>#,", max_size=60))
def test_any_text_comes_to_lines(text: str) -> None:
    assert all(isinstance(line, str) for line in command_lines(text))
