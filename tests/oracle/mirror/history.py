"""A history: random acts at a source, a mirror of it all the while, and a look at both at the end.

What has to hold then, as librdkafka and `streamlog mirror verify` see both sides:

1. Partitions start and end at equal offsets, also for readers of committed records.
2. Whole batches are equal, byte for byte (`verify`), and committed records, one by one.
   In compacted topics, which each side compacts for itself, the last values of all keys are.
3. Groups stand where they stand at the source, or at the start of what is left.
4. Topics have the settings that they have at the source.
5. A topic that was created again under its name is stopped, with what the first one had.
6. Promoted, the topics take records from producers with the transactional ids of the source, and
   a group continues where it stood. Of a transaction that was left open no record is shown, and
   readers of committed records get past it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.oracle.mirror import reading
from tests.oracle.mirror.acts import AGAIN, COMPACTED, PLAIN, TRANSACTIONAL_IDS, Acts
from tests.oracle.mirror.clusters import Side, java_reads
from tests.oracle.mirror.reading import QUIET, WITHIN_S, Record

LINK: Final = "east"
LOOK_S: Final = 0.2
COMMAND_S: Final = 180.0
STRIKE_SHARE: Final = 0.05
"""Of acts at which one side is struck."""

Partition = tuple[str, int]


@dataclass(slots=True)
class History:
    """One history over two clusters that have no topics yet."""

    source: Side
    mirror: Side
    chance: Random
    acts: int
    strike_share: float = STRIKE_SHARE
    told: list[str] = field(default_factory=list)
    """What has happened beside the acts."""

    def run(self) -> list[str]:
        """Live; return what does not hold at the end."""
        there = Acts(self.source.address, self.source.replicas, self.chance)
        there.begin()
        links = ("--source", f"kafka://{self.source.address}", "--topics", ".*", "--groups", ".*")
        quick = ("--set", "refresh.topics.interval.ms=500")
        self._command("create", LINK, *links, *quick)
        for _ in range(self.acts):
            there.act()
            if self.chance.random() < self.strike_share:
                side = self.chance.choice((self.source, self.mirror))
                self.told.append(side.strike(self.chance))
                if side is self.source:
                    there.on_strike()
        there.close()
        self.told.append(", ".join(f"{name} {n}" for name, n in sorted(there.counts.items())))
        return [*self._differences(there), *self._promoted()]

    # ---- both sides ----

    def _differences(self, there: Acts) -> Iterator[str]:
        stopped = self._stopped()
        partitions = [
            (topic, number)
            for topic, count in there.partitions.items()
            if topic not in stopped
            for number in range(count)
        ]
        yield from self._until_equal("bounds", lambda side: reading.ends(side.address, partitions))
        yield from self._until_equal(
            "stable ends", lambda side: reading.stable_ends(side.address, partitions)
        )
        yield from self._verified(stopped)
        for where in partitions:
            yield from self._read_alike(*where)
        for topic in {topic for topic, _ in partitions}:
            yield from self._until_equal(
                f"settings of {topic}",
                lambda side, topic=topic: reading.settings(side.address, topic),  # type: ignore[misc]
            )
        yield from self._groups(partitions)
        if AGAIN in stopped:
            yield from self._kept_first(there)
        elif there.before_deletion:
            self.told.append(f"{AGAIN} was mirrored only after it was created again")

    def _until_equal(self, what: str, look: Callable[[Side], Mapping[Any, Any]]) -> Iterator[str]:
        """Wait until both sides look alike; yield what differs if they never do."""
        until = time.monotonic() + WITHIN_S
        while True:
            one: Mapping[Any, Any] = {}
            other: Mapping[Any, Any] = {"": "the other side does not answer"}
            with suppress(KafkaException):
                one, other = look(self.source), look(self.mirror)
            if one == other:
                return
            if time.monotonic() > until:
                break
            time.sleep(LOOK_S)
        for key in sorted({*one, *other}, key=str):
            if one.get(key) != other.get(key):
                yield f"{what}: {key}: {one.get(key)} at the source, {other.get(key)} here"

    def _verified(self, stopped: Sequence[str]) -> Iterator[str]:
        found = json.loads(self._command("verify", "--link", LINK, "--json", fails=True))
        yield from (
            f"verify: {each}"
            for each in found
            if each["parts_at"] is not None and each["topic"] not in stopped
        )

    def _read_alike(self, topic: str, partition: int) -> Iterator[str]:
        there, here = (
            reading.read(each.address, topic, partition) for each in (self.source, self.mirror)
        )
        if topic == COMPACTED:
            if _last_values(there) != _last_values(here):
                yield f"last values of {topic}-{partition} differ"
            common = {each[0] for each in there} & {each[0] for each in here}
            there, here = ([each for each in one if each[0] in common] for one in (there, here))
        if there != here:
            first = next(
                (pair for pair in zip(there, here, strict=False) if pair[0] != pair[1]), ()
            )
            yield f"{topic}-{partition}: {len(there)} records there, {len(here)} here: {first}"

    def _groups(self, partitions: Sequence[Partition]) -> Iterator[str]:
        starts = {
            where: found[0]
            for where, found in reading.ends(self.mirror.address, partitions).items()
        }

        def of(side: Side, group: str) -> dict[Partition, int]:
            # The records at a position may be deleted: a copy stands at the first one that is left.
            return {
                where: max(offset, starts[where])
                for where, offset in reading.positions(side.address, group).items()
                if where in starts
            }

        for group in reading.groups(self.source.address):
            if any(where in starts for where in reading.positions(self.source.address, group)):
                yield from self._until_equal(
                    f"group {group}",
                    lambda side, group=group: of(side, group),  # type: ignore[misc]
                )

    def _kept_first(self, there: Acts) -> Iterator[str]:
        """Yield the partitions that have other records than one of the deleted topics had."""
        for number in range(there.partitions[AGAIN]):
            here = reading.read(self.mirror.address, AGAIN, number, isolation="read_uncommitted")
            known = [found for _, at, found in there.before_deletion if at == number]
            if not any({*map(str, here)} <= {*map(str, found)} for found in known):
                yield f"{AGAIN}-{number} has records of another topic: {here[:3]}"

    # ---- afterwards ----

    def _promoted(self) -> Iterator[str]:
        wanted = (PLAIN, COMPACTED)
        partitions = [
            (topic, number)
            for topic, count in reading.topics(self.mirror.address).items()
            if topic in wanted
            for number in range(count)
        ]
        before = {each: reading.read(self.mirror.address, *each) for each in partitions}
        stable = reading.stable_ends(self.mirror.address, partitions)
        copied = {
            each: end for each, (_, end) in reading.ends(self.mirror.address, partitions).items()
        }
        left_open = [each for each in partitions if stable[each] < copied[each]]
        self.told.append(f"transactions left open in {len(left_open)} partitions")
        there = {each: reading.read(self.source.address, *each) for each in partitions}
        self._command("promote", LINK, "--now", "--yes")
        for name in TRANSACTIONAL_IDS:
            yield from self._goes_on(name, partitions)
        ends = reading.ends(self.mirror.address, partitions)
        if (found := reading.stable_ends(self.mirror.address, partitions)) != {
            where: end for where, (_, end) in ends.items()
        }:
            yield f"transactions are open after the promotion: {found}, {ends}"
        for where in partitions:
            after = reading.read(self.mirror.address, *where)
            kept = [each for each in after if each[0] < stable[where]]
            if where[0] == PLAIN and kept != before[where]:
                yield f"{where}: committed records have changed by the promotion"
            # Behind what was copied lies what was written since.
            copies = [each for each in after if each[0] < copied[where]]
            yield from self._shows_no_open(where, copies, there[where])
            if where[0] == PLAIN:
                yield from self._shows_all_since(where, after)
        yield from self._group_goes_on(partitions)
        yield from self._java_goes_on([each for each in partitions if each[0] == PLAIN])

    def _goes_on(self, name: str, partitions: Sequence[Partition]) -> Iterator[str]:
        """Let a producer with a transactional id of the source write in each partition."""
        producer = Producer(
            {"bootstrap.servers": self.mirror.address, "transactional.id": name, **QUIET}
        )
        try:
            producer.init_transactions(WITHIN_S)
            producer.begin_transaction()
            for topic, number in partitions:
                producer.produce(topic, b"after", b"after", partition=number)
            producer.commit_transaction(WITHIN_S)
        except KafkaException as error:
            yield f"a producer {name} can't go on after the promotion: {error}"

    def _shows_no_open(
        self, where: Partition, copies: Sequence[Record], there: Sequence[Record]
    ) -> Iterator[str]:
        """Yield copied records that are shown, and were not committed at the source."""
        known = {each[0] for each in there}
        for each in copies:
            if each[0] not in known and where[0] == PLAIN:
                yield f"{where}: {each} is shown, and was not committed at the source"

    def _shows_all_since(self, where: Partition, after: Sequence[Record]) -> Iterator[str]:
        """Yield a partition whose readers of committed records do not get past what was copied."""
        shown = sum(each[1] == b"after" for each in after)
        if shown != len(TRANSACTIONAL_IDS):
            yield f"{where}: {shown} of {len(TRANSACTIONAL_IDS)} records are shown of those since"

    def _group_goes_on(self, partitions: Sequence[Partition]) -> Iterator[str]:
        """Let a group of the source read on: what comes is the record at its position."""
        group = "reset"
        positions = reading.positions(self.mirror.address, group)
        consumer = Consumer(
            {
                "bootstrap.servers": self.mirror.address,
                **QUIET,
                "group.id": group,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
            }
        )
        try:
            places = [each for each in positions if each in partitions]
            for topic, number in places:
                consumer.assign([TopicPartition(topic, number, positions[topic, number])])
                messages = consumer.consume(1, WITHIN_S)
                if not messages or messages[0].error() is not None:
                    why = messages[0].error() if messages else "nothing comes"
                    yield f"group {group} can't go on in {topic}-{number}: {why}"
                    continue
                (message,) = messages
                due = [
                    each[0]
                    for each in reading.read(self.mirror.address, topic, number)
                    if each[0] >= positions[topic, number]
                ]
                if message.offset() != due[0]:
                    yield f"group {group} goes on at {message.offset()}, not at {due[0]}"
        finally:
            consumer.close()

    def _java_goes_on(self, partitions: Sequence[Partition]) -> Iterator[str]:
        """Let Kafka's own consumer take a group of the source over: it reads the rest, once."""
        group = "classic-0"
        positions = reading.positions(self.mirror.address, group)
        due = sorted(
            f"{number}:{record[0]}"
            for topic, number in partitions
            for record in reading.read(self.mirror.address, topic, number)
            if record[0] >= positions.get((topic, number), 0)
        )
        found = sorted(java_reads(self.mirror.address, PLAIN, group))
        if found != due:
            differing = sorted({*found} ^ {*due})[:5]
            yield f"Kafka's consumer reads {len(found)} records and not {len(due)}: {differing}"

    # ---- commands ----

    def _stopped(self) -> list[str]:
        """Wait until the link has seen what was created again; return the topics it has stopped."""
        time.sleep(2)
        found = json.loads(self._command("describe", LINK, "--json"))
        return [each["name"] for each in found["mirrors"] if each["status"] == "STOPPED"]

    def _command(self, *words: str, fails: bool = False) -> str:
        """Run `streamlog mirror`, and return what it says; it may fail if `fails`."""
        words = ("mirror", *words, "--log", f"kafka://{self.mirror.address}")
        done = subprocess.run(
            [sys.executable, "-m", "streamlog", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode and not (fails and done.stdout):
            raise RuntimeError(f"{words} has ended with {done.returncode}: {done.stderr}")
        return done.stdout


def _last_values(records: Sequence[Record]) -> dict[bytes | None, bytes | None]:
    found = {key: value for _, key, value, _, _ in records}
    # A tombstone may have gone on one side already.
    return {key: value for key, value in found.items() if value is not None}
