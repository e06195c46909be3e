"""What several checkers want to know of a history."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.history import History, Outcome, Place, Seen, Send


def outcomes(history: History) -> dict[str, Outcome]:
    """How transactions have ended; one that is not told of has an unknown end."""
    return {each.name: each.outcome for each in history.transactions}


def fate(send: Send, ends: dict[str, Outcome]) -> Outcome:
    """What has to become of a record for readers of committed ones."""
    if send.transaction is None:
        return send.outcome
    end = ends.get(send.transaction, Outcome.UNKNOWN)
    if end is Outcome.OK and send.outcome is not Outcome.OK:
        return Outcome.OK  # Nothing is committed before all of it is there.
    return end


def all_seen(history: History) -> Iterator[tuple[str, Seen]]:
    """Every record that anybody has got, and by whom."""
    for poll in history.polls:
        for seen in poll.records:
            yield poll.consumer, seen
    for who, final in (("all", history.final), ("committed", history.final_committed)):
        for records in final.values():
            for seen in records:
                yield f"the final reader of {who}", seen


def at(place: Place, offset: int | None) -> str:
    """For a reader."""
    topic, partition = place
    return f"{topic}-{partition}" if offset is None else f"{topic}-{partition}@{offset}"
