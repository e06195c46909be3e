"""Offsets staged in transactions: the result is what compaction of the log would keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.group.committed_offsets import GroupOffsets
from tests.broker.coordinator.group.test_committed_offsets import change, offsets_of

HERE = ("t", 0)


def test_a_staged_offset_counts_once_its_transaction_commits() -> None:
    offsets = GroupOffsets()
    offsets.stage(7, change("g", *HERE, 3))
    offsets.stage(8, change("g", "t", 1, 5))
    assert offsets_of(offsets, "g") == {}
    assert (offsets.is_stable("g", *HERE), offsets.is_stable("h", *HERE)) == (False, True)
    offsets.decide(8, committed=False)
    offsets.decide(7, committed=True)
    assert offsets_of(offsets, "g") == {HERE: 3}
    assert offsets.is_stable("g", *HERE)
    offsets.decide(7, committed=True)


def test_the_later_record_counts_not_the_later_marker() -> None:
    offsets = GroupOffsets()
    offsets.stage(7, change("g", *HERE, 3))
    offsets.replay(change("g", *HERE, 4))
    offsets.decide(7, committed=True)
    assert offsets_of(offsets, "g") == {HERE: 4}
    offsets.stage(7, change("g", *HERE, 5))
    offsets.stage(8, change("g", *HERE, 6))
    offsets.decide(8, committed=True)
    offsets.decide(7, committed=True)
    assert offsets_of(offsets, "g") == {HERE: 6}


def test_an_aborted_offset_gives_way_to_an_earlier_one() -> None:
    offsets = GroupOffsets()
    offsets.stage(7, change("g", *HERE, 5))
    offsets.stage(8, change("g", *HERE, 6))
    offsets.decide(8, committed=False)
    offsets.decide(7, committed=True)
    assert offsets_of(offsets, "g") == {HERE: 5}


def test_an_offset_with_a_staged_commit_does_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.replay(change("g", *HERE, 3))

    def unused() -> list[object]:
        return list(offsets.expired(lambda *_: 0, wall_ms=10, retention_ms=1))

    assert len(unused()) == 1
    offsets.stage(7, change("g", *HERE, 5))
    assert unused() == []
    offsets.decide(7, committed=False)
    assert len(unused()) == 1


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "stage", "commit", "abort"]), st.integers(0, 2)),
    max_size=30,
)


@given(history=steps)
def test_the_last_record_that_is_not_aborted_counts(history: list[tuple[str, int]]) -> None:
    offsets = GroupOffsets()
    records: list[tuple[int, int | None]] = []
    """Each offset, with its producer while the transaction is open, in log order."""
    for number, (what, producer_id) in enumerate(history):
        match what:
            case "plain":
                offsets.replay(change("g", *HERE, number))
                records.append((number, None))
            case "stage":
                offsets.stage(producer_id, change("g", *HERE, number))
                records.append((number, producer_id))
            case _:
                committed = what == "commit"
                offsets.decide(producer_id, committed=committed)
                records = [
                    (offset, None if owner == producer_id else owner)
                    for offset, owner in records
                    if committed or owner != producer_id
                ]
        counted = [offset for offset, owner in records if owner is None]
        assert offsets_of(offsets, "g") == ({HERE: counted[-1]} if counted else {})
