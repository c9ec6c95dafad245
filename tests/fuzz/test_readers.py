"""Every reader of bytes that others wrote, on many damaged copies of good ones.

Only the project's own errors may come out. FUZZ_MUTATIONS is how many for each reader: 100,000 in
`make test-all`; a failure names the seed, which gives the same bytes again.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.deploy.recheck_record import RECHECK_TAG, rechecks_of
from artifacts.evidence.manifest import MANIFEST, read_manifest
from artifacts.push import read_layers
from artifacts.registry import Version
from artifacts.run_record import AnyRequest, read_run
from eval_gates.decisions.suite import Decisions
from eval_gates.decisions.turn_decision import read_decision
from eval_gates.replies import read_chat, read_chosen
from eval_gates.rows import Answer, Question
from eval_gates.speed.load_run import parse_loads
from eval_gates.suites import mbpp
from eval_gates.suites.fidelity import Fidelity
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.lm_eval_files import read_task_file
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, SuiteKind
from pipeline.environments.settings import load_settings
from pipeline.preflight.memory import Model
from pipeline.stages.sanity import SANITY
from prepare.errors import PrepareError
from prepare.events import NullProgress
from prepare.record import Record
from prepare.stage import StageRecord
from prepare.untrusted import (
    UntrustedJsonError,
    UntrustedLinesError,
    parse_json,
    parse_record,
    read_flat_rows,
)
from prepare.untrusted_yaml import UntrustedYamlError, parse_yaml
from prepare.user_path import user_path
from recipes.catalog import RECIPES, load_gpu, load_policy, load_profile, load_recipe
from recipes.checkpoints.checkpoint import read_folder
from recipes.checkpoints.reference import parse_reference
from recipes.checkpoints.safetensors_header import read_header
from recipes.checkpoints.source_info import license_in
from recipes.checkpoints.weight_files import read_index
from recipes.engines.kv_report import read_report
from recipes.quantizers.calibration import read_texts
from recipes.weights.stored_formats import adopted_formats, read_quantization

MUTATIONS = int(os.environ.get("FUZZ_MUTATIONS", "300"))
pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(7200)]

Reader = Callable[[Path], object]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 16,
    "max_position_embeddings": 128,
    "intermediate_size": 16,
    "sliding_window": 32,
    "head_dim": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    "text_config": {"use_cache": True},
    "kv_lora_rank": 4,
    "qk_rope_head_dim": 2,
    "num_local_experts": 2,
    "torch_dtype": "bfloat16",
}
QUANTIZED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "format": "pack-quantized",
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 128,
                "symmetric": True,
            },
            "input_activations": None,
        }
    },
    "ignore": ["lm_head"],
}
HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "layers.0.up_proj.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "lm_head.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [64, 80]},
    }
).encode()
SAFETENSORS = struct.pack("<Q", len(HEADER)) + HEADER + bytes(80)
OCI = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "artifactType": "application/vnd.cncf.model.manifest.v1+json",
    "config": {
        "mediaType": "application/vnd.cncf.model.config.v1+json",
        "digest": "sha256:" + "0" * 64,
        "size": 2,
    },
    "layers": [
        {
            "mediaType": "application/vnd.cncf.model.weight.v1.raw",
            "digest": "sha256:" + "1" * 64,
            "size": 3,
            "annotations": {"org.opencontainers.image.title": "a.safetensors"},
        }
    ],
    "annotations": {"prepare.tags": "{}"},
}
TASK = "task: x\ndataset_path: org/name\ndoc_to_text: !function code.text\ninclude: []\n"
CARD = b"---\nlicense: mit\ntags: [a, b]\nmodel-index:\n- name: x\n---\n# Card\n"
MBPP = {
    "task_id": 1,
    "prompt": "Write a function that doubles a number.",
    "code": "def twice(x, y=1):\n    return 2 * x * y",
    "test_imports": ["import math"],
    "test_list": ["assert twice(2) == 4"],
    "test": "for x in range(9):\n    assert twice(x) == x + x",
}
ROWS = b'{"document": "One day.", "summary": "A day."}\n' * 3


MEMBERS = {
    "weights": "a" * 64,
    "engine_version": "0.33.0",
    **{f"environment.{name}": "1" * 64 for name in ("quantize", "serve", "evaluate")},
    "serving": {"engine_arguments": {"dtype": "bfloat16"}, "environment": {"OMP_A": "1"}},
    "hardware": {"accelerator": "cpu", "cpu": "x", "cores": 2},
}
RECHECK = {
    "when": "2026-01-01T00:00:00+00:00",
    "who": "ann",
    "tuple_digest": "2" * 64,
    "members": MEMBERS,
    "changed": ["cores"],
    "report": {
        "engine": {"run": "r", "judge": "j", "verdict": "pass", "reason": ""},
        "cell": "neither",
    },
    "stands": True,
}
REQUEST = {
    "kind": "model",
    "checkpoint": "org/name",
    "recipes": ["fp8-dynamic"],
    "profile": "cpu",
    "trust_remote_code": True,
    "promote": False,
}


def recheck_of(path: Path) -> object:
    text = path.read_bytes().decode("utf-8", "replace")
    return rechecks_of(Version("m", "1", (), "s", {f"{RECHECK_TAG}.0": text}))


class RecordedRequest(Record):
    request: AnyRequest


def line_of_request(content: bytes) -> object:
    return parse_record(content, RecordedRequest).request.line(public=True)


def carried(name: str) -> bytes:
    return (RECIPES / name).read_bytes()


def settings_of(path: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREPARE_SETTINGS", str(path))
        return load_settings()


def config_of(path: Path) -> object:
    return Model.of(read_folder(path.parent))


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


STAGE = b"""{"stage": "judge", "variant": "v", "key": "k", "parameters": {"a": [1.5]}, "notes": [],
 "inputs": {"checked_weights": {"stage": "check_weights", "key": "k"}},
 "input_digests": {"checked_weights": "d"},
 "result": {"verdict": "pass"}, "seconds": 1.0, "finished": "2026"}"""


LOAD = b"""{"side": "candidate", "workload": "chat", "block": 0,
 "order": 0, "server_run": 0, "seed": 1,
 "prompts_sha256": "%s", "arrivals": "concurrency", "concurrency": 1, "started": 1.7e9,
 "seconds": 2.0, "requests": {"start_s": [0.0, 0.1], "ttft_s": [0.1, null], "end_s": [1, null],
 "input_tokens": [2, 2], "output_tokens": [9, 0],
 "error": [null, "HTTP 500"]}, "after": {"prefix_cache_hits": 3}, "client_lag_s": 0.01}
