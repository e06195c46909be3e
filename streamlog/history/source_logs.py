"""Source logs: which logs a history has read, for who continues behind it.

A topic that is deleted and created again under its name is another log, and so is, from some offset
on, one that lost records. The plan notes topic ids and leader epochs before it looks at offsets;
when the tasks are done, the logs have to be the same still, or what was read may be of both. The
snapshot then keeps them with the offsets of each task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec

from streamlog.errors import SourceLost
from streamlog.history.plan import Plan, PlannedLog
from streamlog.history.readers import LogReader
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.record import TopicPartition
from streamlog.snapshots import SourceEntry, TaskEntry


def with_logs(plan: Plan, reader: LogReader, ids: Mapping[str, bytes]) -> Plan:
    """The plan with the logs that its ends are offsets of; `ids` were looked up before these.

    Raises:
        StreamlogError: the log can't be asked.
    """
    epochs = reader.leader_epochs({TopicPartition(*at): end for at, (_, end) in plan.ends.items()})
    logs = {
        at: PlannedLog(ids.get(at[0], b"").hex(), epochs[TopicPartition(*at)]) for at in plan.ends
    }
    return replace(plan, logs=logs)


def sourced(entries: Iterable[TaskEntry], plan: Plan, reader: LogReader) -> list[TaskEntry]:
    """What tasks have left, with the logs that their offsets belong to.

    Raises:
        SourceLost: a log is not the one that the history was planned in.
        StreamlogError: the log can't be asked.
    """
    tasks = [*entries]
    wanted = {
        (entry.task, TopicPartition(topic, number)): offset
        for entry in tasks
        for topic, number, offset in entry.offsets
        if (topic, number) in plan.logs
    }
    epochs = {
        (at, offset): reader.leader_epochs({at: offset})[at]
        for at, offset in {(at, offset) for (_, at), offset in wanted.items()}
        if plan.ends[at.topic, at.partition][1] != offset
    }
    found: list[TaskEntry] = []
    for entry in tasks:
        sources = []
        for (task, at), offset in wanted.items():
            if task != entry.task:
                continue
            log = plan.logs[at.topic, at.partition]
            chain = epochs.get((at, offset), log.epochs)
            epoch, start = chain[-1] if chain else (-1, -1)
            sources.append(
                SourceEntry(
                    topic=at.topic,
                    partition=at.partition,
                    topic_id=log.topic_id,
                    epoch=epoch,
                    epoch_start=start,
                )
            )
        found.append(msgspec.structs.replace(entry, sources=tuple(sources)))
    # Only now: what was asked above was asked of the same logs then.
    check_logs(plan.logs, plan.ends, reader)
    return found


def check_logs(
    logs: Mapping[PartitionKey, PlannedLog],
    ends: Mapping[PartitionKey, tuple[int, int]],
    reader: LogReader,
) -> None:
    """Make sure that a history was read from the logs that it was planned in.

    Raises:
        SourceLost: one is another log by now.
    """
    ids = reader.topic_ids(_topics(logs))
    for (topic, number), log in sorted(logs.items()):
        now = ids.get(topic)
        if now is None or (log.topic_id and any(now) and now.hex() != log.topic_id):
            what = "deleted" if now is None else "deleted and created again"
            raise SourceLost(
                f"{topic}-{number}: the topic was {what} after its history was planned: nothing"
                " counts of this run; run the history again",
                topic=topic,
                partition=number,
                ids=(bytes.fromhex(log.topic_id), now or b""),
            )
    marks = {TopicPartition(*at): (ends[at][1], log.epochs) for at, log in logs.items()}
    for at, offset in sorted(reader.divergences(marks).items()):
        raise SourceLost(
            f"{at.topic}-{at.partition}: the log was truncated after its history was planned: from"
            f" offset {max(offset, 0)} on it does not hold what it held up to"
            f" {ends[at.topic, at.partition][1]}; nothing counts of this run; run the history"
            " again",
            topic=at.topic,
            partition=at.partition,
            position=ends[at.topic, at.partition][1],
            resume=(offset, -1),
        )


def _topics(logs: Collection[PartitionKey]) -> list[str]:
    return sorted({topic for topic, _ in logs})
