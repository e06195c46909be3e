"""What a step does with a record that fails: error policies, retries and dead letters.

A step tries a batch as a whole. When a function raises on one record, the results before it are
kept and the rest is processed record by record, with the node's policy for each failure. A dead
letter holds the bytes of the record as it was read, and headers that name its origin and the error;
the header names are those of Kafka Streams where it has them (KIP-1034). A batch of a source topic
that cannot be read at all fails as a whole, by the policy of its topic (`DamagedInputs`). Rules of
the module:

1. Nothing that has had an effect is done twice: a step calls its functions before it forwards
   anything, and only the call that raised is repeated.
2. A skipped record is counted. What it did in steps above stays; steps below never receive it.
3. While a record waits for its next attempt, all later records wait too. `pause` belongs to the
   runner, as a task has no clock.
4. A dead letter from after an aggregation on close or a repartition topic is marked `INTERNAL`:
   only the app itself may write such a record again.

Without a policy (`FAIL`) an error is raised with its coordinates. Not done here: sending dead
letters again (`worker/topics/dead_letters`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, Self, TypeVar

import msgspec

from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import DamagedBatch, ProcessingError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.stream_nodes import Source, TableSource
from streamlog.processing.column_batch import Batch, exit_failure, processing_error
from streamlog.processing.outbox import Drop, Outbox, Reason, SinkBatch
from streamlog.record import Headers
from streamlog.serdes import display_json
from streamlog.serdes.erased_types import UserValue
from streamlog.topology import Topology

TOPIC = "__streams.errors.topic"
PARTITION = "__streams.errors.partition"
OFFSET = "__streams.errors.offset"
EXCEPTION = "__streams.errors.exception"
MESSAGE = "__streams.errors.message"
TRACE = "__streams.errors.stacktrace"
"""Present if the error came out of a function of the app."""
TIMESTAMP = "__streams.errors.timestamp"
NODE = "__streams.errors.node"
ATTEMPT = "__streams.errors.attempt"
SIZE = "__streams.errors.value.bytes"
"""Present if the value was left out because it exceeds the limit of the dead-letter topic."""
INTERNAL = "__streams.errors.internal"
"""Present if only the app may write to the topic that the record comes from."""
OWN = frozenset(
    {TOPIC, PARTITION, OFFSET, EXCEPTION, MESSAGE, TRACE, TIMESTAMP, NODE, ATTEMPT, INTERNAL, SIZE}
)
"""The headers that a dead letter adds to those of its record."""
CONNECT = "__connect.errors."
"""Begins the headers of Kafka Connect's dead letters, which the Connect service adds if asked."""
MESSAGE_CHARACTERS_MAX = 2_000
"""Limit of an error's text: it is for people, and the size of a record is limited."""
TRACE_CHARACTERS_MAX: Final = 8_000
FRAMES_MAX: Final = 30
CAUSES_MAX: Final = 5
_NOT_OF_THE_APP: Final = frozenset({"streamlog", "spark_bridge", "asyncio"})


class DeadLetterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and the error that it failed with."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    node: str
    error: Exception
    attempt: int
    is_internal: bool = False
    context: Headers = ()
    """Headers besides those of `OWN`, by Kafka Connect's names."""
    sent_ms: int | None = None
    """Timestamp of the dead letter, if it differs from the record's."""

    def describe(self) -> str:
        """Return the record's coordinates and the error in one line."""
        name, error = type(self.error).__name__, self.error
        return f"offset {self.offset} of {self.topic}-{self.partition}: {name}: {error}"

    def to(self, topic: str) -> SinkBatch:
        """Return the dead letter as a batch for this topic."""
        sent_ms = self.timestamp_ms if self.sent_ms is None else self.sent_ms
        # A log may refuse what lies outside the calendar, and no reader could show it.
        sent_ms = min(max(sent_ms, 0), TIMESTAMP_MS_MAX)
        return SinkBatch(topic, None, [sent_ms], [self.key], [self.value], [self._headers()])

    def _headers(self) -> Headers:
        kind = type(self.error)
        own: Iterable[tuple[str, object]] = (
            (TOPIC, self.topic),
            (PARTITION, self.partition),
            (OFFSET, self.offset),
            (TIMESTAMP, self.timestamp_ms),
            (NODE, self.node),
            (EXCEPTION, f"{kind.__module__}.{kind.__qualname__}"),
            (MESSAGE, str(self.error)[:MESSAGE_CHARACTERS_MAX]),
            *(((TRACE, trace),) if (trace := trace_of(self.error)) else ()),
            (ATTEMPT, self.attempt),
            *(((INTERNAL, 1),) if self.is_internal else ()),
        )
        # A replayed record that fails again still has the headers of its first failure.
        kept = tuple(header for header in self.headers if not is_own_header(header[0]))
        added = ((name, str(value).encode(errors="replace")) for name, value in own)
        return (*kept, *added, *self.context)


