"""Incremental fetch sessions (KIP-227) from the client's side; see also tests/broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.client.admin import NewTopic
from streamlog.client.consumer.fetch_session import FetchSession, WantedPartition
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from streamlog.record import TopicPartition

OLD, NEW = b"o" * 16, b"n" * 16
PATIENCE_S = 60


def wanted(offset: int, topic_id: bytes = OLD) -> WantedPartition:
    fetch = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
    return WantedPartition(topic_id, fetch)


def names(request: FetchRequest) -> tuple[list[str], list[str]]:
    wanted_topics = [topic.topic for topic in request.topics]
    return wanted_topics, [topic.topic for topic in request.forgotten_topics_data]


def open_session() -> FetchSession:
    session = FetchSession()
    whole = session.question({TopicPartition(name, 0): wanted(0) for name in "ab"})
    assert (whole.session_id, whole.session_epoch) == (0, 0)
    session.on_answer(FetchResponse(session_id=9))
    return session


def test_an_incremental_fetch_names_only_what_changed() -> None:
    session = open_session()
    changed = {TopicPartition("a", 0): wanted(0), TopicPartition("c", 0): wanted(3)}
    request = session.question(changed)
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert names(request) == (["c"], ["b"])
    session.on_answer(FetchResponse(session_id=9))
    request = session.question(changed)
    assert request.session_epoch == 2
    assert names(request) == ([], [])


@pytest.mark.parametrize("epoch", ["last_fetched_epoch", "current_leader_epoch"])
def test_a_changed_epoch_is_sent_even_at_an_unchanged_offset(epoch: str) -> None:
    session = open_session()
    other = wanted(0)
    setattr(other.fetch, epoch, 4)
    request = session.question({TopicPartition("a", 0): other, TopicPartition("b", 0): wanted(0)})
    assert names(request) == (["a"], [])


def test_a_recreated_topic_replaces_its_predecessor_in_the_session() -> None:
    session = open_session()
    request = session.question(
        {TopicPartition("a", 0): wanted(0, NEW), TopicPartition("b", 0): wanted(0)}
    )
    (wanted_topics,), (forgotten,) = request.topics, request.forgotten_topics_data
    assert (wanted_topics.topic, wanted_topics.topic_id, forgotten.topic, forgotten.topic_id) == (
        "a",
        NEW,
        "a",
        OLD,
    )
    assert session.names == {NEW: "a", OLD: "b"}


def test_a_session_error_causes_a_full_fetch() -> None:
    for code, session_id in (
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 9),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 9),
    ):
        session = open_session()
        session.question({TopicPartition("a", 0): wanted(1)})
        session.on_answer(FetchResponse(error_code=code))
        request = session.question({TopicPartition("a", 0): wanted(1)})
        assert (request.session_id, request.session_epoch) == (session_id, 0)
        assert names(request) == (["a"], [])


def test_every_fetch_is_full_without_a_session() -> None:
    session = FetchSession()
    for _ in range(3):
        request = session.question({TopicPartition("a", 0): wanted(0)})
        assert (request.session_id, request.session_epoch, names(request)) == (0, 0, (["a"], []))
        session.on_answer(FetchResponse())
    assert session.farewell() is None


def test_a_consumer_keeps_one_session_while_it_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Broker.open(str(tmp_path / "data")) as broker,
            Acceptor(broker) as server,
            Log.open(f"kafka://{server.host}:{server.port}") as log,
            log.admin() as admin,
            log.producer() as producer,
        ):
            await admin.create_topics([NewTopic("t", 20)])
            async with asyncio.timeout(PATIENCE_S), log.consumer() as consumer:
                partitions = [TopicPartition("t", number) for number in range(20)]
                consumer.assign(partitions)
                await consumer.seek_to_beginning(*partitions)
                read: list[int] = []
                for number in range(60):
                    await producer.send("t", b"%d" % number, partition=number % 20)
                    while len(read) <= number:
                        for records in (await consumer.poll(timeout_ms=100)).values():
                            read += [int(record.value or b"") for record in records]
                assert read == [*range(60)]
                assert len(broker._fetches._sessions) == 1
                # The broker may evict the session: no record is lost and no error is raised.
                broker._fetches._sessions._end(next(iter(broker._fetches._sessions._sessions)))
                await producer.send("t", b"60", partition=7)
                while read[-1] != 60:
                    for records in (await consumer.poll(timeout_ms=100)).values():
                        read += [int(record.value or b"") for record in records]
                assert read == [*range(61)]
            assert len(broker._fetches._sessions) == 0

    asyncio.run(main())
