"""Leader epochs of a reader, compared with a model that keeps the epoch of every record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.consumer.subscription_state import EPOCHS_MAX, EpochStarts, PartitionState
from streamlog.client.offset_metadata import NO_EPOCH


@given(
    st.integers(0, 50),
    st.integers(-1, 3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=30),
)
def test_the_epoch_of_each_record_is_known(
    begin: int, first_epoch: int, batches: list[tuple[int, int]]
) -> None:
    starts = EpochStarts(begin, first_epoch)
    epochs = {begin - 1: first_epoch}
    offset, epoch = begin, max(first_epoch, 0)
    for count, step in batches:
        epoch += step
        starts.note(offset, epoch)
        epochs |= dict.fromkeys(range(offset, offset + count), epoch)
        offset += count
    for position in range(begin, offset + 1):
        assert starts.before(position) == epochs[position - 1]
    for wanted in range(epoch + 1):
        later = [at for at, each in epochs.items() if each > wanted]
        assert starts.end_of(wanted, 1_000) == max(min(later, default=1_000), 0)


def test_an_offset_that_was_not_read_has_no_epoch() -> None:
    """A consumer that continues there must not be told that the log was truncated (KIP-320)."""
    state = PartitionState()
    state.move(32, leader_epoch=4)
    assert [state.offset_and_metadata(at).leader_epoch for at in (31, 32, 33)] == [
        NO_EPOCH,
        4,
        NO_EPOCH,
    ]


def test_old_epochs_are_forgotten() -> None:
    starts = EpochStarts()
    for epoch in range(EPOCHS_MAX + 10):
        starts.note(10 * epoch, epoch)
    assert starts.before(5) == NO_EPOCH
    assert starts.before(10 * (EPOCHS_MAX + 9) + 5) == EPOCHS_MAX + 9
