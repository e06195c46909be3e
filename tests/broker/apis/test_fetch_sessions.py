"""Fetch sessions: incremental fetches amount to what full fetches return (KIP-227)."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.apis import fetch_sessions
from streamlog.broker.apis.fetch_sessions import EPOCH_MAX, IDLE_MS, STALE_MS, FetchSessions
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.client.consumer.fetch_session import FetchSession, WantedPartition
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from tests.broker.node import Node, ask, at, batch, create, delete, later, produce, values

BY_NAME, BY_ID = 12, 16


def request(
    *numbers: int,
    session_id: int = 0,
    epoch: int = 0,
    forget: tuple[int, ...] = (),
    topic: str = "t",
) -> FetchRequest:
    """Build a fetch of these partitions, in this order."""
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=[at(0, partition=n) for n in numbers])]
        if numbers
        else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=[*forget])] if forget else [],
    )


def respond(read: FetchRequest, news: dict[int, bytes] | None = None, **same: int) -> FetchResponse:
    """Build the response to a request; only partitions in `news` have records."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(
                        partition_index=each.partition,
                        records=(news or {}).get(each.partition, b""),
                        **{"high_watermark": 5, "log_start_offset": 0, **same},
                    )
                    for each in topic.partitions
                ],
            )
            for topic in read.topics
        ]
    )


def partitions_of(response: FetchResponse) -> list[int]:
    return [each.partition_index for topic in response.responses for each in topic.partitions]


def sessions(slots: int = 10) -> FetchSessions:
    ids = count(1)
    return FetchSessions(slots=lambda: slots, new_id=lambda: next(ids))


def exchange(
    served: FetchSessions,
    asked: FetchRequest,
    news: dict[int, bytes] | None = None,
    now_ms: int = 0,
    **same: int,
) -> FetchResponse:
    one = served.begin(asked, version=BY_NAME, now_ms=now_ms)
    return one.finish(respond(one.request, news, **same), now_ms=now_ms)


def refusal_code(served: FetchSessions, asked: FetchRequest, version: int = BY_NAME) -> int:
    with pytest.raises(LogError) as error:
        served.begin(asked, version=version, now_ms=0)
    return error.value.code


def test_incremental_responses_hold_only_changed_partitions() -> None:
    served = sessions()
    first = exchange(served, request(0, 1, 2))
    assert (first.session_id, partitions_of(first)) == (1, [0, 1, 2])
    quiet = exchange(served, request(session_id=1, epoch=1))
    assert (quiet.session_id, quiet.error_code, quiet.responses) == (1, 0, [])
    some = exchange(served, request(session_id=1, epoch=2), {1: b"x"})
    assert partitions_of(some) == [1]
    moved = exchange(served, request(session_id=1, epoch=3), high_watermark=6)
    assert sorted(partitions_of(moved)) == [0, 1, 2]
    cut = exchange(served, request(session_id=1, epoch=4), high_watermark=6, log_start_offset=2)
    assert sorted(partitions_of(cut)) == [0, 1, 2]
    assert (
        exchange(
            served, request(session_id=1, epoch=5), high_watermark=6, log_start_offset=2
        ).responses
        == []
    )


def test_a_partition_is_included_while_it_has_an_error_and_once_after() -> None:
    served = sessions()
    exchange(served, request(0))
    for epoch in (1, 2):
        answer = exchange(
            served, request(session_id=1, epoch=epoch), error_code=3, high_watermark=-1
        )
        assert partitions_of(answer) == [0]
    assert partitions_of(exchange(served, request(session_id=1, epoch=3))) == [0]
    assert partitions_of(exchange(served, request(session_id=1, epoch=4))) == []


def test_a_preferred_read_replica_is_included_in_every_response() -> None:
    served = sessions()
    exchange(served, request(0))
    for epoch in (1, 2):
        sent = exchange(served, request(session_id=1, epoch=epoch), preferred_read_replica=2)
        assert partitions_of(sent) == [0]
    assert partitions_of(exchange(served, request(session_id=1, epoch=3))) == []


def test_a_session_adds_updates_and_forgets_partitions() -> None:
    served = sessions()
    exchange(served, request(0, 1))
    one = served.begin(request(2, 1, session_id=1, epoch=1, forget=(0,)), version=12, now_ms=0)
    assert [each.partition for topic in one.request.topics for each in topic.partitions] == [1, 2]
    assert partitions_of(one.finish(respond(one.request), now_ms=0)) == [2], "it is new"
    assert served.partitions == 2
    last = exchange(served, request(session_id=1, epoch=2, forget=(1, 2)))
    assert (last.session_id, last.responses, len(served), served.partitions) == (0, [], 0, 0)


def test_a_partition_with_records_moves_to_the_end_of_the_session() -> None:
    served = sessions()
    exchange(served, request(0, 1, 2))
    exchange(served, request(session_id=1, epoch=1), {0: b"x"})
    one = served.begin(request(session_id=1, epoch=2), version=BY_NAME, now_ms=0)
    assert [each.partition for topic in one.request.topics for each in topic.partitions] == [
        1,
        2,
        0,
    ]


