"""The reads of one part, from the generator to the committed transaction."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamlog.connect.source_progress import (
    HELD_BYTES_MAX,
    HELD_RECORDS_MAX,
    HeldRead,
    SourceProgress,
)


class Progress(RuleBasedStateMachine):
    """Against two lists: what the log has, and what was read and may still be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: SourceProgress[int] = SourceProgress(None)
        self.log: list[int] = []
        self.loose: list[int] = []
        self.sent = 0

    @rule(size=st.integers(0, 3_000_000), count=st.integers(0, HELD_RECORDS_MAX))
    def hold(self, size: int, count: int) -> None:
        number = len(self.log) + len(self.loose)
        self.loose.append(number)
        self.progress.hold(HeldRead(number, count, size, {"at": number + 1}))

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
        self.loose, self.sent = self.loose[self.sent :], 0

    @rule()
    def undo(self) -> None:
        self.progress.undo()
        self.loose, self.sent = [], 0

    @invariant()
    def offsets_follow(self) -> None:
        behind = {"at": len(self.log)} if self.log else None
        assert self.progress.counted == behind
        last = len(self.log) + len(self.loose)
        assert self.progress.last == ({"at": last} if last else None)
        assert self.progress.is_empty == (not self.loose)
        if not self.loose:
            assert self.progress.held_bytes == self.progress.held_records == 0


TestProgress = Progress.TestCase


def test_a_reader_waits_for_records_and_for_bytes_in_flight() -> None:
    progress: SourceProgress[int] = SourceProgress(None)
    progress.hold(HeldRead(0, HELD_RECORDS_MAX, 0, {}))
    assert progress.is_full
    progress.take()
    assert not progress.is_full, "the next commit is read while this one is under way"
    progress.hold(HeldRead(0, HELD_RECORDS_MAX, 0, {}))
    assert progress.is_full, "a slow commit holds the reader back"
    progress.count()
    progress.take()
    progress.count()
    assert not progress.is_full
    progress.hold(HeldRead(0, 1, HELD_BYTES_MAX, {}, held_ms=7))
    assert progress.is_full
    assert progress.oldest_ms == 7
