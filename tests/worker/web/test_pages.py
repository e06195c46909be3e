"""The answers of each path, and the metrics in Prometheus' format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from streamlog.metrics.prometheus import exposition
from streamlog.metrics.registry import Registry
from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.worker.health.worker_health import TaskFigures, TaskHealth, WorkerState
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.web.web_server import make_site
from tests.worker.web.requests import Answer, request_from

Sample = tuple[str, tuple[tuple[str, str], ...]]


def answered(state: Callable[[], WorkerState], *paths: str) -> list[Answer]:
    site = make_site(TaskHealth(state), Registry())

    async def main() -> list[Answer]:
        return [await request_from(site, path) for path in paths]

    return asyncio.run(main())


def test_a_restoring_worker_is_not_ready_and_reports_its_progress() -> None:
    def state() -> WorkerState:
        return WorkerState(
            is_assigned=True,
            tasks=(
                TaskFigures(task="0_0"),
                TaskFigures(task="0_1", is_open=False, restore_left_records=7),
            ),
        )

    live, ready = answered(state, "/live", "/ready")
    assert live.status == 200
    assert ready.status == 503
    assert msgspec.json.decode(ready.body) == {
        "ready": False,
        "state": "restoring",
        "assigned": True,
        "tasks": {"running": 1, "of": 2},
        "restoring": {"0_1": {"records_left": 7}},
    }


def test_a_stall_is_reported_and_keeps_the_worker_live() -> None:
    hanging, well = WorkerState(stalled_ms={"task 0_1": 42_000}), WorkerState()
    (live,) = answered(lambda: hanging, "/live")
    assert live.status == 200
    told = {"live": True, "stalled": {"task 0_1": {"for_ms": 42_000}}}
    assert msgspec.json.decode(live.body) == told
    (live,) = answered(lambda: well, "/live")
    assert msgspec.json.decode(live.body) == {"live": True}


def test_a_worker_is_ready_when_all_its_tasks_run() -> None:
    for assigned in (False, True):
        state = WorkerState(is_assigned=assigned, tasks=(TaskFigures(task="0_0"),))
        (ready,) = answered(lambda state=state: state, "/ready")  # type: ignore[misc]
        assert ready.status == (200 if assigned else 503)
        assert msgspec.json.decode(ready.body)["ready"] is assigned


def test_an_unknown_path_is_answered_with_a_json_error() -> None:
    (lost,) = answered(WorkerState, "/lost")
    assert lost.status == 404
    assert msgspec.json.decode(lost.body)["error"] == "GET /lost: Not Found"


def test_an_answer_to_another_method_names_those_that_the_path_takes() -> None:
    site = make_site(TaskHealth(WorkerState), Registry())
    refused = asyncio.run(request_from(site, "/ready", method="DELETE"))
    assert refused.status == 405
    error = msgspec.json.decode(refused.body)["error"]
    assert error == "DELETE /ready: Method Not Allowed; /ready takes GET, HEAD"


def test_a_failing_page_is_answered_with_a_json_error() -> None:
    def state() -> WorkerState:
        raise ValueError("broken")

    (ready,) = answered(state, "/ready")
    assert ready.status == 500
    assert "ValueError: broken" in msgspec.json.decode(ready.body)["error"]


WAIT = MergeWait(
    topic="by-repartition",
    partition=0,
    size_bytes=10,
    bound_bytes=100,
    behind=("orders", 2),
    behind_ms=1_000,
    ahead=("orders", 0),
    ahead_ms=61_000,
)
APART = (
    ("ahead", "orders-0"),
    ("behind", "orders-2"),
    ("task", "0_1"),
    ("topic", "by-repartition"),
)


def samples(metrics: WorkerMetrics, state: WorkerState) -> dict[Sample, float]:
    metrics.describe(lambda: state)
    text = asyncio.run(exposition(metrics.registry)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_skipped_batches_are_counted_by_partition() -> None:
    metrics = WorkerMetrics()
    metrics.passed_batches.series("events", "1").add(2)
    labels = (("partition", "1"), ("topic", "events"))
    found = samples(metrics, WorkerState())
    assert found["streamlog_unreadable_batches_passed_total", labels] == 2


def test_the_figures_are_exposed_as_metrics() -> None:
    metrics = WorkerMetrics()
    metrics.records_in.series("0_1").add(12)
    metrics.count_writes([SinkBatch("out", None, [1, 2], [b"a", b"b"], [b"x", b"y"])])
    metrics.count_drops([Drop("per-hour", "late", 3), Drop("per-hour", "late", 1)])
    for took_ms in (1, 3, 3, 20_000):
        metrics.commits.record(took_ms / 1000)
    state = WorkerState(
        is_assigned=True,
        tasks=(
            TaskFigures(
                task="0_1",
                lag_records=4,
                uncommitted_bytes=50,
                state_bytes=900,
                merge_waits=(WAIT,),
            ),
            TaskFigures(task="1_1", is_open=False, restore_left_records=7),
        ),
        lag_records={("events", 1): 4},
        stalled_ms={"task 0_1": 42_000},
    )
    found = samples(metrics, state)
    expected: dict[Sample, float] = {
        ("streamlog_task_records_in_total", (("task", "0_1"),)): 12,
        ("streamlog_records_out_total", (("topic", "out"),)): 2,
        ("streamlog_records_dropped_total", (("node", "per-hour"), ("reason", "late"))): 4,
        ("streamlog_commit_duration_seconds_bucket", (("le", "0.001"),)): 1,
        ("streamlog_commit_duration_seconds_bucket", (("le", "0.005"),)): 3,
        ("streamlog_commit_duration_seconds_bucket", (("le", "10.0"),)): 3,
        ("streamlog_commit_duration_seconds_bucket", (("le", "+Inf"),)): 4,
        ("streamlog_commit_duration_seconds_count", ()): 4,
        ("streamlog_commit_duration_seconds_sum", ()): 20.007,
        ("streamlog_tasks", (("state", "running"),)): 1,
        ("streamlog_tasks", (("state", "restoring"),)): 1,
        ("streamlog_task_lag_records", (("task", "0_1"),)): 4,
        ("streamlog_task_uncommitted_bytes", (("task", "0_1"),)): 50,
        ("streamlog_task_state_bytes", (("task", "0_1"),)): 900,
        ("streamlog_task_restore_left_records", (("task", "1_1"),)): 7,
        ("streamlog_lag_records", (("partition", "1"), ("topic", "events"))): 4,
        ("streamlog_merge_buffer_bytes", (("task", "0_1"), ("topic", "by-repartition"))): 10,
        ("streamlog_merge_behind_seconds", APART): 60,
        ("streamlog_assigned", ()): 1,
        ("streamlog_stalled_seconds", (("who", "task 0_1"),)): 42,
        ("streamlog_restored_records_total", ()): 0,
    }
    assert {sample: found.get(sample) for sample in expected} == expected
    assert found["process_resident_memory_bytes", ()] > 0
    mine = [name for name, _ in found if not name.startswith(("streamlog_", "process_"))]
    assert mine == []
