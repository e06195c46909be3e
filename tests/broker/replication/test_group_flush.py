"""Group flush: records are on disk before they are acknowledged and visible."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.broker.storage.log.log_writes import PendingSync
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.errors import LogDirectoryFailed
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ProduceResponse,
)
from streamlog.records.batch import encode_batch
from tests.broker.node import (
    Node,
    ask,
    at,
    batch,
    context,
    create,
    fetch,
    fetch_request,
    later,
    produce,
    produce_request,
    values,
)

T = TypeVar("T")


class SlowFile(MemoryFile):
    """A file whose syncs in other threads wait until the test releases the disk."""

    def sync(self) -> None:
        files = self._files
        assert isinstance(files, SlowFiles)
        if threading.current_thread() is not threading.main_thread():
            files.syncs += 1
            files.begun.set()
            assert files.proceed.wait(60)
        super().sync()


class SlowFiles(MemoryFiles):
    """A disk whose syncs in other threads wait between `hold` and `proceed.set()`."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.begun = threading.Event()
        self.proceed = threading.Event()
        self.proceed.set()

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        return SlowFile(self, self._content(path, make=writable), writable=writable)

    def hold(self) -> None:
        self.begun.clear()
        self.proceed.clear()


@pytest.fixture
def files() -> SlowFiles:
    return SlowFiles()


def run(files: MemoryFiles, story: Callable[[Broker], Coroutine[object, object, T]]) -> T:
    return Node(files=files).run(story)


def run_relaxed(
    files: MemoryFiles, story: Callable[[Broker, Node], Coroutine[object, object, None]]
) -> None:
    config = BrokerConfig(flush="os", group=GroupConfig(initial_rebalance_delay_ms=0))
    node = Node(files=files, config=config)
    node.run(lambda broker: story(broker, node))


async def syncing(files: SlowFiles) -> None:
    assert await asyncio.to_thread(files.begun.wait, 60)


async def synced(log: PartitionLog, offset: int) -> None:
    while log.recovery_point < offset:  # noqa: ASYNC110 - the log has no event for it
        await asyncio.sleep(0)


def end_request() -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[partition])])


def produce_result(response: object) -> tuple[int, int]:
    assert isinstance(response, ProduceResponse)
    answer = response.responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


def test_records_are_acknowledged_and_visible_once_on_disk(files: SlowFiles) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        files.hold()
        written = later(broker, produce_request(batch(b"a")))
        await syncing(files)
        reading = later(broker, fetch_request(at(0), max_wait_ms=60_000))
        ending = later(broker, end_request())
        (seen,) = await fetch(broker, at(0))
        assert (values(seen), seen.high_watermark, seen.error_code) == ([], 0, 0)
        assert not written.done()
        assert not reading.done()
        files.proceed.set()
        assert produce_result(await written) == (0, 0)
        response = await reading
        assert isinstance(response, FetchResponse)
        assert values(response.responses[0].partitions[0]) == [b"a"]
        end = await ending
        assert isinstance(end, ListOffsetsResponse)
        assert end.topics[0].partitions[0].offset == 1

    run(files, story)


def test_one_sync_covers_all_appends_during_the_previous_sync(files: SlowFiles) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        files.hold()
        first = later(broker, produce_request(batch(b"0")))
        await syncing(files)
        rest = [later(broker, produce_request(batch(b"%d" % n))) for n in range(1, 51)]
        before = files.syncs
        files.proceed.set()
        answers = [produce_result(await written) for written in (first, *rest)]
        assert answers == [(0, offset) for offset in range(51)]
        assert files.syncs - before == 1

    run(files, story)


def test_a_duplicate_waits_for_the_sync_of_its_original(files: SlowFiles) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        data = encoded(0)
        files.hold()
        first = later(broker, produce_request(data))
        await syncing(files)
        again = later(broker, produce_request(data))
        files.proceed.set()
        assert produce_result(await first) == produce_result(await again) == (0, 0)

    run(files, story)


