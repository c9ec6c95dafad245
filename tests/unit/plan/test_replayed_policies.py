"""The carried policies over simulated variants: good ones pass, those at a margin do not."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from eval_gates.suites.code_suite import CodeSuite
from pipeline.plan.gate_power import policy_power
from recipes import catalog

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "policy_power.py"
RUNS, SEED = 2000, 7
FULL = {"mmlu": 14_042, "code": 542, "rouge": 11_490}


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("policy_power", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["policy_power"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["policy_power"]


def highest(alpha: float) -> float:
    """Whether an error rate is kept, give or take two standard errors."""
    return alpha + 2 * math.sqrt(alpha * (1 - alpha) / RUNS)


def test_default_promotes_the_usual_fp8_variant(benchmark: ModuleType) -> None:
    """With an FP8 KV cache, next to a second recipe in the run."""
    _, fp8, *_ = benchmark.VARIANTS
    found = benchmark.measure(catalog.load_policy("default"), fp8, 2, RUNS, SEED)
    assert found.keys() == {"mmlu", "code", "rouge", "all"}
    assert found["all"] >= 0.85


@pytest.mark.parametrize("name", ["general", "code", "reasoning"])
def test_other_policies_promote_good_variants(benchmark: ModuleType, name: str) -> None:
    """FP8 and 4 bits, each next to a second recipe in the run."""
    policy = catalog.load_policy(name)
    for variant in benchmark.VARIANTS[1:3]:
        assert benchmark.measure(policy, variant, 2, 200, SEED)["all"] >= 0.8


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        *(("default", suite) for suite in ("mmlu", "code", "rouge")),
        *(("strict", suite) for suite in ("mmlu", "code")),
        *(("general", suite) for suite in ("ifeval", "needles")),
    ],
)
def test_a_variant_at_the_margin_passes_at_most_at_alpha(
    benchmark: ModuleType, name: str, suite: str
) -> None:
    policy = catalog.load_policy(name)
    worse = benchmark.VARIANTS[-1]
    passed = benchmark.let_through(policy.suites[suite], worse, policy.alpha, RUNS, SEED)
    assert passed.mean() <= highest(policy.alpha)


def test_the_count_over_the_list_refuses_hardly_any_good_variant(benchmark: ModuleType) -> None:
    policy = catalog.load_policy("strict")
    same, fp8, *_ = benchmark.VARIANTS
    suite = policy.suites["mmlu_list"]
    assert (suite.about, suite.tier) == ("benchmark", "supporting")
    for variant, least in ((same, 0.995), (fp8, 0.96)):
        assert benchmark.let_through(suite, variant, policy.alpha, RUNS, SEED).mean() >= least


@pytest.mark.parametrize("problems", [164, 542])
def test_the_power_that_is_told_of_code_is_that_of_the_replays(
    benchmark: ModuleType, problems: int
) -> None:
    """164 problems were told 93 %, and 81 % passed."""
    recipe, policy = catalog.load_recipe("fp8-dynamic"), catalog.load_policy("default")
    counts = {**FULL, "code": problems}
    (told,) = (g for g in policy_power(policy, [recipe], counts) if g.suite == "code")
    suite = policy.suites["code"]
    assert isinstance(suite, CodeSuite)
    same, *_ = benchmark.VARIANTS
    passed = benchmark.code_passes(suite, same, told.alpha, 1000, SEED, problems)
    assert told.chance_of_pass == pytest.approx(passed.mean(), abs=0.03)
