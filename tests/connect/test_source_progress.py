"""The reads of one part, from the generator to the committed transaction."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamlog.connect.source_progress import HeldRead, SourceProgress

RECORDS = st.sampled_from([0, 1, 2, 24_999, 25_000, 49_999, 50_000])
BYTES = st.sampled_from([0, 1, 2, 4 * 1024 * 1024, 8 * 1024 * 1024 - 1, 8 * 1024 * 1024])


class Progress(RuleBasedStateMachine):
    """Against two lists: what the log has, and what was read and may still be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: SourceProgress[int] = SourceProgress(None)
        self.log: list[int] = []
        self.loose: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        """Records and bytes of each loose read."""
        self.times_ms: list[int] = []
        self.sent = 0

    @rule(size=BYTES, count=RECORDS, held_ms=st.integers(0, 9))
    def hold(self, size: int, count: int, held_ms: int) -> None:
        number = len(self.log) + len(self.loose)
        self.loose.append(number)
        self.sizes.append((count, size))
        self.times_ms.append(held_ms)
        self.progress.hold(HeldRead(number, count, size, {"at": number + 1}, held_ms=held_ms))

    @rule()
    def take(self) -> None:
        taken = [read.records for read in self.progress.take()]
        assert taken == self.loose[self.sent :]
        self.sent = len(self.loose)

    @rule()
    def count(self) -> None:
        counted = [read.records for read in self.progress.count()]
        assert counted == self.loose[: self.sent], "in order, and only what was in the transaction"
        self.log += counted
        self.loose, self.sizes = self.loose[self.sent :], self.sizes[self.sent :]
        self.times_ms, self.sent = self.times_ms[self.sent :], 0

    @rule()
    def undo(self) -> None:
        assert self.progress.undo() == sum(count for count, _ in self.sizes)
        self.loose, self.sizes, self.times_ms, self.sent = [], [], [], 0

    @invariant()
    def offsets_follow(self) -> None:
        behind = {"at": len(self.log)} if self.log else None
        assert self.progress.counted == behind
        last = len(self.log) + len(self.loose)
        assert self.progress.last == ({"at": last} if last else None)
        assert self.progress.is_empty == (not self.loose)

    @invariant()
    def figures_are_sums(self) -> None:
        """What is in flight counts among the held, but does not keep the reader from reading."""
        assert self.progress.held_records == sum(count for count, _ in self.sizes)
        assert self.progress.held_bytes == sum(size for _, size in self.sizes)
        assert self.progress.oldest_ms == (self.times_ms[0] if self.times_ms else None)
        waiting = self.sizes[self.sent :]
        assert self.progress.is_full == (
            sum(count for count, _ in waiting) >= 50_000
            or sum(size for _, size in waiting) >= 8 * 1024 * 1024
        )


TestProgress = Progress.TestCase


def test_what_is_in_flight_is_lost_with_what_is_held_and_neither_with_what_counts() -> None:
    progress: SourceProgress[str] = SourceProgress(None)
    for number, name in enumerate("abc", 1):
        progress.hold(HeldRead(name, number, 10 * number, {"at": number}, held_ms=number))
        if name != "c":
            progress.take()
        if name == "a":
            assert [read.records for read in progress.count()] == ["a"]
    assert (progress.held_records, progress.held_bytes, progress.oldest_ms) == (5, 50, 2)
    assert (progress.last, progress.is_empty) == ({"at": 3}, False)
    assert progress.undo() == 5
    assert (progress.held_records, progress.held_bytes, progress.oldest_ms) == (0, 0, None)
    assert (progress.last, progress.counted, progress.is_empty) == ({"at": 1}, {"at": 1}, True)
    assert (progress.take(), progress.count(), progress.is_full) == ([], [], False)
