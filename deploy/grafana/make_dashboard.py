"""Writes miglab.json, the Grafana dashboard: ``python deploy/grafana/make_dashboard.py``.

The JSON is what Grafana imports; what is drawn is said here.  A test holds the two together, and
the metrics that are asked for against those that exist.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"
LAB = 'instance=~"$instance"'


@dataclass(frozen=True)
class DashboardPanel:
    """One panel.

    Attributes:
        title: what it shows, as a statement.
        about: how to read it.
        queries: PromQL by legend; ``LAB`` is put in for ``$LAB``.
        unit: Grafana's name of the unit.
        kind: ``timeseries`` or ``stat``.
        stack: whether the lines are parts of a whole.
        width: of 24.
    """

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    stack: bool = False
    width: int = 12


def quantile(share: float, metric: str, *labels: str) -> str:
    """A percentile of a histogram."""
    by = ", ".join((*labels, "le"))
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{{$LAB}}[{RATE}])))"


def now(title: str, about: str, query: str, unit: str = "short") -> DashboardPanel:
    """A single figure, as it is now."""
    return DashboardPanel(title, about, {"": query}, unit, kind="stat", width=4)


ROWS: dict[str, tuple[DashboardPanel, ...]] = {
    "Now": (
        now("Memory slices free", "On GPUs that answer.", "sum(miglab_memory_slices_free{$LAB})"),
        now("Live leases", "Granted and not yet over.", "sum(miglab_leases{$LAB}) or vector(0)"),
        now("Waiting", "Tickets in the queue.", "sum(miglab_tickets_waiting{$LAB})"),
        now(
            "GPUs in trouble",
            "GPUs that are lost or do not answer; they get no new leases.",
            'sum(miglab_gpus{$LAB, state!="ok"})',
        ),
        now(
            "Open findings",
            "Problems that need attention; the Health page lists them.",
            "sum(miglab_reconcile_open{$LAB}) or vector(0)",
        ),
        now(
            "Oldest driver call",
            "0 if there is none; minutes mean that it hangs.",
            "max(miglab_gpu_call_seconds{$LAB})",
            "s",
        ),
    ),
    "Leases and queue": (
        DashboardPanel(
            "Leases by shape",
            "Live leases; `other` stands for shapes that no course offers by name.",
            {"{{shape}}": "sum by (shape) (miglab_leases{$LAB})"},
            stack=True,
        ),
        DashboardPanel(
            "Leases by state",
            "Warned leases are reclaimed soon unless somebody works.",
            {"{{state}}": "sum by (state) (miglab_leases{$LAB})"},
            stack=True,
        ),
        DashboardPanel(
            "Waits that ended with a lease",
            "Time from the request to the grant.",
            {
                "median, {{shape}}": quantile(0.5, "miglab_wait_seconds", "shape"),
                "p95, {{shape}}": quantile(0.95, "miglab_wait_seconds", "shape"),
            },
            unit="s",
        ),
        DashboardPanel(
            "Queue and free memory slices",
            "Both at once for long mean a reservation, a large shape, a drain, or a fault.",
            {
                "waiting": "sum(miglab_tickets_waiting{$LAB})",
                "memory slices free": "sum(miglab_memory_slices_free{$LAB})",
                "paused": "max(miglab_paused{$LAB})",
            },
        ),
        DashboardPanel(
            "Refusals by reason",
            "In the last hour.",
            {"{{reason}}": "sum by (reason) (increase(miglab_refusals_total{$LAB}[1h]))"},
            stack=True,
            width=8,
        ),
        DashboardPanel(
            "Tickets that ended without a lease",
            "In the last hour, by reason: given up, or waited too long.",
            {"{{reason}}": "sum by (reason) (increase(miglab_tickets_unserved_total{$LAB}[1h]))"},
            stack=True,
            width=8,
        ),
        DashboardPanel(
            "Leases reclaimed by reason",
            "In the last hour.",
            {"{{reason}}": "sum by (reason) (increase(miglab_reclaims_total{$LAB}[1h]))"},
            stack=True,
            width=8,
        ),
    ),
    "Slices": (
        DashboardPanel(
            "Slices by state",
            "Quarantined slices are out of service; foreign ones were not created by the lab.",
            {"{{state}}": "sum by (state) (miglab_slices{$LAB})"},
            stack=True,
        ),
        DashboardPanel(
            "Memory in use",
            "Memory in use on each slice; a slice that cannot be read has no line.",
            {
                "GPU {{gpu}} at {{start}}, {{profile}}": "miglab_slice_memory_used_bytes{$LAB}"
                " / miglab_slice_memory_bytes{$LAB}"
            },
            unit="percentunit",
        ),
        DashboardPanel(
            "Activity of slices",
            "Where the hardware reports it: from Hopper on, and whole GPUs.",
            {"GPU {{gpu}} at {{start}}, {{profile}}": "miglab_slice_activity_ratio{$LAB}"},
            unit="percentunit",
            width=24,
        ),
        DashboardPanel(
            "Time to create a slice",
            "The driver's own time, by profile.",
            {
                "median, {{profile}}": quantile(0.5, "miglab_slice_create_seconds", "profile"),
                "p95, {{profile}}": quantile(0.95, "miglab_slice_create_seconds", "profile"),
            },
            unit="s",
        ),
        DashboardPanel(
            "Time to destroy a slice",
            "The driver's own time, by profile.",
            {
                "median, {{profile}}": quantile(0.5, "miglab_slice_destroy_seconds", "profile"),
                "p95, {{profile}}": quantile(0.95, "miglab_slice_destroy_seconds", "profile"),
            },
            unit="s",
        ),
    ),
    "GPUs": (
        DashboardPanel(
            "Temperature",
            "Above 85 °C for ten minutes, an alert is raised.",
            {"GPU {{gpu}}": "miglab_gpu_temperature_celsius{$LAB}"},
            unit="celsius",
            width=8,
        ),
        DashboardPanel(
            "Power",
            "Power that each GPU draws.",
            {"GPU {{gpu}}": "miglab_gpu_power_watts{$LAB}"},
            "watt",
            width=8,
        ),
        DashboardPanel(
            "Faults",
            "Xid faults since the service began, and uncorrected memory errors since the last "
            "reset.  Faults of the kind `application` come from a student's program.",
            {
                "GPU {{gpu}}: Xids, {{kind}}": "miglab_gpu_xids{$LAB}",
                "GPU {{gpu}}: memory errors": "miglab_gpu_ecc_errors{$LAB}",
            },
            width=8,
        ),
    ),
    "The service": (
        DashboardPanel(
            "Duration of GPU jobs, p95",
            "From the decision to the ledger, by kind of job.",
            {"{{kind}}": quantile(0.95, "miglab_job_seconds", "kind")},
            unit="s",
            width=8,
        ),
        DashboardPanel(
            "Rounds that failed",
            "In the last hour; each is tried again.",
            {"{{loop}}": "sum by (loop) (increase(miglab_failed_rounds_total{$LAB}[1h]))"},
            width=8,
        ),
        DashboardPanel(
            "Repaired by reconcile",
            "In the last hour: differences between ledger, GPUs and servers.",
            {"{{about}}": "sum by (about) (increase(miglab_reconcile_repaired_total{$LAB}[1h]))"},
            width=8,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "miglab",
        "title": "miglab: the GPU pool",
        "description": "Who holds which slices, who waits, and the health of the GPUs.",
        "tags": ["miglab"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _instance()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Lab",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(miglab_tickets_waiting, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in panels:
            number += 1
            height = 4 if panel.kind == "stat" else 8
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
            x += panel.width
        y += height


def _panel(panel: DashboardPanel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 25 if panel.stack else 5, "lineWidth": 2, "showPoints": "never"}
    if panel.stack:
        custom["stacking"] = {"mode": "normal"}
    drawn = panel.kind == "timeseries"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, **({"custom": custom} if drawn else {})},
            "overrides": [],
        },
        "options": {"legend": {"placement": "bottom"}, "tooltip": {"mode": "multi"}}
        if drawn
        else {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.replace("$LAB", LAB),
                "legendFormat": legend,
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (HERE / "miglab.json").write_text(text(), encoding="utf-8")
