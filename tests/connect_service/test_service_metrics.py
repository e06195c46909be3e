"""The metrics of a service's worker, read as Prometheus reads them, beside what REST says."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamlog.connect import names
from streamlog.log import Log
from streamlog.metrics.prometheus import exposition
from tests.connect_service.outside import BROKEN, WRITTEN
from tests.connect_service.running import WAIT_S, Client, running, worker_with_http

APACHE: dict[str, str] = {
    "connector-metrics": "status connector-type connector-class connector-version",
    "connector-task-metrics": "status running-ratio pause-ratio offset-commit-max-time-ms "
    "offset-commit-avg-time-ms batch-size-max batch-size-avg offset-commit-failure-percentage "
    "offset-commit-success-percentage",
    "source-task-metrics": "source-record-poll-rate source-record-poll-total "
    "source-record-write-rate source-record-write-total poll-batch-max-time-ms "
    "poll-batch-avg-time-ms source-record-active-count source-record-active-count-max "
    "source-record-active-count-avg",
    "sink-task-metrics": "sink-record-read-rate sink-record-read-total sink-record-send-rate "
    "sink-record-send-total sink-record-lag-max partition-count offset-commit-seq-no "
    "offset-commit-completion-rate offset-commit-completion-total offset-commit-skip-rate "
    "offset-commit-skip-total put-batch-max-time-ms put-batch-avg-time-ms "
    "sink-record-active-count sink-record-active-count-max sink-record-active-count-avg",
    "connect-worker-metrics": "connector-count task-count connector-startup-attempts-total "
    "connector-startup-success-total connector-startup-success-percentage "
    "connector-startup-failure-total connector-startup-failure-percentage "
    "task-startup-attempts-total task-startup-success-total task-startup-success-percentage "
    "task-startup-failure-total task-startup-failure-percentage connector-total-task-count "
    "connector-running-task-count connector-paused-task-count connector-failed-task-count "
    "connector-unassigned-task-count connector-destroyed-task-count "
    "connector-restarting-task-count",
    "connect-worker-rebalance-metrics": "connect-protocol leader-name epoch "
    "completed-rebalances-total rebalancing rebalance-max-time-ms rebalance-avg-time-ms "
    "time-since-last-rebalance-ms",
    "task-error-metrics": "total-record-failures total-record-errors total-records-skipped "
    "total-retries total-errors-logged deadletterqueue-produce-requests "
    "deadletterqueue-produce-failures last-error-timestamp",
}
"""The attributes in Kafka 4.4's ConnectMetricsRegistry, by their MBean's type."""
CONNECT = "kafka_connect"
WORKER = "kafka_connect_connect_worker_metrics"
ERRORS = "kafka_connect_task_error_metrics"
REBALANCES = "kafka_connect_connect_worker_rebalance_metrics"
SOURCE = {"connector.class": "Numbers", "topic": "numbers", "tasks.max": "2", "count": "10"}
SINK = {"connector.class": "Listed", "topics": "numbers", "into": "a"}
BAD = {
    **SOURCE,
    "label": "x",
    "tasks.max": "1",
    "parts": "1",
    "topic": "bad",
    "errors.auto.restart": "false",
}
PAGES = [Path("docs", name).read_text() for name in ("watching.md", "connect-service.md")]

Series = dict[tuple[str, ...], float]
"""Name and values of the labels of each series, with its value."""


@pytest.fixture(autouse=True)
def _connectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = "tests.connect_service.outside"
    monkeypatch.setattr(names, "BUILT_IN", {"Numbers": here, "Listed": here})
    WRITTEN.clear()
    BROKEN.add("x")
    yield
    BROKEN.clear()


def parsed(text: str) -> Series:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(client: Client) -> Series:
    return parsed((await exposition(client.service.registry)).decode())


async def same_as_rest(client: Client) -> None:
    """Wait until the states are those that the REST API shows: both may be in motion."""
    async with asyncio.timeout(WAIT_S):
        while True:
            body = await client.get("/connectors?expand=status&expand=info")
            expected = expected_states(body)
            found = await scraped(client)
            shown = {key: value for key, value in found.items() if key[0] in STATES and value}
            if shown == expected:
                return
            await asyncio.sleep(0.02)


STATES = {
    "kafka_connect_connector_metrics",
    "kafka_connect_connector_task_metrics",
    *(f"{WORKER}_{each}_count" for each in ("connector", "task")),
    *(
        f"{WORKER}_connector_{state}_task_count"
        for state in ("total", "running", "paused", "failed", "unassigned", "restarting")
    ),
}


def expected_states(body: dict[str, Any]) -> Series:
    """Return the series of states but for zeros, by an answer of the REST API."""
    counts: Counter[tuple[str, ...]] = Counter()
    for name, shown in body.items():
        state = shown["status"]["connector"]["state"].lower()
        kind, settings = shown["info"]["type"], shown["info"]["config"]
        labels = name, settings["connector.class"], kind, "4.4.0", state
        counts["kafka_connect_connector_metrics", *labels] += 1
        counts[f"{WORKER}_connector_count",] += 1
        for each in shown["status"]["tasks"]:
            state = each["state"].lower()
            counts["kafka_connect_connector_task_metrics", name, str(each["id"]), state] += 1
            counts[f"{WORKER}_connector_total_task_count", name] += 1
            counts[f"{WORKER}_connector_{state}_task_count", name] += 1
            counts[f"{WORKER}_task_count",] += 1
    return dict(counts)


async def until_counted(client: Client, name: str, total: float) -> None:
    """Wait until the series of a metric have a sum."""

    async def counted() -> float:
        return sum(value for key, value in (await scraped(client)).items() if key[0] == name)

    async with asyncio.timeout(WAIT_S):
        while await counted() != total:  # noqa: ASYNC110 - what it waits for is elsewhere
            await asyncio.sleep(0.02)


def counters(found: Series) -> set[tuple[str, ...]]:
    ends = ("_total", "_seconds_bucket", "_seconds_count", "_seconds_sum")
    return {key for key in found if key[0].endswith(ends)}


def test_states_and_counts_are_those_of_the_rest_api_and_never_go_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as client:
            await same_as_rest(client)
            for name, settings in (("in", SOURCE), ("out", SINK), ("bad", BAD)):
                await client.ask("PUT", f"/connectors/{name}/config", settings)
            for what in ("poll", "write"):
                await until_counted(
                    client, f"{CONNECT}_source_task_metrics_source_record_{what}_total", 30
                )
            for what in ("read", "send"):
                await until_counted(
                    client, f"{CONNECT}_sink_task_metrics_sink_record_{what}_total", 30
                )
            assert len(WRITTEN["a"]) == 30
            # All of them at rest: the third has failed for good.
            await client.until_state("in", "RUNNING", 2)
            status = client.service.herder.statuses.statuses
            await client.until(lambda: ("bad", 0) in status and status["bad", 0].state == "FAILED")
            await same_as_rest(client)
            found = await scraped(client)
            assert found[f"{ERRORS}_total_record_failures", "bad", "0"] == 1
            assert found[f"{ERRORS}_last_error_timestamp", "bad", "0"] > 1.7e12
            assert found[f"{ERRORS}_last_error_timestamp", "in", "0"] == 0
            commits = found[
                f"{CONNECT}_sink_task_metrics_offset_commit_completion_total", "out", "0"
            ]
            assert found["streamlog_connector_commit_seconds_count", "out"] == commits > 0
            assert found["streamlog_connector_commit_seconds_count", "in"] > 0
            started = [found[f"{WORKER}_{what}_startup_{end}_total",] for what, end in STARTS]
            # Three connectors, and four tasks: the one that fails has begun before.
            assert started == [3, 3, 0, 4, 4, 0]
            assert found[REBALANCES, "127.0.0.1:8083"] == 1
            assert found[f"{REBALANCES}_epoch",] == client.service.herder.generation > 0
            assert found[f"{REBALANCES}_completed_rebalances_total",] >= 1
            await until_counted(client, f"{REBALANCES}_rebalancing", 0)
            # Tasks end, rest and begin again here: nothing that they have counted is lost.
            for act in ACTS:
                method, target = act.split()
                assert (await client.ask(method, f"/connectors/{target}"))[0] in (202, 204)
                before, found = found, await scraped(client)
                assert all(found[key] >= before[key] for key in counters(before)), act
            await client.until(lambda: status["in", None].state == "STOPPED")
            await client.until(lambda: ("in", 0) not in status and ("in", 1) not in status)
            found = await scraped(client)
            assert all(found[key] >= before[key] for key in counters(before))
            await same_as_rest(client)
            # What is deleted is shown no more.
            assert (await client.ask("DELETE", "/connectors/in"))[0] == 204
            await client.until(lambda: ("in", None) not in status)
            await same_as_rest(client)
            assert not [key for key in await scraped(client) if "in" in key[1:]]

    asyncio.run(main())


ACTS = (
    "PUT in/pause", "PUT out/pause", "PUT in/resume", "PUT out/resume", "POST in/tasks/0/restart",
    "POST bad/restart?includeTasks=true", "PUT in/stop",
)  # fmt: skip
STARTS = [
    (what, end) for what in ("connector", "task") for end in ("attempts", "success", "failure")
]


def test_metrics_are_served_over_http_and_each_is_documented_and_one_of_connects(
    tmp_path: Path,
) -> None:
    async def main() -> str:
        async with Log.open(f"embedded:{tmp_path}") as log, worker_with_http(log) as client:
            for name, settings in (("in", SOURCE), ("out", SINK)):
                await client.ask("PUT", f"/connectors/{name}/config", settings)
            await client.until(lambda: len(WRITTEN["a"]) == 30)
            url = f"http://{client.service.worker_id}/metrics"

            def asked(method: str) -> tuple[int, str, str]:
                request = urllib.request.Request(url, method=method)
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - of this test
                        return answer.status, answer.headers["content-type"], answer.read().decode()
                except urllib.error.HTTPError as error:
                    return error.code, error.headers["content-type"], error.read().decode()

            status, kind, text = await asyncio.to_thread(asked, "GET")
            assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
            status, _, body = await asyncio.to_thread(asked, "HEAD")
            assert (status, body) == (200, "")
            status, kind, body = await asyncio.to_thread(asked, "POST")
            assert (status, kind) == (405, "application/json")
            assert "GET" in body
            return text

    text = asyncio.run(main())
    assert parsed(text)["process_resident_memory_bytes",] > 0
    shown = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    connects = {name for name in shown if name.startswith("kafka_connect_")}
    apache = {
        f"kafka_connect_{kind}_{attribute}".replace("-", "_")
        for kind, attributes in APACHE.items()
        for attribute in attributes.split()
    }
    # Text in JMX is labels here.
    infos = {f"kafka_connect_{kind}".replace("-", "_") for kind in APACHE}
    assert connects - apache - infos == set()
    named = {
        name
        for page in PAGES
        for name in re.findall(r"^\| `(kafka_connect_\w+)", page, re.MULTILINE)
    }
    assert named == connects
