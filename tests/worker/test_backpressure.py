"""A stopped broker: writes wait in bounded memory, and arrive once it continues."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch
from streamlog.worker.commit.commit import SinkWriter
from tests.worker.processes import STREAMLOG, read_until, running

BATCHES, RECORDS, VALUE = 40, 50, b"x" * 1_000
BUFFER_BYTES = 256 * 1024


def test_writes_to_a_stopped_broker_wait_in_bounded_memory(tmp_path: Path) -> None:
    command = (*STREAMLOG, "broker", "--data", str(tmp_path / "log"), "--listen", "127.0.0.1:0")
    with running(*command, cwd=tmp_path) as broker:
        address = broker.line(r"listening on (\S+)").group(1)

        async def story() -> None:
            async with Log.open(f"kafka://{address}") as log:
                await log.admin().create_topics([NewTopic("outs", 1)])
                async with log.producer(linger_ms=0, buffer_bytes=BUFFER_BYTES) as producer:
                    await through(log, SinkWriter(producer))

        async def through(log: Log, sinks: SinkWriter) -> None:
            written = 0

            async def write() -> None:
                nonlocal written
                for number in range(BATCHES):
                    values = [b"%d" % number + VALUE] * RECORDS
                    batch = SinkBatch("outs", None, [0] * RECORDS, [None] * RECORDS, values)
                    await sinks.write([batch])
                    written += 1

            # The producer learns the partitions before the broker stops: it asks for them only
            # once.
            await sinks.write([SinkBatch("outs", None, [0], [None], [b"first"])])
            await sinks.flush()
            broker.signal(signal.SIGSTOP)
            writing = asyncio.get_running_loop().create_task(write())
            done, _ = await asyncio.wait([writing], timeout=0.5)
            broker.signal(signal.SIGCONT)
            # The broker was stopped all the time, so it can't have received more than the buffer
            # holds.
            assert not done
            assert written * RECORDS * len(VALUE) <= BUFFER_BYTES + RECORDS * 2 * len(VALUE)
            await writing
            await sinks.flush()
            rows = await read_until(log, "outs", lambda rows: len(rows) > BATCHES * RECORDS)
            assert len(rows) == 1 + BATCHES * RECORDS

        asyncio.run(story())
