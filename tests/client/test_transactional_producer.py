"""Transactions of our producer: a block counts completely or not at all, and errors help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.cluster import Cluster
from streamlog.client.offset_lookup import Isolation
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer, transaction_session
from streamlog.client.producer.transaction_session import Transaction
from streamlog.errors import (
    ConfigError,
    LogError,
    MessageTooLarge,
    ProducerFenced,
    TransactionAborted,
    UsageError,
)
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from tests.broker.process import BrokerProcess

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
E = TypeVar("E", bound=BaseException)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Stop(Exception):
    """Leaves a transaction block."""


@asynccontextmanager
async def failing(
    producer: Producer, error: type[E], match: str | None = None
) -> AsyncIterator[tuple[pytest.ExceptionInfo[E], Transaction]]:
    """Run a transaction whose block is left by an error."""
    async with AsyncExitStack() as stack:
        caught = stack.enter_context(pytest.raises(error, match=match))
        yield caught, await stack.enter_async_context(producer.transaction())


async def read(
    log: Log, *topic_partitions: TopicPartition, isolation: Isolation = "read_committed"
) -> list[bytes | None]:
    """Return all values in these partitions; by default T0."""
    found: list[bytes | None] = []
    async with log.consumer(isolation_level=isolation) as consumer:
        for topic_partition in topic_partitions or (T0,):
            consumer.assign([topic_partition])
            consumer.seek(topic_partition, 0)
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            while await consumer.position(topic_partition) < end:
                for records in (await consumer.poll(timeout_ms=1_000)).values():
                    found += [each.value for each in records]
    return found


def test_a_transaction_block_counts_whole_or_not_at_all(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.producer(transactional_id="x") as producer:
                async with producer.transaction():
                    await producer.send("t", b"a0", partition=0)
                    await (
                        await producer.send_batch(
                            "t", 1, [(0, None, b"a1", ()), (0, None, b"b1", ())], atomic=True
                        )
                    )
                async with failing(producer, Stop):
                    delivery = await producer.send("t", b"no", partition=0)
                    await producer.flush()
                    assert (await delivery).offset == 2
                    assert await read(log) == [b"a0"]
                    raise Stop
                async with producer.transaction():
                    await producer.send_batch("t", 0, [(0, None, b"c0", ())] * 3)
            assert await read(log, T0, T1) == [b"a0", b"c0", b"c0", b"c0", b"a1", b"b1"]
            everything = await read(log, isolation="read_uncommitted")
            assert everything == [b"a0", b"no", b"c0", b"c0", b"c0"]

    asyncio.run(main())


@pytest.mark.parametrize("level", [None, 0])
def test_each_transaction_has_an_epoch_of_its_own_where_the_cluster_gives_it(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, level: int | None
) -> None:
    """At level 0 the producer has transactions v1, as on a cluster of Kafka 3."""

    async def feature(*_: object) -> int:
        return 0

    if level == 0:
        monkeypatch.setattr(Cluster, "feature", feature)

    async def main() -> None:
        async with open_log(t=1) as log, log.producer(transactional_id="x") as producer:
            assert producer._session is not None
            machine, epochs = producer._session._transactions, []
            for committed in (True, False, True):
                async with failing(producer, Stop) if not committed else producer.transaction():
                    await producer.send("t", b"%d" % committed, partition=0)
                    await producer.flush()
                    if not committed:
                        raise Stop
                assert machine.identity is not None
                epochs.append(machine.identity.producer_epoch - len(epochs) * machine.is_v2)
            assert len(set(epochs)) == 1, (machine.is_v2, epochs)
            assert not (level == 0 and machine.is_v2)
            assert await read(log) == [b"1", b"1"]

    asyncio.run(main())


def test_packed_records_are_written_in_their_transaction(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.producer(transactional_id="x") as producer:
                packs = [PackedRecords(), PackedRecords()]
                for at, pack in enumerate(packs):
                    pack.extend(FieldColumns.of([(7, b"k", b"%d%d" % (at, n), ()) for n in (0, 1)]))
                async with producer.transaction():
                    await producer.send("t", b"first", partition=0)
                    sent = [await producer.send_batch("t", 0, pack) for pack in packs]
                    await producer.flush()
                    assert [(await each).offset for each in sent] == [2, 4]
                    with pytest.raises(UsageError):
                        await producer.send_batch("t", 0, PackedRecords())
            assert await read(log) == [b"first", b"00", b"01", b"10", b"11"]

    asyncio.run(main())


def test_many_small_transactions_succeed_in_sequence(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.producer(transactional_id="x", linger_ms=0) as producer:
                for number in range(40):
                    is_lost = number % 3 == 0
                    async with failing(producer, Stop) if is_lost else producer.transaction():
                        for partition in (0, 1):
                            await producer.send("t", b"%d" % number, partition=partition)
                        if is_lost:
                            raise Stop
            wanted = [b"%d" % number for number in range(40) if number % 3]
            assert await read(log, T0) == await read(log, T1) == wanted

    asyncio.run(main())


def test_offsets_are_committed_with_the_transaction(open_log: OpenLog) -> None:
    async def main() -> None:
        async with (
            open_log(t=2) as log,
            log.consumer(group_id="g") as consumer,
            log.producer(transactional_id="x") as producer,
        ):
            async with failing(producer, Stop) as (_, transaction):
                await transaction.send_offsets({T0: 3}, consumer.group_metadata())
                raise Stop
            assert await consumer.committed([T0]) == {T0: None}
            async with producer.transaction() as transaction:
                await transaction.send_offsets({}, consumer.group_metadata())
                await transaction.send_offsets({T0: 4}, consumer.group_metadata())
                await transaction.send_offsets({T0: 5, T1: 6}, consumer.group_metadata())
            assert await consumer.committed([T0, T1]) == {T0: 5, T1: 6}

    asyncio.run(main())


def test_a_stable_offset_lookup_waits_for_the_pending_transaction(open_log: OpenLog) -> None:
    async def main() -> None:
        async with (
            open_log(t=1) as log,
            log.consumer(group_id="g") as consumer,
            log.producer(transactional_id="x") as producer,
        ):
            async with producer.transaction() as transaction:
                topic_partition = OffsetAndMetadata(7, "seven", 0)
                await transaction.send_offsets({T0: topic_partition}, consumer.group_metadata())
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.committed([T0]), 0.3)
            assert await consumer.committed_metadata([T0]) == {T0: topic_partition}

    asyncio.run(main())


def test_offsets_of_a_replaced_member_abort_the_transaction(open_log: OpenLog) -> None:
    async def main() -> None:
        async with (
            open_log(t=2) as log,
            log.consumer(group_id="g", auto_offset_reset="earliest") as member,
            log.producer(transactional_id="x") as producer,
        ):
            await member.subscribe(["t"])
            while not member.assignment():
                await member.poll(timeout_ms=1_000)
            now = member.group_metadata()
            async with producer.transaction() as transaction:
                await transaction.send_offsets({T0: 1}, now)
            assert member._group is not None
            assert member._group.member is not None
            member._group.member.generation_id -= 1
            before = member.group_metadata()
            member._group.member.generation_id += 1
            async with failing(producer, TransactionAborted, match="ILLEGAL_GENERATION") as (
                aborted,
                transaction,
            ):
                await producer.send("t", b"no", partition=0)
                await transaction.send_offsets({T0: 2}, before)
            assert aborted.value.aborts_transaction
            assert not aborted.value.fatal
            async with producer.transaction() as transaction:
                await producer.send("t", b"yes", partition=0)
                await transaction.send_offsets({T0: 3}, member.group_metadata())
            assert await member.committed([T0]) == {T0: 3}
            assert await read(log) == [b"yes"]

    asyncio.run(main())


def test_a_lost_record_aborts_and_the_next_transaction_succeeds(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.producer(transactional_id="x") as producer:
                for number in range(2):
                    async with failing(
                        producer, TransactionAborted, match=r"max\.message\.bytes"
                    ) as (aborted, _):
                        await producer.send("t", b"no", partition=0)
                        await producer.flush()
                        lost = await producer.send("t", b"x" * 2_000_000, partition=0)
                        await producer.send("t", b"no", partition=1)
                    assert isinstance(aborted.value.__cause__, MessageTooLarge)
                    with pytest.raises(MessageTooLarge):
                        await lost
                    async with producer.transaction():
                        await producer.send("t", b"yes%d" % number, partition=0)
            assert await read(log, T0, T1) == [b"yes0", b"yes1"]

    asyncio.run(main())


def test_an_aborted_transaction_takes_no_more_records(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.producer(transactional_id="x") as producer:
            async with failing(producer, TransactionAborted, match="can't be encoded"):
                await producer.send("t", "text")  # type: ignore[arg-type]
                with pytest.raises(TransactionAborted):
                    await producer.flush()
                with pytest.raises(TransactionAborted):
                    await producer.send("t", b"more")
            assert await read(log, isolation="read_uncommitted") == []

    asyncio.run(main())


def test_an_older_producer_with_the_transactional_id_is_fenced(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.producer(transactional_id="x") as older:
            async with older.transaction():
                await older.send("t", b"first")
            async with failing(older, ProducerFenced, match="a transactional_id of its own"):
                await (await older.send("t", b"open"))
                async with log.producer(transactional_id="x") as newer, newer.transaction():
                    await newer.send("t", b"second")
            for refused in (older.transaction().__aenter__(), older.send("t", b"third")):
                with pytest.raises(ProducerFenced) as fenced:
                    await refused
                assert fenced.value.fatal
            assert await read(log) == [b"first", b"second"]

    asyncio.run(main())


def test_sending_outside_a_transaction_is_refused(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(transactional_id="x") as producer:
                for refused in (
                    producer.send("t", b""),
                    producer.send_batch("t", 0, [(0, None, b"", ())]),
                    producer.send_batch("t", 0, [(0, None, b"", ())], atomic=True),
                ):
                    with pytest.raises(UsageError, match=r"async with producer\.transaction"):
                        await refused
                await producer.flush()
                async with producer.transaction() as first:
                    with pytest.raises(UsageError, match="has an open transaction"):
                        await producer.transaction().__aenter__()
                group = log.consumer(group_id="g").group_metadata()
                with pytest.raises(UsageError, match=r"async with producer\.transaction"):
                    await first.send_offsets({T0: 1}, group)
            async with log.producer() as plain:
                with pytest.raises(UsageError, match="set transactional_id"):
                    plain.transaction()

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"transactional_id": ""},
        {"transactional_id": "x", "acks": 1},
        {"transactional_id": "x", "idempotent": False},
        {"transactional_id": "x", "transaction_timeout_ms": 0},
    ],
)
def test_contradictory_producer_settings_are_refused(
    tmp_path: Path, options: dict[str, object]
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            with pytest.raises(ConfigError):
                log.producer(**options)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_refused_transaction_timeout_fails_the_opening(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            producer = log.producer(transactional_id="x", transaction_timeout_ms=2**31 - 1)
            with pytest.raises(LogError, match="INVALID_TRANSACTION_TIMEOUT"):
                await producer.__aenter__()

    asyncio.run(main())


def test_cancelling_a_transaction_aborts_it(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.producer(transactional_id="x") as producer:
            is_written, is_over = asyncio.Event(), asyncio.Event()

            async def write() -> None:
                try:
                    async with producer.transaction():
                        await (await producer.send("t", b"no"))
                        is_written.set()
                        await asyncio.Event().wait()
                finally:
                    is_over.set()

            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(write())
                await is_written.wait()
                task.cancel()
                await is_over.wait()
            assert task.cancelled()
            async with producer.transaction():
                await producer.send("t", b"yes")
            assert await read(log) == [b"yes"]

    asyncio.run(main())


def test_closing_the_producer_aborts_an_open_transaction(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            producer = await log.producer(transactional_id="x").__aenter__()
            await producer.transaction().__aenter__()
            await producer.send("t", b"no")
            await producer.close()
            assert await read(log) == []
            async with log.producer(transactional_id="x") as again, again.transaction():
                await again.send("t", b"yes")
            assert await read(log) == [b"yes"]

    asyncio.run(main())


def test_an_unanswered_abort_is_completed_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_session, "ABORT_WAIT_MS", 100)

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic("t", partitions=1)])
            async with log.producer(transactional_id="x") as producer:
                async with failing(producer, Stop):
                    await (await producer.send("t", b"no"))
                    await asyncio.to_thread(broker.kill)
                    raise Stop
                await asyncio.to_thread(broker.__enter__)
                async with producer.transaction():
                    await producer.send("t", b"yes")
            assert await read(log) == [b"yes"]

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(main(broker))
