"""A version to export, judged on a GPU with limits that passed, and files made of it."""

from __future__ import annotations

from typing import Any

from fake_run import policy

from artifacts.deploy.export import Certified, CertifiedLimit, Export, render
from artifacts.deployable import Deployable

DIGEST = "c" * 64
LIMITS = (
    CertifiedLimit(gate="slo.0", measure="ttft", percentile=95, seconds=0.3),
    CertifiedLimit(gate="slo.0", measure="tpot", percentile=50, seconds=0.05),
    CertifiedLimit(gate="slo.1", measure="latency", percentile=99, seconds=12.0),
)
CERTIFIED = Certified(limits=LIMITS, rate=3.0, concurrency=64, hit_rate=0.6)
HARDWARE = {
    "cuda": {"accelerator": "cuda", "gpu": "NVIDIA H100 80GB HBM3"},
    "cpu": {"accelerator": "cpu", "cpu": "a CPU", "cores": 4, "cpu_features": ["avx2"]},
}


def deployable(accelerator: str = "cuda", **serving: Any) -> Deployable:
    return Deployable.model_validate(
        {
            "weights": "a" * 64,
            "engine_version": "0.33.0",
            "environment.quantize": "0" * 64,
            "environment.serve": "1" * 64,
            "environment.evaluate": "2" * 64,
            "serving": {
                "engine_arguments": {"tensor-parallel-size": 2, "kv-cache-dtype": "fp8"},
                "environment": {"VLLM_X": "1"},
                "speculative": {
                    "method": "ngram",
                    "num_speculative_tokens": 3,
                    "prompt_lookup_max": 4,
                },
                **serving,
            },
            "hardware": HARDWARE[accelerator],
        }
    )


def exported(judged: Deployable | None = None, **changes: Any) -> Export:
    facts: dict[str, Any] = {
        "name": "Some.model",
        "version": "3",
        "trust_remote_code": False,
        "manifest": "a" * 64,
        "ready_seconds": 95.0,
        "certified": CERTIFIED,
        "policy": policy(),
        "family": "fp8",
        "image": f"registry.example.com/prepare@sha256:{DIGEST}",
        "source": f"oci://registry.example.com/models/some@sha256:{DIGEST}",
        "canary": "4",
        "previous": "2",
    }
    return Export(**{**facts, **changes}, deployable=judged or deployable())


def files(target: str, made: Export | None = None) -> dict[str, str]:
    return render(made or exported(), target)
