"""What a task changes in the progress that it finds: eras, replaced logs, stream times.

An app's `Era` counts how often it gave up state with the user's consent. Each checkpoint stores the
era in which it was written: a task of a later era removes the state that was given up since, and a
task of an earlier era belongs to a replaced program and refuses to start. An input whose log was
replaced restarts at another offset and keeps its state and stream times. One record with a
timestamp in the far future advances the stream time of every task that it reaches, and stream time
never goes back: `lower_stream_times` caps the stored times at one moment. Rules of the module:

1. Within an era no state is removed.
2. `latest_times` and `lower_stream_times` walk the same fields, so what is shown is what is reset.
   A time that was behind another never passes it.
3. Numbers that identify rows behind a repartition topic are not times and never go back.

Pure. Not done here: asking the user, and reading and writing the progress (the worker's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from streamlog.errors import CorruptData, TopologyError
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    PROVENANCE,
    mark_sent_ms,
    unpack_mark,
    unpack_record,
)
from streamlog.record import Headers
from streamlog.replace import replace
from streamlog.serdes.erased_types import JsonValue
from streamlog.tables.state.changelog import SourceLog, TaskProgress
from streamlog.tables.stores.store import KeyValueStore, StoreSpec, prefix_end
from streamlog.topology import Subtopology
from streamlog.windows.emit import UNKNOWN_MS

ERA_SECTION = "era"
"""The section of the era's number."""
INPUTS_SECTION = "inputs"
"""The section of the inputs, by topic; other sections are by node."""
NODE_TIMES_SECTION = "reached"
"""The section of the event time at each node."""


class Era(msgspec.Struct, frozen=True):
    """How often an app has discarded state, and the era in which it discarded each store."""

    number: int = 0
    lost: Mapping[str, int] = msgspec.field(default_factory=dict)


class Inheritance(msgspec.Struct, frozen=True):
    """What a task does with the state that it finds."""

    lost: tuple[str, ...]
    """The stores whose rows a task removes when it starts."""
    progress: TaskProgress
    """The rest of the progress."""

    def clear(self, store: KeyValueStore) -> None:
        """Remove the rows of the lost stores."""
        for name in self.lost:
            prefix = StoreSpec(name).prefix
            store.delete_range(prefix, prefix_end(prefix))


def check_inheritance(sub: Subtopology, progress: TaskProgress, era: Era) -> Inheritance:
    """Return what a task keeps of the state that it finds.

    Raises:
        TopologyError: a newer program has taken over, or the state is another topology's.
        CorruptData: the progress is not readable.
    """
    found = progress.sections.get(ERA_SECTION, 0)
    if not isinstance(found, int):
        raise CorruptData(
            f"the progress of a task of {sub.app_id!r} has the era {found!r}, which is not a number"
        )
    if found > era.number:
        raise TopologyError(
            f"a newer version of app {sub.app_id!r} has discarded state that this version uses: "
            "stop this worker, or restart it to see what has changed"
        )
    # A topic that matched a pattern, and was deleted: what came from it stays in the state.
    gone = {topic for topic, _ in progress.offsets if topic not in sub.topics}
    gone = {topic for topic in gone if sub.may_have_read(topic)}
    if gone:
        progress = _keep(progress, gone, set())
    foreign = {topic for topic, _ in progress.offsets if topic not in sub.topics}
    if found == era.number:
        _refuse_foreign(foreign, sub)
        return Inheritance((), progress)
    lost = tuple(name for name, given_up in era.lost.items() if given_up > found)
    return Inheritance(lost, _keep(progress, foreign, {*lost}))


def _keep(progress: TaskProgress, foreign: set[str], lost: set[str]) -> TaskProgress:
    """Return the progress without inputs that are no longer read and without lost stores."""
    sections: dict[str, object] = dict(progress.sections)
    for name, section in sections.items():
        gone = foreign if name == INPUTS_SECTION else lost
        if isinstance(section, Mapping):
            sections[name] = {key: data for key, data in section.items() if key not in gone}
    offsets = {at: next_ for at, next_ in progress.offsets.items() if at[0] not in foreign}
    logs = {at: log for at, log in progress.logs.items() if at in offsets}
    return TaskProgress(offsets=offsets, logs=logs, sections=sections)


