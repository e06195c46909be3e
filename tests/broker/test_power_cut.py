"""Power cuts with torn tails under load: nothing acknowledged is lost, and indexes are right."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import CHECKPOINTS, CLEAN_SHUTDOWN
from streamlog.broker.storage.disk.files import names_in, read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles, Tear
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import CorruptData, LogDirectoryError
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch, split_batches
from tests.broker.node import Node, create, later, produce_request

CUTS = 1_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 200
LIVES = 4
PARTITIONS = 3
PAGE_BYTES = 512
SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=128)

Kept = dict[tuple[int, int], bytes]
"""Values that were acknowledged, by partition and offset."""


def torn_by(chance: Random) -> Tear:
    """Keep nothing, a prefix, or random pages of the unsynced bytes; lost pages are zeros."""

    def torn(durable: bytes, written: bytes) -> bytes:
        added = written[len(durable) :]
        how = chance.randrange(3)
        if how == 0 or len(written) < len(durable):
            return durable
        if how == 1:
            return durable + added[: chance.randint(0, len(added))]
        pages = [added[at : at + PAGE_BYTES] for at in range(0, len(added), PAGE_BYTES)]
        return durable + b"".join(
            page if chance.random() < 0.5 else bytes(len(page)) for page in pages
        )

    return torn


def node(files: MemoryFiles) -> Node:
    return Node(files=files, config=BrokerConfig(topic=SMALL))


def write_until_cut(files: MemoryFiles, kept: Kept, chance: Random, life: int) -> None:
    """Write with many requests in flight, and cut the power while some are unanswered."""

    async def story(broker: Broker) -> None:
        if "t" not in broker.directory.topics:
            create(broker, partitions=PARTITIONS)
        flying: list[tuple[int, list[bytes], asyncio.Future[Message]]] = []
        for number in range(chance.randint(1, 60)):
            partition = chance.randrange(PARTITIONS)
            sent = [b"%d/%d/%d" % (life, number, i) for i in range(chance.randint(1, 4))]
            data = encode_batch([(number, None, value + bytes(90), ()) for value in sent])
            future: asyncio.Future[Message] = later(broker, produce_request(data, index=partition))
            flying.append((partition, sent, future))
            if chance.random() < 0.2:
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                await future
            if chance.random() < 0.05:
                broker.directory.write_checkpoints()
        done = [each for each in flying if each[2].done()]
        files.crash(torn=torn_by(chance))
        for _, _, future in flying:
            future.cancel()
        for partition, sent, future in done:
            response = future.result()
            assert isinstance(response, ProduceResponse)
            answer = response.responses[0].partition_responses[0]
            assert answer.error_code == 0
            kept.update(
                {(partition, answer.base_offset + i): value for i, value in enumerate(sent)}
            )

    with suppress(OSError, LogDirectoryError):
        node(files).run(story)


def check(files: MemoryFiles, kept: Kept) -> None:
    """Check that acknowledged records are readable, and that rebuilt indexes equal the stored."""
    with_indexes = indexes(files, kept)
    for name in folders(files):
        for each in files.list(f"data/{name}"):
            if each.endswith("index"):
                files.remove(f"data/{name}/{each}")
    for name in (CLEAN_SHUTDOWN, CHECKPOINTS):
        with suppress(FileNotFoundError):
            files.remove(f"data/{name}")
    assert indexes(files, kept) == with_indexes


def indexes(files: MemoryFiles, kept: Kept) -> dict[str, bytes]:
    """Return the indexes of undamaged partitions after an opening and a clean shutdown."""
    directory = LogDirectory.open("data", files=files, config=BrokerConfig(topic=SMALL))
    topic = directory.topics["t"]
    there = {
        (partition, offset): value
        for partition, log in topic.partitions.items()
        for offset, value in values(log)
    }
    assert {item: there.get(item) for item in kept} == kept
    logs = topic.partitions.items()
    whole = {f"p-{topic.topic_id.hex()}-{number}" for number, log in logs if log.is_whole}
    directory.close()
    return {
        f"{name}/{each}": read_file(files, f"data/{name}/{each}")
        for name in whole
        for each in names_in(files, f"data/{name}")
        if each.endswith("index")
    }


def values(log: PartitionLog) -> Iterator[tuple[int, bytes]]:
    """Yield the readable records.

    Pages of one file reach the disk in any order, so unsynced bytes may leave a hole: the log
    reports it and continues after it.
    """
    offset = 0
    while offset < log.log_end_offset:
        gap = next((item for item in log.damage if item.covers(offset)), None)
        if gap is not None:
            assert gap.next_offset is not None
            offset = gap.next_offset
            continue
        try:
            data = log.read(offset, max_bytes=1 << 20)
        except CorruptData:
            assert any(item.covers(offset) for item in log.damage)
            continue
        for batch in split_batches(data):
            batch.check_crc()
            yield from ((record.offset, (record.value or b"")[:-90]) for record in batch.records())
            offset = batch.next_offset


def folders(files: MemoryFiles) -> list[str]:
    return [name for name in files.list("data") if name.startswith("p-")]


@pytest.mark.parametrize("seed", range(CUTS // LIVES))
def test_a_power_cut_loses_no_acknowledged_record(seed: int) -> None:
    chance = Random(seed)
    files, kept = MemoryFiles(), Kept()
    for life in range(LIVES):
        write_until_cut(files, kept, chance, life)
        if "topics.json" not in files.list("data"):
            continue  # cut before there was a topic
        check(files, kept)
