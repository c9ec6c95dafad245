"""What engines count: sums over labels, differences, and what tells nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.engine_metrics import (
    SpecDecodeCounter,
    SpecDecodeStats,
    counters_in,
    counts_between,
)
from recipes.engines import find_engine

TEXT = """
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
vllm:prefix_cache_hits_total{engine="0",model_name="a {b} c"} 1.28e+02
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 64.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
"""
NAMES = tuple(SpecDecodeStats.model_fields)
counts = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 50))


def test_counters_are_summed_over_labels_and_what_is_not_there_is_left_out() -> None:
    found = counters_in(TEXT, find_engine("vllm").counters)
    assert found == {"prefix_cache_hits": 192}


@pytest.mark.parametrize("value", ["1e999", "-1", "1e300", "1e", "+-1"])
def test_what_is_no_count(value: str) -> None:
    with pytest.raises(ValueError, match=r"beyond counting|could not convert"):
        counters_in(f"hits {value}", {"prefix_cache_hits": "hits"})


def test_without_names_nothing_is_asked() -> None:
    """The client's library is in a worker's environment alone."""
    assert SpecDecodeCounter("http://nobody", {}).facts() == {}


def test_words_have_vllms_rate_and_length() -> None:
    found = SpecDecodeStats(drafts=100, draft_tokens=400, accepted_tokens=120)
    assert found.words == "30 % of 400 drafted tokens accepted, 2.20 tokens a step"
    nothing = SpecDecodeStats(drafts=0, draft_tokens=0, accepted_tokens=0)
    assert nothing.words == "nothing was drafted"


@given(before=st.none() | counts, after=st.none() | counts)
def test_differences_are_counts_or_nothing(
    before: dict[str, int | None] | None, after: dict[str, int | None] | None
) -> None:
    found = counts_between(before, after)
    if found is not None:
        assert before is not None
        assert after is not None
        assert SpecDecodeStats(**found).model_dump() == found
        assert all((after[name] or 0) - (before.get(name) or 0) == found[name] for name in NAMES)
