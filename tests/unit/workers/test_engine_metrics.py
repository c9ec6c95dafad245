"""What an engine tells of itself is read by our names, summed over its labels."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.workers.engine_metrics import MetricsPoller, counters_in
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
    assert found == {"prefix_cache_hits": 192, "running": 3}


@pytest.mark.parametrize("value", ["1e999", "-1", "1e300", "1e", "+-1"])
def test_what_is_no_count(value: str) -> None:
    with pytest.raises(ValueError, match=r"beyond counting|could not convert"):
        counters_in(f"hits {value}", {"prefix_cache_hits": "hits"})


def test_the_queue_and_the_clients_lag_are_looked_at_while_the_work_lasts() -> None:
    watch = MetricsPoller("http://m", {})
    answers = iter([{"running": 1, "waiting": 2}, {"prefix_cache_hits": 3}])

    async def fetch() -> dict[str, int] | None:
        return next(answers, None)

    async def work() -> str:
        await asyncio.sleep(0.06)
        return "done"

    async def both() -> tuple[str, dict[str, int] | None]:
        return await watch.poll_during(work()), await watch.counters()

    watch._fetch = fetch  # type: ignore[method-assign]
    done, counters = asyncio.run(both())
    assert done == "done"
    ((at, _),) = watch.looks
    queue = watch.queue_between(at - 1, at + 1)
    assert queue == {"at_s": [pytest.approx(1)], "running": [1], "waiting": [2]}
    assert counters == {"prefix_cache_hits": 3}
    ((begin, _), *_) = watch.late
    assert watch.lag_between(begin, begin + 1)["client_lag_s"] >= 0.0


def test_what_is_counted_from_a_second_on() -> None:
    watch = MetricsPoller("http://m", {})
    for at, hits in ((1.0, 10), (2.0, 20), (3.0, 30)):
        watch.looks.append((at, {"running": 1, "waiting": 0, "prefix_cache_hits": hits}))
    assert watch.counters_after(1.5) == {"prefix_cache_hits": 20}
    assert watch.counters_after(3.5) is None


def test_an_engine_that_tells_nothing_is_no_error() -> None:
    watch = MetricsPoller("http://m", {})

    async def nothing() -> None:
        return None

    watch._fetch = nothing  # type: ignore[method-assign]
    assert asyncio.run(watch.counters()) is None
    assert watch.lag_between(0, 1) == {}


def test_what_held_the_client_up_before_the_load_is_no_lag_of_it() -> None:
    watch = MetricsPoller("http://m", {})
    watch.late += [(1.0, 9.0), *((2.0 + n, 0.01) for n in range(100))]
    assert watch.lag_between(2.0, 200.0) == {
        "client_lag_s": 0.01,
        "client_late_s": pytest.approx(1.0),
    }
