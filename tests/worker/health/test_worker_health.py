"""Dropped records are logged at a bounded rate, however many they are."""

from __future__ import annotations

import pytest

from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.outbox import Drop, Reason
from streamlog.replace import replace
from streamlog.worker.health.worker_health import LOG_INTERVAL_MS, DropLog


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


def dropped(node: str, reason: Reason, count: int = 1, text: str = "") -> Drop:
    return Drop(node, reason, count, late_by_ms_max=7, message=text)


def test_each_node_and_reason_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    drops = DropLog()
    drops.count([dropped("a", "late", 2), dropped("b", "error", 1, "offset 3: ValueError")])
    drops.log(0)
    assert lines(caplog) == [
        "a: 2 records dropped: late (by up to 7ms)",
        "b: 1 record dropped: error; the last one: offset 3: ValueError",
    ]
    drops.count([dropped("a", "late"), dropped("b", "dead letter", 1, "offset 4: KeyError")])
    drops.log(1)
    assert lines(caplog) == ["b: 1 record dropped: dead letter; the last one: offset 4: KeyError"]
    drops.count([dropped("a", "late")])
    drops.log(LOG_INTERVAL_MS)
    assert lines(caplog) == ["a: 2 records dropped: late (by up to 7ms)"]
    drops.log(3 * LOG_INTERVAL_MS)
    assert lines(caplog) == []


def test_some_drop_reasons_are_counted_but_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    drops = DropLog()
    drops.count([dropped("a", "duplicate"), dropped("a", "error"), dropped("a", "out of order")])
    drops.log(0)
    assert lines(caplog) == ["a: 1 record processed out of order"]


def test_a_filling_merge_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    drops = DropLog()
    wait = MergeWait(
        topic="by-repartition",
        partition=0,
        size_bytes=48 * 1024 * 1024,
        bound_bytes=64 * 1024 * 1024,
        behind=("orders", 2),
        behind_ms=-1,
        ahead=("orders", 0),
        ahead_ms=61_000,
    )
    for now_ms in (0, 1, LOG_INTERVAL_MS):
        drops.warn("1_0", [wait, replace(wait, topic="other", size_bytes=9)], now_ms)
    first, second = lines(caplog)
    assert first == second
    assert first.startswith(
        "task 1_0: 48.0 of 64.0 MiB wait in by-repartition-0 for orders-2 (no record yet), "
        "most of it from orders-0 (at 1970-01-01T00:01:01+00:00)"
    )
