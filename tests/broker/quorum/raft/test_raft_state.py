from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.quorum.raft.raft_messages import Entry, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_state import EpochChain

Epochs = st.lists(st.integers(0, 6), max_size=12).map(sorted)


def chain_of(epochs: list[int], start: int = 0) -> EpochChain:
    """Return the chain of a log with one record per entry, trimmed before `start`."""
    chain = EpochChain()
    chain.extend(
        Entry(base_offset=offset, count=1, epoch=epoch, payload=b"")
        for offset, epoch in enumerate(epochs)
    )
    if start:
        chain.trim(RaftSnapshotId(start, epochs[start - 1]))
    return chain


def slow_end_for(epochs: list[int], epoch: int) -> tuple[int, int]:
    found = [each for each in epochs if each <= epoch]
    return (found[-1], len(found)) if found else (0, 0)


@given(Epochs, st.integers(0, 8), st.data())
def test_end_for_returns_the_end_of_an_epoch(
    epochs: list[int], epoch: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(epochs)))
    chain = chain_of(epochs, start)
    known = epochs[start - 1] if start else 0
    if epoch < known:
        assert chain.end_for(epoch) == (-1, start)
    else:
        assert chain.end_for(epoch) == slow_end_for(epochs, epoch)


@given(Epochs, st.data())
def test_a_chain_can_be_truncated_and_extended(epochs: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(epochs)))
    end = data.draw(st.integers(start, len(epochs)))
    chain = chain_of(epochs, start)
    chain.truncate(end)
    expected = chain_of(epochs[:end], start)
    assert (chain.end_offset, chain.last_epoch) == (expected.end_offset, expected.last_epoch)
    chain.append(Entry(base_offset=end, count=2, epoch=7, payload=b""))
    assert chain.end_for(7) == (7, end + 2)
    assert chain.end_for(6) == expected.end_for(6)
    assert chain.epoch_at(end) == expected.last_epoch


@pytest.mark.parametrize(
    "entry",
    [
        Entry(base_offset=3, count=1, epoch=1, payload=b""),
        Entry(base_offset=2, count=1, epoch=0, payload=b""),
        Entry(base_offset=2, count=0, epoch=1, payload=b""),
    ],
)
def test_an_entry_that_does_not_follow_is_refused(entry: Entry) -> None:
    with pytest.raises(ValueError, match="does not follow offset 2 of epoch 1"):
        chain_of([1, 1]).append(entry)
