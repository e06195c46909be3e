"""Which transactions of an app count when a mark lies in the midst of one."""

from __future__ import annotations

import asyncio

from streamlog.broker.broker import Broker
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.broker.mirroring.apps.app_cut import Where
from streamlog.broker.mirroring.apps.app_history import PREPARE_COMMIT
from streamlog.broker.mirroring.apps.app_scan import AppScan
from streamlog.broker.mirroring.link_plan import POSITIONS_LOG, TRANSACTION_LOG
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.log import Log
from streamlog.protocol.codec import decode_versioned
from streamlog.protocol.messages.metadata_log import MarkedPartition
from streamlog.protocol.messages.transaction_messages import TransactionLogValue
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch, split_batches
from tests.broker.mirroring.test_mirrors import content, serving
from tests.broker.node import create

APP, MIDDLE, STATE, OUT = "shop", "shop-0-repartition", "shop-1-changelog", "out"
TOPICS = dict.fromkeys((MIDDLE, STATE, OUT), 1)


def batches(broker: Broker, where: Where) -> list[RecordBatch]:
    return [*split_batches(content(broker, where[1], where[0]))]


def end_of(broker: Broker, where: Where) -> int:
    return broker.directory.topics[where[0]].partitions[where[1]].log_end_offset


async def work(log: Log, writer: str, reader: str) -> None:
    """Let one producer write two topics in a transaction, and another one read what it wrote."""
    async with (
        log.producer(transactional_id=writer) as first,
        log.producer(transactional_id=reader) as second,
    ):
        async with first.transaction():
            for topic in (MIDDLE, STATE):
                await first.send(topic, b"x", partition=0)
        async with second.transaction() as transaction:
            await second.send(OUT, b"x", partition=0)
            await transaction.send_offsets(
                {TopicPartition(MIDDLE, 0): 1}, GroupMetadata(group_id=APP)
            )


def decided_at(broker: Broker, where: Where) -> int:
    """Return the offset of the first decision in a partition of the log of transactions."""
    return next(
        record.offset
        for batch in batches(broker, where)
        for record in batch.records()
        if record.value is not None
        and decode_versioned(TransactionLogValue, record.value).transaction_status == PREPARE_COMMIT
    )


def test_what_has_read_from_a_transaction_that_a_mark_divides_is_out_with_it() -> None:
    """1. A transaction has its marker in the repartition topic, and for a minute none in the
    changelog, whose leader is away. 2. The app reads and ends, and there is a mark. 3. The source
    is lost before the second marker is copied."""

    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (broker, address),
            Log.open(f"kafka://{address}") as log,
        ):
            for name in TOPICS:
                create(broker, name)
            # The log of transactions has 50 partitions: each producer has one of its own.
            writer = "shop-a"
            reader = next(
                name
                for name in map("shop-b{}".format, range(50))
                if shard_index(name, 50) != shard_index(writer, 50)
            )
            await work(log, writer, reader)
            count = len(broker.directory.topics[TRANSACTION_LOG].partitions)
            home = shard_index(APP, len(broker.directory.topics[POSITIONS_LOG].partitions))
            divided = shard_index(writer, count)
            assert divided != shard_index(reader, count)
            places = [(TRANSACTION_LOG, number) for number in range(count)]
            places += [(POSITIONS_LOG, home), *((name, 0) for name in TOPICS)]
            ends = {where: end_of(broker, where) for where in places}
            marks = {
                where: MarkedPartition(
                    topic=where[0],
                    partition=where[1],
                    scan_from=end,
                    whole_below=end,
                    settled_below=end,
                )
                for where, end in ends.items()
            }
            at = decided_at(broker, (TRANSACTION_LOG, divided))
            marks[TRANSACTION_LOG, divided] = MarkedPartition(
                topic=TRANSACTION_LOG,
                partition=divided,
                scan_from=at + 1,
                whole_below=at + 1,
                settled_below=at + 1,
            )
            # The changelog has the record, and not the marker behind it.
            ends[STATE, 0] = 1
            marks[STATE, 0] = MarkedPartition(topic=STATE, partition=0, whole_below=1)

            scan = AppScan(APP, TOPICS, home=home, mark=[*marks.values()], is_alone=True)
            for number, reading in scan.transaction_logs.items():
                for batch in batches(broker, (TRANSACTION_LOG, number)):
                    reading.add(batch)
            scan.on_transactions()
            for batch in batches(broker, scan.home):
                scan.positions.add(batch)
            scan.on_positions()
            for where, spans in scan.readers().items():
                for batch in batches(broker, where):
                    if scan.scan_from(where) <= batch.base_offset < ends[where]:
                        spans.add(batch)
            cut = scan.cut(ends)
            assert cut.ends == {(MIDDLE, 0): 1, (STATE, 0): 1, (OUT, 0): 1}
            assert len(cut.out) == 2
            assert scan.positions_at(cut) == {}

    asyncio.run(story())
