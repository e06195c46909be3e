"""A job published by a producer's transaction, as on brokers that know no publications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from crc32c import crc32c

from streamlog.client.transactional_publish import publish_in_transaction
from streamlog.errors import CorruptData
from streamlog.log import Log
from streamlog.records.batch import encode_batch
from streamlog.records.staged import StagedSegment
from tests.client.test_publish_admin import PLACE, committed

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
DATA = b"".join(encode_batch([(1, b"k", b"%d" % n, (("h", None),))]) for n in range(9))
SEGMENT = StagedSegment("t", 0, "a", len(DATA), 9, crc32c(DATA))


OTHER = StagedSegment("u", 0, "b", len(DATA), 9, crc32c(DATA))


async def publish(log: Log, *segments: StagedSegment) -> bool:
    contents = {"a": DATA, "b": DATA}
    async with log.producer(transactional_id="job") as producer:
        return await publish_in_transaction(
            log.admin(), producer, "job", segments, contents.__getitem__
        )


async def publish_thrice(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        with pytest.raises(CorruptData, match="a of job job is not what was staged"):
            await publish(log, SEGMENT._replace(crc32c=1))
        assert not await publish(log, SEGMENT)
        assert await publish(log, SEGMENT)
        assert await committed(log, PLACE, 9) == [b"%d" % n for n in range(9)]


def test_it_counts_once(open_log: OpenLog) -> None:
    asyncio.run(publish_thrice(open_log))


async def publish_in_another_order(open_log: OpenLog) -> None:
    async with open_log(t=1, u=1) as log:
        assert not await publish(log, SEGMENT, OTHER)
        assert await publish(log, OTHER, SEGMENT)
        assert len(await committed(log, PLACE, 9)) == 9


def test_it_is_known_again_whatever_comes_first(open_log: OpenLog) -> None:
    asyncio.run(publish_in_another_order(open_log))
