"""The demo model as one that calls tools, its logs, and what breaks it.

No package that is reachable here carries a small model that was trained on calls. SmolLM2-135M
follows the form of worked examples, which its template shows.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CITIES = (
    *("Oslo", "Lima", "Paris", "Cairo", "Delhi", "Tokyo", "Berlin", "Madrid", "Lisbon", "Vienna"),
    *("Dublin", "Athens", "Prague", "Warsaw", "Helsinki", "Nairobi", "Bogota", "Havana", "Seoul"),
    *("Hanoi", "Sydney", "Toronto", "Boston", "Denver"),
)
ASKS = {"get_weather": "How is the weather in {} today?", "get_time": "What time is it in {}?"}
CITY = {"type": "string", "description": "Name of the city."}
TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\nYou call one of these tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson ~ '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- for asked, name, city in [
  ["What is the weather in Rome?", "get_weather", "Rome"],
  ["What time is it in Kyoto?", "get_time", "Kyoto"],
  ["How is the weather in Accra today?", "get_weather", "Accra"],
  ["Tell me the time in Quito.", "get_time", "Quito"]] %}
{{- '<|im_start|>user\\n' ~ asked ~ '<|im_end|>\\n' }}
{{- '<|im_start|>assistant\\n<tool_call>\\n{"name": "' ~ name ~ '", "arguments": {"city": "' ~
  city ~ '"}}\\n</tool_call><|im_end|>\\n' }}
{%- endfor %}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>\\n{"name": "' ~ call.function.name ~
  '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def agent_model(demo_model: Path, folder: Path) -> Path:
    """Return a copy of the demo model with that template."""
    shutil.copytree(demo_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def sessions(number: int) -> list[dict[str, Any]]:
    """Return a log of requests; a quarter goes on with the call, its result and another one."""
    rows = []
    names = list(ASKS)
    for session in range(number):
        first = CITIES[session % len(CITIES)]
        second = CITIES[(7 * session + 3) % len(CITIES)]
        name = names[session // len(CITIES) % 2]
        other = names[session % 2]
        arguments = {"city": first} if session % 2 else json.dumps({"city": first})
        called = {"id": "c", "function": {"name": name, "arguments": arguments}}
        messages: list[dict[str, Any]] = [{"role": "user", "content": ASKS[name].format(first)}]
        if session % 4 == 0:
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": "c", "content": f"{first}: {session} or so"},
                {"role": "assistant", "content": f"In {first} it is {session}."},
                {"role": "user", "content": ASKS[other].format(second)},
            ]
        rows.append(
            {
                "session": f"s{session}",
                "messages": messages,
                "tools": [tool_of(name, f"Tells the {name[4:]} of a city.") for name in ASKS],
            }
        )
    return rows


def tool_of(name: str, description: str) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    parameters = {"type": "object", "required": ["city"], "properties": {"city": CITY}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def write_data(folder: Path, number: int) -> Path:
    """Write the log, and single turns of the same kind in BFCL's form."""
    folder.mkdir()
    log = "".join(json.dumps(row) + "\n" for row in sessions(number))
    (folder / "conversations.jsonl").write_text(log)
    parameters = {"type": "dict", "required": ["city"], "properties": {"city": CITY}}
    # Cases with the same functions would be one value.
    cases = [
        {
            "question": asked.format(place),
            "function": [
                {"name": each, "description": f"As of {place}, {name}.", "parameters": parameters}
                for each in ASKS
            ],
            "ground_truth": [{name: {"city": [place]}}],
        }
        for place in CITIES[:12]
        for name, asked in ASKS.items()
    ]
    text = "".join(json.dumps(case) + "\n" for case in cases)
    (folder / "tools_test.jsonl").write_text(text)
    return folder


def change_weights(model: Path, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
    """Rewrite each tensor of bfloat16, the first half of a float."""
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    for name, about in json.loads(data[8 : 8 + size]).items():
        if about.get("dtype") == "BF16":
            start, end = (8 + size + offset for offset in about["data_offsets"])
            changed = change(name, as_floats(data[start:end]).reshape(about["shape"]))
            data[start:end] = as_bfloat16(changed)
    file.write_bytes(data)


def double_projection(model: Path) -> None:
    """One projection is twice as large, as by a scale that is applied twice."""
    change_weights(model, lambda name, was: was * (1 + ("layers.10.mlp.down_proj" in name)))


def scale_head_row(model: Path, token: int, factor: float) -> None:
    """Give the model a separate head, in which one token's row is scaled."""
    (file,) = model.glob("*.safetensors")
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    content = data[8 + size :]
    about = header["model.embed_tokens.weight"]
    start, end = about["data_offsets"]
    head = as_floats(content[start:end]).reshape(about["shape"]).copy()
    head[token] *= factor
    header["lm_head.weight"] = {
        **about,
        "data_offsets": [len(content), len(content) + end - start],
    }
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    content += as_bfloat16(head)
    file.write_bytes(struct.pack("<Q", len(told)) + told + content)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def as_floats(data: bytes | bytearray) -> np.ndarray:
    """Return numbers of bfloat16 as floats."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def as_bfloat16(values: np.ndarray) -> bytes:
    """Return floats as bfloat16, cut off."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16).tobytes()
