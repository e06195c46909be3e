"""Lost sources: the decision about an input whose log is not the one that was read.

A topic that was deleted and created again is another log, whose offsets start at 0. A log that was
truncated (by an unclean leader election, a power cut with `flush=os`, or a restored backup) is
another log from the offset of the truncation on. A reader that continued at its old offset would
skip records.

Rule: pure. Facts go in; a decision or an error comes out. Not done here: finding out
(`inputs/source_watch`).
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
    """The point at which a log was truncated."""

    offset: int = UNKNOWN_OFFSET
    """The log still holds the records that were read below this offset; -1 if unknown."""
    leader_epoch: int = NO_EPOCH
    """The leader epoch of the record before it."""


class Present(NamedTuple):
    """The present log of an input partition."""

    topic_id: bytes
    """Empty if the broker has no topic ids."""
    begin: int
    """The log start offset."""
    end: int
    """The offset after the last record."""
    latest: int = UNKNOWN_OFFSET
    """Where the group has decided to continue under `latest`; -1 if it has not: at `end`."""

    @property
    def latest_start(self) -> int:
        """Where `latest` continues."""
        return self.end if self.latest == UNKNOWN_OFFSET else self.latest


class LostSource(NamedTuple):
    """A loss that a reader has found in a partition."""

    restart: InputRestart
    """Where the reader continues."""
    cut: TruncatedSource | None
    """Where the log was truncated; None if its topic was created again."""
    present: Present
    """The log when the loss was found, by which all readers of the partition decide: under `latest`
    they continue at one offset, though the log grows while they are asked in turn."""


def policy_of(setting: SourceLostPolicy | None, *, has_state: bool) -> SourceLostPolicy:
    """Return the app's setting; by default `fail` for readers with state, else `earliest`.

    State that was built from records of a lost log may be wrong, which only the user can judge. A
    task or an agent without state is correct after reading every record of the new log.
    """
    if setting is not None:
        return setting
    return FAIL if has_state else EARLIEST


def is_recreated(log: SourceLog, topic_id: bytes) -> bool:
    """Return whether a log's topic id differs from this one; False if either is unknown."""
    return bool(log.topic_id) and bool(topic_id) and log.topic_id != topic_id


def restart(
    policy: SourceLostPolicy,
    offset: int,
    log: SourceLog,
    present: Present,
    cut: TruncatedSource | None,
) -> InputRestart:
    """Return where to continue instead of at `offset`. With `earliest` no record is skipped.

    Args:
        policy: `earliest` or `latest`.
        offset: the position in the log that was read.
        log: the log that was read.
        present: the present log.
        cut: where the log was truncated; None if the topic was created again.
    """
    # 1. The reader has processed offsets 0 to 99; the log was truncated at 80 and has 120 now.
    # 2. Offsets 80 to 119 are other records: it continues at 80, and reads all of them.
    # 3. A reader at 60 is not affected: everything that it has processed is still in the log.
    if is_recreated(log, present.topic_id):
        start = present.latest_start if policy == LATEST else present.begin
        return InputRestart(start, SourceLog(present.topic_id))
    cuts, known = log.cuts + 1, cut or TruncatedSource()
    if policy == LATEST or known.offset == UNKNOWN_OFFSET:
        at = present.latest_start if policy == LATEST else present.begin
        # Without a leader epoch a position is not compared with the log (KIP-320). One at this
        # offset was set by an earlier decision about the loss, and a second one changes nothing.
        if offset == at and log.leader_epoch == NO_EPOCH:
            return InputRestart(offset, log)
        return InputRestart(at, SourceLog(present.topic_id, NO_EPOCH, cuts))
    if offset <= known.offset:
        return InputRestart(offset, log)
    at = max(known.offset, present.begin)
    return InputRestart(at, SourceLog(present.topic_id, known.leader_epoch, cuts))


def describe_loss(
    part: TopicPartition, offset: int, log: SourceLog, present: Present, cut: TruncatedSource | None
) -> str:
    """Return a description of the loss, for messages."""
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
    """Return the error that ends a worker whose policy is `fail`."""
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
    """Return the error for an input topic that was deleted."""
    return SourceLost(
        f"topic {topic!r}, which app {app_id!r} reads, was deleted. {ADVICE}", topic=topic
    )


ADVICE: Final = (
    "Nothing was committed for it. Choose one: `streamlog worker --source-lost earliest` (or"
    " App(source_lost='earliest')) keeps the state and reads every record in the log that the app"
    " has not read; 'latest' keeps the state and starts at the end; to start without the old state,"
    " give the app a new id"
)
