"""Produce patterns: a recognized request and its answer equal those of the codec."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import decode_request, encode_request, encode_response
from streamlog.protocol.frame_reader import FrameReader
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from streamlog.protocol.produce_runs import (
    PATTERNS_MAX,
    RUN_MAX,
    VERSION_MIN,
    Alike,
    ProducePatterns,
    ProduceRun,
)
from streamlog.protocol.schema import one_buffer

PRODUCE = api_of(ProduceRequest)
VERSIONS = st.integers(VERSION_MIN, PRODUCE.max_version)
NAMES = st.text("abc._-", min_size=1, max_size=20)
CORRELATION_IDS = st.integers(-(2**31), 2**31 - 1)
RECORDS = st.one_of(st.binary(min_size=1, max_size=300), st.just(bytes(20_000)))


def produce(
    topic: str = "t", index: int = 0, records: bytes = b"r", acks: int = 1
) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics)


def frame_of(
    request: ProduceRequest, version: int, number: int = 1, client_id: str | None = "c"
) -> memoryview:
    return memoryview(b"".join(encode_request(PRODUCE, version, number, client_id, request))[4:])


def received(*frames: memoryview, size_bytes_max: int = 2**31 - 1) -> FrameReader:
    reader = FrameReader(size_bytes_max=size_bytes_max)
    for frame in frames:
        reader.feed(len(frame).to_bytes(4, "big") + frame)
    return reader


def take(patterns: ProducePatterns, reader: FrameReader) -> ProduceRun | None:
    run = patterns.peek(reader)
    if run is not None:
        patterns.take(reader, run)
    return run


def match(patterns: ProducePatterns, frame: memoryview) -> Alike | None:
    run = take(patterns, received(frame))
    if run is None:
        return None
    (alike,) = run.requests
    return alike


def learned(*frames: memoryview) -> ProducePatterns:
    patterns = ProducePatterns()
    for frame in frames:
        patterns.learn(frame, decode_request(frame))
    return patterns


@given(
    version=VERSIONS,
    topic_partition=st.tuples(NAMES, st.integers(0, 2**31 - 1)),
    client=st.tuples(st.none() | NAMES, st.sampled_from([1, -1])),
    records=st.tuples(RECORDS, RECORDS),
    number=CORRELATION_IDS,
)
def test_a_request_with_other_records_and_number_matches(
    version: int,
    topic_partition: tuple[str, int],
    client: tuple[str | None, int],
    records: tuple[bytes, bytes],
    number: int,
) -> None:
    name, index = topic_partition
    client_id, acks = client
    first, then = records
    patterns = learned(frame_of(produce(name, index, first, acks), version, 1, client_id))
    found = match(patterns, frame_of(produce(name, index, then, acks), version, number, client_id))
    assert found is not None
    assert (found.correlation_id, found.records) == (number, then)
    pattern = found.pattern
    assert (pattern.topic, pattern.index) == (name, index)
    assert (pattern.version, pattern.client_id) == (version, client_id)


@given(version=VERSIONS, then=RECORDS, change=st.data())
def test_a_changed_frame_matches_only_if_the_codec_agrees(
    version: int, then: bytes, change: st.DataObject
) -> None:
    patterns = learned(frame_of(produce(), version))
    data = bytearray(frame_of(produce(records=then), version))
    kind = change.draw(st.sampled_from(["flip", "cut", "grow"]))
    if kind == "flip":
        data[change.draw(st.integers(0, len(data) - 1))] ^= change.draw(st.integers(1, 255))
    elif kind == "cut":
        del data[change.draw(st.integers(0, len(data) - 1)) :]
    else:
        data += bytes(change.draw(st.integers(1, 3)))
    found = match(patterns, memoryview(data))
    if found is None:
        return
    request = decode_request(memoryview(data))
    message = request.message
    assert isinstance(message, ProduceRequest)
    assert (request.version, request.correlation_id) == (version, found.correlation_id)
    assert (request.client_id, message.acks, message.transactional_id) == ("c", 1, None)
    (topic,) = message.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, partition.records) == ("t", 0, found.records)


@pytest.mark.parametrize(
    "change",
    [
        lambda request: setattr(request, "acks", 0),
        lambda request: setattr(request, "acks", 7),
        lambda request: setattr(request, "transactional_id", "x"),
        lambda request: setattr(request, "topic_data", []),
        lambda request: request.topic_data.append(request.topic_data[0]),
        lambda request: setattr(request.topic_data[0], "partition_data", []),
        lambda request: setattr(request.topic_data[0].partition_data[0], "records", None),
        lambda request: setattr(request.topic_data[0].partition_data[0], "records", b""),
    ],
    ids=["no answer", "no acks", "transaction", "nothing", "two topics", "none", "null", "empty"],
)
@pytest.mark.parametrize("version", range(VERSION_MIN, PRODUCE.max_version + 1))
def test_requests_other_than_plain_ones_are_not_learned(
    change: Callable[[ProduceRequest], None], version: int
) -> None:
    request = produce()
    change(request)
    frame = frame_of(request, version)
    assert match(learned(frame), frame) is None
    assert match(learned(frame_of(produce(), version)), frame) is None


def test_requests_of_old_versions_are_not_learned() -> None:
    frame = frame_of(produce(), VERSION_MIN - 1)
    assert match(learned(frame), frame) is None


@pytest.mark.parametrize("version", range(VERSION_MIN, PRODUCE.max_version + 1))
def test_a_non_canonical_encoding_is_not_learned(version: int) -> None:
    frame = memoryview(bytes(frame_of(produce(), version)) + b"\0")
    assert match(learned(frame), frame) is None


def test_patterns_distinguish_partitions() -> None:
    frames = [frame_of(produce(topic, index), 9) for topic in ("a", "long") for index in range(3)]
    patterns = learned(*frames)
    found = [match(patterns, frame) for frame in frames]
    assert [(each.pattern.topic, each.pattern.index) for each in found if each] == [
        (topic, index) for topic in ("a", "long") for index in range(3)
    ]


def test_the_number_of_patterns_is_bounded() -> None:
    frames = [frame_of(produce(index=index), 7) for index in range(PATTERNS_MAX + 3)]
    patterns = learned(*frames)
    known = [match(patterns, frame) is not None for frame in frames]
    assert known == [False] * 3 + [True] * PATTERNS_MAX


@given(
    version=VERSIONS,
    name=NAMES,
    number=CORRELATION_IDS,
    offsets=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), min_size=1),
)
def test_an_answer_equals_the_codecs(
    version: int, name: str, number: int, offsets: list[tuple[int, int]]
) -> None:
    frame = frame_of(produce(name, 5), version)
    found = match(learned(frame), frame)
    assert found is not None
    for base_offset, log_start_offset in offsets:
        answer = PartitionProduceResponse(
            index=5, base_offset=base_offset, log_start_offset=log_start_offset
        )
        topic = TopicProduceResponse(name=name, partition_responses=[answer])
        pieces = encode_response(PRODUCE, version, number, ProduceResponse(responses=[topic]))
        expected = b"".join(map(one_buffer, pieces))
        assert found.pattern.accepted(number, base_offset, log_start_offset) == expected
        assert found.pattern.answered(number, answer) == expected


def test_a_run_ends_when_full_or_at_another_request() -> None:
    frame = frame_of(produce(), 9)
    other = frame_of(produce("other"), 9)
    patterns = learned(frame)
    reader = received(*[frame] * (RUN_MAX + 1), other, frame)
    runs = [take(patterns, reader), take(patterns, reader)]
    assert [len(run.requests) for run in runs if run is not None] == [RUN_MAX, 1]
    assert take(patterns, reader) is None
    assert reader.next_frame() == other
    assert take(patterns, reader) is not None
    assert reader.next_frame() is None


def test_requests_cut_from_a_run_stay_in_the_reader() -> None:
    frames = [frame_of(produce(records=b"r" * (1 + number)), 9) for number in range(3)]
    patterns = learned(frames[0])
    for kept in range(4):
        reader = received(*frames)
        run = patterns.peek(reader)
        assert run is not None
        run.cut(kept)
        patterns.take(reader, run)
        assert [bytes(each) for each in reader.frames()] == [bytes(f) for f in frames[kept:]]


def test_a_forgotten_pattern_matches_no_more() -> None:
    one, other = frame_of(produce(), 9), frame_of(produce("other"), 9)
    patterns = learned(one, other)
    known = match(patterns, one)
    assert known is not None
    patterns.forget(known.pattern)
    assert match(patterns, one) is None
    assert match(patterns, other) is not None


def test_a_too_large_or_partial_frame_is_left_to_the_reader() -> None:
    frame = frame_of(produce(records=bytes(100)), 9)
    patterns = learned(frame)
    assert take(patterns, received(frame, size_bytes_max=len(frame))) is not None
    assert take(patterns, received(frame, size_bytes_max=len(frame) - 1)) is None
    reader = FrameReader(size_bytes_max=1_000)
    reader.feed(len(frame).to_bytes(4, "big") + frame[:-1])
    assert take(patterns, reader) is None
    assert reader.next_frame() is None
    reader.feed(frame[-1:])
    assert take(patterns, reader) is not None
