"""Stored stream times: a far-future record poisons every operator's time, and a reset repairs it.

The tests know no field names. A record of the year 2099 comes in the middle of a history; after the
reset, no number of that size may be left in the progress, except those that identify rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from streamlog.processing.task_progress import (
    is_mark,
    latest_header_ms,
    latest_times,
    lower_stream_times,
    skip_time_marks,
)
from streamlog.tables.state.changelog import PROGRESS_KEY, SourceLog, TaskProgress
from tests.oracle.test_left_out import (
    ALONE,
    FAR_MS,
    TWO,
    WITHOUT_KEYS,
    Operator,
    app_of,
    behind_repartition,
)
from tests.oracle.test_left_out import dumped as value_of

OPERATORS = {**ALONE, **WITHOUT_KEYS, **TWO}
NOW_MS = 100
NUMBERS = {"last", "sequence", "position", "number", "next"}
"""Fields that identify rows. They may start at a time, and never decrease."""


def numbers(data: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield all numbers of a progress with their field names."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, key)
    elif isinstance(data, list):
        for value in data:
            yield from numbers(value, name)
    elif isinstance(data, int):
        yield name, data


def feed(t: Any, timestamp_ms: int) -> None:
    for topic in ("first", "second"):
        t.topic(topic).append(value_of(1), key=b"a", timestamp_ms=timestamp_ms, partition=0)
        t.settle()


def late_records(t: Any) -> int:
    return sum(count for (_, why), count in t.drops.items() if why == "late")


def restart_from_changelogs(t: Any) -> None:
    """Restart from the changelogs; tasks without state restart from lowered times."""
    t._commit = lambda _task: None
    for task, times in t._times.items():
        t._times[task] = {tp: min(time_ms, NOW_MS) for tp, time_ms in times.items()}
    t.restart()
    del t._commit


def changelogs(t: Any) -> list[str]:
    subs = t._topology.subtopologies
    return [sub.changelog_topic for sub in subs if sub.changelog_topic is not None]


def without_unread_marks(t: Any, progress: TaskProgress) -> TaskProgress:
    """Skip the unread upstream marks at the end of repartition topics."""
    for (topic, partition), position in dict(progress.offsets).items():
        tail = t.topic(topic).partitions[partition][position:]
        if topic.endswith("-repartition") and tail:
            assert all(is_mark(record.headers) for record in tail)
            assert max(latest_header_ms(record.headers) for record in tail) == FAR_MS
            end = position + len(tail)
            progress = skip_time_marks(progress, (topic, partition), end)
    return progress


def stored_progress(t: Any, changelog: str) -> TaskProgress:
    found = [r.value for _, r in t.topic(changelog).arrivals if r.key == PROGRESS_KEY]
    return TaskProgress.decode(found[-1])


@pytest.mark.parametrize("is_behind", [False, True], ids=["direct", "repartitioned"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_reset_removes_every_trace_of_a_far_future_record(name: str, is_behind: bool) -> None:
    operator: Operator = OPERATORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        app = app_of(behind_repartition(operator) if is_behind else operator)
        with app.test() as t:
            for at_ms in (1, 12, FAR_MS, 13):
                feed(t, at_ms)
            t.restart()
            assert changelogs(t)
            for changelog in changelogs(t):
                before = stored_progress(t, changelog)
                assert latest_times(before, after_ms=NOW_MS), before
                after = lower_stream_times(before, NOW_MS)
                assert latest_times(after, after_ms=NOW_MS) == []
                left = {n for n, each in numbers(dict(after.sections)) if each > FAR_MS // 2}
                assert left <= NUMBERS, after
                assert after.offsets == before.offsets
                assert lower_stream_times(after, NOW_MS) == after
                after = without_unread_marks(t, after)
                # The progress loads, and later records count: time advances from the reset.
                t.topic(changelog).append(
                    after.encode(), key=PROGRESS_KEY, timestamp_ms=0, partition=0
                )
            restart_from_changelogs(t)
            late = late_records(t)
            for at_ms in (NOW_MS + 1, NOW_MS + 400, NOW_MS + 800):
                feed(t, at_ms)
            assert late_records(t) == late
            t.restart()
            for changelog in changelogs(t):
                assert latest_times(stored_progress(t, changelog), after_ms=NOW_MS + 900) == []


def test_a_reset_keeps_the_identity_of_source_logs() -> None:
    tp, other = ("app-n-repartition", 0), ("t", 0)
    logs = {tp: SourceLog(b"1" * 16, 7, 2), other: SourceLog(b"2" * 16, 3)}
    progress = TaskProgress(offsets={tp: 5, other: 9}, logs=logs)
    assert lower_stream_times(progress, NOW_MS) == progress
    moved = skip_time_marks(progress, tp, 8)
    assert moved.offsets == {tp: 8, other: 9}
    # The leader epoch belongs to offset 5, and would make offset 8 look like a truncated log.
    assert moved.logs == {
        tp: logs[tp]._replace(leader_epoch=SourceLog().leader_epoch),
        other: logs[other],
    }
