"""Frames from a stream in any pieces, headers of both kinds, and streams of other protocols."""

from __future__ import annotations

from contextlib import suppress
from itertools import cycle, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.api_table import API_VERSIONS_KEY, APIS, Api, api_of
from streamlog.protocol.frame import (
    correlation_id_of,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from streamlog.protocol.frame_reader import KEPT_BYTES_MAX, READ_BYTES, READ_BYTES_MAX, FrameReader
from streamlog.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from streamlog.protocol.schema import Buffer, Message
from tests.protocol.strategies import few, many, messages

API_VERSIONS = APIS[API_VERSIONS_KEY]
EVERY_SERVED = [
    (api, version)
    for api in APIS.values()
    for version in range(api.request.__versions__.first, api.max_version + 1)
]
every_served = pytest.mark.parametrize(
    ("api", "version"), EVERY_SERVED, ids=[f"{api.name}-{version}" for api, version in EVERY_SERVED]
)
CLIENT_IDS = st.none() | st.text(st.characters(codec="utf-8"), max_size=5)


# FrameReader.


@given(
    sizes_bytes=st.lists(
        st.sampled_from([0, 7, READ_BYTES, KEPT_BYTES_MAX // 2, KEPT_BYTES_MAX + 1]), max_size=8
    ),
    # No smaller pieces: a megabyte byte by byte takes seconds, and most examples would have some.
    pieces_bytes=st.lists(st.integers(READ_BYTES, 2 * KEPT_BYTES_MAX), min_size=1, max_size=8),
)
def test_frames_of_a_lent_buffer_stay_valid(
    sizes_bytes: list[int], pieces_bytes: list[int]
) -> None:
    contents = [bytes([number]) * size for number, size in enumerate(sizes_bytes)]
    stream = memoryview(b"".join(len(each).to_bytes(4, "big") + each for each in contents))
    reader = FrameReader(size_bytes_max=2 * KEPT_BYTES_MAX)
    found: list[memoryview] = []
    for size_bytes in cycle(pieces_bytes):
        room = reader.room()
        read_bytes = min(size_bytes, len(room), len(stream))
        room[:read_bytes] = stream[:read_bytes]
        stream = stream[read_bytes:]
        reader.took(read_bytes)
        frames = list(reader.frames())
        found += frames if reader.lend() else [memoryview(bytes(each)) for each in frames]
        if not stream:
            break
    assert found == contents


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak Kafka's protocol"),
    ],
)
def test_a_peer_of_another_protocol_is_named(said: bytes, named: str) -> None:
    reader = FrameReader(size_bytes_max=1_000)
    reader.feed(said)
    with pytest.raises(CorruptData, match=named):
        reader.next_frame()


def test_a_small_buffer_is_not_lent() -> None:
    reader = FrameReader(size_bytes_max=KEPT_BYTES_MAX)
    reader.feed((1).to_bytes(4, "big") + b"a")
    assert not reader.lend()


@given(
    contents=st.lists(st.binary(max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 300), max_size=12),
)
def test_frames_are_read_from_any_pieces(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(content).to_bytes(4) + content for content in contents)
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader(size_bytes_max=40)
    found: list[bytes] = []
    for start, end in pairwise(bounds):
        reader.feed(stream[start:end])
        found += map(bytes, reader.frames())
    assert found == contents


def test_frames_are_views_of_the_read_buffer() -> None:
    reader = FrameReader(size_bytes_max=100)
    room = reader.room()
    came = b"\0\0\0\x03abc\0\0\0\x01d\0\0"
    room[: len(came)] = came
    reader.took(len(came))
    first, second = reader.frames()
    assert first.obj is second.obj is room.obj
    assert (first, second) == (b"abc", b"d")
    reader.feed(b"\0\x02e")
    assert list(reader.frames()) == []
    reader.feed(b"f")
    assert list(reader.frames()) == [b"ef"]


def test_a_large_frame_gets_a_buffer_that_is_released() -> None:
    size = 3 * KEPT_BYTES_MAX
    reader = FrameReader(size_bytes_max=size)
    reader.feed(size.to_bytes(4) + bytes(10))
    assert list(reader.frames()) == []
    assert len(reader.room()) == size - 10
    reader.feed(bytes(size - 10))
    (frame,) = reader.frames()
    assert len(frame) == size
    assert len(reader.room()) == READ_BYTES


def test_the_buffer_grows_for_a_peer_that_fills_it() -> None:
    reader = FrameReader(size_bytes_max=100)
    frame = b"\0\0\0\x03abc"
    rooms = []
    stream = bytearray(frame * (4 * READ_BYTES_MAX // len(frame)))
    count = 0
    while stream:
        room = reader.room()
        assert len(reader.room()) == len(room)
        rooms.append(len(room))
        came, stream = stream[: len(room)], stream[len(room) :]
        room[: len(came)] = came
        reader.took(len(came))
        for taken in reader.frames():
            assert taken == b"abc"
            count += 1
    assert count == 4 * READ_BYTES_MAX // len(frame)
    assert rooms[0] == READ_BYTES
    assert READ_BYTES_MAX - len(frame) <= rooms[-1] <= READ_BYTES_MAX


def test_the_buffer_stays_small_for_a_slow_peer() -> None:
    reader = FrameReader(size_bytes_max=READ_BYTES)
    for _ in range(10):
        reader.feed(b"\0\0\0\x03abc")
        assert list(reader.frames()) == [b"abc"]
        assert len(reader.room()) == READ_BYTES


def test_feeding_works_while_no_frames_are_taken() -> None:
    reader = FrameReader(size_bytes_max=100)
    count = READ_BYTES
    for _ in range(count):
        reader.feed(b"\0\0\0\x01x")
    assert list(reader.frames()) == [b"x"] * count


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\x0b", b"GET "])
def test_a_negative_or_too_large_frame_size_is_corrupt(size: bytes) -> None:
    reader = FrameReader(size_bytes_max=10)
    reader.feed(b"\0\0\0\x01x" + size)
    frames = reader.frames()
    assert bytes(next(frames)) == b"x"
    with pytest.raises(CorruptData, match="0 to 10 are allowed"):
        next(frames)


# Requests and responses.


def test_bytes_after_a_request_are_ignored() -> None:
    """librdkafka 2.16 sends them when it requests all topics."""
    sent = bytes.fromhex("0003000c00000003000772646b61666b610000000000010000")
    request = decode_request(sent)
    assert request.client_id == "rdkafka"
    assert isinstance(request.message, MetadataRequest)
    assert request.message.topics is None


@pytest.mark.slow
@every_served
@few
@given(drawn=st.data())
def test_a_request_round_trips_with_its_header(
    api: Api, version: int, drawn: st.DataObject
) -> None:
    message = drawn.draw(messages(api.request, version))
    client_id = drawn.draw(CLIENT_IDS)
    correlation_id = drawn.draw(st.integers(-(2**31), 2**31 - 1))
    frame = one_frame(encode_request(api, version, correlation_id, client_id, message))
    request = decode_request(frame)
    assert (request.api, request.version) == (api, version)
    assert (request.correlation_id, request.client_id) == (correlation_id, client_id)
    assert request.message == message
    cut = drawn.draw(st.integers(0, len(frame) - 1), label="bytes that are left")
    with pytest.raises(CorruptData):
        decode_request(frame[:cut])


@pytest.mark.slow
@every_served
@few
@given(drawn=st.data())
def test_a_response_round_trips_with_its_correlation_id(
    api: Api, version: int, drawn: st.DataObject
) -> None:
    message = drawn.draw(messages(api.response, version))
    # For ApiVersions, this error means that the response is in version 0: see below.
    assume(api is not API_VERSIONS or getattr(message, "error_code", 0) != 35)
    frame = one_frame(encode_response(api, version, 77, message))
    assert correlation_id_of(frame) == 77
    assert decode_response(api, version, frame) == (77, message)
    cut = drawn.draw(st.integers(0, len(frame) - 1), label="bytes that are left")
    with pytest.raises(CorruptData):
        decode_response(api, version, frame[:cut])


def test_requests_have_the_specified_bytes() -> None:
    heartbeat = HeartbeatRequest(group_id="g", generation_id=7, member_id="m")
    assert encoded(heartbeat, 0, None) == (
        "00 00 00 14  00 0c 00 00 00 00 00 05 ff ff  00 01 67 00 00 00 07 00 01 6d"
    ).replace("  ", " ")
    # Flexible: the client id keeps its 2-byte length, and tags follow it.
    assert encoded(heartbeat, 4, "ab") == (
        "00 00 00 17  00 0c 00 04 00 00 00 05 00 02 61 62 00  02 67 00 00 00 07 02 6d 00 00"
    ).replace("  ", " ")
    assert encoded(ApiVersionsRequest(), 3, "") == (
        "00 00 00 0e  00 12 00 03 00 00 00 05 00 00 00  01 01 00"
    ).replace("  ", " ")


def encoded(message: Message, version: int, client_id: str | None) -> str:
    buffers = encode_request(api_of(type(message)), version, 5, client_id, message)
    return b"".join(buffers).hex(" ")


def test_responses_have_the_specified_bytes() -> None:
    heartbeat = api_of(HeartbeatRequest)
    response = HeartbeatResponse(throttle_time_ms=1, error_code=27)
    plain = b"".join(encode_response(heartbeat, 1, 5, response))
    assert plain.hex(" ") == "00 00 00 0a 00 00 00 05 00 00 00 01 00 1b"
    flexible = b"".join(encode_response(heartbeat, 4, 5, response))
    assert flexible.hex(" ") == "00 00 00 0c 00 00 00 05 00 00 00 00 01 00 1b 00"


def test_an_api_versions_response_never_has_a_flexible_header() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    frame = b"".join(encode_response(API_VERSIONS, 3, 5, response))
    assert frame.hex(" ") == (
        "00 00 00 13 00 00 00 05 00 00 02 00 12 00 00 00 04 00 00 00 00 00 00"
    )


@pytest.mark.parametrize("request_version", [1, 3, 4])
def test_a_refusal_of_api_versions_is_read_in_version_0(request_version: int) -> None:
    """The broker is older than the client, and refuses in the only version that both can read."""
    refusal = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    frame = one_frame(encode_response(API_VERSIONS, 0, 5, refusal))
    assert decode_response(API_VERSIONS, request_version, frame) == (5, refusal)


@pytest.mark.parametrize(
    ("key", "version", "name"),
    [
        (18, 5, "ApiVersions version 5"),
        (0, 2, "Produce version 2"),
        (0, -1, "Produce version -1"),
        (1, 17, "Fetch version 17"),
        (9_999, 0, "API 9999 version 0"),
    ],
)
def test_an_unsupported_request_raises_with_its_header_fields(
    key: int, version: int, name: str
) -> None:
    header = key.to_bytes(2) + version.to_bytes(2, signed=True) + (42).to_bytes(4) + b"\xff\xff"
    with pytest.raises(UnsupportedVersion, match=f"{name} is not served") as refused:
        decode_request(header + b"whatever there is")
    error = refused.value
    assert (error.api_key, error.version, error.correlation_id) == (key, version, 42)
    assert error.code == 35


def test_unknown_tags_in_headers_are_skipped() -> None:
    tags = b"\x02\x00\x01a\x81\x01\x02bc"
    request = bytes.fromhex("000c0004000000050000") + tags
    body = bytes.fromhex("0267000000070" + "26d0000")
    assert decode_request(request + body).message == HeartbeatRequest(
        group_id="g", generation_id=7, member_id="m"
    )
    response = b"\0\0\0\x05" + tags + b"\0\0\0\0\0\0\0"
    assert decode_response(api_of(HeartbeatRequest), 4, response) == (5, HeartbeatResponse())


@pytest.mark.parametrize("client_id", ["x" * 40_000, "\ud800"])
def test_a_client_id_that_can_not_be_encoded_is_a_usage_error(client_id: str) -> None:
    with pytest.raises(UsageError, match="client id"):
        encode_request(API_VERSIONS, 0, 5, client_id, ApiVersionsRequest())


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "0012",
        "001200030000000500",
        "0012000300000005000561",
        "00120003000000050001ff00010100",
        "00120003000000050000",
        "00120003000000050000ff",
        "00120003000000050000ffffffffff",
        "00120003000000050000010005",
    ],
)
def test_a_truncated_or_malformed_header_is_corrupt(frame: str) -> None:
    with pytest.raises(CorruptData):
        decode_request(bytes.fromhex(frame))


@many
@given(data=st.binary(max_size=80))
def test_random_frames_are_a_request_or_refused(data: bytes) -> None:
    with suppress(CorruptData, UnsupportedVersion):
        decode_request(data)


@many
@given(
    served=st.sampled_from(EVERY_SERVED),
    client_id=st.binary(max_size=4),
    data=st.binary(max_size=60),
)
def test_random_bodies_are_a_message_or_corrupt(
    served: tuple[Api, int], client_id: bytes, data: bytes
) -> None:
    api, version = served
    header = api.key.to_bytes(2) + version.to_bytes(2) + bytes(4)
    with suppress(CorruptData):
        decode_request(header + len(client_id).to_bytes(2) + client_id + data)
    with suppress(CorruptData):
        decode_response(api, version, data)


def test_records_are_sent_without_a_copy() -> None:
    batch = b"x" * 1_000
    partition = PartitionData(records=[batch, batch])
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    fetch = api_of(FetchRequest)
    for version in (4, 12):
        buffers = encode_response(fetch, version, 5, response)
        assert sum(buffer is batch for buffer in buffers) == 2
        assert all(buffers), "no empty buffer is sent"
        assert int.from_bytes(bytes(buffers[0])[:4]) == sum(map(len, buffers)) - 4
        read = decode_response(fetch, version, one_frame(buffers))[1]
        assert isinstance(read, FetchResponse)
        assert read.responses[0].partitions[0].records == batch + batch


def one_frame(buffers: list[Buffer]) -> memoryview:
    reader = FrameReader(size_bytes_max=1 << 20)
    reader.feed(b"".join(buffers))
    (frame,) = reader.frames()
    return frame