def trace_of(error: BaseException) -> str:
    """Return where an error arose in the app, the innermost function last; empty if outside of it.

    Only functions of the app and its libraries count, by module and line. Those of streamlog and of
    the event loop depend on how records came, and a letter must not: a history writes the letters
    of a live run.
    """
    parts, has_frames, found = list[str](), False, error
    for _ in range(CAUSES_MAX):
        frames = _frames(found)
        has_frames = has_frames or bool(frames)
        parts.append("\n".join((*frames, _last_line(found))))
        # What the app has named as the cause; what merely came before is often a caught error.
        if found.__cause__ is None:
            break
        found = found.__cause__
    return "\ncaused by\n".join(parts)[:TRACE_CHARACTERS_MAX] if has_frames else ""


def _frames(error: BaseException) -> list[str]:
    # The innermost say what has happened: an endless recursion has a thousand alike above them.
    found, count, trace = deque[str](maxlen=FRAMES_MAX), 0, error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", "?"))
        if module.partition(".")[0] not in _NOT_OF_THE_APP:
            code = trace.tb_frame.f_code
            found.append(f"{module}, line {trace.tb_lineno}, in {code.co_qualname}")
            count += 1
        trace = trace.tb_next
    left_out = count - len(found)
    return [f"{left_out} more", *found] if left_out else [*found]


