"""A log truncated by a crash that has grown again: readers beyond the cut notice (KIP-320)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import OffsetOutOfRange
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

T0 = TopicPartition("t", 0)
BEFORE, AFTER = [b"before %d" % number for number in range(5)], [b"after %d" % n for n in range(5)]
CUT = OffsetAndMetadata(8, leader_epoch=0)
"""The position of a reader that saw 8 records of the first leader, 3 of which the crash lost."""


async def write(log: Log, values: list[bytes]) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send("t", value, partition=0)


def test_a_reader_beyond_a_truncation_resumes_at_the_cut(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            await write(log, BEFORE)
            await asyncio.to_thread(broker.kill_and_restart)
            await write(log, AFTER)
            options = {"group_id": "g", "auto_offset_reset": "latest"}
            async with log.consumer(**options) as reader:  # type: ignore[arg-type]
                reader.assign([T0])
                reader.seek(T0, CUT)
                read: list[bytes | None] = []
                async with asyncio.timeout(60):
                    while len(read) < 5:
                        for records in (await reader.poll(timeout_ms=1_000)).values():
                            read += [record.value for record in records]
                assert read == AFTER
                # The committed position now has the second leader's epoch, and is valid.
                await reader.commit()
                position = (await reader.committed_metadata([T0]))[T0]
                assert position == OffsetAndMetadata(10, leader_epoch=2)
                await write(log, [b"more"])
                reader.seek(T0, position)
                async with asyncio.timeout(60):
                    assert (await reader.poll(timeout_ms=60_000))[T0][0].offset == 10
                # The end of the first leader's epoch has not changed.
                reader.seek(T0, OffsetAndMetadata(5, leader_epoch=0))
                assert (await reader.poll(timeout_ms=60_000))[T0][0].offset == 5
                await reader.commit({T0: CUT})
            async with log.consumer(group_id="g", auto_offset_reset="none") as strict:
                strict.assign([T0])
                with pytest.raises(
                    OffsetOutOfRange, match="was truncated at 5, and this consumer has read up to 8"
                ):
                    await strict.poll(timeout_ms=60_000)
                strict.seek(T0, 5)
                assert (await strict.poll(timeout_ms=60_000))[T0][0].value == AFTER[0]

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))


@pytest.mark.parametrize("is_back", [False, True])
def test_a_recreated_topic_does_not_count_as_an_older_leader(tmp_path: Path, is_back: bool) -> None:
    """Its epochs restart at 0: a reader that waited for a newer one would wait forever."""

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            await asyncio.to_thread(broker.kill_and_restart)
            await write(log, BEFORE)
            options = {"group_id": "g", "auto_offset_reset": "earliest"}

            async def read(reader: Consumer) -> list[bytes | None]:
                reader.assign([T0])
                found: list[bytes | None] = []
                async with asyncio.timeout(60):
                    while len(found) < 5:
                        for records in (await reader.poll(timeout_ms=1_000)).values():
                            found += [record.value for record in records]
                return found

            async with log.consumer(**options) as reader:  # type: ignore[arg-type]
                assert await read(reader) == BEFORE
                await reader.commit()
                position = (await reader.committed_metadata([T0]))[T0]
                assert position is not None
                assert position.leader_epoch > 0
                await log.admin().delete_topics(["t"])
                await log.admin().create_topics([NewTopic("t", 1)])
                await write(log, AFTER)
                if not is_back:
                    assert await read(reader) == AFTER
            if is_back:
                async with log.consumer(**options) as reader:  # type: ignore[arg-type]
                    assert await read(reader) == AFTER

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))
