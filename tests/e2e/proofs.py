"""Which tests of other people's code need not run again: those that passed on the very same files.

A test module that pins what a library does says with the marker `rests_on` what its outcome hangs
on. `make test-all` runs it and writes into proofs.json the digest of these files, by the CPU's
features; `make test` leaves it out while the digest is the same, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from pipeline.core.cpu_features import cpu_features

ROOT = Path(__file__).parents[2]
PROOFS = Path(__file__).with_name("proofs.json")
# What the folder's tests share; a test's own file counts too.
SHARED = ("tests/e2e/conftest.py", "tests/e2e/tiny_models.py", "tests/e2e/fp8_reference.py")

QUANTIZING = (
    "pipeline/environments/locks/quantize*",
    "pipeline/environments/locks/demo-model.txt",
    "pipeline/workers/quantize*.py",
    "pipeline/workers/fp8_stream/*.py",
    *(f"pipeline/workers/{name}.py" for name in ("bootstrap", "protocol", "convert_gguf")),
    *(f"pipeline/workers/{name}.py" for name in ("compressed", "compute_type", "experts")),
    *(
        f"pipeline/workers/{name}.py"
        for name in ("calibration_blocks", "guarded_autoawq", "transformers4_form")
    ),
    "pipeline/verification/*.py",
    "pipeline/inspection/*.py",
    "pipeline/checkpoint/*.py",
    "artifacts/stages/quantize.py",
    "artifacts/stages/check_weights.py",
    "pipeline/stages/quantize.py",
    "pipeline/stages/check_weights.py",
    "recipes/*.yaml",
    *(f"recipes/{name}.py" for name in ("quantization", "group_sizes", "schema", "catalog")),
)
SERVING = (
    "pipeline/environments/locks/serve-cpu*",
    "pipeline/environments/plugins/**/*.*",
    "pipeline/serving/**/*.py",
    "recipes/profiles/cpu.yaml",
)
ASKING = (
    "pipeline/environments/locks/evaluate*",
    *(f"pipeline/workers/{name}.py" for name in ("bootstrap", "protocol", "unix_socket")),
    *(f"pipeline/workers/{name}.py" for name in ("evaluate", "questions", "suites")),
    "eval_gates/suites/*.py",
    "eval_gates/sandbox/*.py",
    "eval_gates/answers.py",
    "eval_gates/clusters.py",
    "eval_gates/stopping.py",
    "recipes/policy.py",
)
LOADING = (
    "pipeline/workers/speed.py",
    "pipeline/workers/load_generator.py",
    "pipeline/workers/engine_metrics.py",
    "pipeline/workers/unix_socket.py",
    "pipeline/stages/speed.py",
    "pipeline/plan/of_speed.py",
    "artifacts/stages/speed.py",
    "eval_gates/speed/*.py",
    "recipes/speed.py",
    "recipes/workload.py",
    "recipes/workloads/*.yaml",
    "recipes/engines/*.py",
)
REGISTRIES = (
    "artifacts/registry/*.py",
    "artifacts/evidence/manifest.py",
    "artifacts/plain_files.py",
    "pipeline/release/*.py",
    "pipeline/core/*.py",
    "requirements-dev.txt",
    "tests/e2e/mlflow_server/*",
)


def features() -> str:
    """What kernels there are hangs on these; what passed with some says nothing of others."""
    return ",".join(cpu_features())


def digest_of(patterns: Iterable[str], root: Path = ROOT) -> str:
    """Digest of names and contents of all files that the patterns match below a folder.

    Raises:
        ValueError: a pattern matches nothing, so it no longer says what it was written for.
    """
    found: set[Path] = set()
    for pattern in patterns:
        files = {each for each in root.glob(pattern) if each.is_file() and each.suffix != ".pyc"}
        if not files:
            raise ValueError(f"no file is called {pattern}")
        found |= files
    whole = sha256()
    for file in sorted(found):
        content = sha256(file.read_bytes()).hexdigest()
        whole.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def read_proofs(file: Path = PROOFS) -> dict[str, dict[str, str]]:
    """By test module and features, the digest that it passed on."""
    proofs: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.is_file() else {}
    return proofs


def write_proofs(passed: Mapping[str, str], here: str, file: Path = PROOFS) -> None:
    """Keep what passed.

    Args:
        passed: digest by test module.
        here: features of this machine's CPU.
        file: that keeps it; what it has of other modules and CPUs stays.
    """
    proofs = read_proofs(file)
    for module, digest in passed.items():
        proofs.setdefault(module, {})[here] = digest
    file.write_text(json.dumps(proofs, indent=1, sort_keys=True) + "\n")
