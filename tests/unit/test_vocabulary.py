"""Wording of code and pages: terms to avoid, sentence length and line length.

A package on an allowlist is not rewritten yet. Remove its entry when it is finished; add none.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("artifacts", "benchmarks", "docs", "eval_gates", "pipeline", "recipes", "scripts", "tests")
MAX_SENTENCE_WORDS = 30
MAX_LINE_CHARACTERS = 120

UNFINISHED_PACKAGES: tuple[str, ...] = (
    "CONTRIBUTING.md",
    "README.md",
    "artifacts",
    "artifacts/ci",
    "artifacts/evidence",
    "artifacts/registry",
    "artifacts/report",
    "artifacts/stages",
    "benchmarks",
    "benchmarks/hopper",
    "benchmarks/hopper/README.md",
    "benchmarks/naps",
    "benchmarks/scheduler",
    "benchmarks/scheduler/code",
    "benchmarks/scheduler/declared",
    "docs/autoawq.md",
    "docs/ci.md",
    "docs/cluster.md",
    "docs/container.md",
    "docs/design.md",
    "docs/environments.md",
    "docs/evaluation.md",
    "docs/evidence.md",
    "docs/fp8-stream.md",
    "docs/gate.md",
    "docs/index.md",
    "docs/measured.md",
    "docs/plan.md",
    "docs/preflight.md",
    "docs/recipes.md",
    "docs/registry.md",
    "docs/report.md",
    "docs/results.md",
    "docs/sandbox.md",
    "docs/speed.md",
    "docs/tune.md",
    "docs/verification.md",
    "eval_gates",
    "eval_gates/data/README.md",
    "eval_gates/sandbox",
    "eval_gates/speed",
    "eval_gates/statistics",
    "eval_gates/suites",
    "pipeline",
    "pipeline/capacity",
    "pipeline/checkpoint",
    "pipeline/cli",
    "pipeline/core",
    "pipeline/core/untrusted",
    "pipeline/environments",
    "pipeline/environments/plugins/vllm_cpu_kernels/src/prepare_vllm_cpu_kernels",
    "pipeline/inspection",
    "pipeline/lint",
    "pipeline/plan",
    "pipeline/preflight",
    "pipeline/release",
    "pipeline/run",
    "pipeline/run/executors",
    "pipeline/serving",
    "pipeline/stages",
    "pipeline/verification",
    "pipeline/workers",
    "pipeline/workers/fp8_stream",
    "recipes",
    "recipes/calibration/README.md",
    "recipes/engines",
    "scripts",
    "tests/cuda_build",
    "tests/e2e",
    "tests/e2e/cluster",
    "tests/fuzz",
    "tests/unit",
    "tests/unit/artifacts",
    "tests/unit/artifacts/ci",
    "tests/unit/artifacts/registry",
    "tests/unit/artifacts/report",
    "tests/unit/capacity",
    "tests/unit/checkpoint",
    "tests/unit/cli",
    "tests/unit/core",
    "tests/unit/data",
    "tests/unit/e2e",
    "tests/unit/environments",
    "tests/unit/eval_gates",
    "tests/unit/eval_gates/sandbox",
    "tests/unit/eval_gates/speed",
    "tests/unit/eval_gates/statistics",
    "tests/unit/eval_gates/suites",
    "tests/unit/inspection",
    "tests/unit/plan",
    "tests/unit/preflight",
    "tests/unit/recipes",
    "tests/unit/release",
    "tests/unit/run",
    "tests/unit/serving",
    "tests/unit/stages",
    "tests/unit/verification",
    "tests/unit/workers",
)
UNFINISHED_PAGES: tuple[str, ...] = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/hopper/README.md",
    "docs/autoawq.md",
    "docs/checkpoints.md",
    "docs/ci.md",
    "docs/cluster.md",
    "docs/container.md",
    "docs/design.md",
    "docs/environments.md",
    "docs/evaluation.md",
    "docs/evidence.md",
    "docs/fp8-stream.md",
    "docs/gate.md",
    "docs/index.md",
    "docs/measured.md",
    "docs/plan.md",
    "docs/preflight.md",
    "docs/recipes.md",
    "docs/registry.md",
    "docs/report.md",
    "docs/results.md",
    "docs/sandbox.md",
    "docs/speed.md",
    "docs/tune.md",
    "docs/verification.md",
    "eval_gates/data/README.md",
    "recipes/calibration/README.md",
)

TERMS = {
    r"sittings?|sitters?": "serving task",
    r"answer books?|AnswerBook": "answer log",
    r"load books?|LoadBook": "load log",
    r"[Kk]nock(?:s|ed|ing)?|unwish": "ping, handshake, reserve",
    r"ignorance|uninformed": "chance baseline",
    r"(?:who|what|where)ever": "name the process, user or value",
    r"anew": "again",
    r"gone? on with|going on with": "continue, resume",
    r"of before|of then": "previous, recorded",
    r"in vain": "without result",
    r"be it": "or",
    r"for ever": "forever",
    r"nevertheless": "anyway",
    r"beforehand": "in advance",
    r"at once": "concurrently, or immediately",
    r"beside": "next to, in addition to",
    r"rest(?:s|ed|ing)? on|hangs? on": "depends on",
    r"is(?: not)? heard of|hears?|deaf": "detects, receives, ignores",
    r"somebody": "name the process or user",
    r"of ours|of its own": "our, its",
    r"whole numbers?": "integer",
    r"processor time": "CPU time",
    r"mixtures?": "MoE model",
    r"(?-i:find_mis\w+|\w+_words)": "find_<noun>_mismatches, format_, describe_",
    r"(?-i:_?(?:MOST|LEAST|FEWEST|LONGEST|DEEPEST)_[A-Z_]+)": "MAX_, MIN_",
    r"(?-i:_?SECONDS_(?:BETWEEN|TO|UNTIL|FOR)_[A-Z_]+)": "_INTERVAL_S, _TIMEOUT_S",
    r"(?-i:Of)": "a sentence starts with its subject",
}
AVOID = re.compile(r"\b(?:" + "|".join(TERMS) + r")\b", re.IGNORECASE)
CODE_BLOCK = re.compile(r"^ *```.*?^ *```|<!--.*?-->|^ *\|.*?$|^#.*?$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`]*`")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
SENTENCE_END = re.compile(
    r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])|\n\s*\n|\n\s*(?:[-*]|\d+\.) "
)


@cache
def sources() -> dict[str, str]:
    files = [
        path for tree in TREES for path in (ROOT / tree).rglob("*") if path.suffix in (".py", ".md")
    ]
    files += ROOT.glob("*.md")
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in sorted(files)
        if path != Path(__file__)
    }


def pages() -> dict[str, str]:
    return {name: text for name, text in sources().items() if name.endswith(".md")}


def package(name: str) -> str:
    """Return the directory that an allowlist names for this file; a page is its own package."""
    return name if name.endswith(".md") else name.rpartition("/")[0]


def long_sentences(text: str) -> list[str]:
    plain = LINK_TARGET.sub("]", INLINE_CODE.sub("code", CODE_BLOCK.sub("\n\n", text)))
    return [part for part in SENTENCE_END.split(plain) if len(part.split()) > MAX_SENTENCE_WORDS]


def terms_to_avoid(name: str) -> list[str]:
    lines = sources()[name].splitlines()
    return [
        f"{name}:{number}: {found[0]}"
        for number, line in enumerate(lines, 1)
        for found in AVOID.finditer(line)
    ]


def page_faults(name: str) -> list[str]:
    text = sources()[name]
    long = [line[:80] for line in text.splitlines() if len(line) > MAX_LINE_CHARACTERS]
    return [f"{name}: {fault}" for fault in long + long_sentences(text)]


def test_finished_packages_use_standard_terms() -> None:
    faults = [
        fault
        for name in sources()
        if package(name) not in UNFINISHED_PACKAGES
        for fault in terms_to_avoid(name)
    ]
    assert not faults, "\n".join(faults)


def test_finished_pages_have_short_sentences_and_lines() -> None:
    faults = [
        fault for name in pages() if name not in UNFINISHED_PAGES for fault in page_faults(name)
    ]
    assert not faults, "\n".join(faults)


def test_allowlists_name_existing_files() -> None:
    """An entry of a removed package would hide a later package of the same name."""
    assert set(UNFINISHED_PACKAGES) <= {package(name) for name in sources()}
    assert set(UNFINISHED_PAGES) <= set(pages())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It lands. Of all", "Of"),
        ("a sitting begins", "sitting"),
        ("MOST_NAMES = 3", "MOST_NAMES"),
        ("def time_words(", "time_words"),
    ],
)
def test_avoided_terms_are_found(text: str, found: str) -> None:
    match = AVOID.search(text)
    assert match
    assert match[0] == found


@pytest.mark.parametrize("text", ["one of the files", "at least", "The most words", "besides"])
def test_standard_english_is_allowed(text: str) -> None:
    assert not AVOID.search(text)
