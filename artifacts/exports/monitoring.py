"""Export for Prometheus and Grafana: rules with their unit tests, a dashboard, a scrape job."""

from __future__ import annotations

import json
from typing import Any

from artifacts.exports.commented_yaml import Noted, to_yaml
from artifacts.exports.exported_version import PORT, ExportRequest
from artifacts.exports.signals import PREFIX, Alert, Recording, Signals

MINUTES = 50  # of a unit test: longer than any alert waits
COLUMNS, WIDTH, HEIGHT = 2, 12, 8  # of a dashboard, in Grafana's units


def export(request: ExportRequest) -> dict[str, str]:
    """Return the files by name."""
    version, signals = request.version, Signals(request.version)
    groups = [_group(version.app, signals)]
    rule_object = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": version.app, "labels": {"app.kubernetes.io/name": version.app}},
        "spec": {"groups": groups},
    }
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            _test(version.app, each, fires) for each in signals.alerts for fires in (True, False)
        ],
    }
    servers = {
        "targets": Noted("Every server of this version.", [f"{version.service}:{PORT}"]),
        "labels": {"prepare_version": version.version},
    }
    scrape = {"scrape_configs": [{"job_name": version.app, "static_configs": [servers]}]}
    return {
        "rules.yaml": to_yaml(
            {"groups": groups},
            header=request.header("Rules for Prometheus: `promtool check rules rules.yaml`")
            + "\nA latency limit is compared at the next bound of the engine's histogram."
            + "\nThe server measures without the network, the certified limits were measured at "
            "the client.",
        ),
        "rules-test.yaml": to_yaml(
            tests, header=request.header("Unit tests: `promtool test rules rules-test.yaml`")
        ),
        "prometheusrule.yaml": to_yaml(
            rule_object, header=request.header("The same rules for the Prometheus Operator")
        ),
        "scrape.yaml": to_yaml(
            scrape, header=request.header("A scrape job; rules select its name and labels")
        ),
        "dashboard.json": json.dumps(_dashboard(request, signals), indent=2) + "\n",
    }


def _group(name: str, signals: Signals) -> dict[str, Any]:
    recordings = [
        {"record": PREFIX + each.name, "expr": each.expression} for each in signals.recordings
    ]
    alerts = [
        {
            "alert": each.name,
            "expr": each.expression,
            "for": f"{each.minutes}m",
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary},
        }
        for each in signals.alerts
    ]
    return {"name": f"prepare-{name}", "rules": [*recordings, *alerts]}


def _test(app: str, alert: Alert, fires: bool) -> dict[str, Any]:
    labels = {"severity": alert.severity, "job": app, "prepare_version": "1"}
    expected = [{"exp_labels": labels, "exp_annotations": {"summary": alert.summary}}]
    samples = alert.firing if fires else alert.quiet
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in samples.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{MINUTES}m",
                "alertname": alert.name,
                "exp_alerts": expected if fires else [],
            }
        ],
    }


def _dashboard(request: ExportRequest, signals: Signals) -> dict[str, Any]:
    version = request.version
    return {
        "title": f"{version.name}, as `prepare` judged it",
        "uid": f"prepare-{version.app}"[:40],
        "description": request.header("Signals of the served model"),
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        # The expressions themselves, so that a dashboard without the rules is not empty.
        "panels": [_panel(number, each) for number, each in enumerate(signals.recordings)],
    }


def _panel(number: int, recording: Recording) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": recording.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": recording.unit}, "overrides": []},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "targets": [
            {
                "refId": "A",
                "expr": recording.expression,
                "legendFormat": "version {{prepare_version}}",
            }
        ],
    }
