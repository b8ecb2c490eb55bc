"""Dashboard and alerts: they ask for metrics that exist, and promtool finds nothing wrong."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram

from miglab_api.gpus import PoolSnapshot
from miglab_pool.applications.metrics import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "miglab.json"
PROMTOOL = shutil.which("promtool")
OF_PROMETHEUS = {"instance", "job", "le"}


def series() -> dict[str, set[str]]:
    """Every series that Prometheus reads of the pool, with its labels."""
    labels_by_series = {}
    for collector in set(Metrics().registry._collector_to_names):
        name, labels = collector._name, set(collector._labelnames)  # type: ignore[attr-defined]
        if isinstance(collector, Histogram):
            labels_by_series |= {f"{name}_{part}": labels for part in ("bucket", "sum", "count")}
        else:
            labels_by_series[f"{name}_total" if isinstance(collector, Counter) else name] = labels
    return labels_by_series


def panels() -> list[dict[str, Any]]:
    panels_and_rows = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in panels_and_rows if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    alert_rules: list[dict[str, Any]] = group["rules"]
    return alert_rules


def queries() -> Iterator[tuple[str, str]]:
    """What is asked for, by whom."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def labels_of(query: str) -> set[str]:
    """The labels that a query selects or groups by."""
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    grouped = re.findall(r"by\s*\(([^)]*)\)", query)
    return {*selected, *(name.strip() for names in grouped for name in names.split(","))}


@pytest.mark.parametrize(("place", "query"), list(queries()))
def test_what_is_asked_for_exists(place: str, query: str) -> None:
    """Each metric is one that the pool has, and so is each label that is used of it."""
    pool_series = series()
    metrics = set(re.findall(r"\bmiglab_\w+", query))
    assert metrics <= pool_series.keys(), place
    known_labels = OF_PROMETHEUS.union(*(pool_series[name] for name in metrics))
    assert labels_of(query) <= known_labels, place
    assert metrics or query.startswith("up{"), place


def test_legends_name_labels_that_are_there() -> None:
    """What a legend says of a line is a label that its query keeps."""
    for panel in panels():
        for target in panel["targets"]:
            legend_labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            metric = series()[re.findall(r"miglab_\w+", target["expr"])[0]]
            assert legend_labels <= metric, panel["title"]


def test_all_that_matters_is_drawn() -> None:
    """Every metric of the pool is on the dashboard, so that none is measured for nobody."""
    queried = {name for _, query in queries() for name in re.findall(r"miglab_\w+", query)}
    queried_metrics = {re.sub("_(bucket|sum|count)$", "", name) for name in queried}
    pool_metrics = {re.sub("_(bucket|sum|count)$", "", name) for name in series()}
    assert pool_metrics - queried_metrics == {"miglab_memory_slices"}


def test_every_alert_says_what_to_do() -> None:
    """A summary with the lab's name, what to do, and how urgent it is."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "warning"), rule["alert"]
        assert "$labels.instance" in rule["annotations"]["summary"], rule["alert"]
        assert len(rule["annotations"]["description"]) > 20, rule["alert"]


def test_panels_lie_beside_each_other() -> None:
    """Each has a number of its own, and none lies on another."""
    all_panels = panels()
    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    cells = [
        (x, y)
        for panel in all_panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


def promtool(*arguments: str, reads: bytes = b"") -> None:
    """Debian's own tool finds nothing wrong."""
    process = subprocess.run([str(PROMTOOL), *arguments], input=reads, capture_output=True)
    assert process.returncode == 0, (process.stdout + process.stderr).decode()


@pytest.mark.promtool
@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
class TestPromtool:
    """Debian's own tool reads all of it."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ("check", "rules", str(ALERTS)),
            ("check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml")),
            ("test", "rules", str(DEPLOY / "prometheus" / "alerts_test.yaml")),
        ],
    )
    def test_alerts(self, arguments: tuple[str, ...]) -> None:
        """The rules can be read, the example finds them, and they call when they should."""
        promtool(*arguments)

    def test_the_dashboards_queries(self, tmp_path: Path) -> None:
        """Every query of the dashboard is PromQL once Grafana has put its variables in."""
        recording_rules = [
            {"record": f"panel:{panel['id']}:{target['refId'].lower()}", "expr": target["expr"]}
            for panel in panels()
            for target in panel["targets"]
        ]
        text = json.dumps({"groups": [{"name": "dashboard", "rules": recording_rules}]})
        file = tmp_path / "rules.yaml"
        file.write_text(text.replace("$__rate_interval", "5m").replace("$instance", ".*"))
        promtool("check", "rules", str(file))

    def test_the_metrics(self) -> None:
        """What the pool tells is in the format, and named as Prometheus wants it."""
        metrics = Metrics({"1g.5gb"})
        metrics.count_wait("1g.5gb", 3.0)
        metrics.driver_call("create", "1g.5gb", 0.4)
        text = metrics.render(PoolSnapshot(at=0.0, simulated=True, gpus=(), waiting=()), ())
        promtool("check", "metrics", reads=text)
