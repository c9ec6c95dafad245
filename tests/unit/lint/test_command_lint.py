"""Foreign command lines of vLLM's server: what is gone, default already, harmful."""

from __future__ import annotations

import json
import shlex
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.lint.command_lint import LintReport, lint
from recipes.catalog import load_gpu
from recipes.engine_facts import Lever, vllm_facts
from recipes.engines import find_engine

ENGINES = ("cpu", "cuda")


def on_h100(text: str) -> LintReport:
    return lint(text, "cuda", load_gpu("h100"))


def severities(found: LintReport) -> dict[str, str]:
    return {each.argument: each.severity for each in found.findings}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve",
        "sh -c 'vllm serve'",
        "vllm serve x --max-num-seqs \ud800",
        "vllm serve x --\udcff 1",
        "image: vllm/vllm-openai\nargs: [--\ud800]",
    ],
)
def test_a_command_of_odd_letters_or_no_words_is_looked_at(text: str) -> None:
    json.dumps(on_h100(text).to_dict(), ensure_ascii=False).encode()


class TestTheFacts:
    @pytest.mark.parametrize("accelerator", ENGINES)
    def test_hold_for_the_locked_engine_and_say_nothing_else_of_it(self, accelerator: str) -> None:
        facts, options = vllm_facts(), find_engine("vllm").options_of(accelerator)
        assert facts.versions[accelerator] == options.version, "look through vllm-facts.yaml"
        assert not facts.removed_options.keys() & options.defaults.keys()
        assert not facts.removed_variables.keys() & options.variables
        known = {"disable-prefix-caching", *options.defaults}
        assert facts.resolved[accelerator].keys() <= known
        assert {*facts.changes_outputs, *facts.no_effect} <= known
        assert {each.partition("=")[0] for each in facts.slows_down} <= known

    def test_each_lever_is_told(self) -> None:
        assert vllm_facts().parameters.keys() == set(get_args(Lever))

    @pytest.mark.parametrize("accelerator", ENGINES)
    def test_the_engines_own_defaults_are_read(self, accelerator: str) -> None:
        options = find_engine("vllm").options_of(accelerator)
        assert options.defaults["gpu-memory-utilization"] == "0.92"
        assert options.defaults["enforce-eager"] == "false"
        assert options.defaults["max-num-seqs"] is None
        assert options.shorts["-tp"] == "tensor-parallel-size"
        assert "VLLM_CPU_KVCACHE_SPACE" in options.variables


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("--scheduler-policy continuous", "fails"),
        ("--num-speculative-tokens 3", "fails"),
        ("--portt 80", "fails"),
        ("--max 3", "fails"),  # of several options the beginning
        ("--max-num-seqs 256", "harms"),
        ("--max-num-batched-tokens=2048", "harms"),
        ("--enforce-eager", "harms"),
        ("--no-enable-prefix-caching", "harms"),
        ("--disable-prefix-caching", "harms"),
        ("-O0", "harms"),
        ("-O 0", "harms"),
        ("-O=0", "harms"),
        ("-sc.method ngram", "note"),
        ("--max-num-seqs 1024", "idle"),
        ("--gpu_memory_utilization 0.920", "idle"),
        ("--enable-chunked-prefill", "idle"),
        ("--no-enforce-eager", "idle"),
        ("-tp 1", "idle"),
        ("--disable-cascade-attn", "idle"),
        ("--max-num-seq 2048", "note"),  # an abbreviation
        ("--kv-cache-dtype fp8", "note"),
    ],
)
def test_an_option_is_judged(words: str, severity: str) -> None:
    found = on_h100(f"vllm serve org/name {words}")
    assert [each.severity for each in found.findings] == [severity]
    assert found.fails == (severity == "fails")


@pytest.mark.parametrize(
    "words", ["--max-num-seqs 2048", "-tp 2", "--port 80", "--compilation-config.level 3", ""]
)
def test_what_says_something_of_its_own_is_left_alone(words: str) -> None:
    assert on_h100(f"vllm serve org/name {words}").findings == ()


@pytest.mark.parametrize("words", ["-cc.mode 3", "-cc.mode=3 -cc.level=2", "-O 3", "-Odecode"])
def test_what_the_engine_spells_in_its_own_way_starts(words: str) -> None:
    assert on_h100(f"vllm serve x {words}").findings == ()


def test_the_same_number_is_more_than_stock_where_stock_is_less() -> None:
    words = "vllm serve org/name --max-num-seqs 256"
    assert severities(on_h100(words)) == {"--max-num-seqs": "harms"}
    assert severities(lint(words, "cuda", load_gpu("a10g"))) == {"--max-num-seqs": "idle"}
    assert severities(lint(words, "cpu", None)) == {}


