"""The metadata of a committed offset: positions of readers that are ahead of it."""

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
def some_positions(draw: st.DrawFn) -> AgentPosition:
    base = draw(st.integers(0, 10**12))
    found = [(base + 1 + start, base + 1 + end) for start, end in draw(ranges)]
    return AgentPosition(base, found, draw(st.none() | st.integers(-1, 2**62)))


@given(
    st.dictionaries(st.from_regex(r"[a-z0-9._-]{1,20}", fullmatch=True), some_positions()),
    st.just(b"") | st.binary(min_size=16, max_size=16),
    st.integers(0, 1_000),
)
def test_offset_metadata_round_trips(
    positions: dict[str, AgentPosition], topic_id: bytes, cuts: int
) -> None:
    offset = min((position_.position for position_ in positions.values()), default=0)
    log = SourceLog(topic_id, cuts=cuts)
    metadata = metadata_of(offset, positions, log)
    assert noted_of(offset, metadata).log == log
    assert len(metadata) <= METADATA_BYTES_MAX
    found = positions_of(offset, metadata)
    ahead = {
        name: AgentPosition(p.position, list(p.ranges), p.time_ms)
        for name, p in positions.items()
        if p.position > offset or p.ranges or p.time_ms is not None
    }
    assert found == ahead
    if positions:
        assert offset_of(positions) == offset


@pytest.mark.parametrize("readers", [1, 3, 40, 5_000])
def test_offset_metadata_is_bounded_and_never_wrong(readers: int) -> None:
    many = [(at, at + 7) for at in range(1_000, 100_000, 10)]
    positions = {f"agent-{number}": AgentPosition(number, many) for number in range(readers)}
    metadata = metadata_of(0, positions)
    assert len(metadata.encode()) <= METADATA_BYTES_MAX
    for name, position_ in positions_of(0, metadata).items():
        assert position_.position == positions[name].position
        assert list(position_.ranges) == many[: len(position_.ranges)]
    if readers == 1:
        assert len(positions_of(0, metadata)["agent-0"].ranges) > 900


@pytest.mark.parametrize(
    "metadata",
    ["", "something", "streamlog:1;a:1", "streamlog:2;a:1", "streamlog:2::0;a",
     "streamlog:2::0;a:x", "streamlog:2::0;a:-1", "streamlog:2::0;a:1,2", "streamlog:2::0;a:",
     "streamlog:2:x:0", "streamlog:2::", "xstreamlog:2::0"],
)  # fmt: skip
def test_foreign_offset_metadata_is_ignored(metadata: str) -> None:
    assert positions_of(7, metadata) == {}
