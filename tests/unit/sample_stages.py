"""What stages are asked and leave, as little of it as has a shape; for tests that change a part."""

from __future__ import annotations

from typing import Any

QUANTIZATION = {"kind": "preset", "scheme": "FP8_DYNAMIC"}
SERVING: dict[str, Any] = {"engine_arguments": {}, "environment": {}}

PARAMETERS: dict[str, dict[str, Any]] = {
    "questions": {"suite": {"kind": "mmlu"}, "source": {"kind": "builtin"}, "seed": 1},
    "quantize": {"checkpoint": "c", "quantization": QUANTIZATION, "environment": "e"},
    "check_weights": {"checkpoint": "c", "quantization": QUANTIZATION},
    "sanity": {"checkpoint": "c", "serving": SERVING, "engine": "e", "hardware": {}},
    "evaluate": {"suite": {"kind": "mmlu"}, "environment": "e", "max_length": 8},
    "speed": {
        **{"name": "chat", "workload": {}, "sides": {}},
        "rule": {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 5},
    },
}
RESULTS: dict[str, dict[str, Any]] = {
    "questions": {"questions": 8, "questions_digest": "d", "guessing": 0.0},
    "quantize": {"weights_digest": "d", "weights_bytes": 1},
    "check_weights": {"weights_digest": "d"},
    "sanity": {"nats": 1.0, "engine_version": "0.32.0"},
    "evaluate": {"metric": "acc", "n": 8, "answers_digest": "d"},
    "speed": {
        **{"units": 6, "state": "pass", "seed": 1, "loads_digest": "d"},
        **{"arms": ["candidate"], "arm": "candidate"},
    },
    "judge": {"verdict": "pass", "reason": "all passed", "history": {}, "gates": []},
}
