"""The errors of streamlog.

StreamlogError                  base of every error of streamlog; catch this one
├─ UsageError                   the program or the call is wrong: fix it, do not retry
│  ├─ TopologyError             the topology can't be built or does not match the log
│  │  ├─ StateLost              the program would lose state, without consent to that
│  │  ├─ SchemaIncompatible     a registry would refuse a schema, or the program not read others
│  │  └─ ContractBroken         the program would break other apps, without consent to that
│  ├─ ConfigError               a setting is unknown or out of range
│  ├─ SerdeError                a value does not fit the type that was declared for it
│  └─ InvalidSchema             a schema is not one of its format, or exceeds a limit
├─ LogError                     the log refused a request; carries Kafka's error code
│  ├─ UnknownTopicOrPartition   retriable: it may be created, or metadata may be stale
│  ├─ TopicExists
│  ├─ OffsetOutOfRange          the offset is before the log's start or past its end
│  │  └─ SourceLost             the topic was created again, or its log was truncated
│  ├─ NotLeader                 retriable: look up the leader again
│  ├─ CorruptMessage            retriable: the bytes changed in transit
│  ├─ MessageTooLarge
│  ├─ RebalanceInProgress       the group rebalances: join again
│  ├─ UnknownMember             the group has removed this member: join again
│  ├─ UnsupportedVersion        client and broker have no version of a request in common
│  ├─ AuthenticationFailed      fatal: client or broker could not prove its identity
│  ├─ NotAuthorized             the principal may not do this
│  ├─ ProducerFenced            fatal: another producer has taken over
│  └─ TransactionAborted        the transaction has no effect: begin another one
├─ SchemaRegistryError          a schema registry refused a request
├─ ConnectionLost               retriable: the broker can't be reached, or closed the connection
├─ RequestTimedOut              retriable: no answer within the time-out
├─ PromotionGivenUp             a mirror was not promoted; says what is left to do
├─ CorruptData                  bytes on disk or on the wire are damaged
├─ LogDirectoryError            the data directory can't be used
│  ├─ LogDirectoryLocked        another process holds it
│  ├─ LogDirectoryLost          it vanished or belongs to another log
│  └─ LogDirectoryFailed        a write or an fsync failed: the log is read-only
│     └─ LogDirectoryFull       the disk is full; TooManyOpenFiles: no descriptor was left
├─ ListenError                  the address to listen on is taken or not local
├─ RunsDiffer                   a simulated run wrote other rows than the test driver
├─ WorkerFailed                 a worker process of a supervisor ended with an error
└─ ProcessingError              user code or a node failed; carries the record's coordinates

Rule: the flags `retriable`, `fatal` and `aborts_transaction` are the whole retry policy. No caller
decides by a class name or a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

NAMES_SHOWN: Final = 5
"""The most names that a message lists."""


class StreamlogError(Exception):
    """Base of every error that streamlog raises."""

    retriable: bool = False
    """Whether the same request may succeed later."""
    fatal: bool = False
    """Whether the client or task is unusable from now on and has to be closed."""
    aborts_transaction: bool = False
    """Whether the open transaction has to be aborted before the producer can continue."""
    exit_code: int = 1
    """The exit code of a process that this error ends (see `docs/cli.md`)."""


class UsageError(StreamlogError):
    """The program or the call is wrong: fix it, do not retry."""

    exit_code = 2


class TopologyError(UsageError):
    """The topology can't be built, or does not match the topics in the log."""


class StateLost(TopologyError):
    """The program would lose state that the version before it has kept; nothing was changed."""

    exit_code = 8


class SchemaIncompatible(TopologyError):
    """A schema registry would refuse the program's schema, or the program could not read others.

    Nothing was changed.
    """

    exit_code = 8


class ContractBroken(TopologyError):
    """Another app could not read what the program writes, or the program what others write.

    Nothing was changed.
    """

    exit_code = 8


class ConfigError(UsageError):
    """A setting is unknown, malformed or out of range."""


class SerdeError(UsageError):
    """A value does not fit the type that was declared for it."""


class InvalidSchema(UsageError):
    """A schema is not a schema of its format, or exceeds a limit.

    Attributes:
        path: where in the schema, as a JSON pointer or as line and column; empty for the whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{message} (at {path})" if path else message)
        self.path = path


class SchemaRegistryError(StreamlogError):
    """A schema registry refused a request.

    Without one of its numbers, its answer is malformed, or one side refused the other's
    certificate.
    """

    exit_code = 3

    def __init__(self, message: str, *, status: int = 0, error_code: int = -1) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.error_code = error_code
        """The registry's own code, such as 40401."""


class LogError(StreamlogError):
    """The log refused a request.

    `code` is Kafka's error code; `retriable` is Kafka's flag for that code.
    """

    code: int = -1
    exit_code = 3
    refusals: Mapping[Any, LogError] = MappingProxyType({})
    """All refusals of the same request, this one included, by what they refer to: a topic, a
    partition or a group, depending on the request."""

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
    """A topic of this name exists already."""

    code = 36


class OffsetOutOfRange(LogError):
    """The offset is before the log's start or past its end."""

    code = 1


