"""An unreadable batch in a source topic: the app stops or skips it, as its policy says."""

from __future__ import annotations

import asyncio
import logging
from itertools import product
from pathlib import Path

import pytest

from streamlog import App, on_error
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.errors import DamagedBatch, ProcessingError
from streamlog.log import Log
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing.error_handling import OFFSET, PARTITION, TOPIC, DamagedInputs
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.records.batch import HEADER_BYTES, encode_batch
from streamlog.records.compression import Compression, compress
from streamlog.worker.global_reader import GlobalReader
from tests.records.test_record_scan import sealed
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import STREAMLOG, attached, read_until, running

CODECS = (Compression.NONE, Compression.ZSTD)
APP = """
from streamlog import App, on_error

app = App("lines", log="embedded:./log", state_dir="./state", commit_interval="50ms",
          guarantee={guarantee!r}, on_error=on_error.{policy})
lines = app.topic("lines", key=bytes, value=bytes, partitions=1)
app.stream(lines).to(app.topic("copies", key=bytes, value=bytes, partitions=1))
"""


def garbage(codec: Compression) -> bytes:
    """Return a batch with three records by its header, and unreadable bytes."""
    header = bytearray(encode_batch([(1, None, b"", ())] * 3))[:HEADER_BYTES]
    header[21:23] = codec.to_bytes(2)
    return sealed(header + compress(codec, b"\xff" * 40))


async def produce_raw(log: Log, topic: str, data: bytes) -> None:
    """Produce as a client that checks nothing."""
    records = PartitionProduceData(index=0, records=data)
    topics = [TopicProduceData(name=topic, partition_data=[records])]
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=topics)
    cluster = log._cluster()
    try:
        await cluster.find(timeout_ms=5_000)
        answer = await cluster.call_any(request, ProduceResponse)
    finally:
        await cluster.close()
    assert answer.responses[0].partition_responses[0].error_code == 0


async def spoil(log: Log) -> None:
    await log.admin().alter_configs({"validate.records": "false"}, topic="lines")
    async with log.producer() as producer:
        await (await producer.send("lines", b"before", key=b"k"))
    for codec in CODECS:
        await produce_raw(log, "lines", garbage(codec))


async def spoil_at_once(log: Log) -> None:
    """Write the batch; the worker that reads it ends, with its embedded broker."""
    await log.admin().alter_configs({"validate.records": "false"}, topic="lines")
    async with log.producer() as producer:
        await (await producer.send("lines", b"before", key=b"k"))
    await produce_raw(log, "lines", garbage(Compression.NONE))


async def write(log: Log) -> None:
    await spoil(log)
    async with log.producer() as producer:
        await (await producer.send("lines", b"after", key=b"k"))


async def copies(log: Log) -> list[bytes]:
    found = await read_until(log, "copies", lambda rows: len(rows) >= 2)
    return [record.value or b"" for _, record in found]


async def letters(log: Log) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
    found = await read_until(log, "lines-dlq", lambda rows: len(rows) >= 2)
    return [(record.value, dict(record.headers)) for _, record in found]


SOME_CASES = [("skip()", "at_least_once"), ("dlq()", "exactly_once")]
ALL_CASES = list(product(["skip()", "dlq()"], ["exactly_once", "at_least_once"]))


@pytest.mark.parametrize(("policy", "guarantee"), ALL_CASES if IS_THOROUGH else SOME_CASES)
def test_a_worker_skips_an_unreadable_batch(tmp_path: Path, policy: str, guarantee: str) -> None:
    (tmp_path / "lines.py").write_text(APP.format(policy=policy, guarantee=guarantee))
    url = f"embedded:{tmp_path}/log"
    with running(*STREAMLOG, "-A", "lines", "worker", cwd=tmp_path) as worker:
        worker.line("rebalance: this worker has")
        attached(url, write)
        worker.line("skipped by on_error: offset 1 of lines-0")
        worker.line("skipped by on_error: offset 4 of lines-0")
        assert attached(url, copies) == [b"before", b"after"]
        if policy == "dlq()":
            found = attached(url, letters)
            written = [garbage(codec)[HEADER_BYTES:] for codec in CODECS]
            assert [(value or b"")[HEADER_BYTES:] for value, _ in found] == written
            origin = {TOPIC: b"lines", PARTITION: b"0", OFFSET: b"1"}
            assert found[0][1].items() >= origin.items()
        assert worker.stop() == 0
    with running(*STREAMLOG, "-A", "lines", "worker", cwd=tmp_path) as worker:
        worker.line("rebalance: this worker has")
        assert worker.stop() == 0  # Its position is behind the batches.


