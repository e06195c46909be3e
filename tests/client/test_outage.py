"""An outage begins once and ends once, however many partitions fail.

Each part of a client that logs the loss of its broker logs one line when the broker is back.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.admin import NewTopic
from streamlog.client.outage import Outage
from streamlog.client.producer import sender
from streamlog.client.producer.sender import NAMED_MAX
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

PARTS = st.sets(st.integers(0, 4))
STEPS = st.lists(st.tuples(st.sampled_from(["fail", "work", "keep"]), PARTS), max_size=30)


@given(STEPS)
def test_an_outage_ends_when_its_last_partition_recovers(
    steps: list[tuple[str, set[int]]],
) -> None:
    outage: Outage[int] = Outage()
    failing: set[int] = set()
    since = 0
    for now_s, (what, parts) in enumerate(steps):
        was_on = bool(failing)
        if what == "fail":
            failing |= parts
            since = since if was_on else now_s
            assert outage.begin(parts, 1000 * now_s) is (not was_on and bool(parts))
        elif what == "work":
            failing -= parts
            ended = was_on and not failing
            assert outage.end(parts, 1000 * now_s) == (now_s - since if ended else None)
        else:
            failing &= parts
            outage.keep(parts)
        assert outage.is_on is bool(failing)
        assert len(outage) == len(failing)


def test_each_part_of_a_client_logs_one_line_after_an_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [TopicPartition("t", number) for number in range(4)]

    async def lived(broker: BrokerProcess) -> None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.producer() as producer,
            log.consumer(auto_offset_reset="earliest") as reader,
        ):
            await log.admin().create_topics([NewTopic("t", len(parts))])
            reader.assign(parts)
            await (await producer.send("t", b"before", partition=0))
            await asyncio.to_thread(broker.kill)
            sent = [await producer.send("t", b"meanwhile", partition=n.partition) for n in parts]
            for _ in range(20):
                await reader.poll(timeout_ms=50)
            await asyncio.to_thread(broker.__enter__)
            await asyncio.gather(*sent)
            while "answer fetches again" not in caplog.text:
                await reader.poll(timeout_ms=50)

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(asyncio.wait_for(lived(broker), 30))
    again = [text for text in caplog.messages if "again after" in text]
    gone = [text for text in caplog.messages if "be retried" in text or "sent yet" in text]
    for part in ("answer fetches again", "accept records again"):
        assert 1 <= sum(part in text for text in again) <= (2 if "fetch" in part else 1), again
    assert len(again) <= len(gone)


async def log_says(part: str) -> None:
    """Return once a line with these words is logged."""
    said, logger = asyncio.Event(), logging.getLogger(sender.__name__)

    def look(record: logging.LogRecord) -> bool:
        if part in record.getMessage():
            said.set()
        return True

    logger.addFilter(look)
    try:
        await said.wait()
    finally:
        logger.removeFilter(look)


def test_an_outage_of_many_partitions_names_a_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 5 * NAMED_MAX

    async def lived(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log, log.producer() as producer:
            await log.admin().create_topics([NewTopic("t", count)])
            await (await producer.send("t", b"before", partition=0))
            await asyncio.to_thread(broker.kill)
            sent = [await producer.send("t", b"meanwhile", partition=n) for n in range(count)]
            await log_says("no more are named")
            await asyncio.to_thread(broker.__enter__)
            await asyncio.gather(*sent)

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(asyncio.wait_for(lived(broker), 30))
    named = [text for text in caplog.messages if text.startswith("t-")]
    assert len(named) == NAMED_MAX
    assert sum("no more are named" in text for text in caplog.messages) == 1