def encoded(sequence: int) -> bytes:
    return encode_batch(
        [(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence
    )


def test_acknowledged_records_survive_a_power_cut() -> None:
    files = MemoryFiles()

    async def write(broker: Broker) -> None:
        create(broker)
        for number in range(20):
            assert (await produce(broker, batch(b"%d" % number))).error_code == 0
        files.crash()

    async def read(broker: Broker) -> list[bytes | None]:
        return values((await fetch(broker, at(0)))[0])

    with pytest.raises(OSError, match="the file is closed"):
        run(files, write)
    assert run(files, read) == [b"%d" % number for number in range(20)]


def test_a_failed_sync_is_not_repeated_and_fails_the_directory(
    files: SlowFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "t")
        create(broker, "u")
        assert (await produce(broker, batch(b"kept"))).error_code == 0
        files.fail_next_sync()
        syncs = files.syncs
        first, second = (
            later(broker, produce_request(batch(b"lost"), topic=topic)) for topic in "tu"
        )
        storage_error = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert produce_result(await first) == produce_result(await second) == storage_error
        assert files.syncs == syncs + 1
        for topic in "tu":
            refused = await produce(broker, batch(b"more"), topic=topic)
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert files.syncs == syncs + 1
        assert values((await fetch(broker, at(0)))[0]) == [b"kept"]
        with pytest.raises(LogDirectoryFailed):
            broker.directory.check()
        with pytest.raises(LogDirectoryFailed):
            broker.directory.create_topic("v", 1)

    with pytest.raises(LogDirectoryFailed):
        run(files, story)
    assert "accepts no more appends" in caplog.text
    assert "clean_shutdown" not in files.list("data")


def commit(offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id="g", topics=[topic])


def position() -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    )


async def committed(broker: Broker) -> tuple[int, int]:
    response = await ask(broker, position(), OffsetFetchResponse, version=7)
    if response.error_code:
        return response.error_code, -1
    return 0, response.topics[0].partitions[0].committed_offset


def test_a_committed_offset_is_acknowledged_and_visible_once_on_disk(files: SlowFiles) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await ask(broker, commit(1), OffsetCommitResponse)
        files.hold()
        written = later(broker, commit(5))
        await syncing(files)
        reading = later(broker, position(), 7)
        assert not written.done()
        files.proceed.set()
        assert isinstance(await written, OffsetCommitResponse)
        assert isinstance(await reading, OffsetFetchResponse)
        assert await committed(broker) == (0, 5)

    run(files, story)


def test_an_offset_commit_is_refused_when_its_sync_fails(files: SlowFiles) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await ask(broker, commit(1), OffsetCommitResponse)
        files.fail_next_sync()
        response = await ask(broker, commit(5), OffsetCommitResponse)
        code = response.topics[0].partitions[0].error_code
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await committed(broker))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE

    with pytest.raises(LogDirectoryFailed):
        run(files, story)


def test_stopping_the_broker_fails_pending_produces(files: SlowFiles) -> None:
    async def story(broker: Broker) -> asyncio.Future[object]:
        create(broker)
        files.hold()
        written = later(broker, produce_request(batch(b"a")))
        await syncing(files)
        threading.Timer(0.05, files.proceed.set).start()
        broker.close()
        with pytest.raises(Exception, match="stopped"):
            await written
        return written

    run(files, story)

    async def read(broker: Broker) -> list[bytes | None]:
        return values((await fetch(broker, at(0)))[0])

    assert run(files, read) == [b"a"], "the stop has flushed the record"


def test_flush_os_acknowledges_and_shows_records_at_once(files: SlowFiles) -> None:
    async def story(broker: Broker, _: Node) -> None:
        create(broker)
        request = produce_request(batch(b"a"))
        assert produce_result(broker.begin(request, context(request))) == (0, 0)
        assert values((await fetch(broker, at(0)))[0]) == [b"a"]
        assert files.syncs == 0

    run_relaxed(files, story)


def test_flush_os_syncs_after_flush_messages(files: SlowFiles) -> None:
    async def story(broker: Broker, _: Node) -> None:
        create(broker, flush_messages="3")
        for _number in range(2):
            request = produce_request(batch(b"a"))
            assert produce_result(broker.begin(request, context(request)))[0] == 0
        third = later(broker, produce_request(batch(b"a")))
        assert produce_result(await third) == (0, 2)
        assert broker.directory.log("t", 0).recovery_point == 3
        assert files.syncs == 1

    run_relaxed(files, story)


