"""Scrape configuration: the part of a prometheus.yml that names brokers and workers."""

from __future__ import annotations

import json
from collections.abc import Sequence


def scrape_config(
    brokers: Sequence[str],
    workers: Sequence[str],
    *,
    cluster: str | None = None,
    interval: str = "15s",
) -> str:
    """Return a whole prometheus.yml, with the alerts in `streamlog-alerts.yml` beside it.

    Args:
        brokers: HOST:PORT of the brokers' `web.listener`.
        workers: HOST:PORT of the workers' `--web`.
        cluster: the label of the same name, which tells clusters apart in one Prometheus.
        interval: between two scrapes, as a duration of Prometheus.
    """
    jobs = {"streamlog-brokers": brokers, "streamlog-apps": workers}
    lines = [
        f"global:\n  scrape_interval: {interval}\n  evaluation_interval: {interval}\n",
        # Prometheus takes a relative path from the folder of this file.
        "rule_files:\n  - streamlog-alerts.yml\n",
        "scrape_configs:\n",
    ]
    for job, targets in jobs.items():
        if targets:
            shown = ", ".join(json.dumps(target) for target in targets)
            lines.append(f"  - job_name: {job}\n    static_configs:\n      - targets: [{shown}]\n")
            if cluster is not None:
                # A string of JSON is a string of YAML, whatever it holds.
                lines.append(f"        labels: {{cluster: {json.dumps(cluster)}}}\n")
    return "".join(lines)
