"""Refused sinks: the error policies of nodes, applied to sink records that a broker refuses.

No state of a task depends on the fate of its sink records. So a commit that is refused because of
some records is repeated without them, with the state, offsets and other records of the first
attempt.

Rules: only records that a broker names as refused are dropped (KIP-467). If it refuses a batch and
names none, each record is sent in a batch of its own. Under the policy `FAIL` the worker ends with
an error that names the node, the partition and the key. A dead letter that is too large for its
topic is sent there without its value. Not done here: sending (`commit`, `exactly_once`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.errors import LogError, MessageTooLarge, ProcessingError, quantity
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.processing.error_handling import INTERNAL, SIZE, DeadLetterRecord
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.topology import Topology

UNKNOWN_OFFSET: Final = -1
"""The offset of a record that was never written."""
PACK_BYTES: Final = 256 * 1024
"""The size at which a batch of records that are sent again ends."""
KEY_CHARACTERS_MAX: Final = 100
"""The number of characters of a key in a message."""

Packs: TypeAlias = Mapping[TopicPartition, Sequence[PackedRecords]]
Fields: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers, which identify a record: equal records are refused alike."""


class _Writer(NamedTuple):
    """The nodes that write to a topic, and their policy."""

    node: str
    policy: ErrorPolicy


