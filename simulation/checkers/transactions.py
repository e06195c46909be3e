"""Transactions: all or nothing, for who reads committed records, and never before their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulation.checkers.facts import at, outcomes
from simulation.history import History, Outcome, Place, Seen, Send, Violation


def aborted_reads(history: History) -> Iterator[Violation]:
    """A reader of committed records has got one of a transaction that was aborted (G1a)."""
    ends, sends = outcomes(history), _sends(history)
    for who, _, seen in _committed_seen(history):
        send = sends.get((seen.place, seen.value))
        if send is None or send.transaction is None:
            continue
        if ends.get(send.transaction) is Outcome.FAILED:
            yield Violation(
                "aborted-read",
                f"{who} has got {seen.value} at {at(seen.place, seen.offset)} of"
                f" {send.transaction}, which was aborted",
            )


def precommitted_reads(history: History) -> Iterator[Violation]:
    """A reader of committed records has got one before anybody had asked for its commit."""
    decided = {each.name: each.decided_ms for each in history.transactions}
    sends = _sends(history)
    for who, ended_ms, seen in _committed_seen(history):
        send = sends.get((seen.place, seen.value))
        if send is None or send.transaction is None or ended_ms is None:
            continue
        decided_ms = decided.get(send.transaction)
        if decided_ms is not None and ended_ms < decided_ms:
            yield Violation(
                "precommitted-read",
                f"{who} has got {seen.value} at {ended_ms} ms, and {send.transaction} was to be"
                f" committed at {decided_ms} ms",
            )


def torn_transactions(history: History) -> Iterator[Violation]:
    """Of one transaction some records are committed, others not."""
    there = {
        (place, seen.value)
        for place, records in history.final_committed.items()
        for seen in records
    }
    parts: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.transaction is not None:
            parts[send.transaction].append(send)
    ends = outcomes(history)
    for name, sends in parts.items():
        # What was never acknowledged may have been left out, if the end is unknown as well.
        sure = [send for send in sends if send.outcome is Outcome.OK]
        if ends.get(name) is Outcome.OK:
            sure = sends
        found = [send for send in sure if (send.place, send.value) in there]
        if found and len(found) < len(sure):
            missing = next(send for send in sure if (send.place, send.value) not in there)
            yield Violation(
                "torn-transaction",
                f"of {name} {found[0].value} is there, and {missing.value} is not",
            )


def transformed_once(history: History) -> Iterator[Violation]:
    """What was read, transformed and written exactly once is there once for each input."""
    made: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place, records in history.final_committed.items():
        for seen in records:
            source = history.transformed.get(seen.value)
            if source is not None:
                made[place[0], source].append(seen.value)
    for topic, target in history.transforms.items():
        for place, records in history.final_committed.items():
            if place[0] != topic:
                continue
            for seen in records:
                results = made.get((target, seen.value), [])
                if len(results) != 1:
                    yield Violation(
                        "transformed-twice" if results else "not-transformed",
                        f"{seen.value} of {at(place, seen.offset)} is in {target} as"
                        f" {results or 'nothing'}",
                    )


def _sends(history: History) -> dict[tuple[Place, str], Send]:
    return {(send.place, send.value): send for send in history.sends}


def _committed_seen(history: History) -> Iterator[tuple[str, int | None, Seen]]:
    """Who reads committed records has got, when, what."""
    for poll in history.polls:
        if poll.committed:
            for seen in poll.records:
                yield poll.consumer, poll.ended_ms, seen
    for records in history.final_committed.values():
        for seen in records:
            yield "the final reader", None, seen
