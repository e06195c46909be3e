"""Publications: the staged records of a job count all at once and exactly once, despite crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from crc32c import crc32c

from streamlog.broker.apis.publish import NO_CONNECTION, decode_receipt, encode_receipt
from streamlog.broker.broker import Broker
from streamlog.broker.storage.disk.memory_files import Tear
from streamlog.errors import LogDirectoryError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    DropStagedResponse,
    PublishedPartition,
    PublishedTopic,
    PublishGroup,
    PublishOffset,
    PublishOffsetTopic,
    PublishPartition,
    PublishRequest,
    PublishResponse,
    PublishSegment,
    PublishTopic,
    StageRequest,
    StageResponse,
)
from streamlog.protocol.messages.publishing import PublishedPartition as Published
from streamlog.records.batch import LogRecord, split_batches
from streamlog.records.compression import Compression
from tests.broker.node import Node, ask, batch, context, create, produce

PARTITIONS = range(2)
SEGMENTS = [b"".join(batch(b"%d-%d" % (p, n), b"more") for n in range(3)) for p in PARTITIONS]
STAGED = [[b"%d-%d" % (p, n), b"more"] for p in PARTITIONS for n in range(3)]
WHOLE = [[v for pair in STAGED[p * 3 : p * 3 + 3] for v in pair] for p in PARTITIONS]
TURNS_MAX = 60
LIVES = 4


def torn_by(chance: Random) -> Tear:
    """Keep a random part of the bytes that were written but not synced."""
    return lambda synced, written: written[: chance.randint(len(synced), len(written))]


async def stage(broker: Broker, data: bytes, name: str, *, job: str = "job") -> StageResponse:
    request = StageRequest(job_id=job, name=name, position=0, is_last=True, records=data)
    return await ask(broker, request, StageResponse)


def segment(data: bytes, name: str) -> PublishSegment:
    count = sum(each.record_count for each in split_batches(data))
    return PublishSegment(name=name, size_bytes=len(data), record_count=count, crc32c=crc32c(data))


def publishing(*, job: str = "job", group: str | None = None) -> PublishRequest:
    offset = PublishOffset(partition_index=0, committed_offset=7, committed_metadata="seven")
    placed = [PublishOffsetTopic(name="t", partitions=[offset])]
    return PublishRequest(
        job_id=job,
        topics=[
            PublishTopic(
                name="t",
                partitions=[
                    PublishPartition(partition_index=p, segments=[segment(SEGMENTS[p], f"s{p}")])
                    for p in PARTITIONS
                ],
            )
        ],
        groups=[] if group is None else [PublishGroup(group_id=group, topics=placed)],
    )


async def staged(broker: Broker, *, job: str = "job") -> None:
    if "t" not in broker.directory.topics:
        create(broker, partitions=len(PARTITIONS))
    for p in PARTITIONS:
        answer = await stage(broker, SEGMENTS[p], f"s{p}", job=job)
        assert answer.error_code == 0, answer
        assert answer.size_bytes == len(SEGMENTS[p])


def committed(broker: Broker, index: int) -> Iterator[LogRecord]:
    """Yield the records that a read_committed reader sees."""
    log, end = broker.directory.log("t", index), broker._partitions.last_stable_offset("t", index)
    gone = log.aborted(0, end) if end else []
    position = 0
    while position < end:
        for each in split_batches(log.read(position, max_bytes=1 << 20)):
            position = each.next_offset
            skipped = any(
                one.producer_id == each.producer_id
                and one.first_offset <= each.base_offset <= one.last_offset
                for one in gone
            )
            if each.base_offset < end and not each.is_control and not skipped:
                yield from each.records()


def seen(broker: Broker) -> list[list[bytes | None]]:
    return [[record.value for record in committed(broker, p)] for p in PARTITIONS]


async def position(broker: Broker, group: str) -> tuple[int, str | None]:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
            )
        ]
    )
    (found,) = (await ask(broker, request, OffsetFetchResponse)).groups
    (entry,) = found.topics[0].partitions
    return entry.committed_offset, entry.metadata


def test_compressed_batches_of_a_job_are_checked_off_the_event_loop() -> None:
    async def story(broker: Broker) -> None:
        create(broker, max_decompressed_bytes="5000")
        for name, value in (("s", b"small"), ("b", bytes(100_000))):
            data = batch(value, codec=Compression.ZSTD)
            await stage(broker, data, name, job=name)
            part = PublishPartition(partition_index=0, segments=[segment(data, name)])
            topics = [PublishTopic(name="t", partitions=[part])]
            request = PublishRequest(job_id=name, topics=topics)
            begun = asyncio.ensure_future(ask(broker, request, PublishResponse))
            was_checking = False
            while not begun.done():
                was_checking |= broker.checks.is_busy(NO_CONNECTION)
                await asyncio.sleep(0)
            assert was_checking
            answer = await begun
            if name == "s":
                assert answer.error_code == 0, answer
            else:
                assert answer.error_code == ErrorCode.INVALID_RECORD
                assert "raise max.decompressed.bytes" in (answer.error_message or "")
        assert [record.value for record in committed(broker, 0)] == [b"small"]

    Node().run(story)


def test_publishing_appends_staged_records_and_commits_group_offsets() -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        await produce(broker, batch(b"before"))
        response = await ask(broker, publishing(group="g"), PublishResponse)
        assert response.error_code == 0, response.error_message
        assert not response.is_repeated
        (topic,) = response.topics
        assert [
            (p.partition_index, p.base_offset, p.last_offset, p.record_count)
            for p in topic.partitions
        ] == [(0, 1, 6, 6), (1, 0, 5, 6)]
        assert seen(broker) == [[b"before", *WHOLE[0]], WHOLE[1]]
        assert await position(broker, "g") == (7, "seven")

    Node().run(story)


def test_a_job_is_published_only_once_even_after_a_restart() -> None:
    node = Node()

    async def publish(broker: Broker) -> PublishResponse:
        await staged(broker)
        return await ask(broker, publishing(), PublishResponse)

    first = node.run(publish)
    again = node.run(publish)
    assert (first.is_repeated, again.is_repeated) == (False, True)
    assert again.topics == first.topics
    assert node.run(look) == WHOLE


async def look(broker: Broker) -> list[list[bytes | None]]:
    broker.tick()
    return seen(broker)


def test_concurrent_publications_of_one_job_get_one_result() -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        answers = await asyncio.gather(
            *(ask(broker, publishing(), PublishResponse) for _ in range(3))
        )
        assert sorted(each.is_repeated for each in answers) == [False, True, True]
        assert answers[0].topics == answers[1].topics == answers[2].topics
        assert seen(broker) == WHOLE

    Node().run(story)


def test_records_in_the_request_are_appended_after_the_segments() -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        request = publishing()
        request.topics[0].partitions[0].records = batch(b"pointer")
        response = await ask(broker, request, PublishResponse)
        assert response.topics[0].partitions[0].record_count == 7
        assert seen(broker)[0] == [*WHOLE[0], b"pointer"]

    Node().run(story)


def wrong_size(request: PublishRequest) -> None:
    request.topics[0].partitions[1].segments[0].size_bytes += 1


def wrong_sum(request: PublishRequest) -> None:
    request.topics[0].partitions[1].segments[0].crc32c ^= 1


def wrong_count(request: PublishRequest) -> None:
    request.topics[0].partitions[1].segments[0].record_count += 1


def no_file(request: PublishRequest) -> None:
    request.topics[0].partitions[1].segments[0].name = "nowhere"


def way_out(request: PublishRequest) -> None:
    request.topics[0].partitions[1].segments[0].name = "../../topics.json"


def no_topic(request: PublishRequest) -> None:
    request.topics[0].name = "nowhere"


def no_partition(request: PublishRequest) -> None:
    request.topics[0].partitions[1].partition_index = 9


def twice(request: PublishRequest) -> None:
    request.topics[0].partitions[1].partition_index = 0


def own_topic(request: PublishRequest) -> None:
    request.topics[0].name = "__publications"


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (wrong_size, ErrorCode.INVALID_REQUEST, "s1 of job job has"),
        (wrong_sum, ErrorCode.INVALID_RECORD, "was staged"),
        (wrong_count, ErrorCode.INVALID_REQUEST, "6 records, not 7"),
        (no_file, ErrorCode.INVALID_REQUEST, "no file nowhere"),
        (way_out, ErrorCode.INVALID_REQUEST, "can't be the name"),
        (no_topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nowhere"),
        (no_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not 9"),
        (twice, ErrorCode.INVALID_REQUEST, "names t-0 twice"),
        (own_topic, ErrorCode.INVALID_REQUEST, "only brokers may write to"),
    ],
)
def test_an_error_in_one_part_of_a_job_publishes_nothing(
    spoil: object, code: ErrorCode, words: str
) -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        request = publishing()
        spoil(request)  # type: ignore[operator]
        response = await ask(broker, request, PublishResponse)
        assert response.error_code == code
        assert words in (response.error_message or "")
        assert seen(broker) == [[], []]
        # The staged records are kept for a correct attempt.
        assert (await ask(broker, publishing(), PublishResponse)).error_code == 0
        assert seen(broker) == WHOLE

    Node().run(story)


def test_a_group_with_members_is_refused_and_nothing_is_published() -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await ask(broker, joining, JoinGroupResponse, version=1)
        assert joined.error_code == 0
        response = await ask(broker, publishing(group="g"), PublishResponse)
        assert response.error_code == ErrorCode.NON_EMPTY_GROUP
        assert "group g has members" in (response.error_message or "")
        assert seen(broker) == [[], []]

    Node().run(story)


def test_dropped_records_cannot_be_published() -> None:
    async def story(broker: Broker) -> None:
        await staged(broker)
        for _ in range(2):
            dropped = await ask(broker, DropStagedRequest(job_id="job"), DropStagedResponse)
            assert dropped.error_code == 0
        response = await ask(broker, publishing(), PublishResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST

    Node().run(story)


def test_a_piece_may_be_staged_twice_but_not_left_out() -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)

        async def piece(position: int, data: bytes, *, is_last: bool = False) -> StageResponse:
            request = StageRequest(
                job_id="job", name="s0", position=position, is_last=is_last, records=data
            )
            return await ask(broker, request, StageResponse)

        data = SEGMENTS[0]
        await piece(0, data[:50])
        await piece(50, data[50:70])
        await piece(50, data[50:70])
        assert (await piece(71, data[71:])).error_code == ErrorCode.INVALID_REQUEST
        assert (await piece(70, data[70:], is_last=True)).size_bytes == len(data)
        request = publishing()
        del request.topics[0].partitions[1]
        assert (await ask(broker, request, PublishResponse)).error_code == 0

    Node().run(story)


@pytest.mark.parametrize("seed", range(12))
def test_power_cuts_leave_a_publication_whole_or_absent_and_retriable(seed: int) -> None:
    chance, node = Random(seed), Node()

    def life(turns: int) -> None:
        async def story(broker: Broker) -> None:
            broker.tick()
            await staged(broker)
            answer = broker.begin(publishing(group="g"), context(publishing()))
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(asyncio.Future.exception)
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            node.files.crash(torn=torn_by(chance))

        with suppress(OSError, LogDirectoryError):
            node.run(story)

    async def whole_or_nothing(broker: Broker) -> None:
        broker.tick()
        await asyncio.sleep(0.01)
        found = seen(broker) if "t" in broker.directory.topics else []
        assert [values for values in found if values] in ([], WHOLE), found

    for _ in range(LIVES):
        life(chance.randint(0, TURNS_MAX))
        node.run(whole_or_nothing)

    async def complete(broker: Broker) -> None:
        broker.tick()
        await staged(broker)
        known = await ask(broker, publishing(group="g"), PublishResponse)
        assert known.error_code == 0, known.error_message
        assert seen(broker) == WHOLE
        assert await position(broker, "g") == (7, "seven")
        assert (await ask(broker, publishing(), PublishResponse)).is_repeated

    node.run(complete)


def test_a_receipt_round_trips() -> None:
    topics = [
        PublishedTopic(
            name="t",
            partitions=[
                PublishedPartition(partition_index=1, base_offset=2, last_offset=9, record_count=7)
            ],
        ),
        PublishedTopic(name="ü", partitions=[Published(partition_index=0, base_offset=-1)]),
    ]
    assert decode_receipt(encode_receipt(topics, wall_ms=5)) == topics
