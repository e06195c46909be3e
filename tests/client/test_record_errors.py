"""Records that a broker refuses by index (KIP-467): they fail, the rest of their batch does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import RecordsRefused, StreamlogError, TransactionAborted
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.client.test_producer import read

PARTITION = TopicPartition("kept", 0)


@asynccontextmanager
async def compacted(path: Path, transport: str) -> AsyncIterator[Log]:
    """Open a log with a topic that refuses records without a key."""
    async with Log.open(f"embedded:{path / 'data'}") as served:
        topic = NewTopic("kept", 1, configs={"cleanup.policy": "compact"})
        await served.admin().create_topics([topic])
        if transport == "embedded":
            yield served
            return
        assert served.address is not None
        async with Log.open("kafka://{}:{}".format(*served.address)) as remote:
            yield remote


async def outcomes(
    futures: Sequence[asyncio.Future[RecordMetadata]],
) -> list[RecordMetadata | BaseException]:
    return list(await asyncio.gather(*futures, return_exceptions=True))


@pytest.mark.parametrize("transport", ["embedded", "tcp"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_good_records_are_written_without_refused_ones(
    tmp_path: Path, transport: str, compression: str, idempotent: bool
) -> None:
    """They are written in order and once, wherever the refused ones lie."""
    chance = Random(7)

    async def main() -> None:
        async with compacted(tmp_path, transport) as log:
            producer = log.producer(
                linger_ms=2, batch_bytes=600, compression=compression, idempotent=idempotent
            )
            keys = [None if chance.random() < 0.1 else b"k%d" % number for number in range(400)]
            async with producer:
                futures = []
                for number, key in enumerate(keys):
                    futures.append(await producer.send("kept", b"%d" % number, key=key))
                    if chance.random() < 0.05:
                        await asyncio.sleep(0.003)
                found = await outcomes(futures)
                with pytest.raises(RecordsRefused):
                    await producer.flush()
            good = [number for number, key in enumerate(keys) if key is not None]
            records = await read(log, PARTITION)
            assert [int(record.value or b"") for record in records] == good
            positions = {int(record.value or b""): record.offset for record in records}
            for number, outcome in enumerate(found):
                if number in positions:
                    assert isinstance(outcome, RecordMetadata)
                    assert outcome.offset == positions[number]
                else:
                    assert isinstance(outcome, RecordsRefused)
                    assert "has no key" in str(outcome)

    asyncio.run(main())


def test_a_batch_of_only_refused_records_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with compacted(tmp_path, "tcp") as log, log.producer(linger_ms=5) as producer:
            futures = [await producer.send("kept", b"v") for _ in range(3)]
            found = await outcomes(futures)
            assert [type(each) for each in found] == [RecordsRefused] * 3
            with pytest.raises(RecordsRefused):
                await producer.flush()

    asyncio.run(main())


async def write_both(log: Log) -> None:
    """Write a valid record and an invalid one in one transaction."""
    async with log.producer(transactional_id="x") as producer, producer.transaction():
        await producer.send("kept", b"v", key=b"k")
        await producer.send("kept", b"v")


def test_one_refused_record_aborts_its_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with compacted(tmp_path, "tcp") as log:
            with pytest.raises(TransactionAborted) as caught:
                await write_both(log)
            assert isinstance(caught.value.__cause__, StreamlogError)
            assert "has no key" in str(caught.value.__cause__)
            assert await read(log, PARTITION) == []

    asyncio.run(main())