@dataclass(slots=True)
class Settlement:
    """The decision about refused records."""

    drops: list[Drop] = field(default_factory=list)
    """The dropped records, to be counted and logged."""
    letters: list[SinkBatch] = field(default_factory=list)
    """Dead letters to write instead of dropped records."""
    dropped: defaultdict[TopicPartition, Counter[Fields]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    """The dropped records of each partition, with the number of equal ones."""
    alone: defaultdict[TopicPartition, set[Fields]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """Records that may be the reason of a refusal, so each gets a batch of its own."""
    rest: defaultdict[TopicPartition, list[PackedRecords]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Records whose batch was refused with the dropped ones; outside of a transaction they are sent
    again, as the other batches of the commit are in the log."""

    def without_dropped(self, packs: Packs) -> dict[TopicPartition, list[PackedRecords]]:
        """Return the records for another attempt at a commit."""
        found: dict[TopicPartition, list[PackedRecords]] = {}
        for part, some in packs.items():
            left, alone = Counter(self.dropped.get(part)), self.alone.get(part, set())
            # Nothing was refused here: the batches of the first attempt are sent as they are.
            if not left and not alone:
                found[part] = [*some]
                continue
            fields = (_fields(each) for pack in some for each in pack.part(0, len(pack)))
            kept = _pack((each for each in fields if not _take_one(left, each)), alone)
            if kept:
                found[part] = kept
        return found


class RefusedSinks:
    """Decides about refused records of one app's sinks."""

    def __init__(self, topology: Topology, sources: Iterable[SourceConnector] = ()) -> None:
        """`sources` are the connectors whose records the same transactions write."""
        self._app_id = topology.app_id
        self._writers: dict[str, _Writer] = {}
        self._letters: set[str] = set()
        """The topics of dead letters."""
        self._internal = {topic.name for topic in topology.topics.values() if topic.internal}
        for sub in topology.subtopologies:
            for node in sub.nodes:
                policy = node.on_error or on_error.FAIL
                if (letters := policy.dlq_topic(self._app_id)) is not None:
                    self._letters.add(letters)
                for topic in node.writes:
                    self._note(topic.name, _Writer(node.name, policy))
        for source in sources:
            if (letters := source.policy.dlq_topic(self._app_id)) is not None:
                self._letters.add(letters)
            for spec in source.topics.values():
                self._note(spec.name, _Writer(source.name, source.policy))

    def settle(self, refusals: Iterable[RefusedRecord]) -> Settlement:
        """Decide about refused records by the policies of their nodes.

        Raises:
            ProcessingError: the policy of a node is `FAIL`, or its last step is.
        """
        settlement = Settlement()
        for refusal in refusals:
            records = [_fields(each) for each in refusal.records]
            for index in refusal.blamed:
                self._drop(refusal, records[index], settlement)
                settlement.dropped[refusal.partition][records[index]] += 1
            others = [each for index, each in enumerate(records) if index not in refusal.blamed]
            # Without names any record may be the reason. Sent alone, a bad one is refused by name
            # in the next attempt, and the others are in the log.
            alone = set() if refusal.blamed else {*others}
            if others:
                settlement.alone[refusal.partition] |= alone
                settlement.rest[refusal.partition] += _pack(others, alone)
        return settlement

    def _note(self, topic: str, writer: _Writer) -> None:
        """Note a writer of a topic.

        If a topic has several writers, the writer of a record is unknown, and `FAIL` of any of
        them counts.
        """
        known = self._writers.get(topic, writer)
        is_stricter = writer.policy == on_error.FAIL
        policy = writer.policy if is_stricter else known.policy
        names = {*known.node.split(", "), writer.node}
        self._writers[topic] = _Writer(", ".join(sorted(names)), policy)

    def _drop(self, refusal: RefusedRecord, record: Fields, settlement: Settlement) -> None:
        topic, partition = refusal.partition
        time_ms, key, value, headers = record
        is_letter = topic in self._letters and topic not in self._writers
        # A letter has more headers than its record, so it may be too large although the record was
        # not.
        if is_letter and isinstance(refusal.error, MessageTooLarge) and value is not None:
            settlement.letters.append(_without_value(topic, record))
            return
        writer = self._writers.get(topic, _Writer(topic, on_error.FAIL))
        # A refusal is final, so of the steps of a policy the last one decides.
        last = [*writer.policy.chain][-1]
        message = _describe(refusal, record)
        match last.action:
            case "skip":
                drop = Drop(writer.node, "error", 1, message=message if last.is_logged else "")
                settlement.drops.append(drop)
            case "dlq":
                letters = last.dlq_topic(self._app_id) or ""
                letter = DeadLetterRecord(
                    topic=topic,
                    partition=partition,
                    offset=UNKNOWN_OFFSET,
                    timestamp_ms=time_ms,
                    key=key,
                    value=value,
                    headers=headers,
                    node=writer.node,
                    error=refusal.error,
                    attempt=1,
                    is_internal=topic in self._internal,
                )
                settlement.letters.append(letter.to(letters))
                message = f"{message} (to {letters})"
                settlement.drops.append(Drop(writer.node, "dead letter", 1, message=message))
            case _:
                raise ProcessingError(
                    f"{writer.node!r} failed: {message}",
                    topic=topic,
                    partition=partition,
                    node=writer.node,
                ) from refusal.error


def _fields(record: tuple[Any, ...]) -> Fields:
    time_ms, key, value, headers = record
    return time_ms, key, value, tuple((name, content) for name, content in headers or ())


def _take_one(left: Counter[Fields], record: Fields) -> bool:
    """Take the record from the counter; returns whether it was there."""
    # Equal records may occur several times, and each refusal takes one of them.
    if left[record] <= 0:
        return False
    left[record] -= 1
    return True


def _pack(records: Iterable[Fields], alone: set[Fields]) -> list[PackedRecords]:
    """Pack records in order; those in `alone` get a batch of their own."""
    packs: list[PackedRecords] = []
    is_open = False
    for record in records:
        is_lone = record in alone
        is_open = is_open and packs[-1].size_bytes() < PACK_BYTES
        if is_lone or not is_open:
            packs.append(PackedRecords())
        packs[-1].extend(FieldColumns.of([record]))
        is_open = not is_lone
    return packs


def _without_value(topic: str, letter: Fields) -> SinkBatch:
    """Return a dead letter without its value; the headers keep it from counting as a tombstone."""
    time_ms, key, value, headers = letter
    size = str(len(value or b"")).encode()
    headers = (*headers, (SIZE, size), (INTERNAL, b"1"))
    return SinkBatch(topic, None, [time_ms], [key], [None], [headers])


def _describe(refusal: RefusedRecord, record: Fields) -> str:
    topic, partition = refusal.partition
    time_ms, key, value, _ = record
    target = topic if partition < 0 else f"{topic}-{partition}"
    shown = repr(key)[:KEY_CHARACTERS_MAX]
    error = refusal.error
    reason = str(error) if isinstance(error, LogError) else f"{type(error).__name__}: {error}"
    message = (
        f"{target} refuses the record with key {shown} and {quantity(len(value or b''), 'byte')}"
    )
    if not isinstance(error, LogError) or error.code != ErrorCode.INVALID_TIMESTAMP:
        return f"{message}: {reason}"
    return (
        f"{message}, whose timestamp is {time_ms}: {reason}. If it is the time of"
        " this machine, put its clock right. If it is an event time and right, run:"
        f" streamlog configs alter --topic {topic} --set"
        " message.timestamp.after.max.ms=MILLISECONDS --log URL; otherwise set on_error of the sink"
        " to skip such records or to keep them as dead letters"
    )
