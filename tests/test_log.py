"""Log: opened by URL, shared between processes, reopened after a crash; and its files alone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from streamlog.broker.storage.catalog import read_listener
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    LogDirectoryLocked,
    LogDirectoryLost,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.stored_log import StoredLog

T0 = TopicPartition("t", 0)
HOLDER = """
import asyncio, sys
from streamlog.log import Log

async def main():
    async with Log.open("embedded:" + sys.argv[1]):
        print("open", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has the log open until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


async def values(log: Log, partition: TopicPartition = T0) -> list[int]:
    """Return all values of a partition, as numbers."""
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[int] = []
        while await consumer.position(partition) < end:
            records = (await consumer.poll(timeout_ms=1_000)).get(partition, [])
            found += [int(record.value or b"") for record in records]
        return found


@asynccontextmanager
async def producing(log: Log, acknowledged: list[int]) -> AsyncIterator[Producer]:
    """Write numbers in the background until the block ends."""
    async with log.producer(linger_ms=0, request_timeout_ms=60_000) as producer:
        stop = asyncio.Event()

        async def write() -> None:
            number = 0
            deliveries = []
            while not stop.is_set():
                deliveries.append((number, await producer.send("t", b"%d" % number, partition=0)))
                number += 1
                await asyncio.sleep(0.001)
            for sent, delivery in deliveries:
                await delivery
                acknowledged.append(sent)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            yield producer
            stop.set()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("data", "'embedded:DIR'.*'kafka://host:port'"),
        ("embedded:", "is not the URL of a log"),
        ("http://localhost:80", "is not the URL of a log"),
        ("kafka://", "is not the URL of a log"),
        ("kafka://host:port", "'host:port'.*use host:port"),
        ("kafka://host:99999", "use host:port"),
    ],
)
def test_an_unknown_url_is_refused_with_the_valid_forms(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Log.open(url)


def test_an_unreachable_broker_is_named_with_a_remedy() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 .*check that it is running"):
            async with Log.open("kafka://127.0.0.1:1"):
                pass
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 .*; .*127\.0\.0\.1:2 "):
            async with Log.open("kafka://127.0.0.1:1,127.0.0.1:2"):
                pass

    asyncio.run(main())


def test_a_log_is_unusable_outside_its_block(tmp_path: Path) -> None:
    log = Log.open(f"embedded:{tmp_path}")
    with pytest.raises(UsageError, match="not open"):
        log.producer()


def test_the_first_process_serves_and_the_second_connects(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as first:
            await first.admin().create_topics([NewTopic("t", 1)])
            async with Log.open(f"embedded:{tmp_path}") as second:
                assert (first.is_embedded, second.is_embedded) == (True, False)
                assert first.cluster_id == second.cluster_id
                assert first.address == second.address
                async with second.producer() as producer:
                    await producer.send("t", b"7")
                assert await values(first) == [7]

    asyncio.run(main())


def test_a_log_that_does_not_listen_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.log.HOLDER_TIMEOUT_MS", 0)

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            assert log.address is None
            await log.admin().create_topics([NewTopic("t", 1)])
            with pytest.raises(LogDirectoryLocked):
                async with Log.open(f"embedded:{tmp_path}"):
                    pass

    asyncio.run(main())


def test_attaching_waits_for_a_process_that_serves(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"embedded:{tmp_path / 'data'}"
        with pytest.raises(
            ConnectionLost, match=r"no process has the log in \S+ open: .* broker --data"
        ):
            async with Log.attach(url, timeout_ms=0):
                pass

        async def serve(attached: asyncio.Event) -> None:
            async with Log.open(url):
                await attached.wait()

        async with asyncio.TaskGroup() as group:
            attached = asyncio.Event()
            group.create_task(serve(attached))
            async with Log.attach(url, timeout_ms=60_000) as log:
                assert not log.is_embedded
            attached.set()

    asyncio.run(main())


def test_a_stale_address_is_recognized_and_its_port_reused(tmp_path: Path) -> None:
    async def main() -> None:
        with holder(tmp_path) as process:
            address = read_listener(str(tmp_path))
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert read_listener(str(tmp_path)) == address, "the killed process left its address"
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert log.is_embedded
            assert log.address == address

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_uses_the_log_of_another_runs_it_once_that_has_ended(
    tmp_path: Path, how: signal.Signals
) -> None:
    async def main() -> None:
        with holder(tmp_path) as process:
            async with Log.open(f"embedded:{tmp_path}") as log, log.producer() as producer:
                await log.admin().create_topics([NewTopic("t", 1)])
                await (await producer.send("t", b"1"))
                process.send_signal(how)
                process.wait()
                await (await producer.send("t", b"2"))
                async with Log.open(f"embedded:{tmp_path}") as other:
                    assert await values(other) == [1, 2]

    asyncio.run(main())


def test_a_stale_address_that_another_log_uses_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        old, other = str(tmp_path / "old"), str(tmp_path / "other")
        async with Log.open(f"embedded:{old}"):
            pass
        async with Log.open(f"embedded:{other}") as log:
            assert log.address is not None
            with closing(LogDirectory.open(old)) as directory:
                directory.write_listener(*log.address)
                with pytest.raises(ConnectionLost, match="another log answers"):
                    async with Log.attach(f"embedded:{old}", timeout_ms=0):
                        pass

    asyncio.run(main())


def test_another_process_serves_until_it_is_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        with holder(tmp_path) as process:
            async with Log.open(f"embedded:{tmp_path}") as log:
                assert not log.is_embedded
                await log.admin().create_topics([NewTopic("t", 1)])
                async with log.producer() as producer:
                    await producer.send("t", b"1")
                assert await values(log) == [1]
            process.communicate()
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert log.is_embedded
            assert await values(log) == [1]

    asyncio.run(main())


def test_a_producer_continues_without_duplicates_after_a_restart(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        url = f"embedded:{tmp_path}"
        acknowledged: list[int] = []
        first = await Log.open(url).__aenter__()
        await first.admin().create_topics([NewTopic("t", 1)])
        async with (
            Log.attach(url, timeout_ms=60_000) as log,
            log.consumer(auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([T0])
            async with producing(log, acknowledged):
                seen = 0
                for _ in range(3):
                    seen += len((await consumer.poll(timeout_ms=60_000))[T0])
                await first.close()
                first = await Log.open(url).__aenter__()
                for _ in range(3):
                    seen += len((await consumer.poll(timeout_ms=60_000))[T0])
            assert acknowledged == list(range(len(acknowledged)))
            assert await values(log) == acknowledged
        await first.close()

    asyncio.run(main())


def test_every_acknowledged_record_survives_sigkill_once(tmp_path: Path) -> None:
    async def main() -> None:
        acknowledged: list[int] = []
        with ExitStack() as processes:
            first = processes.enter_context(holder(tmp_path))
            async with Log.attach(f"embedded:{tmp_path}", timeout_ms=60_000) as log:
                await log.admin().create_topics([NewTopic("t", 1)])
                async with producing(log, acknowledged):
                    await until_written(log, 100)
                    first.kill()
                    first.wait()
                    processes.enter_context(holder(tmp_path))
                    await until_written(log, 400)
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert await values(log) == acknowledged == list(range(len(acknowledged)))

    asyncio.run(main())


async def until_written(log: Log, count: int) -> None:
    async with log.consumer() as consumer, asyncio.timeout(60):
        end = 0
        while end < count:
            end = (await consumer.end_offsets([T0]))[T0]


def test_stored_files_are_read_without_and_next_to_a_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 2)])
            async with log.producer() as producer:
                for first in range(0, 100, 10):
                    records = [(n, None, b"%d" % n, ()) for n in range(first, first + 10)]
                    await (await producer.send_batch("t", 0, records, atomic=True))
            check(log.cluster_id)
        check(log_id)

    log_id = ""

    def check(cluster_id: str) -> None:
        nonlocal log_id
        log_id = cluster_id
        with StoredLog(str(tmp_path)) as stored:
            assert stored.cluster_id == cluster_id
            assert stored.topics()["t"] == 2
            assert stored.offsets("t", 0) == (0, 100)
            assert stored.offsets("t", 1) == (0, 0)
            found = [
                int(record.value or b"")
                for batch in stored.read("t", 0, 25, 41)
                for record in batch.records()
            ]
            assert found == list(range(20, 50))
            assert list(stored.read("t", 1, 0, 10)) == []
            with pytest.raises(UnknownTopicOrPartition, match="absent"):
                stored.offsets("absent", 0)

    asyncio.run(main())


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryLost):
        StoredLog(str(tmp_path))
