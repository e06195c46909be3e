"""What a step does with a record that fails: error policies, retries and dead letters.

A step tries a batch as a whole. When a function raises on one record, the results before it are
kept and the rest is processed record by record, with the node's policy for each failure. A dead
letter holds the bytes of the record as it was read, and headers that name its origin and the error;
Kafka Streams' names where it has them (KIP-1034). A batch of a source topic that cannot be read at
all fails as a whole, by the policy of its topic (`DamagedInputs`). Rules of the module:

1. Nothing that has had an effect is done twice: a step calls its functions before it forwards
   anything, and only the call that raised is repeated.
2. A skipped record is counted. What it did in steps above stays; steps below never see it.
3. While a record waits for its next attempt, everything behind it waits too. `pause` belongs to the
   runner, as a task has no clock.
4. A record behind an aggregation on close or a repartition topic is marked `INTERNAL`: only the app
   itself may write it again.

Without a policy (`FAIL`) an error is raised with its coordinates. Not done here: sending dead
letters again (`cli/dlq_command`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import DamagedBatch, ProcessingError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.stream_nodes import Source, TableSource
from streamlog.processing.column_batch import Batch, exit_failure, processing_error
from streamlog.processing.outbox import Drop, Outbox, Reason, SinkBatch
from streamlog.record import Headers
from streamlog.serdes import display_json
from streamlog.topology import Topology

TOPIC = "__streams.errors.topic"
PARTITION = "__streams.errors.partition"
OFFSET = "__streams.errors.offset"
EXCEPTION = "__streams.errors.exception"
MESSAGE = "__streams.errors.message"
TIMESTAMP = "__streams.errors.timestamp"
NODE = "__streams.errors.node"
ATTEMPT = "__streams.errors.attempt"
SIZE = "__streams.errors.value.bytes"
"""There if the value is left out: it was larger than the topic for dead letters takes."""
INTERNAL = "__streams.errors.internal"
"""There if the origin is no topic that anybody but the app may write to."""
OWN = frozenset(
    {TOPIC, PARTITION, OFFSET, EXCEPTION, MESSAGE, TIMESTAMP, NODE, ATTEMPT, INTERNAL, SIZE}
)
"""What a dead letter has beside the headers of its record."""
MESSAGE_CHARACTERS_MAX = 2_000
"""Of an error's text: it is for people, and a record has a largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord:
    """A record, and what failed on it."""

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
    sent_ms: int | None = None
    """Timestamp of the dead letter, if it must not be that of the record."""

    def told(self) -> str:
        """What failed, in a line."""
        name, error = type(self.error).__name__, self.error
        return f"offset {self.offset} of {self.topic}-{self.partition}: {name}: {error}"

    def to(self, topic: str) -> SinkBatch:
        """To be written there."""
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
            (ATTEMPT, self.attempt),
            *(((INTERNAL, 1),) if self.is_internal else ()),
        )
        # A record that was replayed and fails again has those of its first failure.
        kept = tuple(header for header in self.headers if header[0] not in OWN)
        return (*kept, *((name, str(value).encode(errors="replace")) for name, value in own))


logger = logging.getLogger(__name__)

LETTER_BYTES_MAX: Final = 15 * 1024 * 1024
"""A batch that is larger goes to the topic for dead letters without its bytes."""
_STRICTNESS: Final = ("skip", "dlq", "fail")


class DamagedInputs:
    """The policies of an app for its source topics."""

    def __init__(self, topology: Topology, agents: Iterable[tuple[str, ErrorPolicy]] = ()) -> None:
        """`agents` are their topics and policies."""
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
        """The policies for the topics of its global tables."""
        found = cls(Topology(topology.app_id, ()))
        found._writes_letters = False
        for table in topology.global_tables:
            found._note(table.topic.name, table.on_error)
        return found

    def outbox(self, damaged: DamagedBatch) -> Outbox:
        """What is to be written and counted for a batch that is passed; it is logged here.

        Raises:
            ProcessingError: the policy is `FAIL`.
        """
        policy = self._policy(damaged.topic)
        if policy.action == "fail":
            raise ProcessingError(
                f"a batch of {damaged.topic}-{damaged.partition} can't be read: {damaged};"
                " with on_error=on_error.skip() or on_error.dlq() at the topic the app passes it",
                topic=damaged.topic,
                partition=damaged.partition,
                offset=damaged.offset,
                node=damaged.topic,
            ) from damaged
        letters = policy.dlq_topic(self._app_id) if self._writes_letters else None
        letter = _damaged_batch_letter(damaged)
        count = damaged.next_offset - damaged.offset
        told = f"{letter.told()} (offsets {damaged.offset} to {damaged.next_offset - 1})"
        logger.error("passed by on_error: %s", told)
        if letters is None:
            return Outbox(drops=[Drop(damaged.topic, "error", count, told=told)])
        drop = Drop(damaged.topic, "dead letter", count, told=f"{told} (to {letters})")
        return Outbox(writes=[letter.to(letters)], drops=[drop])

    def _policy(self, topic: str) -> ErrorPolicy:
        """The last step of the strictest policy."""
        last = [[*each.chain][-1] for each in self._policies.get(topic, [on_error.FAIL])]
        return max(last, key=lambda policy: _STRICTNESS.index(policy.action))

    def _note(self, topic: str, policy: ErrorPolicy | None) -> None:
        self._policies.setdefault(topic, []).append(policy or on_error.FAIL)


