"""The errors of streamlog.

StreamlogError                  every error of ours; catch this one
├─ UsageError                   the program or the call is wrong: fix it, do not retry
│  ├─ TopologyError             the topology can't be built or does not match the log
│  │  └─ StateLost              the program would lose state, and nobody has agreed to that
│  ├─ ConfigError               a setting is unknown or out of range
│  └─ SerdeError                a value does not fit the type that was declared for it
├─ LogError                     a log said no; carries the Kafka error code and its flags
│  ├─ UnknownTopicOrPartition   retriable: it may be created, or metadata may be stale
│  ├─ TopicExists
│  ├─ OffsetOutOfRange          the offset is before the log's start or past its end
│  │  └─ SourceLost             the topic was created again, or its log was truncated
│  ├─ NotLeader                 retriable: look up the leader again
│  ├─ CorruptMessage            retriable: the bytes changed on the way
│  ├─ MessageTooLarge
│  ├─ RebalanceInProgress       the group is forming anew: join again
│  ├─ UnknownMember             the group has forgotten this member; join again
│  ├─ UnsupportedVersion        one side does not speak the version of the other
│  ├─ AuthenticationFailed      fatal: one side could not prove who it is
│  ├─ NotAuthorized             the principal may not do this
│  ├─ ProducerFenced            fatal: another producer has taken over
│  └─ TransactionAborted        nothing of it counts: begin another one
├─ ConnectionLost               retriable: the broker can't be reached or hung up
├─ RequestTimedOut              retriable: no answer within the time given
├─ CorruptData                  bytes on disk or wire are not what they claim to be
├─ LogDirectoryError            the data directory can't be used
│  ├─ LogDirectoryLocked        another process holds it
│  ├─ LogDirectoryLost          it vanished or belongs to another log
│  └─ LogDirectoryFailed        the disk refused a write or an fsync: the log is read-only
│     └─ LogDirectoryFull       it has no room; TooManyOpenFiles: no descriptor was left
├─ ListenError                  the address to listen on is taken or not ours
├─ RunsDiffer                   a simulation has written something else than the test driver
├─ WorkerFailed                 a worker process of a supervisor has ended with an error
└─ ProcessingError              user code or a node failed; carries the record's coordinates

Three flags are the whole retry policy; no caller looks at class names or texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class StreamlogError(Exception):
    """Base of every error raised by streamlog."""

    retriable: bool = False
    """The same request may succeed later."""
    fatal: bool = False
    """This client or task can't go on; close it."""
    aborts_transaction: bool = False
    """The open transaction has to be aborted; then go on."""
    exit_code: int = 1
    """What the process exits with when this error ends it (see `docs/cli.md`)."""


class UsageError(StreamlogError):
    """The program or the call is wrong: fix it, do not retry."""

    exit_code = 2


class TopologyError(UsageError):
    """The topology can't be built, or does not match what the log holds."""


class StateLost(TopologyError):
    """The program would lose state that the one before it has kept; nothing was touched."""

    exit_code = 8


class ConfigError(UsageError):
    """A setting is unknown, malformed or out of range."""


class SerdeError(UsageError):
    """A value does not fit the type that was declared for it."""


class LogError(StreamlogError):
    """A request was refused by the log.

    `code` is Kafka's number for the reason; `retriable` is Kafka's flag for that code.
    """

    code: int = -1
    exit_code = 3
    refusals: Mapping[Any, LogError] = MappingProxyType({})
    """Everything of the same request that was refused, this included, by what it was about."""

    def __init__(
        self, message: str, *, code: int | None = None, retriable: bool | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retriable is not None:
            self.retriable = retriable


class UnknownTopicOrPartition(LogError):
    """The log has no such topic or partition."""

    code = 3
    retriable = True


class TopicExists(LogError):
    """A topic of that name is there already."""

    code = 36


class OffsetOutOfRange(LogError):
    """The offset is before the log's start or past its end."""

    code = 1


class SourceLost(OffsetOutOfRange):
    """A position no longer belongs to the log that it was read from.

    The topic was deleted and created again under the same name, or the log was truncated below
    the position. Reading on from the position would skip records.

    Attributes:
        topic: whose position it is.
        partition: its number.
        position: the next offset that was to be read.
        old_id, new_id: topic ids, 16 bytes each; equal if the log was truncated, empty if the
            broker tells none.
        resume_at: of a truncated log the offset up to which it still is what was read; -1 if it
            is unknown.
        resume_epoch: the leader epoch before `resume_at`; -1 if it is unknown.
    """

    exit_code = 5

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        position: int = -1,
        ids: tuple[bytes, bytes] = (b"", b""),
        resume: tuple[int, int] = (-1, -1),
    ) -> None:
        """`ids` are the old and the new topic id, `resume` the offset and the leader epoch."""
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.position = position
        self.old_id, self.new_id = ids
        self.resume_at, self.resume_epoch = resume

    @property
    def is_recreated(self) -> bool:
        """Whether the topic was created again, rather than its log truncated."""
        return self.old_id != self.new_id


