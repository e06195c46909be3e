"""Records: each that was acknowledged is there, once, where it was said to be, in its order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulation.checkers.facts import all_seen, at, fate, outcomes
from simulation.history import History, Outcome, Place, Violation


def lost_writes(history: History) -> Iterator[Violation]:
    """An acknowledged record is not there. `unseen`: the log ends before its place."""
    ends = outcomes(history)
    there = {
        (place, seen.value): seen.offset
        for place, records in history.final_committed.items()
        for seen in records
    }
    last = {
        place: max((seen.offset for seen in records), default=-1)
        for place, records in history.final_committed.items()
    }
    for send in history.sends:
        if fate(send, ends) is not Outcome.OK or (send.place, send.value) in there:
            continue
        beyond = send.offset is not None and send.offset > last.get(send.place, -1)
        kind = "unseen" if beyond else "lost-write"
        place = at(send.place, send.offset)
        yield Violation(kind, f"{send.value} was acknowledged at {place} and is not there")


def duplicates(history: History) -> Iterator[Violation]:
    """One record at two offsets: a retry was taken for another one."""
    offsets: dict[tuple[Place, str], set[int]] = defaultdict(set)
    for _, seen in all_seen(history):
        offsets[seen.place, seen.value].add(seen.offset)
    for (place, value), found in offsets.items():
        if len(found) > 1:
            yield Violation("duplicate", f"{value} is at {at(place, None)}@{sorted(found)}")


def inconsistent_offsets(history: History) -> Iterator[Violation]:
    """Two records at one offset, for two readers or for a reader and who has written one."""
    values: dict[tuple[Place, int], dict[str, str]] = defaultdict(dict)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None:
            values[send.place, send.offset][send.value] = f"as {send.producer} was told"
    for who, seen in all_seen(history):
        values[seen.place, seen.offset].setdefault(seen.value, f"for {who}")
    for (place, offset), found in values.items():
        if len(found) > 1:
            told = ", ".join(f"{value} {who}" for value, who in found.items())
            yield Violation("inconsistent-offsets", f"at {at(place, offset)} is {told}")


def phantoms(history: History) -> Iterator[Violation]:
    """A record that nobody has sent, there, or that was refused: damage that was not noticed."""
    sent: dict[tuple[Place, str], Outcome] = {
        (send.place, send.value): send.outcome for send in history.sends
    }
    told: set[tuple[Place, int]] = set()
    for who, seen in all_seen(history):
        outcome = sent.get((seen.place, seen.value))
        if (seen.place, seen.offset) in told or outcome in {Outcome.OK, Outcome.UNKNOWN}:
            continue
        told.add((seen.place, seen.offset))
        what = "was never sent there" if outcome is None else "was refused"
        yield Violation(
            "phantom", f"{who} has seen {seen.value!r} at {at(seen.place, seen.offset)}: it {what}"
        )


def out_of_order(history: History) -> Iterator[Violation]:
    """Records of one producer are in another order than it has sent them in (nonmonotonic-send)."""
    offsets = {(seen.place, seen.value): seen.offset for _, seen in all_seen(history)}
    for send in history.sends:
        if send.offset is not None:
            offsets.setdefault((send.place, send.value), send.offset)
    last: dict[tuple[str, Place], tuple[int, str]] = {}
    for send in sorted(history.sends, key=lambda each: each.number):
        offset = offsets.get((send.place, send.value))
        if offset is None:
            continue
        before, value = last.get((send.producer, send.place), (-1, ""))
        if offset < before:
            yield Violation(
                "nonmonotonic-send",
                f"{send.producer} has sent {value} before {send.value}, which is at"
                f" {at(send.place, offset)}, before it ({before})",
            )
        last[send.producer, send.place] = max((before, value), (offset, send.value))
