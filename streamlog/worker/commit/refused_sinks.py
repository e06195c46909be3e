"""RefusedSinks: what becomes of sink records that a broker does not take, by the nodes' policies.

A sink is the end of the way: nothing in the task depends on what it wrote. So a commit that is
refused because of some records is made again without them; state, offsets and all other records
are those of the first attempt. Rules of the file: only what a broker has blamed is given up; of a
batch of which it does not say what is to blame, each record goes alone. What is given up by
`FAIL` ends the worker, with the node, the partition and the key. A dead letter that is too large
for its topic goes there without its value. Not done here: sending (`commit`, `exactly_once`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.errors import LogError, MessageTooLarge, ProcessingError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.processing.error_handling import INTERNAL, SIZE, DeadLetterRecord
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.topology import Topology

UNKNOWN_OFFSET: Final = -1
"""Of a record that has none, as it was never written."""
PACK_BYTES: Final = 256 * 1024
"""Of records that go together again."""
KEY_CHARACTERS_MAX: Final = 100
"""Of a key in an error's text."""

Packs: TypeAlias = Mapping[TopicPartition, Sequence[PackedRecords]]
Fields: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Time, key, value and headers: equal records are refused alike."""


class _Writer(NamedTuple):
    """Who writes to a topic."""

    node: str
    policy: ErrorPolicy


@dataclass(slots=True)
class Settlement:
    """What is to be done about refusals."""

    drops: list[Drop] = field(default_factory=list)
    letters: list[SinkBatch] = field(default_factory=list)
    """To be written in their place."""
    given_up: defaultdict[TopicPartition, Counter[Fields]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    alone: defaultdict[TopicPartition, set[Fields]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """What may or may not be to blame, so goes in batches of its own."""
    rest: defaultdict[TopicPartition, list[PackedRecords]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """What went down with others and is to be sent again, if the others of its commit are there."""

    def without(self, packs: Packs) -> dict[TopicPartition, list[PackedRecords]]:
        """The records of a commit that is made again."""
        found: dict[TopicPartition, list[PackedRecords]] = {}
        for place, some in packs.items():
            left, alone = Counter(self.given_up.get(place)), self.alone.get(place, set())
            if not left and not alone:
                found[place] = [*some]
                continue
            fields = (_fields(each) for pack in some for each in pack.part(0, len(pack)))
            kept = _pack((each for each in fields if not _taken(left, each)), alone)
            if kept:
                found[place] = kept
        return found


class RefusedSinks:
    """Decides about the refusals of one app's sinks."""

    def __init__(self, topology: Topology) -> None:
        self._app_id = topology.app_id
        self._writers: dict[str, _Writer] = {}
        self._letters: set[str] = set()
        """Topics for dead letters."""
        self._internal = {topic.name for topic in topology.topics.values() if topic.internal}
        for sub in topology.subtopologies:
            for node in sub.nodes:
                policy = node.on_error or on_error.FAIL
                if (letters := policy.dlq_topic(self._app_id)) is not None:
                    self._letters.add(letters)
                for topic in node.writes:
                    self._note(topic.name, _Writer(node.name, policy))

    def settled(self, refusals: Iterable[RefusedRecord]) -> Settlement:
        """What is to be done about them.

        Raises:
            ProcessingError: the policy of a node is, or comes to, `FAIL`.
        """
        settlement = Settlement()
        for refusal in refusals:
            records = [_fields(each) for each in refusal.records]
            for at in refusal.blamed:
                self._give_up(refusal, records[at], settlement)
                settlement.given_up[refusal.partition][records[at]] += 1
            others = [each for at, each in enumerate(records) if at not in refusal.blamed]
            alone = set() if refusal.blamed else {*others}
            if others:
                settlement.alone[refusal.partition] |= alone
                settlement.rest[refusal.partition] += _pack(others, alone)
        return settlement

    def _note(self, topic: str, writer: _Writer) -> None:
        """Of several nodes that write to one topic nobody knows whose record it is."""
        known = self._writers.get(topic, writer)
        is_stricter = writer.policy == on_error.FAIL
        policy = writer.policy if is_stricter else known.policy
        names = {*known.node.split(", "), writer.node}
        self._writers[topic] = _Writer(", ".join(sorted(names)), policy)

    def _give_up(self, refusal: RefusedRecord, record: Fields, settlement: Settlement) -> None:
        topic, partition = refusal.partition
        time_ms, key, value, headers = record
        is_letter = topic in self._letters and topic not in self._writers
        if is_letter and isinstance(refusal.error, MessageTooLarge) and value is not None:
            settlement.letters.append(_shortened(topic, record))
            return
        writer = self._writers.get(topic, _Writer(topic, on_error.FAIL))
        last = [*writer.policy.chain][-1]
        told = _describe(refusal, record)
        match last.action:
            case "skip":
                drop = Drop(writer.node, "error", 1, message=told if last.is_logged else "")
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
                told = f"{told} (to {letters})"
                settlement.drops.append(Drop(writer.node, "dead letter", 1, message=told))
            case _:
                raise ProcessingError(
                    f"{writer.node!r} failed: {told}",
                    topic=topic,
                    partition=partition,
                    node=writer.node,
                ) from refusal.error


def _fields(record: tuple[Any, ...]) -> Fields:
    time_ms, key, value, headers = record
    return time_ms, key, value, tuple((name, content) for name, content in headers or ())


def _taken(left: Counter[Fields], record: Fields) -> bool:
    """Whether it is one of those that are left to be given up; then there is one less."""
    if left[record] <= 0:
        return False
    left[record] -= 1
    return True


def _pack(records: Iterable[Fields], alone: set[Fields]) -> list[PackedRecords]:
    """In their order, in one batch between those that go alone."""
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


def _shortened(topic: str, letter: Fields) -> SinkBatch:
    """A dead letter without its value, which nobody may take for a deletion."""
    time_ms, key, value, headers = letter
    size = str(len(value or b"")).encode()
    headers = (*headers, (SIZE, size), (INTERNAL, b"1"))
    return SinkBatch(topic, None, [time_ms], [key], [None], [headers])


def _describe(refusal: RefusedRecord, record: Fields) -> str:
    topic, partition = refusal.partition
    time_ms, key, value, _ = record
    place = topic if partition < 0 else f"{topic}-{partition}"
    shown = repr(key)[:KEY_CHARACTERS_MAX]
    error = refusal.error
    what = str(error) if isinstance(error, LogError) else f"{type(error).__name__}: {error}"
    told = f"{place} refuses the record with key {shown} and {len(value or b'')} bytes"
    if not isinstance(error, LogError) or error.code != ErrorCode.INVALID_TIMESTAMP:
        return f"{told}: {what}"
    return (
        f"{told}, whose timestamp is {time_ms}: {what}. If this event time is right, run: streamlog"
        f" configs alter --topic {topic} --set message.timestamp.after.max.ms=MILLISECONDS --log"
        " URL; on_error of the sink decides what becomes of such records"
    )
