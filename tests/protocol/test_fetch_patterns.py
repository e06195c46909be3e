"""Fetch patterns: a recognized request and its answer equal those of the codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData, UnsupportedVersion
from streamlog.protocol.api_table import api_of
from streamlog.protocol.fetch_patterns import (
    VERSION_MIN,
    FetchPattern,
    FoundRecords,
    PartitionEnds,
    fetch_pattern,
)
from streamlog.protocol.frame import decode_request, encode_request, encode_response
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from streamlog.protocol.schema import one_buffer

FETCH = api_of(FetchRequest)
VERSIONS = range(VERSION_MIN, FETCH.max_version + 1)
NAMED = 12
"""The last version that names topics instead of using their ids."""
OFFSETS = st.integers(0, 2**62)
CORRELATION_IDS = st.integers(-(2**31), 2**31 - 1)


def fetch(
    version: int,
    offset: int = 0,
    *,
    partitions: int = 1,
    session: tuple[int, int] = (0, -1),
    isolation_level: int = 0,
) -> FetchRequest:
    topic = FetchTopic(
        topic="topic" if version <= NAMED else "",
        topic_id=bytes(16) if version <= NAMED else bytes(range(16)),
        partitions=[
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number in range(partitions)
        ],
    )
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[topic],
    )


def frame_of(request: FetchRequest, version: int, number: int = 1) -> memoryview:
    return memoryview(b"".join(encode_request(FETCH, version, number, "reader", request))[4:])


def pattern_of(request: FetchRequest, version: int) -> FetchPattern | None:
    frame = frame_of(request, version)
    return fetch_pattern(frame, decode_request(frame))


def pattern_in(version: int, isolation_level: int = 0) -> FetchPattern:
    pattern = pattern_of(fetch(version, 7, isolation_level=isolation_level), version)
    assert pattern is not None
    return pattern


@pytest.mark.parametrize("version", VERSIONS)
@given(offset=OFFSETS, number=CORRELATION_IDS)
def test_a_request_with_another_offset_and_number_matches(
    version: int, offset: int, number: int
) -> None:
    pattern = pattern_in(version)
    found = pattern.match(frame_of(fetch(version, offset), version, number))
    assert found == (pattern, number, offset)
    assert (pattern.version, pattern.client_id) == (version, "reader")


@given(version=st.sampled_from(VERSIONS), change=st.data())
def test_a_changed_frame_matches_only_if_the_codec_agrees(
    version: int, change: st.DataObject
) -> None:
    data = bytearray(frame_of(fetch(version, 3), version))
    kind = change.draw(st.sampled_from(["flip", "cut", "grow"]))
    if kind == "flip":
        data[change.draw(st.integers(0, len(data) - 1))] ^= change.draw(st.integers(1, 255))
    elif kind == "cut":
        del data[change.draw(st.integers(0, len(data) - 1)) :]
    else:
        data += bytes(change.draw(st.integers(1, 3)))
    found = pattern_in(version).match(memoryview(data))
    if found is None:
        return
    try:
        request = decode_request(memoryview(data))
    except (CorruptData, UnsupportedVersion) as error:
        raise AssertionError(data.hex()) from error
    assert (request.version, request.correlation_id) == (version, found.correlation_id)
    message = request.message
    assert isinstance(message, FetchRequest)
    expected = fetch(version, found.offset)
    assert repr(message) == repr(expected)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda version: fetch(version, partitions=2),
        lambda version: fetch(version, partitions=0),
        lambda version: fetch(version, session=(0, 0)),
        lambda version: fetch(version, session=(5, 1)),
        lambda version: fetch(version, session=(5, -1)),
    ],
    ids=["two partitions", "none", "wants a session", "has a session", "ends one"],
)
def test_a_request_with_sessions_or_more_partitions_has_no_pattern(request_of: object) -> None:
    assert callable(request_of)
    for version in VERSIONS:
        assert pattern_of(request_of(version), version) is None


def test_old_versions_have_no_pattern() -> None:
    assert pattern_of(fetch(VERSION_MIN - 1), VERSION_MIN - 1) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_non_canonical_encoding_has_no_pattern(version: int) -> None:
    frame = memoryview(bytes(frame_of(fetch(version), version)) + b"\0")
    assert fetch_pattern(frame, decode_request(frame)) is None


@pytest.mark.parametrize("version", VERSIONS)
@given(
    number=CORRELATION_IDS,
    ends=st.builds(PartitionEnds, OFFSETS, OFFSETS, OFFSETS),
    records=st.binary(min_size=1, max_size=20_000),
    isolation_level=st.integers(0, 1),
    throttle_ms=st.sampled_from([0, 1, 30_000]),
)
def test_an_answer_equals_the_codecs(  # noqa: PLR0917 - the parts of an answer
    version: int,
    number: int,
    ends: PartitionEnds,
    records: bytes,
    isolation_level: int,
    throttle_ms: int,
) -> None:
    pattern = pattern_in(version, isolation_level)
    found = PartitionData(
        partition_index=0,
        aborted_transactions=[] if isolation_level else None,
        records=records,
        **ends._asdict(),
    )
    topic = pattern.request.topics[0]
    response = FetchResponse(
        throttle_time_ms=throttle_ms,
        responses=[
            FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[found])
        ],
    )
    expected = encode_response(FETCH, version, number, response)
    pieces = pattern.answer(number, FoundRecords(ends, records), throttle_ms)
    assert b"".join(map(one_buffer, pieces)) == b"".join(map(one_buffer, expected))