def test_wrong_session_ids_epochs_and_topic_ids_are_refused() -> None:
    served = sessions()
    assert (
        refusal_code(served, request(session_id=7, epoch=1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    exchange(served, request(0))
    for epoch in (2, EPOCH_MAX):
        asked = request(session_id=1, epoch=epoch)
        assert refusal_code(served, asked) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    by_id = request(session_id=1, epoch=1)
    assert refusal_code(served, by_id, BY_ID) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert exchange(served, request(session_id=1, epoch=1)).error_code == 0, (
        "the session still exists"
    )


def test_a_response_to_an_older_epoch_is_an_error() -> None:
    served = sessions()
    exchange(served, request(0))
    older = served.begin(request(session_id=1, epoch=1), version=BY_NAME, now_ms=0)
    newer = served.begin(request(session_id=1, epoch=2), version=BY_NAME, now_ms=0)
    late = older.finish(respond(older.request, {0: b"x"}), now_ms=0)
    assert (late.error_code, late.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    assert partitions_of(newer.finish(respond(newer.request, {0: b"x"}), now_ms=0)) == [0]


def test_epoch_0_starts_a_new_session_and_epoch_minus_1_ends_it() -> None:
    served = sessions()
    exchange(served, request(0))
    again = exchange(served, request(0, session_id=1, epoch=0))
    assert (again.session_id, len(served)) == (2, 1)
    whole = exchange(served, request(0, session_id=2, epoch=-1))
    assert (whole.session_id, partitions_of(whole), len(served)) == (0, [0], 0)
    assert exchange(served, request(epoch=0)).session_id == 0, (
        "a session without partitions is not kept"
    )


def test_session_epochs_wrap_around_to_1() -> None:
    served = sessions()
    exchange(served, request(0))
    served._sessions[1].epoch = EPOCH_MAX
    assert exchange(served, request(session_id=1, epoch=EPOCH_MAX)).error_code == 0
    assert exchange(served, request(session_id=1, epoch=1)).error_code == 0


def test_no_session_is_created_without_slots() -> None:
    assert exchange(sessions(0), request(0, 1)).session_id == 0


def test_a_new_session_evicts_an_unused_or_a_smaller_one() -> None:
    served = sessions(2)
    assert exchange(served, request(0, 1), now_ms=0).session_id == 1
    assert exchange(served, request(0, 1, 2), now_ms=0).session_id == 2
    assert exchange(served, request(0, 1, 2, 3), now_ms=STALE_MS).session_id == 0, "both are young"
    for session_id in (2, 1):
        exchange(served, request(session_id=session_id, epoch=1), now_ms=STALE_MS)
    settled_ms = STALE_MS + 1
    assert exchange(served, request(0, 1), now_ms=settled_ms).session_id == 0, "it is no larger"
    assert exchange(served, request(0, 1, 2), now_ms=settled_ms).session_id == 3
    gone = refusal_code(served, request(session_id=1, epoch=2))
    assert gone == ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the smaller of the two"
    assert exchange(served, request(0), now_ms=2 * STALE_MS + 1).session_id == 4, "2 is not used"
    assert refusal_code(served, request(session_id=2, epoch=2)) == gone
    assert served.partitions == 3 + 1


def test_a_new_session_removes_sessions_idle_for_too_long() -> None:
    served = sessions(10)
    for number in range(3):
        exchange(served, request(0, 1), now_ms=number)
    exchange(served, request(session_id=1, epoch=1), now_ms=IDLE_MS)
    exchange(served, request(0), now_ms=IDLE_MS + 2)
    assert len(served) == 3, "2 is gone, 3 was used recently enough, and one is new"
    assert (
        refusal_code(served, request(session_id=2, epoch=1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    exchange(served, request(session_id=3, epoch=1), now_ms=IDLE_MS + 2)
    assert served.partitions == 2 + 2 + 1


def test_fewer_slots_take_effect_at_the_next_session() -> None:
    slots = [3]
    ids = count(1)
    served = FetchSessions(slots=lambda: slots[0], new_id=lambda: next(ids))
    for _ in range(3):
        exchange(served, request(0))
    slots[0] = 1
    assert exchange(served, request(0, 1)).session_id == 0
    assert len(served) == 1


def test_the_total_number_of_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 4)
    served = sessions()
    assert exchange(served, request(0, 1, 2)).session_id == 1
    assert exchange(served, request(0, 1)).session_id == 0
    grown = request(3, 4, session_id=1, epoch=1)
    assert refusal_code(served, grown) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(served), served.partitions) == (0, 0)


def test_a_session_id_in_use_is_not_reused() -> None:
    ids = iter((5, 5, 5, 6))
    served = FetchSessions(slots=lambda: 2, new_id=lambda: next(ids))
    assert exchange(served, request(0)).session_id == 5
    assert exchange(served, request(0)).session_id == 6


Step = tuple[dict[int, int], set[int], bool]
STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 4), st.integers(0, 50), max_size=5),  # offsets to fetch
        st.sets(st.integers(0, 4)),  # partitions that have grown meanwhile
        st.booleans(),  # whether the response is lost
    ),
    min_size=1,
    max_size=30,
)


@given(STEPS, st.integers(0, 1))
def test_client_and_broker_agree_on_the_session_s_partitions(steps: list[Step], slots: int) -> None:
    served, own = sessions(slots), FetchSession()
    ends = dict.fromkeys(range(5), 0)
    known: dict[int, int] = {}
    for wanted, grown, lost in steps:
        for number in grown:
            ends[number] += 1
        asked = {
            TopicPartition("t", number): WantedPartition(
                ZERO_UUID,
                FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1),
            )
            for number, offset in wanted.items()
        }
        question = own.question(asked)
        one = served.begin(question, version=BY_NAME, now_ms=0)
        read = {
            each.partition: each.fetch_offset
            for topic in one.request.topics
            for each in topic.partitions
        }
        assert read == wanted, "exactly the wanted partitions are read"
        response = FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[PartitionData(partition_index=n, high_watermark=ends[n])],
                )
                for n in read
            ]
        )
        answer = one.finish(response, now_ms=0)
        if lost:
            own.on_failure()
            continue
        own.on_answer(answer)
        assert answer.error_code == 0
        for topic in answer.responses:
            for each in topic.partitions:
                known[each.partition_index] = each.high_watermark
        assert {n: known[n] for n in wanted} == {n: ends[n] for n in wanted}
        assert len(served) <= slots