def _last_line(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {str(error)[:MESSAGE_CHARACTERS_MAX]}"


def is_own_header(name: str) -> bool:
    """Return whether a header is of a dead letter, and not of its record."""
    return name in OWN or name.startswith(CONNECT)


logger = logging.getLogger(__name__)

LETTER_BYTES_MAX: Final = 15 * 1024 * 1024
"""A damaged batch larger than this is sent to the dead-letter topic without its bytes."""
_STRICTNESS: Final = ("skip", "dlq", "fail")


class DamagedInputs:
    """An app's error policies for unreadable batches of its source topics."""

    def __init__(self, topology: Topology, agents: Iterable[tuple[str, ErrorPolicy]] = ()) -> None:
        """`agents` are the topics and policies of agents."""
        self._app_id = topology.app_id
        self._policies: dict[str, list[ErrorPolicy]] = {}
        self._writes_letters = True
        for sub in topology.subtopologies:
            for node in sub.nodes:
                if isinstance(node, Source | TableSource) and not node.topic.internal:
                    self._note(node.topic.name, node.on_error)
        for topic, policy in agents:
            self._note(topic, policy)

    @classmethod
    def of_global_tables(cls, topology: Topology) -> Self:
        """Return the policies for the topics of the app's global tables."""
        found = cls(Topology(topology.app_id, ()))
        found._writes_letters = False
        for table in topology.global_tables:
            found._note(table.topic.name, table.on_error)
        return found

    def outbox(self, damaged: DamagedBatch) -> Outbox:
        """Return the dead letter and the count for a batch that is skipped; logs an error.

        Raises:
            ProcessingError: the policy is `FAIL`.
        """
        policy = self._policy(damaged.topic)
        if policy.action == "fail":
            raise ProcessingError(
                f"a batch of {damaged.topic}-{damaged.partition} can't be read: {damaged}; to skip"
                " it, declare on_error=on_error.skip() or on_error=on_error.dlq() on the topic",
                topic=damaged.topic,
                partition=damaged.partition,
                offset=damaged.offset,
                node=damaged.topic,
            ) from damaged
        letters = policy.dlq_topic(self._app_id) if self._writes_letters else None
        letter = _damaged_batch_letter(damaged)
        count = damaged.next_offset - damaged.offset
        message = f"{letter.describe()} (offsets {damaged.offset} to {damaged.next_offset - 1})"
        logger.error("skipped by on_error: %s", message)
        if letters is None:
            return Outbox(drops=[Drop(damaged.topic, "error", count, message=message)])
        drop = Drop(damaged.topic, "dead letter", count, message=f"{message} (to {letters})")
        return Outbox(writes=[letter.to(letters)], drops=[drop])

    def _policy(self, topic: str) -> ErrorPolicy:
        """Return the last step of the strictest policy."""
        last = [[*each.chain][-1] for each in self._policies.get(topic, [on_error.FAIL])]
        return max(last, key=lambda policy: _STRICTNESS.index(policy.action))

    def _note(self, topic: str, policy: ErrorPolicy | None) -> None:
        self._policies.setdefault(topic, []).append(policy or on_error.FAIL)


def _damaged_batch_letter(damaged: DamagedBatch) -> DeadLetterRecord:
    """Return the batch as it is in the log: only a person can use it, so it can't be replayed."""
    is_small = len(damaged.data) <= LETTER_BYTES_MAX
    return DeadLetterRecord(
        topic=damaged.topic,
        partition=damaged.partition,
        offset=damaged.offset,
        timestamp_ms=0,
        key=None,
        value=damaged.data if is_small else None,
        node=damaged.topic,
        error=damaged,
        attempt=1,
        is_internal=True,
    )


T = TypeVar("T")
"""The result of a user's function."""

Pause = Callable[[int], None]
"""Waits for a number of milliseconds."""


class SkippedRecord:
    """In place of a result: the record is not forwarded."""


SKIPPED: Final = SkippedRecord()


class DeadLetterSink(Protocol):
    """Where records and counts go: the task's current outbox."""

    def send(self, batch: SinkBatch) -> None:
        """Add a batch to write."""

    def drop(self, node: str, reason: Reason, count: int = 1, *, message: str = "") -> None:
        """Count records that are dropped."""


def no_pause(_backoff_ms: int) -> None:
    """Do not wait before the next attempt."""


class NodeFailures(msgspec.Struct, frozen=True):
    """What a node does with records on which it fails."""

    node: str
    policy: ErrorPolicy
    app_id: str
    sink: DeadLetterSink
    pause: Pause = no_pause

    @property
    def are_fatal(self) -> bool:
        """Whether the first failure ends the task, so that steps need not prepare for a retry."""
        return self.policy.action == "fail"

    def retry_rest(
        self,
        batch: Batch,
        results: list[T],
        error: Exception,
        fn: Callable[..., T],
        columns: Sequence[Sequence[UserValue]],
    ) -> tuple[Batch, list[T]]:
        """Process the rest of a batch on which `fn` raised; returns kept records and their results.

        Args:
            batch: all records.
            results: of the records before the one on which it raised.
            error: what it raised.
            fn: the user's function.
            columns: its arguments, by record.

        Raises:
            ProcessingError: the policy is `FAIL`, or ends in it.
        """
        if self.are_fatal:
            raise batch.failure(self.node, len(results), error) from error
        kept = [True] * len(results)
        first: Exception | None = error
        # The failed record is tried again alone, with `first` as its first attempt; the records
        # after it are tried for the first time. Those before it are not: functions may count calls.
        for arguments in zip(*(column[len(results) :] for column in columns), strict=True):
            result = self.attempt_record(batch, len(kept), fn, *arguments, first=first)
            first = None
            kept.append(result is not SKIPPED)
            if not isinstance(result, SkippedRecord):
                results.append(result)
        return batch.where(kept), results

    def attempt_record(
        self,
        batch: Batch,
        at: int,
        fn: Callable[..., T],
        *arguments: object,
        first: Exception | None = None,
    ) -> T | SkippedRecord:
        """Return the function's result for one record; if it raises, the policy applies.

        Args:
            batch: the batch of the record.
            at: its index in the batch.
            fn: the user's function.
            arguments: its arguments.
            first: what the first attempt raised, if it has been made.

        Raises:
            ProcessingError: the policy is `FAIL`, or ends in it.
        """
        return self.resolve(
            partial(fn, *arguments), partial(dead_letter_of, batch, at, self.node), first
        )

    def resolve(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], DeadLetterRecord],
        first: Exception | None = None,
    ) -> T | SkippedRecord:
        """Return the result of `again`, or SKIPPED; `letter` makes the dead letter after a failure.

        Raises:
            ProcessingError: the policy is `FAIL`, or ends in it.
        """
        result = self.attempt(again, letter, first)
        if not isinstance(result, DeadLetterRecord):
            return result
        self.give_up(result)
        return SKIPPED

    def attempt(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], DeadLetterRecord],
        first: Exception | None = None,
    ) -> T | DeadLetterRecord:
        """Return the result of `again`, or a dead letter after all attempts of the policy."""
        found: list[T] = []
        # retry(2) and then dlq: the chain is [retry, dlq].
        # 1. The first attempt fails: attempts 2 and 3 follow, with the pause of retry.
        # 2. All fail: `times` of dlq is 0, so the letter says attempt 3. `give_up` writes it.
        attempt, error = 1, first or _error_of(again, found)
        for policy in self.policy.chain:
            for _ in range(policy.times if error is not None else 0):
                self.pause(policy.backoff_ms)
                attempt += 1
                error = _error_of(again, found)
                if error is None:
                    break
        return found[0] if error is None else letter(error, attempt)

    def give_up(self, letter: DeadLetterRecord) -> None:
        """Skip the record, or write it to the dead-letter topic.

        Raises:
            ProcessingError: the policy ends in `FAIL`.
        """
        last = [*self.policy.chain][-1]
        match last.action:
            case "skip":
                message = letter.describe() if last.is_logged else ""
                self.sink.drop(self.node, "error", message=message)
            case "dlq":
                topic = last.dlq_topic(self.app_id) or ""
                self.sink.send(letter.to(topic))
                self.sink.drop(
                    self.node, "dead letter", message=f"{letter.describe()} (to {topic})"
                )
            case _:
                raise processing_error(
                    self.node, letter.topic, letter.partition, letter.offset, letter.error
                ) from letter.error


