"""Lost sources: what becomes of an input whose log is not the one that was read.

A topic that is deleted and created again under its name is another log, and its offsets start at 0.
A log that was truncated (unclean leader election, a power cut with `flush=os`, a backup that was
put back) is another one from the offset of the cut on. Reading on from the old offset would skip
records. Pure: what is known comes in, a decision or an error goes out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.errors import SourceLost
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.processing.task_progress import InputRestart
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog

FAIL: Final[SourceLostPolicy] = "fail"
EARLIEST: Final[SourceLostPolicy] = "earliest"
LATEST: Final[SourceLostPolicy] = "latest"
UNKNOWN_OFFSET: Final = -1


class TruncatedSource(NamedTuple):
    """Where a log was truncated."""

    offset: int = UNKNOWN_OFFSET
    """Up to which it still is what was read; -1 if it is unknown."""
    leader_epoch: int = NO_EPOCH
    """Of the record before."""


class LostSource(NamedTuple):
    """What a reader has found out about a partition."""

    restart: InputRestart
    """Where to go on, as far as the reader has come."""
    cut: TruncatedSource | None
    """Where the log was truncated; None: its topic was created again."""


class Present(NamedTuple):
    """An input partition as it is now."""

    topic_id: bytes
    """Empty if the broker tells none."""
    begin: int
    end: int


def policy_of(setting: SourceLostPolicy | None, *, has_state: bool) -> SourceLostPolicy:
    """What the app says; by default `fail` for what has state and `earliest` for all else.

    State that holds records of a log that is gone can be wrong, and only its owner knows. A task or
    an agent without state is right with every record of the new log.
    """
    if setting is not None:
        return setting
    return FAIL if has_state else EARLIEST


def is_recreated(log: SourceLog, topic_id: bytes) -> bool:
    """Whether an offset in this log belongs to another topic than the one with this id."""
    return bool(log.topic_id) and bool(topic_id) and log.topic_id != topic_id


def restart(
    policy: SourceLostPolicy,
    offset: int,
    log: SourceLog,
    present: Present,
    cut: TruncatedSource | None,
) -> InputRestart:
    """Where to go on instead of `offset`. With `earliest` no record is skipped.

    `cut` is where the log was truncated, unless the topic was created again.
    """
    if is_recreated(log, present.topic_id):
        start = present.end if policy == LATEST else present.begin
        return InputRestart(start, SourceLog(present.topic_id))
    cuts = log.cuts + 1
    if policy == LATEST:
        return InputRestart(present.end, SourceLog(present.topic_id, NO_EPOCH, cuts))
    known = cut or TruncatedSource()
    if known.offset == UNKNOWN_OFFSET:
        return InputRestart(present.begin, SourceLog(present.topic_id, NO_EPOCH, cuts))
    if offset <= known.offset:
        return InputRestart(offset, log)  # Nothing that was taken is missing from the log.
    at = max(known.offset, present.begin)
    return InputRestart(at, SourceLog(present.topic_id, known.leader_epoch, cuts))


def describe_loss(
    part: TopicPartition, offset: int, log: SourceLog, present: Present, cut: TruncatedSource | None
) -> str:
    """What happened to the log, in words."""
    where = f"{part.topic}-{part.partition}"
    if is_recreated(log, present.topic_id):
        return (
            f"{where}: the topic was deleted and created again (id {id_text(log.topic_id)}, now "
            f"{id_text(present.topic_id)}); offset {offset} of the old one was next"
        )
    known = cut or TruncatedSource()
    at = (
        f"it ends at {present.end}"
        if known.offset == UNKNOWN_OFFSET
        else f"it differs from offset {known.offset} on (leader epoch {known.leader_epoch} ends"
        f" there, epoch {log.leader_epoch} was read), and ends at {present.end}"
    )
    return f"{where}: the log was truncated: offset {offset} was next, and {at}"


def source_lost_error(
    part: TopicPartition, offset: int, log: SourceLog, present: Present, cut: TruncatedSource | None
) -> SourceLost:
    """The error that ends a worker."""
    known = cut or TruncatedSource()
    return SourceLost(
        f"{describe_loss(part, offset, log, present, cut)}. {ADVICE}",
        topic=part.topic,
        partition=part.partition,
        position=offset,
        ids=(log.topic_id, present.topic_id or log.topic_id),
        resume=(known.offset, known.leader_epoch),
    )


def source_deleted_error(topic: str, app_id: str) -> SourceLost:
    """The error of an input that was deleted."""
    return SourceLost(
        f"topic {topic!r}, which app {app_id!r} reads, was deleted. {ADVICE}", topic=topic
    )


ADVICE: Final = (
    "Nothing was committed for it. Choose: `streamlog worker --source-lost earliest` (or"
    " App(source_lost='earliest')) keeps the state and reads every record that the log has and"
    " the app has not read; 'latest' keeps the state and begins at the end; to begin without the"
    " old state, give the app a new id"
)
