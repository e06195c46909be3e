"""Our consumer with transactions of another client: aborted records are not returned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import confluent_kafka
import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.offset_lookup import Isolation
from streamlog.errors import ConfigError, CorruptData
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch, set_offset_and_epoch
from streamlog.records.control_batches import ABORT, COMMIT, AbortedRange, Marker, encode_marker
from tests.broker.process import BrokerProcess

T0 = TopicPartition("t", 0)
PATIENCE_S = 60
CRC = slice(17, 21)


def placed(*batches: bytes) -> bytes:
    """Concatenate batches of one record each, from offset 0."""
    copies = [bytearray(batch) for batch in batches]
    for offset, batch in enumerate(copies):
        set_offset_and_epoch(batch, offset, 0)
    return b"".join(copies)


def record(value: bytes, producer_id: int = -1) -> bytes:
    return encode_batch(
        [(0, None, value, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=producer_id >= 0,
    )


def marker(kind: int, producer_id: int) -> bytes:
    return encode_marker(Marker(kind, 0), (producer_id, 0), timestamp_ms=0)


def test_an_aborted_transaction_ends_with_its_marker() -> None:
    positions = SubscriptionState()
    positions.assign([T0])
    state = positions.state(T0)
    state.move(0)
    data = placed(
        record(b"a", 7),
        record(b"plain"),
        record(b"b", 8),
        marker(ABORT, 7),
        record(b"c", 7),
        marker(COMMIT, 8),
        marker(COMMIT, 7),
    )
    positions.put(T0, state.era, data, [AbortedRange(7, 0)])
    taken = positions.take(None)[T0]
    assert [each.value for each in taken] == [b"plain", b"b", b"c"]
    assert (state.position, state.aborted) == (7, set())


A_DAMAGED_MARKER = bytearray(marker(ABORT, 7))
A_DAMAGED_MARKER[-1] ^= 1
DAMAGED = placed(record(b"a", 7), record(b"plain"), bytes(A_DAMAGED_MARKER), record(b"b", 7))


def fetched(position: int, aborted: list[AbortedRange]) -> SubscriptionState:
    """Return the state of a consumer at this position that has fetched the damaged data."""
    positions = SubscriptionState()
    positions.assign([T0])
    state = positions.state(T0)
    state.move(position)
    assert positions.put(T0, state.era, DAMAGED, aborted) > 0
    assert state.fetch_offset == 4
    return positions


@pytest.mark.parametrize(
    ("aborted", "before"), [([AbortedRange(7, 0)], [b"plain"]), ([], [b"a", b"plain"])]
)
def test_a_damaged_marker_raises_after_all_earlier_records(
    aborted: list[AbortedRange], before: list[bytes]
) -> None:
    positions = fetched(0, aborted)
    assert [each.value for each in positions.take(None)[T0]] == before
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"t-0 at offset 2: .* seek to 3"):
            positions.take(None)
    state = positions.state(T0)
    state.move(3)
    positions.put(T0, state.era, DAMAGED[-len(record(b"b", 7)) :])
    assert [each.value for each in positions.take(None)[T0]] == [b"b"]


def test_a_damaged_marker_before_the_position_raises_if_it_may_end_a_transaction() -> None:
    with pytest.raises(CorruptData, match="t-0 at offset 2"):
        fetched(3, [AbortedRange(7, 0)]).take(None)
    assert [each.value for each in fetched(3, []).take(None)[T0]] == [b"b"]


def test_a_marker_without_a_crc_is_accepted() -> None:
    positions = SubscriptionState()
    positions.assign([T0])
    state = positions.state(T0)
    state.move(0)
    abort = bytearray(marker(ABORT, 7))
    abort[CRC] = bytes(4)
    data = placed(record(b"a", 7), bytes(abort), record(b"b", 7))
    positions.put(T0, state.era, data, [AbortedRange(7, 0)])
    assert [each.value for each in positions.take(None)[T0]] == [b"b"]


def test_an_unknown_isolation_level_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            with pytest.raises(ConfigError, match="read_committed"):
                log.consumer(isolation_level="serializable")  # type: ignore[arg-type]

    asyncio.run(main())


def test_aborted_and_open_transactions_are_not_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        async def read(isolation: Isolation) -> tuple[list[bytes | None], int]:
            async with (
                Log.open(f"kafka://{broker.address}") as log,
                log.consumer(isolation_level=isolation) as consumer,
            ):
                consumer.assign([T0])
                consumer.seek(T0, 0)
                end = (await consumer.end_offsets([T0]))[T0]
                found: list[bytes | None] = []
                while await consumer.position(T0) < end:
                    for records in (await consumer.poll(timeout_ms=1_000)).values():
                        found += [each.value for each in records]
                return found, end

        async def make_topic() -> None:
            async with Log.open(f"kafka://{broker.address}") as log:
                await log.admin().create_topics([NewTopic("t", partitions=1)])

        asyncio.run(make_topic())
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "transactional.id": "tx"}
        )
        producer.init_transactions(PATIENCE_S)
        for value, committed in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin_transaction()
            producer.produce("t", value, partition=0)
            if committed:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.flush(PATIENCE_S)
                producer.abort_transaction(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"open", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        assert asyncio.run(read("read_committed")) == ([b"1", b"3"], 6)
        assert asyncio.run(read("read_uncommitted")) == ([b"1", b"2", b"3", b"open"], 7)