class SourceLost(OffsetOutOfRange):
    """A position no longer belongs to the log that it was read from.

    The topic was deleted and created again under the same name, or the log was truncated below
    the position (KIP-320). A reader that continued at the position would skip records.

    Attributes:
        topic: the name of the topic.
        partition: the number of the partition.
        position: the offset of the next record that would have been read.
        old_id, new_id: topic ids, 16 bytes each; equal if the log was truncated, empty if the
            broker has no topic ids.
        resume_at: for a truncated log, the offset below which it still holds the records that were
            read; -1 if that is unknown.
        resume_epoch: the leader epoch of the record before `resume_at`; -1 if that is unknown.
        loss: what was lost, without the advice to a program that seeks itself.
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
        advice: str = "",
    ) -> None:
        """Create the error; `ids` is (old_id, new_id), `resume` is (resume_at, resume_epoch)."""
        super().__init__(f"{message}: {advice}" if advice else message)
        self.loss = message
        self.topic = topic
        self.partition = partition
        self.position = position
        self.old_id, self.new_id = ids
        self.resume_at, self.resume_epoch = resume

    @property
    def is_recreated(self) -> bool:
        """Whether the topic was created again; otherwise its log was truncated."""
        return self.old_id != self.new_id


class NotLeader(LogError):
    """The broker does not lead the partition: look up the leader again.

    `current` is the id of the leader and its leader epoch, or None if the broker did not send them.
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
    """Records of a batch are malformed or not valid in their topic; the batch was not appended.

    `record_errors` maps the index of a refused record in the batch to the reason. It is empty if
    the broker did not send it (KIP-467).
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
    """The group rebalances: join again; the same request would fail again."""

    code = 27


class UnknownMember(LogError):
    """The group doesn't have this member, or has removed it: join again as a new member."""

    code = 25


class UnsupportedVersion(LogError):
    """Client and broker have no version of a request or a format in common.

    If a broker raises it for a request, `api_key`, `version` and `correlation_id` are those of the
    request, so that the broker can answer; otherwise they are -1.
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
    """A newer producer with the same transactional id has taken over, or the transaction timed out.

    If `in_doubt` is true, the producer had sent the commit of its transaction and got no answer, so
    the transaction may be committed. Otherwise an open transaction is aborted.
    """

    code = 90
    fatal = True
    in_doubt = False


class TransactionAborted(LogError):
    """A part of the transaction was lost, so all of it is aborted: begin another one."""

    code = 120
    aborts_transaction = True


class AuthenticationFailed(LogError):
    """Client or broker could not prove its identity: password, token or certificate is refused."""

    code = 58
    fatal = True


class NotAuthorized(LogError):
    """The principal may not do this; an ACL is missing, or one forbids it."""

    code = 31


class ConnectionLost(StreamlogError):
    """The broker can't be reached, or closed the connection before it answered."""

    retriable = True
    exit_code = 4


class RequestTimedOut(StreamlogError):
    """No answer came within the time-out; the request may still take effect."""

    retriable = True
    exit_code = 4


class PromotionGivenUp(StreamlogError):
    """A promotion without loss has not come about; the message says what is left to do, if any."""


class CorruptData(StreamlogError):
    """Bytes on disk or on the wire are damaged: a checksum, a length or a format is wrong."""

    exit_code = 5


class DecompressedTooLarge(CorruptData):
    """Compressed bytes decompress to more than the limit."""


class DamagedBatch(CorruptData):
    """The next batch of a partition is damaged and can't be read.

    The batch holds the offsets from `offset` to before `next_offset`. A consumer that seeks to
    `next_offset` continues after it. `data` is the batch as it was received.
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
        """Return the error of a batch; `offsets` is (offset, next_offset)."""
        first, following = offsets
        error = cls(
            f"{topic}-{partition} at offset {first}: {reason}; seek to {following} to skip the"
            " batch, or restore the broker's files"
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
    """A write or an fsync failed: acknowledged records stay readable, writes are refused."""


class LogDirectoryFull(LogDirectoryFailed):
    """The disk is full: acknowledged records stay readable, writes fail until it has room."""


class TooManyOpenFiles(LogDirectoryFull):
    """The process has no file descriptor left; the disk is sound, a later attempt can succeed."""


class NoThread(StreamlogError):
    """The system starts no more threads for this process; a later attempt can succeed."""


class ListenError(StreamlogError):
    """The address to listen on is taken, or doesn't belong to this machine."""

    fatal = True
    exit_code = 6


class RunsDiffer(StreamlogError):
    """A simulated run wrote other rows than the test driver."""


class WorkerFailed(StreamlogError):
    """A worker process of a supervisor ended with an error; `exit_code` is the process's."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ProcessingError(StreamlogError):
    """A node or user code failed on a record; no later position than this record is committed.

    `node` is the name of the operator; `topic`, `partition` and `offset` locate the record.
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


def some_of(names: Sequence[str]) -> str:
    """Return the first names and how many more there are, for messages: "a, b and 7 more"."""
    shown, more = ", ".join(names[:NAMES_SHOWN]), len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def quantity(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, singular or plural, for messages: "1 record", "2 records".

    Args:
        number: how many there are.
        noun: the noun in the singular, such as "record" or "unread record".
        plural: its plural; without it, `noun` and an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