""" % (b"a" * 64)


def parse_load(content: bytes) -> object:
    return parse_loads([content.replace(b"\n", b"")])


SCREENED = b"""{"stage": "sanity", "variant": "v", "key": "k", "notes": [], "inputs": {},
 "parameters": {"checkpoint": "c", "serving": {"engine_arguments": {"dtype": "auto"},
 "environment": {"A": "1"}}, "engine": "e", "hardware": {"cores": 2}, "trust_remote_code": false},
 "input_digests": {}, "result": {"nats": 2.5, "nats_lost": null,
 "texts": [{"prompt": "p", "text": " Paris"}],
 "broken": "", "server": {"ready_seconds": 20.5}}, "seconds": 1.0, "finished": "2026"}"""


def parse_stage(content: bytes) -> object:
    return parse_record(content, StageRecord)


RUN = b"""{"schema_version": 1, "run": "20261121-100000-000001", "status": "finished",
 "exit_code": 0,
 "started": "2026-11-21T10:00:00+00:00", "seconds": 372.4, "checkpoint": null,
 "request": {"kind": "model", "checkpoint": "demo:x", "recipes": ["a"], "profile": "cpu"},
 "resolved": {"checkpoint": "demo:x", "recipes": ["a"], "profile": "cpu"},
 "registered_name": null, "variants": [], "notes": [], "tuning": null, "error": {"message": "w"},
 "stages": [{"name": "judge", "stage": "judge", "variant": "a", "status": "ran", "seconds": 1.25,
 "key": "abc"}]}"""


def shape_of(path: Path) -> object:
    try:
        kept = SANITY.typed(parse_record(path.read_bytes(), StageRecord))
    except UntrustedJsonError:
        return None
    return kept.parameters, kept.result


def describe_cache(folder: Path) -> object:
    found = read_report(folder)
    return found and found.facts()


def answer_in(content: bytes) -> object:
    answer = parse_json(content, whole_text=False, finite=False)
    with contextlib.suppress(ValueError):
        return read_chosen(answer, [7])
    return None


def listed_in(content: bytes) -> object:
    answer = parse_json(content, whole_text=False, finite=False)
    with contextlib.suppress(ValueError):
        return read_chat(answer)
    return None


def kept_rows_of(path: Path) -> None:
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(UntrustedLinesError):
        rows += read_flat_rows(path)
    for row in rows:
        for parse in (Answer.from_row, Question.from_row):
            with contextlib.suppress(ValueError):
                parse(row)


SESSION = {
    "session": "s",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "function": {"name": "find", "arguments": '{"place": "Rome"}'}},
                {"id": "d", "function": {"name": "find", "arguments": {"place": "Rome"}}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "21"},
        {"role": "assistant", "content": "21 degrees."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
}
DECISION = """<tool_call>{"name": "find", "arguments": {"place": "Rome", "n": 1.0}}</tool_call>
[find(place='Rome', n=1)] <function=find><parameter=place>Rome</parameter></function>
call:find{place:<escape>Rome<escape>} I cannot help with that."""


def lay_out(kind: SuiteKind[Any], path: Path) -> None:
    """Lay a log out as a suite's questions, and open them again."""
    task = kind.task()
    order = QuestionOrder(QuestionSource(kind="folder"), path, path.parent, NullProgress())
    questions, _ = kind.questions(task, order)
    kind.open(task, questions, path.parent)


