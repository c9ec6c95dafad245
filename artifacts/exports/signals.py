"""Expressions that show whether a served version still does what its verdict is about.

The metrics' names are the engine's (`Engine.counters`, `Engine.monitored`). Alerts compare recorded
values, so that each expression returns a series when nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.exports.exported_version import CertifiedLimit, ExportedVersion

PREFIX = "prepare:"
LABELS = "job, prepare_version"
PERCENTILE = 0.95  # that dashboards show of each latency
# Google's SRE Workbook, chapter 5, "Multiwindow, multi-burn-rate alerts": times the budget, the
# windows that both must exceed it, and what to do.
BURNS = ((14.4, "5m", "1h", "page"), (6.0, "30m", "6h", "ticket"))
RATE_WINDOW = "5m"

Samples = dict[str, str]  # of a unit test: values by series, in promtool's notation


@dataclass(frozen=True)
class Recording:
    """A value that is recorded and shown."""

    name: str
    title: str
    unit: str  # of Grafana
    expression: str


@dataclass(frozen=True)
class Condition:
    """A recorded value beyond a threshold."""

    value: str
    operator: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.value} {self.operator} {self.threshold:.6g}"


@dataclass(frozen=True)
class Alert:
    """An alert, with samples of a unit test that make it fire and that do not."""

    name: str
    conditions: tuple[Condition, ...]
    minutes: int  # that all conditions must hold
    severity: str
    summary: str
    firing: Samples
    quiet: Samples

    @property
    def expression(self) -> str:
        return " and ".join(str(each) for each in self.conditions)


class Signals:
    """Recordings and alerts of one version."""

    def __init__(self, version: ExportedVersion) -> None:
        self._version = version
        self._metrics = {**version.engine.counters, **version.engine.monitored}
        self._job = f'job="{version.app}"'
        self.recordings = [
            *self._load(),
            *self._cache(),
            *self._latencies(),
            *(self._drafts() if version.deployable.serving.speculative else ()),
            *(each for limit in version.certified.limits for each in self._excess(limit)),
        ]
        self.alerts = [
            *self._standard_alerts(),
            *self._certified_alerts(),
            *(each for limit in version.certified.limits for each in self._burns(limit)),
        ]

    def series(self, metric: str, label: str = "") -> str:
        """Return a series of a unit test: a metric by our name."""
        return f'{self._metrics[metric]}{{{self._job},prepare_version="1"{label}}}'

    def selector(self, metric: str, label: str = "", suffix: str = "") -> str:
        return f"{self._metrics[metric]}{suffix}{{{self._job}{label}}}"

    def rate(self, metric: str, label: str = "", suffix: str = "", window: str = "") -> str:
        selected = self.selector(metric, label, suffix)
        return f"sum by ({LABELS}) (rate({selected}[{window or RATE_WINDOW}]))"

    def _load(self) -> Iterator[Recording]:
        for name, title in (("running", "Requests running"), ("waiting", "Requests waiting")):
            value = f"sum by ({LABELS}) ({self.selector(name)})"
            yield Recording(f"requests_{name}", title, "short", value)
        servers = f"count by ({LABELS}) ({self.selector('running')})"
        yield Recording(
            "requests_per_server",
            "Finished requests per second and server",
            "reqps",
            f"{self.rate('finished')} / {servers}",
        )
        tokens = self.rate("generated_tokens")
        yield Recording("tokens_per_second", "Generated tokens per second", "short", tokens)

    def _cache(self) -> Iterator[Recording]:
        usage = f"max by ({LABELS}) ({self.selector('kv_cache_usage')})"
        yield Recording("kv_cache_usage", "KV cache in use", "percentunit", usage)
        preemptions = self.rate("preemptions")
        yield Recording("preemptions_per_second", "Preemptions per second", "short", preemptions)
        hits = f"{self.rate('prefix_cache_hits')} / {self.rate('prefix_cache_queries')}"
        yield Recording("prefix_cache_hit_ratio", "Prefix cache hit rate", "percentunit", hits)

    def _latencies(self) -> Iterator[Recording]:
        titles = {
            "ttft": "Time to first token",
            "tpot": "Time per further token",
            "latency": "Whole answer",
        }
        for name, title in titles.items():
            buckets = self.selector(name, suffix="_bucket")
            summed = f"sum by ({LABELS}, le) (rate({buckets}[{RATE_WINDOW}]))"
            yield Recording(
                f"{name}_seconds:p95",
                f"{title}, P95",
                "s",
                f"histogram_quantile({PERCENTILE}, {summed})",
            )

    def _drafts(self) -> Iterator[Recording]:
        accepted, drafts = self.rate("accepted_tokens"), self.rate("drafts")
        ratio = f"{accepted} / {self.rate('draft_tokens')}"
        yield Recording("draft_acceptance_ratio", "Accepted draft tokens", "percentunit", ratio)
        yield Recording(
            "draft_acceptance_length",
            "Tokens per step with drafts",
            "short",
            f"1 + {accepted} / {drafts}",
        )

    def bound(self, limit: CertifiedLimit) -> float | None:
        """Return the smallest bound of a bucket that is not below the limit, if any."""
        bounds = self._version.engine.buckets.get(limit.measure, ())
        return next((each for each in bounds if each >= limit.seconds), None)

    def _excess(self, limit: CertifiedLimit) -> Iterator[Recording]:
        if (bound := self.bound(limit)) is None:
            return
        for window in dict.fromkeys(w for _, short, long, _ in BURNS for w in (short, long)):
            # Clients of some versions write 1 as 1.0.
            forms = "|".join(dict.fromkeys((f"{bound:g}", str(bound))))
            le = f',le=~"{forms}"'.replace(".", r"\\.")
            within = self.rate(limit.measure, le, "_bucket", window)
            all_ = self.rate(limit.measure, suffix="_count", window=window)
            title = f"{limit.measure} above {bound:g} s, {window} ({limit.gate})"
            name = self._excess_name(limit, window)
            yield Recording(name, title, "percentunit", f"1 - {within} / {all_}")

    @staticmethod
    def _excess_name(limit: CertifiedLimit, window: str) -> str:
        gate = "".join(letter if letter.isalnum() else "_" for letter in limit.gate)
        return f"{limit.measure}_p{limit.percentile}_{gate}:excess_{window}"

    def _burns(self, limit: CertifiedLimit) -> Iterator[Alert]:
        if (bound := self.bound(limit)) is None:
            return
        metric, all_ = self._metrics[limit.measure], f'{{{self._job},prepare_version="1"'
        counts = f"{metric}_count{all_}}}"
        buckets = f'{metric}_bucket{all_},le="{bound}"}}'
        gate = limit.gate.replace(".", " ").title().replace(" ", "")
        for times, short, long, severity in BURNS:
            # A large budget, as of a P50, cannot be exceeded so many times.
            threshold = min(times * limit.budget, (1 + limit.budget) / 2)
            yield Alert(
                f"Prepare{gate}{limit.measure.title()}P{limit.percentile}{severity.title()}",
                tuple(
                    Condition(PREFIX + self._excess_name(limit, window), ">", threshold)
                    for window in (short, long)
                ),
                2,
                severity,
                f"{threshold:.1%} of the requests exceed {bound:g} s; the certified limit is "
                f"{limit.seconds:g} s for {limit.percentile} %",
                firing={counts: "0+100x60", buckets: "0+0x60"},
                quiet={counts: "0+100x60", buckets: "0+100x60"},
            )

    def _standard_alerts(self) -> Iterator[Alert]:
        up = f'up{{{self._job},prepare_version="1"}}'
        yield Alert(
            "PrepareServerDown",
            (Condition(f"up{{{self._job}}}", "<", 1),),
            5,
            "page",
            "a server does not answer Prometheus",
            firing={up: "0x60"},
            quiet={up: "1x60"},
        )
        tokens, running = self.series("generated_tokens"), self.series("running")
        yield Alert(
            "PrepareEngineStuck",
            (
                Condition(f"{PREFIX}requests_running", ">", 0),
                Condition(f"{PREFIX}tokens_per_second", "<=", 0),
            ),
            5,
            "page",
            "requests run and no token is generated",
            firing={running: "1x60", tokens: "7x60"},
            quiet={running: "1x60", tokens: "0+60x60"},
        )
        for name, value, metric, threshold, bad, good, summary in (
            ("KvCacheNearlyFull", "kv_cache_usage", "kv_cache_usage", 0.95, "0.99", "0.5",
             "more than 95 % of the KV cache is in use: preemptions follow"),
            ("QueueNeverEmpty", "requests_waiting", "waiting", 0, "3", "0",
             "requests have waited all the time"),
            ("Preemptions", "preemptions_per_second", "preemptions", 0.05, "0+60", "0+0",
             "requests lose their KV cache and are computed again"),
        ):  # fmt: skip
            yield Alert(
                f"Prepare{name}",
                (Condition(PREFIX + value, ">", threshold),),
                15,
                "ticket",
                summary,
                firing={self.series(metric): f"{bad}x60"},
                quiet={self.series(metric): f"{good}x60"},
            )

    def _certified_alerts(self) -> Iterator[Alert]:
        certified = self._version.certified
        if certified.rate is not None:
            finished, running = self.series("finished"), self.series("running")
            per_minute = certified.rate * 60
            yield Alert(
                "PrepareAboveCertifiedRate",
                (Condition(f"{PREFIX}requests_per_server", ">", certified.rate),),
                15,
                "ticket",
                f"a server gets more than the {certified.rate:g} requests/s that its limits were "
                "certified at",
                firing={finished: f"0+{2 * per_minute:.6f}x60", running: "1x60"},
                quiet={finished: f"0+{per_minute / 2:.6f}x60", running: "1x60"},
            )
        if certified.hit_rate:
            hits, queries = self.series("prefix_cache_hits"), self.series("prefix_cache_queries")
            yield Alert(
                "PreparePrefixCacheHitRate",
                (Condition(f"{PREFIX}prefix_cache_hit_ratio", "<", certified.hit_rate / 2),),
                30,
                "ticket",
                f"less than half of the certified traffic's hit rate of {certified.hit_rate:g}",
                firing={queries: "0+600x60", hits: "0x60"},
                quiet={queries: "0+600x60", hits: "0+600x60"},
            )