def _refuse_foreign(foreign: set[str], sub: Subtopology) -> None:
    if foreign:
        raise TopologyError(
            f"the state of sub-topology {sub.number} of app {sub.app_id!r} belongs to another "
            f"topology: it has read {', '.join(sorted(foreign))}, which the task no longer reads. "
            "Streams were added or removed before this sub-topology; give the app a new id, or "
            "delete its changelog topics and its state directory to start over"
        )


_RESUME_FIELD: Final = 6
"""The index, in a row of a merged source, of the offset before which all was taken."""


class InputRestart(NamedTuple):
    """The offset and the log in which an input continues."""

    offset: int
    log: SourceLog


def restart_inputs(
    progress: TaskProgress, restarts: Mapping[tuple[str, int], InputRestart]
) -> TaskProgress:
    """Return the progress of a task whose inputs continue in other logs."""
    sections: dict[str, JsonValue] = dict(progress.sections)
    inputs = dict(sections.get(INPUTS_SECTION, {}))
    for (topic, _), restart in restarts.items():
        data = inputs.get(topic)
        if data is not None and "sequence" in data:
            rows = [
                [
                    *row[:_RESUME_FIELD],
                    min(row[_RESUME_FIELD], restart.offset),
                    *row[_RESUME_FIELD + 1 : 8],
                ]
                for row in data["sources"]
            ]
            inputs[topic] = {**data, "sources": rows}
    return TaskProgress(
        offsets={**progress.offsets, **{at: each.offset for at, each in restarts.items()}},
        logs={**progress.logs, **{at: each.log for at, each in restarts.items()}},
        sections={**sections, INPUTS_SECTION: inputs} if INPUTS_SECTION in sections else sections,
    )


TIME_FIELDS: Final = frozenset(
    ("time_ms", "marked_ms", "told_ms", "now_ms", "turn_ms", "reached_ms", "feed_ms")
)
CLOCK_FIELDS: Final = frozenset(("stream", "clock", "early"))
"""Fields of a node that contain fields like these themselves."""

TimeChange: TypeAlias = Callable[[str, int], int]
"""Returns the new time for a stored one; the text names the source, "" for all of them."""
STREAM_ROW_FIELDS: Final = 4
"""A source of a `StreamTime`: topic, partition, time, idle. Repartition topics store more."""
ROW_TIMES: Final = (4, 7)
"""The indexes of the time and, if present, the merge key of a repartition topic's source."""


class StoredTime(msgspec.Struct, frozen=True, order=True):
    """The latest stream time that is stored for a node and a source."""

    node: str
    """The node of the topology; for an input, its topic."""
    source: str
    """Topic and partition; "" if the time is that of all sources together."""
    time_ms: int


def latest_times(progress: TaskProgress, *, after_ms: int) -> list[StoredTime]:
    """Return the latest time per node and source, of those later than `after_ms`."""
    found: dict[tuple[str, str], int] = {}
    for section, parts in progress.sections.items():
        for name, data in _parts(parts):

            def note(source: str, time_ms: int, name: str = name) -> int:
                if time_ms > after_ms:
                    found[name, source] = max(found.get((name, source), UNKNOWN_MS), time_ms)
                return time_ms

            _walk(section, data, note)
    return sorted(StoredTime(node, source, ms) for (node, source), ms in found.items())


def lower_stream_times(progress: TaskProgress, to_ms: int) -> TaskProgress:
    """Return the progress with no time later than `to_ms`."""

    def cap(_source: str, time_ms: int) -> int:
        return min(time_ms, to_ms)

    sections: dict[str, object] = dict(progress.sections)
    for section, parts in progress.sections.items():
        if isinstance(parts, Mapping):
            capped = {name: _walk(section, data, cap) for name, data in parts.items()}
            sections[section] = {name: _reschedule(data, to_ms) for name, data in capped.items()}
    return replace(progress, sections=sections)