def _damaged_batch_letter(damaged: DamagedBatch) -> DeadLetterRecord:
    """The batch as it lies in the log: only a person can make something of it, so no replay."""
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
"""What a function of the user's gives."""

Pause = Callable[[int], None]
"""Wait for so many milliseconds."""


class SkippedRecord:
    """In place of a result: the record goes no further."""


SKIPPED: Final = SkippedRecord()


class DeadLetterSink(Protocol):
    """Where records and counts go: the task's outbox in the making."""

    def send(self, batch: SinkBatch) -> None:
        """To be written."""

    def drop(self, node: str, reason: Reason, count: int = 1, *, told: str = "") -> None:
        """Count records that are left out."""


def no_pause(_backoff_ms: int) -> None:
    """The next attempt follows at once."""


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """What a node does with records on which it fails."""

    node: str
    policy: ErrorPolicy
    app_id: str
    outlet: DeadLetterSink
    pause: Pause = no_pause

    @property
    def are_fatal(self) -> bool:
        """Whether the first one ends the task, so that nothing has to be kept for going on."""
        return self.policy.action == "fail"

    def settled(
        self,
        batch: Batch,
        results: list[T],
        error: Exception,
        fn: Callable[..., T],
        columns: Sequence[Sequence[Any]],
    ) -> tuple[Batch, list[T]]:
        """The rest of a batch on which `fn` raised: the records that go on, and their results.

        Args:
            batch: all of them.
            results: of the records before the one it raised on.
            error: what it raised.
            fn: the user's function.
            columns: its arguments, by record.

        Raises:
            ProcessingError: the policy is, or comes to, `FAIL`.
        """
        if self.are_fatal:
            raise batch.failure(self.node, len(results), error) from error
        kept = [True] * len(results)
        first: Exception | None = error
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
        """What the function gives for one record, by the policy if it raises.

        Args:
            batch: the record is one of these.
            at: which.
            fn: the user's function.
            arguments: what it is called with.
            first: what the first attempt raised, if that has been made.

        Raises:
            ProcessingError: the policy is, or comes to, `FAIL`.
        """
        return self.resolved(
            partial(fn, *arguments), partial(dead_letter_of, batch, at, self.node), first
        )

    def resolved(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], DeadLetterRecord],
        first: Exception | None = None,
    ) -> T | SkippedRecord:
        """The same for anything that can be tried again; `letter` is asked for if it is in vain."""
        result = self.tried(again, letter, first)
        if not isinstance(result, DeadLetterRecord):
            return result
        self.give_up(result)
        return SKIPPED

    def tried(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], DeadLetterRecord],
        first: Exception | None = None,
    ) -> T | DeadLetterRecord:
        """Its result, or what is to be given up after all attempts of the policy."""
        found: list[T] = []
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
        """The record goes no further: skip it, or write it to the topic for dead letters.

        Raises:
            ProcessingError: the policy is `FAIL` in the end.
        """
        last = [*self.policy.chain][-1]
        match last.action:
            case "skip":
                told = letter.told() if last.is_logged else ""
                self.outlet.drop(self.node, "error", told=told)
            case "dlq":
                topic = last.dlq_topic(self.app_id) or ""
                self.outlet.send(letter.to(topic))
                self.outlet.drop(self.node, "dead letter", told=f"{letter.told()} (to {topic})")
            case _:
                raise processing_error(
                    self.node, letter.topic, letter.partition, letter.offset, letter.error
                ) from letter.error


def _error_of(again: Callable[[], T], found: list[T]) -> Exception | None:
    """What it raises, or its result in `found`."""
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
    """The record at this place in the batch, as a dead letter."""
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
    """A row that was never bytes, for people."""
    if obj is None:
        return None
    try:
        return display_json(obj, enc_hook=repr)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return f"a {type(obj).__name__} that can't be shown: {error}".encode(errors="replace")