def test_an_unreadable_batch_stops_the_worker_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(APP.format(policy="FAIL", guarantee="exactly_once"))
    with running(*STREAMLOG, "-A", "lines", "worker", cwd=tmp_path) as worker:
        worker.line("rebalance: this worker has")
        attached(f"embedded:{tmp_path}/log", spoil_at_once)
        worker.line("a batch of lines-0 can't be read: lines-0 at offset 1")
        assert worker.wait() == 7


def inputs(topic: ErrorPolicy | None, agent: ErrorPolicy | None, app: ErrorPolicy) -> DamagedInputs:
    built_app = App("a", on_error=app)
    source = built_app.topic("t", key=str, value=str, on_error=topic)
    if topic is not None or agent is None:
        built_app.stream(source).to(built_app.topic("u", key=str, value=str))
    if agent is not None:

        @built_app.agent(source, on_error=agent)
        async def watch(stream: object) -> None: ...

    agents = [(each.topic.name, each.on_error) for each in built_app.agents]
    return DamagedInputs(built_app.topology(), agents)


DAMAGED = DamagedBatch.at("t", 2, (7, 10), b"bytes", "it is garbage")


@pytest.mark.parametrize(
    ("topic", "agent", "app", "expected"),
    [
        (None, None, on_error.skip(), "error"),
        (on_error.skip(), None, on_error.FAIL, "error"),
        (on_error.dlq(), None, on_error.FAIL, "dead letter"),
        (on_error.retry(2, then=on_error.skip()), None, on_error.FAIL, "error"),
        (on_error.skip(), on_error.dlq(), on_error.FAIL, "dead letter"),
        (None, None, on_error.FAIL, None),
        (on_error.skip(), on_error.FAIL, on_error.skip(), None),
    ],
)
def test_the_strictest_error_policy_applies(
    topic: ErrorPolicy | None, agent: ErrorPolicy | None, app: ErrorPolicy, expected: str | None
) -> None:
    found = inputs(topic, agent, app)
    if expected is None:
        with pytest.raises(ProcessingError, match="t-2 at offset 7") as caught:
            found.outbox(DAMAGED)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 2, 7)
        return
    outbox = found.outbox(DAMAGED)
    (drop,) = outbox.drops
    assert (drop.node, drop.reason, drop.count) == ("t", expected, 3)
    assert len(outbox.writes) == (expected == "dead letter")


def test_unreadable_batches_of_internal_topics_are_never_skipped() -> None:
    found = inputs(None, None, on_error.skip())
    with pytest.raises(ProcessingError):
        found.outbox(DamagedBatch.at("a-changelog", 0, (0, 1), b"", "garbage"))


async def spoil_users(log: Log) -> None:
    """Write two unreadable batches between readable rows."""
    await log.admin().create_topics([NewTopic("users", 1, configs={"validate.records": "false"})])
    async with log.producer() as producer:
        await (await producer.send("users", b"1", key=b"before"))
        for codec in CODECS:
            await produce_raw(log, "users", garbage(codec))
        await (await producer.send("users", b"2", key=b"after"))


def global_reader(log: Log, policy: ErrorPolicy | None) -> GlobalReader:
    app = App("looks", on_error=on_error.FAIL)
    app.global_table(app.topic("users", key=str, value=str, on_error=policy))
    return GlobalReader(log, app.topology(), {"users": 1}, SystemClock())


@pytest.mark.parametrize("policy", [on_error.skip(), on_error.dlq()])
def test_a_global_table_skips_an_unreadable_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: ErrorPolicy
) -> None:
    """Every worker reads the topic from its start, so the batch becomes no dead letter."""
    caplog.set_level(logging.ERROR)

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await spoil_users(log)
            async with global_reader(log, policy) as reader:
                await reader.load(asyncio.Event())
                assert reader.left == {"users": 0}
                rows = reader.tables.rows_of("users").rows()
                assert rows == [(b"after", b"2"), (b"before", b"1")]
                assert dict(reader.metrics.passed_batches.metric().points) == {("users", "0"): 2}
                assert dict(reader.metrics.dropped.metric().points) == {("users", "error"): 6}
            assert "looks-dlq" not in {each.name for each in await log.admin().list_topics()}

    asyncio.run(main())
    assert "offset 1 of users-0" in caplog.text
    assert "(offsets 4 to 6)" in caplog.text


def test_by_default_an_unreadable_batch_in_a_global_table_stops_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await spoil_users(log)
            async with global_reader(log, None) as reader:
                with pytest.raises(ProcessingError, match="users-0 at offset 1") as caught:
                    await reader.load(asyncio.Event())
                assert (caught.value.partition, caught.value.offset) == (0, 1)

    asyncio.run(main())