def latest_header_ms(headers: Headers) -> int:
    """Return the latest time in the headers of a record or time mark of a repartition topic.

    Raises:
        CorruptData: a header is not readable.
    """
    latest_ms = mark_sent_ms(headers) if headers else UNKNOWN_MS
    for name, data in headers:
        if data is not None and name == PROVENANCE:
            latest_ms = max(latest_ms, *unpack_record(data)[:2])
        elif data is not None and name == MARK:
            latest_ms = max(latest_ms, *unpack_mark(data)[0][:2])
    return latest_ms


def is_mark(headers: Headers) -> bool:
    """Return whether these are the headers of a time mark of a repartition topic."""
    return any(name == MARK for name, _ in headers)


def skip_time_marks(progress: TaskProgress, partition: tuple[str, int], end: int) -> TaskProgress:
    """Return the progress as if the task had skipped the time marks up to `end`.

    Afterwards no source counts as read to its end: the upstream tasks send new marks when they
    start.
    """
    topic, _ = partition
    inputs: dict[str, JsonValue] = dict(_parts(progress.sections.get(INPUTS_SECTION)))
    if topic in inputs:
        rows = [_skip_row(row, end) for row in inputs[topic]["sources"]]
        inputs[topic] = {**inputs[topic], "sources": rows}
    logs = dict(progress.logs)
    if partition in logs:
        # The leader epoch is that of the old offset: unknown for the new one.
        logs[partition] = logs[partition]._replace(leader_epoch=SourceLog().leader_epoch)
    return replace(
        progress,
        offsets={**progress.offsets, partition: end},
        logs=logs,
        sections={**progress.sections, INPUTS_SECTION: inputs},
    )


def _skip_row(row: list[JsonValue], end: int) -> list[JsonValue]:
    """Return the row of a repartition topic's source that continues at an offset."""
    known, merge = row[:5], row[6:8]
    if not merge:
        return [*known, 0]  # Not merged: the quiet time is counted anew.
    resume, turn_ms = merge
    return [*known, BUSY_MS, max(resume, end), turn_ms]


def _parts(parts: object) -> list[tuple[str, JsonValue]]:
    """Return the nodes or inputs of a section; the era, which is a number, has none."""
    return [*parts.items()] if isinstance(parts, Mapping) else []


def _walk(section: str, data: JsonValue, change: TimeChange) -> JsonValue:
    """Return the data of a node or an input with its times changed."""
    if section != NODE_TIMES_SECTION:
        return {name: _field(name, value, change) for name, value in data.items()}
    # Per topic: the time, that of the marks, and a duration.
    return {
        topic: [change(topic, time_ms), change(topic, marked_ms), *rest]
        for topic, (time_ms, marked_ms, *rest) in data.items()
    }


def _field(name: str, value: JsonValue, change: TimeChange) -> JsonValue:
    if name in TIME_FIELDS:
        return change("", value)
    if name in CLOCK_FIELDS:
        return {inner: _field(inner, each, change) for inner, each in value.items()}
    if name == "marked":
        return [[topic, number, change(f"{topic}-{number}", ms)] for topic, number, ms in value]
    if name == "sources":
        return [_row(row, change) for row in value]
    return value


def _row(row: list[JsonValue], change: TimeChange) -> list[JsonValue]:
    """Return the row of a source with its times changed."""
    topic, number, *_ = row
    times_at = (2,) if len(row) == STREAM_ROW_FIELDS else ROW_TIMES
    return [
        change(f"{topic}-{number}", value) if at in times_at else value
        for at, value in enumerate(row)
    ]


def _reschedule(data: JsonValue, to_ms: int) -> JsonValue:
    """Return the data of a node with its next stream-time events moved to `to_ms` or soon after."""
    if not isinstance(data, Mapping):
        return data
    changed = dict(data)
    if "next_ms" in data and data["next_ms"] > to_ms:
        changed["next_ms"] = UNKNOWN_MS  # The next record begins its interval.
    if "early" in data:
        changed["early"] = _reschedule(data["early"], to_ms)
    if "clocks" in data:
        event = data["clocks"]["event"]
        # The next multiple of the interval behind `to_ms`: `Alarms.load` rounds up.
        nexts = {method: min(at_ms, to_ms + 1) for method, at_ms in event["nexts"].items()}
        changed["clocks"] = {**data["clocks"], "event": {**event, "nexts": nexts}}
    return changed
