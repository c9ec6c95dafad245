"""What stages are asked and leave, as little of it as has a shape; for tests that change a part."""

from __future__ import annotations

from typing import Any

QUANTIZATION = {"kind": "preset", "scheme": "FP8_DYNAMIC"}
SERVING: dict[str, Any] = {"engine_arguments": {}, "environment": {}}
WORKLOAD = {"input_tokens": 128, "output_tokens": 32, "requests": 8, "concurrency": 4}

PARAMETERS: dict[str, dict[str, Any]] = {
    "questions": {"suite": {"kind": "mmlu"}, "source": {}, "seed": 1},
    "quantize": {"checkpoint": "c", "quantization": QUANTIZATION, "environment": "e"},
    "check_weights": {"checkpoint": "c", "quantization": QUANTIZATION},
    "coherence": {},
    "evaluate": {"suite": {"kind": "mmlu"}, "environment": "e", "max_length": 8, "batch": 8},
    "benchmark": {
        "checkpoint": "c",
        "serving": SERVING,
        "engine": "e",
        "hardware": {},
        "workload": WORKLOAD,
    },
}
RESULTS: dict[str, dict[str, Any]] = {
    "questions": {"questions": 8, "questions_digest": "d", "guessing": 0.0},
    "quantize": {"weights_digest": "d", "weights_bytes": 1},
    "check_weights": {"weights_digest": "d"},
    "coherence": {"perplexity": 10.0},
    "evaluate": {"metric": "acc", "n": 8, "answers_digest": "d"},
    "benchmark": {
        "output_tokens_per_s": 100.0,
        "requests": 8,
        "failed_requests": 0,
        "engine_version": "0.32.0",
        "ttft_ms_p50": 1.0,
        "tpot_ms_p50": 1.0,
        "itl_ms_p50": 1.0,
    },
    "judge": {"verdict": "pass", "reason": "all passed", "gates": [], "throughput": None},
}
