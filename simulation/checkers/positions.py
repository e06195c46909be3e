"""Positions: what a group has committed is what it is told, or something newer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulation.checkers.facts import at
from simulation.history import History, Outcome, Place, Position, Violation


def lost_positions(history: History) -> Iterator[Violation]:
    """A group is told an offset that none of its last commits has given it.

    What it may be told is what the last commit has said that had ended well before it was asked
    for, or what any has said that began before the answer and was not over by that one's begin.
    """
    by_place: dict[tuple[str, Place], list[Position]] = defaultdict(list)
    for position in history.positions:
        by_place[position.group, position.place].append(position)
    for (group, place), positions in by_place.items():
        commits = [each for each in positions if each.is_commit]
        for asked in positions:
            if asked.is_commit or asked.outcome is not Outcome.OK:
                continue
            allowed = _allowed(commits, asked)
            if asked.offset not in allowed:
                yield Violation(
                    "lost-position",
                    f"{group} was told {asked.offset} of {at(place, None)}, and had committed one"
                    f" of {sorted(allowed, key=str)}",
                )


def _allowed(commits: list[Position], asked: Position) -> set[int | None]:
    before = [
        each for each in commits if each.outcome is Outcome.OK and each.ended_ms < asked.began_ms
    ]
    last = max(before, key=lambda each: each.began_ms, default=None)
    since_ms = -1 if last is None else last.began_ms
    allowed = {
        each.offset
        for each in commits
        if each.outcome is not Outcome.FAILED
        and each.began_ms <= asked.ended_ms
        and (each.outcome is Outcome.UNKNOWN or each.ended_ms >= since_ms)
    }
    return allowed or {None} if last is not None else {*allowed, None}