def test_flush_os_syncs_after_flush_ms(files: SlowFiles) -> None:
    async def story(broker: Broker, node: Node) -> None:
        create(broker, flush_ms="1000")
        log = broker.directory.log("t", 0)
        await produce(broker, batch(b"a"))
        node.pass_time(broker, 999)
        await asyncio.sleep(0)
        assert files.syncs == 0
        files.hold()
        node.pass_time(broker, 1)
        await syncing(files)
        files.proceed.set()
        await synced(log, 1)
        await produce(broker, batch(b"b"))
        node.pass_time(broker, 1_000)
        await synced(log, 2)

    run_relaxed(files, story)


def test_flush_os_syncs_a_sealed_segment(files: SlowFiles) -> None:
    async def story(broker: Broker, _: Node) -> None:
        create(broker, segment_bytes="1024")
        log = broker.directory.log("t", 0)
        for _number in range(3):
            await produce(broker, batch(bytes(600)))
        await synced(log, 2)

    run_relaxed(files, story)


def test_a_round_covers_all_logs_with_a_bounded_number_of_files(
    files: SlowFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.broker.replication.group_flush.ROUND_FILES_MAX", 2)

    async def story(broker: Broker) -> None:
        create(broker, partitions=7)
        files.hold()
        written = [
            later(broker, produce_request(batch(b"%d" % number), index=number))
            for number in range(7)
        ]
        await syncing(files)
        files.proceed.set()
        for each in written:
            assert produce_result(await each)[0] == 0
        logs = broker.directory.topics["t"].partitions.values()
        assert [log.recovery_point for log in logs] == [1] * 7

    run(files, story)


def test_a_round_without_file_descriptors_is_retried(
    files: SlowFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamlog.broker.replication.group_flush.SHORT_RETRY_S", 0.001)
    refusals = [3]
    opened = files.open

    def short(path: str, *, writable: bool = False) -> MemoryFile:
        if path.endswith(".log") and writable and refusals[0]:
            refusals[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, writable=writable)

    async def story(broker: Broker) -> None:
        create(broker)
        log = broker.directory.topics["t"].partitions[0]
        await later(broker, produce_request(batch(b"a")))  # The first append creates the file.
        begun = log.begin_sync

        def released(*, sealed_only: bool = False) -> PendingSync | None:
            files.held.release_all()
            return begun(sealed_only=sealed_only)

        monkeypatch.setattr(log, "begin_sync", released)
        monkeypatch.setattr(files, "open", short)
        answer = produce_result(await later(broker, produce_request(batch(b"a"))))
        assert answer == (0, 1)
        assert not refusals[0]
        assert log.recovery_point == 2

    run(files, story)
    assert caplog.text.count("a sync waits for file descriptors") == 1


def test_a_round_for_which_no_thread_starts_is_retried(
    files: SlowFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer, and a reader that waits for what is on disk, come once a thread has started."""
    monkeypatch.setattr("streamlog.broker.replication.group_flush.SHORT_RETRY_S", 0.001)
    refusals = [3]
    start = threading.Thread.start

    def short(thread: threading.Thread) -> None:
        if thread.name == "streamlog-sync" and refusals[0]:
            refusals[0] -= 1
            raise RuntimeError("can't start new thread")  # As CPython has it after EAGAIN.
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short)

    async def story(broker: Broker) -> None:
        create(broker)
        reading = later(broker, fetch_request(at(0), max_wait_ms=300_000))
        async with asyncio.timeout(60):
            answer = produce_result(await later(broker, produce_request(batch(b"a"))))
            response = await reading
        assert answer == (0, 0)
        assert not refusals[0]
        assert isinstance(response, FetchResponse)
        assert values(response.responses[0].partitions[0]) == [b"a"]
        assert broker.directory.topics["t"].partitions[0].recovery_point == 1

    run(files, story)
    assert caplog.text.count("a sync waits for a thread") == 1
    assert "can't start new thread" in caplog.text
