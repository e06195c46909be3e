"""What an offset's metadata tells of those who are ahead of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.agents.offsets import (
    METADATA_BYTES_MAX,
    AgentPosition,
    merge_ranges,
    metadata_of,
    noted_of,
    offset_of,
    positions_of,
)
from streamlog.tables.state.changelog import SourceLog

ranges = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**4)), max_size=8).map(
    lambda many: merge_ranges((start, start + length) for start, length in many)
)


@st.composite
def some_places(draw: st.DrawFn) -> AgentPosition:
    base = draw(st.integers(0, 10**12))
    found = [(base + 1 + start, base + 1 + end) for start, end in draw(ranges)]
    return AgentPosition(base, found, draw(st.none() | st.integers(-1, 2**62)))


@given(
    st.dictionaries(st.from_regex(r"[a-z0-9._-]{1,20}", fullmatch=True), some_places()),
    st.just(b"") | st.binary(min_size=16, max_size=16),
    st.integers(0, 1_000),
)
def test_what_was_told_is_read_again(
    places: dict[str, AgentPosition], topic_id: bytes, cuts: int
) -> None:
    offset = min((place.position for place in places.values()), default=0)
    log = SourceLog(topic_id, cuts=cuts)
    metadata = metadata_of(offset, places, log)
    assert noted_of(offset, metadata).log == log
    assert len(metadata) <= METADATA_BYTES_MAX
    found = positions_of(offset, metadata)
    ahead = {
        name: AgentPosition(p.position, list(p.ranges), p.time_ms)
        for name, p in places.items()
        if p.position > offset or p.ranges or p.time_ms is not None
    }
    assert found == ahead
    if places:
        assert offset_of(places) == offset


@pytest.mark.parametrize("readers", [1, 3, 40, 5_000])
def test_it_is_bounded_and_tells_nothing_that_is_not_so(readers: int) -> None:
    many = [(at, at + 7) for at in range(1_000, 100_000, 10)]
    places = {f"agent-{number}": AgentPosition(number, many) for number in range(readers)}
    metadata = metadata_of(0, places)
    assert len(metadata.encode()) <= METADATA_BYTES_MAX
    for name, place in positions_of(0, metadata).items():
        assert place.position == places[name].position
        assert list(place.ranges) == many[: len(place.ranges)]
    if readers == 1:
        assert len(positions_of(0, metadata)["agent-0"].ranges) > 900


@pytest.mark.parametrize(
    "metadata",
    ["", "something", "streamlog:1;a:1", "streamlog:2;a:1", "streamlog:2::0;a",
     "streamlog:2::0;a:x", "streamlog:2::0;a:-1", "streamlog:2::0;a:1,2", "streamlog:2::0;a:",
     "streamlog:2:x:0", "streamlog:2::", "xstreamlog:2::0"],
)  # fmt: skip
def test_what_others_have_written_tells_nothing(metadata: str) -> None:
    assert positions_of(7, metadata) == {}
