"""The restart position in a changed log, compared with a model of two logs with a common start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.topics.lost_sources import (
    Present,
    TruncatedSource,
    is_recreated,
    policy_of,
    restart,
    source_lost_error,
)

PART = TopicPartition("t", 0)
OLD, NEW = b"1" * 16, b"2" * 16


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_earliest_skips_no_record_and_repeats_no_kept_one(
    read: int, shared: int, grown: int, is_known: bool
) -> None:
    """The log kept its first `shared` records and has `grown` new ones; `read` were processed."""
    end = shared + grown
    old = SourceLog(OLD, 3, 2)
    cut = TruncatedSource(shared, 1) if is_known else TruncatedSource()
    found = restart("earliest", read, old, Present(OLD, 0, end), cut)
    taken = set(range(min(read, shared)))
    left = set(range(end)) - taken
    assert left <= set(range(found.offset, end))
    if is_known:
        assert left == set(range(found.offset, end))
        # Positions below the earlier ones are distinguished from repetitions.
        assert found.log.cuts == (3 if read > shared else 2)


@given(
    st.sampled_from(["earliest", "latest"]),
    st.integers(0, 50),
    st.sampled_from([SourceLog(OLD, 3, 2), SourceLog(OLD), SourceLog(NEW, 1)]),
    st.sampled_from([TruncatedSource(), *(TruncatedSource(at, 1) for at in (0, 20, 50))]),
    st.integers(-1, 50),
)
def test_a_second_decision_about_a_loss_changes_nothing(
    policy: SourceLostPolicy, offset: int, log: SourceLog, cut: TruncatedSource, decided: int
) -> None:
    """The group, its agents and the state of tasks are asked in turn, by the log as first seen."""
    seen = Present(OLD, 0, 50, decided)
    first = restart(policy, offset, log, seen, cut)
    assert restart(policy, *first, seen, cut) == first
    if policy == "latest":
        assert first.offset == (50 if decided < 0 else decided)
        assert first.log.leader_epoch == NO_EPOCH


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("offset", [0, 5, 500])
def test_a_new_topic_is_read_from_its_own_bounds(policy: SourceLostPolicy, offset: int) -> None:
    log = SourceLog(OLD, 7, 3)
    found = restart(policy, offset, log, Present(NEW, 10, 20), None)
    assert found == (10 if policy == "earliest" else 20, SourceLog(NEW))


def test_only_a_known_different_id_means_another_topic() -> None:
    assert is_recreated(SourceLog(OLD), NEW)
    assert not is_recreated(SourceLog(OLD), OLD)
    assert not is_recreated(SourceLog(), NEW)
    assert not is_recreated(SourceLog(OLD), b"")


def test_sources_with_state_fail_by_default() -> None:
    assert policy_of(None, has_state=True) == "fail"
    assert policy_of(None, has_state=False) == "earliest"
    for policy in ("fail", "earliest", "latest"):
        assert {policy_of(policy, has_state=state) for state in (True, False)} == {policy}  # type: ignore[arg-type]


def test_the_error_names_partition_loss_and_remedy() -> None:
    error = source_lost_error(PART, 8, SourceLog(OLD, 3), Present(NEW, 0, 2), None)
    assert "t-0: the topic was deleted and created again (id MTEx" in str(error)
    assert "now MjIy" in str(error)
    assert "offset 8" in str(error)
    assert "--source-lost earliest" in str(error)
    assert (error.exit_code, error.is_recreated) == (5, True)
    error = source_lost_error(PART, 8, SourceLog(OLD, 3), Present(OLD, 0, 9), TruncatedSource(5, 1))
    assert "t-0: the log was truncated: offset 8 was next" in str(error)
    assert "from offset 5 on (leader epoch 1 ends there, epoch 3 was read)" in str(error)
    assert "ends at 9" in str(error)
    assert (error.resume_at, error.is_recreated) == (5, False)
