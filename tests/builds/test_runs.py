"""One source, two builds: runs of Produce requests, recognized in bytes and placed in a log."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.settings import LONG_MAX
from streamlog.broker.storage.log.producer_states import ProducerStates
from streamlog.broker.storage.validator import RecordRules
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import decode_request, encode_request
from streamlog.protocol.frame_reader import FrameReader
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.records.batch import HEADER_BYTES, encode_batch
from streamlog.records.compression import Compression
from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
PATTERNS = both("streamlog.protocol.produce_runs")
RUNS = both("streamlog.broker.storage.log.batch_run")
PRODUCE = api_of(ProduceRequest)

sizes = st.sampled_from([0, 1, 2, 126, 127, 128, 16_382, 16_383, 16_384])
changes = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2)


def frame_of(version: int, topic: str, number: int, records: bytes) -> bytes:
    data = PartitionProduceData(index=3, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics)
    return b"".join(encode_request(PRODUCE, version, number, "client", request))


def changed(data: bytes, edits: Sequence[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for position, byte in edits:
        out[position % len(out)] = byte
    return bytes(out)


def resealed(data: bytes, edits: Sequence[tuple[int, int]]) -> bytes:
    """Return a batch with changes in its records and a matching CRC."""
    out = bytearray(data[:HEADER_BYTES] + changed(data[HEADER_BYTES:], edits))
    out[17:21] = crc32c(out[21:]).to_bytes(4)
    return bytes(out)


@given(
    pieces=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(list(Compression)), changes), max_size=4
    )
)
def test_batches_wait_for_a_thread_equally_in_both_builds(
    pieces: list[tuple[int, Compression, list[tuple[int, int]]]],
) -> None:
    encoded = [
        changed(b"".join([encode_batch([(1, None, b"v", ())], codec=codec)] * count), noise)
        for count, codec, noise in pieces
    ]
    same(RUNS, lambda module: module.wait_for_thread([memoryview(each) for each in encoded]))


@given(
    version=st.integers(7, PRODUCE.max_version),
    requests=st.lists(
        st.tuples(st.sampled_from(["t", "topic"]), st.integers(-(2**31), 2**31 - 1), sizes),
        min_size=1,
        max_size=4,
    ),
    noise=changes,
    cut=st.tuples(st.integers(0, 40), st.sampled_from([1024, 0, 1, 2])),
    size_bytes_max=st.sampled_from([200, 2**31 - 1]),
)
def test_requests_are_recognized_equally_in_both_builds(
    version: int,
    requests: list[tuple[str, int, int]],
    noise: list[tuple[int, int]],
    cut: tuple[int, int],
    size_bytes_max: int,
) -> None:
    cut_bytes, count = cut
    frames = [frame_of(version, name, number, bytes(size)) for name, number, size in requests]
    stream = changed(b"".join(frames), noise)
    stream = stream[: len(stream) - cut_bytes]

    def act(module: ModuleType) -> object:
        patterns = module.ProducePatterns()
        for topic in ("topic", "t"):
            frame = memoryview(frame_of(version, topic, 1, b"records"))[4:]
            patterns.learn(frame, decode_request(frame))
        reader = FrameReader(size_bytes_max=size_bytes_max)
        reader.feed(stream)
        run = patterns.peek(reader)
        if run is not None:
            run.cut(count)
            patterns.take(reader, run)
        rest = bytes(reader.held().view[reader.held().start : reader.held().end])
        return rest, [] if run is None else [facts_of(recognized) for recognized in run.requests]

    same(PATTERNS, act)


def facts_of(recognized: Any) -> object:
    pattern, number, records = recognized
    names = (pattern.topic, pattern.index, pattern.version, pattern.client_id)
    answers = [
        pattern.accepted(number, base_offset, start_offset)
        for base_offset, start_offset in ((0, 0), (2**62, 2**61), (7, 0))
    ]
    return names, number, bytes(records), answers


@given(
    batches=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from([(-1, -1), (5, 0), (5, 1), (6, 0)]),
            st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1]),
            changes,
        ),
        min_size=1,
        max_size=4,
    ),
    room_bytes=st.sampled_from([0, 150, 2**31]),
    next_offset=st.sampled_from([0, 9, 2**40]),
    looks=st.tuples(
        st.sampled_from([RecordRules(False, 0, LONG_MAX, 0), RecordRules(False, 2, 3, 0)]),
        st.booleans(),
    ),
    noise_in_records=changes,
)
def test_batches_are_placed_equally_in_both_builds(
    batches: list[tuple[int, tuple[int, int], int, list[tuple[int, int]]]],
    room_bytes: int,
    next_offset: int,
    looks: tuple[RecordRules, bool],
    noise_in_records: list[tuple[int, int]],
) -> None:
    encoded = [
        changed(
            resealed(
                encode_batch(
                    [(time_ms, None, b"v", ()) for time_ms in range(1, count + 1)],
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                ),
                noise_in_records,
            ),
            noise,
        )
        for count, producer, sequence, noise in batches
    ]

    def act(module: ModuleType) -> object:
        run = module.BatchRun(next_offset, 4, room_bytes)
        pieces = [memoryview(bytearray(data)) for data in encoded]
        run.extend(
            pieces,
            max_message_bytes=1_000,
            producers=ProducerStates(),
            rules=looks[0],
            scans=looks[1],
        )
        placed = [bytes(piece) for piece in pieces]
        return placed, run.next_offset, len(run.batches), run.results(), run.pieces

    same(RUNS, act)