class NotLeader(LogError):
    """The broker does not lead the partition: look up the leader again.

    `current` is who leads, and the leader epoch, as far as who refuses knows.
    """

    code = 6
    retriable = True
    current: tuple[int, int] | None = None


class CorruptMessage(LogError):
    """The broker found a batch whose checksum does not match."""

    code = 2
    retriable = True


class MessageTooLarge(LogError):
    """A batch is larger than the topic's `max.message.bytes`."""

    code = 10


class RecordsRefused(LogError):
    """Records of a batch are malformed, or not what their topic takes; none of it was appended.

    `record_errors` names the bad ones, by their place in the batch, as far as they are known.
    """

    code = 87
    record_errors: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        record_errors: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message, code=code)
        self.record_errors = record_errors


class RebalanceInProgress(LogError):
    """The group is forming anew: join again (the same request would fail again)."""

    code = 27


class UnknownMember(LogError):
    """The group does not know this member (any more): join again as a new one."""

    code = 25


class UnsupportedVersion(LogError):
    """One side does not speak the version that the other asks for.

    What a broker needs in order to answer is at hand: `api_key`, `version` and
    `correlation_id`; -1 where the error is not about a request that came in.
    """

    code = 35

    def __init__(
        self, message: str, *, api_key: int = -1, version: int = -1, correlation_id: int = -1
    ) -> None:
        super().__init__(message)
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id


class ProducerFenced(LogError):
    """A newer producer with the same identity has taken over, or its transaction was too old.

    `in_doubt`: the commit of its transaction was asked for before, without an answer, so it may
    have been done. Else nothing of an open transaction counts.
    """

    code = 90
    fatal = True
    in_doubt = False


class TransactionAborted(LogError):
    """Something of the transaction was lost, so nothing of it counts: begin another one."""

    code = 120
    aborts_transaction = True


class AuthenticationFailed(LogError):
    """One side could not prove who it is: a password, a token or a certificate is not taken."""

    code = 58
    fatal = True


class NotAuthorized(LogError):
    """The principal may not do this; an ACL is missing, or one forbids it."""

    code = 31


class ConnectionLost(StreamlogError):
    """The broker can't be reached, or closed the connection with requests open."""

    retriable = True
    exit_code = 4


class RequestTimedOut(StreamlogError):
    """No answer came within the time given; the request may still have taken effect."""

    retriable = True
    exit_code = 4


class CorruptData(StreamlogError):
    """Bytes on disk or on the wire are not what they claim to be."""

    exit_code = 5


class DecompressedTooLarge(CorruptData):
    """Compressed bytes yield more than is taken."""


class DamagedBatch(CorruptData):
    """The next batch of a partition can't be read: its bytes are not what they claim to be.

    It holds the offsets from `offset` to before `next_offset`: a consumer that seeks to
    `next_offset` goes on behind it. `data` is the batch as it came.
    """

    topic: str = ""
    partition: int = -1
    offset: int = -1
    next_offset: int = -1
    data: bytes = b""

    @classmethod
    def at(
        cls, topic: str, partition: int, offsets: tuple[int, int], data: bytes, reason: str
    ) -> DamagedBatch:
        """The batch with these offsets, first and next."""
        first, following = offsets
        error = cls(
            f"{topic}-{partition} at offset {first}: {reason}; seek to {following} to go on behind"
            " the batch, or restore the broker's files"
        )
        error.topic, error.partition = topic, partition
        error.offset, error.next_offset = first, following
        error.data = data
        return error


class LogDirectoryError(StreamlogError):
    """The data directory can't be used."""

    fatal = True
    exit_code = 5


class LogDirectoryLocked(LogDirectoryError):
    """Another process holds the directory."""


class LogDirectoryLost(LogDirectoryError):
    """The directory vanished, or it belongs to another log."""


class LogDirectoryFailed(LogDirectoryError):
    """The disk refused a write or an fsync: what was acknowledged is there, no more is taken."""


class LogDirectoryFull(LogDirectoryFailed):
    """The disk has no room: what was acknowledged is there, and more is taken once it has."""


class TooManyOpenFiles(LogDirectoryFull):
    """The process has no file descriptor left: the disk is sound, and a later attempt can work."""


class ListenError(StreamlogError):
    """The address to listen on is taken, or is not one of this machine's."""

    fatal = True
    exit_code = 6


class RunsDiffer(StreamlogError):
    """A run of a simulation has written something else than the test driver."""


class WorkerFailed(StreamlogError):
    """A worker process of a supervisor has ended with an error, whose exit code is passed on."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ProcessingError(StreamlogError):
    """A node or user code failed on a record; nothing from that record on was committed.

    `node` is the name of the operator, the others are the coordinates of the record.
    """

    fatal = True
    exit_code = 7

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
        node: str = "",
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.node = node
