"""Transactions that are open at the source when its mirror is promoted."""

from __future__ import annotations

import asyncio

from streamlog.broker.broker import Broker
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import FetchResponse, PartitionData
from streamlog.records.batch import encode_batch
from streamlog.records.control_batches import COMMIT, Marker
from tests.broker.mirroring.test_mirrors import alter, content, link, mirror, serving, until
from tests.broker.node import ask, at, batch, create, fetch_request, produce, values

READ_COMMITTED = 1


def write(broker: Broker, value: bytes, *, producer_id: int, sequence: int = 0) -> None:
    """Append a record of a transaction."""
    data = encode_batch(
        [(1_000, None, value, ())],
        producer_id=producer_id,
        producer_epoch=4,
        base_sequence=sequence,
        transactional=True,
    )
    broker._partitions.get("t", 0).append(data, now_ms=0, origin=AppendOrigin.TRANSACTION)


def end(broker: Broker, producer_id: int) -> None:
    partition = broker._partitions.get("t", 0)
    partition.end_transaction(producer_id, 4, Marker(COMMIT, 9), now_ms=0, wall_ms=0)


async def committed(broker: Broker) -> PartitionData:
    """Return what a reader of committed records gets from the start on."""
    request = fetch_request(at(0))
    request.isolation_level = READ_COMMITTED
    return (await ask(broker, request, FetchResponse)).responses[0].partitions[0]


def open_here(broker: Broker) -> list[int]:
    """Return the producers that have a transaction open."""
    log = broker.directory.topics["t"].partitions[0]
    return [producer_id for producer_id, _ in log.producers.transactions]


def test_promotion_aborts_what_the_source_has_left_open_and_nothing_else() -> None:
    async def story() -> None:
        here = MemoryFiles()
        async with serving(MemoryFiles()) as (source, address):
            create(source)
            write(source, b"whole", producer_id=7)
            end(source, 7)
            write(source, b"again", producer_id=7, sequence=1)
            write(source, b"open", producer_id=8)
            await produce(source, batch(b"plain"))
            async with serving(here) as (target, _):
                await mirror(target, await link(target, address, source), source)
                await until(lambda: content(target) == content(source))
                # A mirror ends no transaction: whether it is committed is for the source to say.
                assert open_here(target) == [7, 8]
                await until(lambda: target._partitions.get("t", 0).high_watermark == 5)
                assert (await committed(target)).last_stable_offset == 2

                await alter(target, MirrorState.PROMOTED)
                await until(lambda: open_here(target) == [])
                await until(lambda: target._partitions.get("t", 0).high_watermark == 7)
                found = await committed(target)
                assert (found.high_watermark, found.last_stable_offset) == (7, 7)
                assert found.aborted_transactions is not None
                aborted = {(e.producer_id, e.first_offset) for e in found.aborted_transactions}
                assert aborted == {(7, 2), (8, 3)}
                assert values(found)[:1] == [b"whole"]

                # The source's producers are fenced; others begin, and are left alone.
                fenced = await produce(target, plain(b"late", producer_id=8))
                assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
                write(target, b"own", producer_id=99)
                await alter_settings(target)
                assert open_here(target) == [99]
            async with serving(here) as (target, _):
                await until(lambda: open_here(target) == [99])
                log = target.directory.topics["t"].partitions[0]
                assert log.log_end_offset == 8

    asyncio.run(story())


def plain(value: bytes, *, producer_id: int) -> bytes:
    """Return a batch of an idempotent producer outside of a transaction."""
    return encode_batch(
        [(1_000, None, value, ())], producer_id=producer_id, producer_epoch=4, base_sequence=1
    )


async def alter_settings(broker: Broker) -> None:
    """Change the metadata, so that the broker looks at all its promoted partitions again."""
    create(broker, "other")
    await until(lambda: "other" in broker.directory.topics)