def test_what_is_around_the_server_is_no_part_of_it() -> None:
    text = """
    docker run -e VLLM_USE_V1=1 -e VLLM_LOGGING_LEVEL=DEBUG image \\
      python3 -m vllm.entrypoints.openai.api_server --model x \\
      --speculative-config '{"method": "ngram"}' --swap-space 4 | tee --swap log
    """
    assert severities(on_h100(text)) == {
        "VLLM_USE_V1": "idle",
        "--speculative-config": "note",
        "--swap-space": "fails",
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x \\\n  --max-num-seqs 64 \\\n  --swap-space 4\ncurl --portt 80",
        "vllm serve x --max-num-seqs 64 \\\n--swap-space 4; curl --portt 80",
        "vllm serve x \\\r\n --max-num-seqs 64 \\\r\n --swap-space 4\r\n\r\ncurl --portt 80",
        "vllm serve x\n  --max-num-seqs 64\n  --swap-space 4\n",  # folded by YAML
        "docker run --gpus all -p 80:80 vllm/vllm-openai:v0.6.0 --model x --max-num-seqs 64"
        " --swap-space 4",
        """sh -c 'exec vllm serve x "$@"' -- --max-num-seqs 64 --swap-space 4 && curl --portt 80""",
        """/bin/bash -e -c 'vllm serve "$0" --max-num-seqs $1 --swap-space 4' x 64""",
        "sh -c 'vllm serve x --max-num-seqs 64 --swap-space 4' sh --portt 80",
        'exec vllm serve x --swap-space 4 --max-num-seqs 64 "$@"',
        "vllm serve x --max-num-seqs 64 --swap-space 4\n---\n--portt 80",
    ],
)
def test_a_line_is_read_as_a_shell_does(text: str) -> None:
    assert severities(on_h100(text)) == {"--max-num-seqs": "harms", "--swap-space": "fails"}


def test_a_line_end_in_quotes_is_no_end() -> None:
    text = 'vllm serve x --speculative-config \'{\n "method": "ngram"}\' --swap-space 4'
    assert severities(on_h100(text)) == {"--speculative-config": "note", "--swap-space": "fails"}


def test_the_servers_own_short_options_are_no_command_of_a_shell() -> None:
    found = on_h100("bash -l vllm serve x -cc '{\"mode\": 3}' --swap-space 4")
    assert severities(found)["--swap-space"] == "fails"


def test_variables_of_a_container_are_seen() -> None:
    text = "docker run --env=VLLM_USE_V1=0 -eVLLM_FP8_PADDING=1 vllm/vllm-openai x"
    assert severities(on_h100(text)) == {"VLLM_USE_V1": "idle", "VLLM_FP8_PADDING": "idle"}


def test_what_a_file_says_is_said_to_be_unseen() -> None:
    assert severities(on_h100("vllm serve --config x.yaml")) == {"--config": "note"}


@pytest.mark.parametrize("value", ["=false", " false", "=True"])
def test_a_switch_with_a_value_fails(value: str) -> None:
    # As vLLM's own parser: "ignored explicit argument", "unrecognized arguments".
    words = f"vllm serve x --enable-prefix-caching{value}"
    assert severities(on_h100(words)) == {"--enable-prefix-caching": "fails"}


def test_an_option_given_twice_is_told() -> None:
    found = on_h100("vllm serve x --enable-prefix-caching --no-enable-prefix-caching").findings
    assert [each.severity for each in found] == ["idle", "note", "harms"]


@pytest.mark.parametrize("text", ["", "ls -l", "vllm bench serve-x", "vllm serve 'x", "serve x"])
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        on_h100(text)
    assert error.value.where == "prepare lint"


@given(
    st.lists(st.sampled_from(["--max-num-seqs", "-tp", "=", "4", "-", "--", "-O", "--a=b", ";"]))
)
def test_any_words_come_to_findings(words: list[str]) -> None:
    found = on_h100("vllm serve x " + " ".join(words))
    assert all(each.what for each in found.findings)


@given(st.sampled_from(ENGINES), st.data())
def test_every_default_that_is_written_out_is_idle(accelerator: str, data: st.DataObject) -> None:
    options = find_engine("vllm").options_of(accelerator)
    known = {n: d for n, d in options.defaults.items() if d not in (None, "true", "false")}
    name = data.draw(st.sampled_from(sorted(known)))
    gpu = load_gpu("h100") if accelerator == "cuda" else None
    found = lint(f"vllm serve x --{name}={shlex.quote(known[name] or '')}", accelerator, gpu)
    assert severities(found) == {f"--{name}": "idle"}