def _error_of(again: Callable[[], T], found: list[T]) -> Exception | None:
    """Return what `again` raises; otherwise, append its result to `found` and return None."""
    try:
        found.append(again())
    except ProcessingError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code: that is what policies are for
        return error
    except SystemExit as stop:
        return exit_failure(stop)
    return None


def dead_letter_of(
    batch: Batch, at: int, node: str, error: Exception, attempt: int
) -> DeadLetterRecord:
    """Return the record at this index of the batch as a dead letter."""
    origin, row = batch.origin, batch.rows[at]
    raw_keys, raw_values = origin.raw_keys, origin.raw_values
    return DeadLetterRecord(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offsets[row],
        timestamp_ms=batch.timestamps[at],
        key=_shown_bytes(batch.keys[at]) if raw_keys is None else raw_keys[row],
        value=_shown_bytes(batch.values[at]) if raw_values is None else raw_values[row],
        headers=() if origin.headers is None else origin.headers[row],
        node=node,
        error=error,
        attempt=attempt,
        is_internal=raw_keys is None or origin.sources is not None,
    )


def _shown_bytes(obj: object) -> bytes | None:
    """Return a row that was never bytes, in a form for people."""
    if obj is None:
        return None
    try:
        return display_json(obj, enc_hook=repr)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return f"a value of type {type(obj).__name__} that can't be shown: {error}".encode(
            errors="replace"
        )
