"""The page about watching an app names exactly the metrics that a worker has."""

from __future__ import annotations

import re
from pathlib import Path

from streamlog.worker.health.worker_health import WorkerState
from streamlog.worker.health.worker_metrics import WorkerMetrics

PAGE = (Path(__file__).parents[2] / "docs" / "watching.md").read_text()
NAMED = re.compile(r"^\| `(streamlog_\w+)(?:\{([\w,]+)\})?` \|", re.MULTILINE)


def test_the_page_names_the_metrics_of_a_worker_with_their_labels() -> None:
    metrics = WorkerMetrics()
    metrics.describe(WorkerState)
    shown = {m.name: m.labels for m in metrics.registry.metrics() if m.name[:8] != "process_"}
    named = {
        name: tuple(labels.split(",")) if labels else () for name, labels in NAMED.findall(PAGE)
    }
    workers = {name: labels for name, labels in named.items() if "_connector_" not in name}
    assert workers == shown
