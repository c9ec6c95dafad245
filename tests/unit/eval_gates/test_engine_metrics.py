from __future__ import annotations

import pytest

from eval_gates.engine_metrics import SpecDecodeCounter, counters_in
from recipes.engines import find_engine

TEXT = """
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="a {b} c"} 1.28e+02
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 64.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""


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
