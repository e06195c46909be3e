"""Polls: a consumer gets what is there in order, and leaves nothing out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from simulation.checkers.facts import at, fate, outcomes
from simulation.history import History, Outcome, Place, Poll, Seen, Violation


def inside_polls(history: History) -> Iterator[Violation]:
    """One poll goes back, or leaves a record out (int-nonmonotonic-poll, int-poll-skip)."""
    known = _due(history)
    for poll in history.polls:
        last: dict[Place, int] = {}
        for seen in poll.records:
            if seen.place in last:
                yield from _step(poll, known, seen, last[seen.place], prefix="int-")
            last[seen.place] = seen.offset


def unseen_by_sessions(history: History) -> Iterator[Violation]:
    """The same from one poll to the next, as long as nothing was assigned anew."""
    known = _due(history)
    last: dict[tuple[str, int, Place], int] = {}
    for poll in history.polls:
        first: dict[Place, Seen] = {}
        for seen in poll.records:
            first.setdefault(seen.place, seen)
        for place, seen in first.items():
            before = last.get((poll.consumer, poll.session, place))
            if before is not None:
                yield from _step(poll, known, seen, before, prefix="")
        for seen in poll.records:
            last[poll.consumer, poll.session, seen.place] = seen.offset


def _step(
    poll: Poll,
    known: dict[Place, Sequence[tuple[int, str]]],
    seen: Seen,
    before: int,
    *,
    prefix: str,
) -> Iterator[Violation]:
    """From one record of a place to the next one."""
    if seen.offset <= before:
        yield Violation(
            f"{prefix}nonmonotonic-poll",
            f"{poll.consumer} went from {at(seen.place, before)} to {seen.offset}",
        )
        return
    due = known.get(seen.place, ())
    skipped = due[bisect_left(due, (before + 1, "")) : bisect_left(due, (seen.offset, ""))]
    if skipped:
        offset, value = skipped[0]
        yield Violation(
            f"{prefix}poll-skip",
            f"{poll.consumer} went from {at(seen.place, before)} to {seen.offset}, past {value} at"
            f" {offset}",
        )


def _due(history: History) -> dict[Place, Sequence[tuple[int, str]]]:
    """What every reader has to get: all that is committed in the end."""
    ends = outcomes(history)
    committed = {
        (send.place, send.value) for send in history.sends if fate(send, ends) is not Outcome.FAILED
    }
    due: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for place, records in history.final_committed.items():
        due[place] = sorted(
            (seen.offset, seen.value) for seen in records if (place, seen.value) in committed
        )
    return dict(due)
