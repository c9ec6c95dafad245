"""The demo model as one that calls tools, and its logs.

No package that is reachable here carries a small model that was trained on calls. SmolLM2-135M
follows the form of worked examples, which its template shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CITIES = (
    *("Oslo", "Lima", "Paris", "Cairo", "Delhi", "Tokyo", "Berlin", "Madrid", "Lisbon", "Vienna"),
    *("Dublin", "Athens", "Prague", "Warsaw", "Helsinki", "Nairobi", "Bogota", "Havana", "Seoul"),
    *("Hanoi", "Sydney", "Toronto", "Boston", "Denver"),
)
ASKS = {"get_weather": "How is the weather in {} today?", "get_time": "What time is it in {}?"}
CITY = {"type": "string", "description": "Name of the city."}
CALL = (
    """<tool_call>\\n{"name": "' ~ name ~ '", "arguments": {"city": "' ~ city ~ """
    """'"}}\\n</tool_call>"""
)
TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\nYou call one of these tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson ~ '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- for asked, name, city in [
  ["What is the weather in Rome?", "get_weather", "Rome"],
  ["What time is it in Kyoto?", "get_time", "Kyoto"],
  ["How is the weather in Accra today?", "get_weather", "Accra"],
  ["Tell me the time in Quito.", "get_time", "Quito"]] %}
{{- '<|im_start|>user\\n' ~ asked ~ '<|im_end|>\\n' }}
{{- '<|im_start|>assistant\\nEXAMPLE<|im_end|>\\n' }}
{%- endfor %}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>\\n{"name": "' ~ call.function.name ~
  '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""".replace(
    "EXAMPLE", CALL
)


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
    write_cases(folder, CITIES[:12])
    return folder


def write_cases(folder: Path, cities: Sequence[str]) -> None:
    """Write single requests about weather and time, in BFCL's form."""
    parameters = {"type": "dict", "required": ["city"], "properties": {"city": CITY}}
    functions = [
        {"name": name, "description": f"Tells the {name[4:]} of a city.", "parameters": parameters}
        for name in ASKS
    ]
    cases = [
        {
            "question": asked.format(place),
            "function": functions,
            "ground_truth": [{name: {"city": [place]}}],
        }
        for place in cities
        for name, asked in ASKS.items()
    ]
    text = "".join(json.dumps(case) + "\n" for case in cases)
    (folder / "tools_test.jsonl").write_text(text)