def decide(path: Path) -> None:
    read_decision(text_of(path), [], {"find"})


def one_error(read: Callable[[bytes], object], error: type[Exception]) -> Reader:
    def reader(path: Path) -> None:
        with contextlib.suppress(error):
            read(path.read_bytes())

    return reader


KV_REPORT = {
    "version": "0.33.0",
    "layers": {
        "model.layers.0.self_attn.attn": {
            "asked": "fp8",
            "stored": "uint8",
            "bytes": 384.0,
            "backend": "FLASH_ATTN",
            "k_scale": [0.5, 0.5],
            "v_scale": [1.0, 1.0],
            "is_computed": False,
        }
    },
}

# name of the file, what is good in it, and who reads it
READERS: dict[str, tuple[str, bytes, Reader]] = {
    "json": ("a.json", json.dumps(CONFIG).encode(), one_error(parse_json, UntrustedJsonError)),
    "yaml": ("a.yaml", carried("policies/demo.yaml"), one_error(parse_yaml, UntrustedYamlError)),
    "recipe": ("a.yaml", carried("awq-w4a16.yaml"), lambda p: load_recipe(str(p))),
    "policy": ("a.yaml", carried("policies/default.yaml"), lambda p: load_policy(str(p))),
    "profile": ("a.yaml", carried("profiles/h100.yaml"), lambda p: load_profile(str(p))),
    "gpu": ("a.yaml", carried("gpus/h100.yaml"), lambda p: load_gpu(str(p))),
    "settings": (
        "a.yaml",
        b"home: ~/x\nenvironments: {serve: {python: /bin/true}}\n",
        settings_of,
    ),
    "safetensors": ("a.safetensors", SAFETENSORS, read_header),
    "quantization": (
        "config.json",
        json.dumps({"quantization_config": QUANTIZED}).encode(),
        lambda p: adopted_formats(read_quantization(p.parent), str(p)),
    ),
    "index": (
        "model.safetensors.index.json",
        json.dumps({"metadata": {}, "weight_map": {"a": "a.safetensors"}}).encode(),
        read_index,
    ),
    "report of the KV cache": (
        "report.1.json",
        json.dumps(KV_REPORT).encode(),
        lambda p: describe_cache(p.parent),
    ),
    "config": ("config.json", json.dumps(CONFIG).encode(), config_of),
    "rows": ("a.jsonl", ROWS, lambda p: list(read_rows(p))),
    "packed rows": ("a.jsonl.gz", gzip.compress(ROWS, mtime=0), lambda p: list(read_rows(p))),
    "kept rows": ("a.jsonl.gz", gzip.compress(ROWS, mtime=0), kept_rows_of),
    "sessions": (
        "a.jsonl",
        json.dumps(SESSION).encode() + b"\n",
        lambda p: lay_out(Decisions(), p),
    ),
    "conversations": (
        "a.jsonl",
        json.dumps(SESSION).encode() + b"\n",
        lambda p: lay_out(Fidelity(), p),
    ),
    "decision": ("a", DECISION.encode(), decide),
    "record": ("a.json", STAGE, one_error(parse_stage, UntrustedJsonError)),
    "run": ("run.json", RUN, lambda p: read_run(p.parent)),
    "load": ("a.jsonl", LOAD, one_error(parse_load, ValueError)),
    "stage": ("a.json", SCREENED, shape_of),
    "answer": (
        "a.json",
        b'{"choices": [{"text": " A", "logprobs": {"token_logprobs": [-0.5],'
        b' "top_logprobs": [{"token_id:7": -0.5}]}}]}',
        one_error(answer_in, UntrustedJsonError),
    ),
    "listed tokens": (
        "a.json",
        b'{"choices": [{"logprobs": {"content": [{"token": "A", "logprob": -0.5,'
        b' "top_logprobs": [{"token": "A", "logprob": -0.5}]}]}}]}',
        one_error(listed_in, UntrustedJsonError),
    ),
    "calibration table": (
        "a.csv",
        b'id,text\n1,"one, two\nthree"\n2,four\n',
        lambda p: read_texts({"column": "text"}, str(p), None),
    ),
    "mbpp": (
        "mbpp.jsonl",
        json.dumps(MBPP).encode(),
        lambda p: [mbpp.problem_of(row, place) for place, row in read_rows(p)],
    ),
    "task": ("a.yaml", TASK.encode(), read_task_file),
    "card": ("README.md", CARD, lambda p: license_in(p.parent, {})),
    "manifest": (
        MANIFEST,
        b'{"schema_version": 1, "files": []}',
        lambda p: read_manifest(p.parent),
    ),
    "oci manifest": (
        "a.json",
        json.dumps(OCI).encode(),
        lambda p: read_layers(p.read_bytes(), "here"),
    ),
    "recheck": ("a.json", json.dumps(RECHECK).encode(), recheck_of),
    "request": (
        "a.json",
        json.dumps({"request": REQUEST}).encode(),
        one_error(line_of_request, UntrustedJsonError),
    ),
    "path": ("a", b"~/some/folder/of/mine", lambda p: user_path(text_of(p), "here")),
    "reference": ("a", b"org/name@revision", lambda p: parse_reference(text_of(p))),
}

