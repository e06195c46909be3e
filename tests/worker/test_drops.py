"""What was left out is told at a bounded rate, however much it is."""

from __future__ import annotations

import pytest

from streamlog.processing.outbox import Drop, Reason
from streamlog.worker.drops import LOG_INTERVAL_MS, Drops


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


def dropped(node: str, reason: Reason, count: int = 1, told: str = "") -> Drop:
    return Drop(node, reason, count, late_by_ms_max=7, told=told)


def test_each_node_and_reason_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    drops = Drops()
    drops.count([dropped("a", "late", 2), dropped("b", "error", 1, "offset 3: ValueError")])
    drops.tell(0)
    assert lines(caplog) == [
        "a: 2 records left out: late (by up to 7 ms)",
        "b: 1 records left out: error; the last one: offset 3: ValueError",
    ]
    drops.count([dropped("a", "late"), dropped("b", "dead letter", 1, "offset 4: KeyError")])
    drops.tell(1)
    assert lines(caplog) == ["b: 1 records left out: dead letter; the last one: offset 4: KeyError"]
    drops.count([dropped("a", "late")])
    drops.tell(LOG_INTERVAL_MS)
    assert lines(caplog) == ["a: 2 records left out: late (by up to 7 ms)"]
    drops.tell(3 * LOG_INTERVAL_MS)
    assert lines(caplog) == []


def test_some_are_for_counters_only(caplog: pytest.LogCaptureFixture) -> None:
    drops = Drops()
    drops.count([dropped("a", "duplicate"), dropped("a", "error"), dropped("a", "out of order")])
    drops.tell(0)
    assert lines(caplog) == ["a: 1 records taken before their turn"]
