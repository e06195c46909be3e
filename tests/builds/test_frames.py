"""One source, two builds: frames of a stream, and Fetch requests that repeat each other."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.protocol.api_table import api_of
from streamlog.protocol.fetch_patterns import VERSION_MIN
from streamlog.protocol.frame import decode_request, encode_request
from streamlog.protocol.frame_reader import READ_BYTES
from streamlog.protocol.messages.produce_and_fetch import FetchPartition, FetchRequest, FetchTopic
from streamlog.protocol.schema import one_buffer
from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
FRAMES = both("streamlog.protocol.frame_reader")
FETCHES = both("streamlog.protocol.fetch_patterns")
FETCH = api_of(FetchRequest)

sizes = st.sampled_from([0, 1, 5, 100, READ_BYTES - 4, READ_BYTES, 3 * READ_BYTES])
offsets = st.integers(0, 2**63 - 1)
edits = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=1)


@given(
    st.lists(sizes, max_size=6),
    st.lists(st.integers(1, 2 * READ_BYTES), max_size=6),
    st.sampled_from([100, 2**31 - 1]),
)
def test_streams_are_cut_into_frames_equally_in_both_builds(
    contents: list[int], pieces: list[int], size_bytes_max: int
) -> None:
    stream = b"".join(size.to_bytes(4) + bytes([size % 251]) * size for size in contents)

    def act(module: ModuleType) -> object:
        reader = module.FrameReader(size_bytes_max=size_bytes_max)
        found: list[object] = []
        rest = memoryview(stream)
        for piece in (*pieces, len(stream)):
            reader.feed(rest[:piece])
            rest = rest[piece:]
            found += [bytes(frame) for frame in reader.frames()]
            found.append((reader.due_bytes, reader.is_empty, reader.is_cramped))
            reader.trim()
            found.append((len(reader.room()), reader.held()[2:]))
        return found

    same(FRAMES, act)


@given(
    form=st.tuples(st.integers(VERSION_MIN, 12), st.integers(0, 1)),
    named=st.tuples(st.integers(-(2**31), 2**31 - 1), offsets),
    noise=edits,
    ends=st.tuples(offsets, offsets, offsets),
    size_bytes=st.sampled_from([1, 126, 127, 128, 16_383, 16_384]),
)
def test_fetches_are_recognized_and_answered_equally_in_both_builds(
    form: tuple[int, int],
    named: tuple[int, int],
    noise: list[tuple[int, int]],
    ends: tuple[int, int, int],
    size_bytes: int,
) -> None:
    version, isolation_level = form

    def frame_of(number: int, offset: int) -> bytearray:
        asked = FetchPartition(partition=3, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic="topic", partitions=[asked])],
        )
        return bytearray(b"".join(encode_request(FETCH, version, number, "client", request))[4:])

    first, again = memoryview(bytes(frame_of(1, 0))), frame_of(*named)
    for position, byte in noise:
        again[position % len(again)] = byte

    def act(module: ModuleType) -> object:
        pattern = module.fetch_pattern(first, decode_request(first))
        alike = pattern.match(memoryview(again))
        if alike is None:
            return None
        found = module.FoundRecords(module.PartitionEnds(*ends), bytes(size_bytes))
        pieces = alike.written(found, 7)
        asked = alike.message().topics[0].partitions[0]
        return (
            (pattern.version, pattern.client_id, *alike[1:], asked.fetch_offset),
            b"".join(map(one_buffer, pieces)),
        )

    same(FETCHES, act)