WORDS = [
    *b'\\ud800 NaN -Infinity 1e999 -1 0 true null [] {} "" 1.5 *a - ? .inf 0x 1:1:1 % @'.split(),
    *b"' \" ~nobody/ ../ re:((( !!python/object:os.system 2001-99-99 ---\n".split(b" "),
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"&a ", b"<<: *a\n", b"!!int ", b"\n", b"\t", b": "),
    *(b"\x1b[2J", b"\xe2\x80\xae", b"[" * 80, b"{" * 80, b"9" * 30, b"9" * 5000, b"x" * 300),
]


def spoilt(good: bytes, chance: random.Random) -> bytes:
    """One to four changes: bytes flipped, cut or doubled, words put in or in the place of some."""
    content = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(content) + 1)
        end = min(len(content), start + chance.choice((0, 1, 2, 8, 40)))
        way = chance.randrange(5)
        if way == 0 and content:
            content[min(start, len(content) - 1)] ^= 1 << chance.randrange(8)
        elif way == 1:
            del content[start:end]
        elif way == 2:
            content[start:start] = content[start:end]
        elif way == 3:
            content[start:end] = chance.choice(WORDS)
        else:
            content[start:start] = chance.choice(WORDS)
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_only_the_projects_errors_come_out(tmp_path: Path, name: str) -> None:
    file_name, good, read = READERS[name]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS)
    path = tmp_path / file_name
    for seed in range(MUTATIONS):
        content = spoilt(good, random.Random(seed))
        path.write_bytes(content)
        try:
            with contextlib.suppress(PrepareError):
                read(path)
        except Exception as error:
            error.add_note(f"seed {seed}: {content[:600]!r}")
            raise