# ---- in a broker ----


def test_a_broker_serves_incremental_fetches(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        first = await ask(broker, request(0, 1), FetchResponse)
        assert first.session_id > 0
        assert partitions_of(first) == [0, 1]
        waiting = request(session_id=first.session_id, epoch=1)
        waiting.max_wait_ms, waiting.min_bytes = 500, 1
        answer = later(broker, waiting)
        await produce(broker, batch(b"a"), index=1)
        async with asyncio.timeout(60):
            response = await answer
        assert isinstance(response, FetchResponse)
        assert response.session_id == first.session_id
        assert partitions_of(response) == [1]
        assert values(response.responses[0].partitions[0]) == [b"a"]

        moved = request(session_id=first.session_id, epoch=2)
        moved.topics = [FetchTopic(topic="t", partitions=[at(1, partition=1)])]
        moved.max_wait_ms, moved.min_bytes = 500, 1
        empty = later(broker, moved)
        node.pass_time(broker, 501)
        async with asyncio.timeout(60):
            response = await empty
        assert isinstance(response, FetchResponse)
        assert (response.error_code, response.responses) == (0, [])
        gone = await ask(broker, request(session_id=99, epoch=1), FetchResponse)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    node.run(story)


def test_a_maximum_of_0_disables_fetch_sessions(node: Node) -> None:
    node.config = BrokerConfig(connections=ConnectionConfig(fetch_sessions_max=0))

    async def story(broker: Broker) -> None:
        create(broker)
        response = await ask(broker, request(0), FetchResponse)
        assert response.session_id == 0

    node.run(story)


def by_id(topic_id: bytes, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=topic_id, partitions=[at(0)])] if epoch <= 0 else [],
    )


@pytest.mark.parametrize("version", range(13, 17))
def test_fetch_identifies_topics_by_id(node: Node, version: int) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "other")
        create(broker)
        topic_id = broker.directory.topics["t"].topic_id
        await produce(broker, batch(b"a"))
        response = await ask(broker, by_id(topic_id), FetchResponse, version)
        assert response.responses[0].topic_id == topic_id
        assert values(response.responses[0].partitions[0]) == [b"a"]
        wrong = await ask(broker, by_id(bytes(16)), FetchResponse, version)
        assert wrong.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    node.run(story)


def test_a_session_by_topic_id_does_not_follow_a_recreated_topic(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        old_id = broker.directory.topics["t"].topic_id
        first = await ask(broker, by_id(old_id, epoch=0), FetchResponse, BY_ID)
        delete(broker)
        create(broker)
        await produce(broker, batch(b"new"))
        following = by_id(old_id, session_id=first.session_id, epoch=1)
        response = await ask(broker, following, FetchResponse, BY_ID)
        (data,) = response.responses[0].partitions
        assert (data.error_code, data.records) == (ErrorCode.UNKNOWN_TOPIC_ID, b"")
        new_id = broker.directory.topics["t"].topic_id
        again = await ask(broker, by_id(new_id), FetchResponse, BY_ID)
        assert values(again.responses[0].partitions[0]) == [b"new"]

    node.run(story)
