"""Stored stream times: which of them a task's progress holds, and how to set them back.

One record with a timestamp far in the future, once accepted, leaves its time in the progress of
every task that it reaches. Stream time never goes back by itself, so each later record is late.
`reset` lowers the stored times; rows, positions and numbers of rows stay as they are.

Rules of the file: `latest_times` and `reset` see the same fields (`_walk`), so what is shown is
what is reset. `reset` caps every time of a task at one moment: a time that was behind another one
stays behind it. Numbers that identify rows behind a repartition topic (`sequence`, `last`, ...) are
not times, even where a time was their first value: they never go back. Not done here: reading and
writing the progress (`worker/stream_times`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from streamlog.processing.inherited import INPUTS, REACHED
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    PROVENANCE,
    marked_ms_of,
    unpack_mark,
    unpack_record,
)
from streamlog.record import Headers
from streamlog.tables.changelog import Progress, SourceLog
from streamlog.windows.emit import UNKNOWN_MS

TIME_FIELDS: Final = frozenset(
    ("time_ms", "marked_ms", "told_ms", "now_ms", "turn_ms", "reached_ms", "feed_ms")
)
CLOCK_FIELDS: Final = frozenset(("stream", "clock", "early"))
"""Fields of a node that hold fields like these themselves."""

Change: TypeAlias = Callable[[str, int], int]
"""The new time in place of a stored one; the text names the source, "" for all of them."""
STREAM_ROW_FIELDS: Final = 4
"""A source of a `StreamTime`: topic, partition, time, idle. Repartition topics store more."""
ROW_TIMES: Final = (4, 7)
"""Where a source of a repartition topic has its time, and the time of its turn, if it has one."""


@dataclass(frozen=True, slots=True, order=True)
class StoredTime:
    """The latest stream time that is stored for a node and a source."""

    node: str
    """Of the topology; for an input its topic."""
    source: str
    """Topic and partition; "" if the time is that of all sources together."""
    time_ms: int


def latest_times(progress: Progress, *, after_ms: int) -> list[StoredTime]:
    """The latest time per node and source, of those later than `after_ms`."""
    found: dict[tuple[str, str], int] = {}
    for section, parts in progress.sections.items():
        for name, data in _parts(parts):

            def note(source: str, time_ms: int, name: str = name) -> int:
                if time_ms > after_ms:
                    found[name, source] = max(found.get((name, source), UNKNOWN_MS), time_ms)
                return time_ms

            _walk(section, data, note)
    return sorted(StoredTime(node, source, ms) for (node, source), ms in found.items())


def reset(progress: Progress, to_ms: int) -> Progress:
    """The same progress with no time later than `to_ms`."""

    def cap(_source: str, time_ms: int) -> int:
        return min(time_ms, to_ms)

    sections: dict[str, object] = dict(progress.sections)
    for section, parts in progress.sections.items():
        if isinstance(parts, Mapping):
            capped = {name: _walk(section, data, cap) for name, data in parts.items()}
            sections[section] = {name: _rescheduled(data, to_ms) for name, data in capped.items()}
    return replace(progress, sections=sections)


def told_ms(headers: Headers) -> int:
    """The latest time that a record or time mark of a repartition topic tells of its source.

    Raises:
        CorruptData: a header is not readable.
    """
    latest_ms = marked_ms_of(headers) if headers else UNKNOWN_MS
    for name, data in headers:
        if data is not None and name == PROVENANCE:
            latest_ms = max(latest_ms, *unpack_record(data)[:2])
        elif data is not None and name == MARK:
            latest_ms = max(latest_ms, *unpack_mark(data)[0][:2])
    return latest_ms


def is_mark(headers: Headers) -> bool:
    """Whether these are the headers of a time mark of a repartition topic."""
    return any(name == MARK for name, _ in headers)


def without_marks(progress: Progress, place: tuple[str, int], end: int) -> Progress:
    """The same progress behind time marks that it has not taken yet, up to `end`.

    No source counts as read to its end any more: the tasks upstream mark it again when they start.
    """
    topic, _ = place
    inputs: dict[str, Any] = dict(_parts(progress.sections.get(INPUTS)))
    if topic in inputs:
        rows = [_behind(row, end) for row in inputs[topic]["sources"]]
        inputs[topic] = {**inputs[topic], "sources": rows}
    logs = dict(progress.logs)
    if place in logs:
        # The leader epoch is that of the old offset: unknown for the new one.
        logs[place] = logs[place]._replace(leader_epoch=SourceLog().leader_epoch)
    return replace(
        progress,
        offsets={**progress.offsets, place: end},
        logs=logs,
        sections={**progress.sections, INPUTS: inputs},
    )


def _behind(row: list[Any], end: int) -> list[Any]:
    """The row of a source of a repartition topic that goes on at an offset."""
    known, merge = row[:5], row[6:8]
    if not merge:
        return [*known, 0]  # Not merged: for how long it has been quiet is counted anew.
    resume, turn_ms = merge
    return [*known, BUSY_MS, max(resume, end), turn_ms]


def _parts(parts: object) -> list[tuple[str, Any]]:
    """The nodes or inputs of a section; the era, which is a number, has none."""
    return [*parts.items()] if isinstance(parts, Mapping) else []


def _walk(section: str, data: Any, change: Change) -> Any:  # noqa: ANN401 - JSON
    """The data of a node or an input with its times changed."""
    if section != REACHED:
        return {name: _field(name, value, change) for name, value in data.items()}
    # Per topic: the time, that of the marks, and a duration.
    return {
        topic: [change(topic, time_ms), change(topic, marked_ms), *rest]
        for topic, (time_ms, marked_ms, *rest) in data.items()
    }


def _field(name: str, value: Any, change: Change) -> Any:  # noqa: ANN401 - JSON
    if name in TIME_FIELDS:
        return change("", value)
    if name in CLOCK_FIELDS:
        return {inner: _field(inner, each, change) for inner, each in value.items()}
    if name == "marked":
        return [[topic, number, change(f"{topic}-{number}", ms)] for topic, number, ms in value]
    if name == "sources":
        return [_row(row, change) for row in value]
    return value


def _row(row: list[Any], change: Change) -> list[Any]:
    """The row of a source with its times changed."""
    topic, number, *_ = row
    places = (2,) if len(row) == STREAM_ROW_FIELDS else ROW_TIMES
    return [
        change(f"{topic}-{number}", value) if at in places else value
        for at, value in enumerate(row)
    ]


def _rescheduled(data: Any, to_ms: int) -> Any:  # noqa: ANN401 - JSON
    """The data of a node with what is due next by stream time no further away than before."""
    if not isinstance(data, Mapping):
        return data
    changed = dict(data)
    if "next_ms" in data and data["next_ms"] > to_ms:
        changed["next_ms"] = UNKNOWN_MS  # The next record begins its interval.
    if "early" in data:
        changed["early"] = _rescheduled(data["early"], to_ms)
    if "clocks" in data:
        event = data["clocks"]["event"]
        # The next multiple of the interval behind `to_ms`: `Alarms.load` rounds up.
        nexts = {method: min(at_ms, to_ms + 1) for method, at_ms in event["nexts"].items()}
        changed["clocks"] = {**data["clocks"], "event": {**event, "nexts": nexts}}
    return changed
