"""Each checker finds its fault: histories with one fault each, and the violation reported."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from simulation.checkers import check
from simulation.history import (
    History,
    Outcome,
    Place,
    Poll,
    Position,
    Seen,
    Send,
    Transaction,
)
from streamlog.replace import replace

P: Place = ("t", 0)
OUT: Place = ("out", 0)
OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def send(number: int, offset: int | None, *, outcome: Outcome = OK, **more: object) -> Send:
    given = {
        "producer": "p",
        "number": number,
        "place": P,
        "value": f"v{number}",
        "outcome": outcome,
        "offset": offset,
        "began_ms": number * 10,
        "ended_ms": number * 10 + 5,
    }
    return Send(**(given | more))  # type: ignore[arg-type]


def seen(offset: int, value: str, place: Place = P) -> Seen:
    return Seen(place=place, offset=offset, value=value)


def poll(*records: Seen, at_ms: int, committed: bool = True, session: int = 0) -> Poll:
    return Poll(
        consumer="c",
        session=session,
        committed=committed,
        began_ms=at_ms - 1,
        ended_ms=at_ms,
        records=records,
    )


def position(offset: int | None, at_ms: int, *, commit: bool, outcome: Outcome = OK) -> Position:
    return Position(
        group="g",
        place=P,
        offset=offset,
        is_commit=commit,
        outcome=outcome,
        began_ms=at_ms,
        ended_ms=at_ms + 5,
    )


def good() -> History:
    """Return a history without faults.

    v0 to v3; v4 and v5 are committed together; v6 and v7 are aborted; v8 has an unknown outcome and
    is absent. Offsets 6 to 9 hold a marker, the aborted records and their marker.
    """
    history = History()
    history.sends = [
        *(send(n, n) for n in range(4)),
        send(4, 4, transaction="x"),
        send(5, 5, transaction="x"),
        send(6, 7, transaction="y"),
        send(7, 8, transaction="y"),
        send(8, None, outcome=UNKNOWN),
        *(send(10 + n, n, place=OUT, value=f"v{n}'", producer="q") for n in range(6)),
    ]
    history.transactions = [
        Transaction(name="x", outcome=OK, decided_ms=60, ended_ms=65),
        Transaction(name="y", outcome=FAILED, decided_ms=80, ended_ms=85),
    ]
    all_of_it = [seen(n, f"v{n}") for n in range(6)]
    history.final_committed = {P: all_of_it, OUT: [seen(n, f"v{n}'", OUT) for n in range(6)]}
    history.final = {P: [*all_of_it, seen(7, "v6"), seen(8, "v7")], OUT: []}
    history.polls = [
        poll(seen(0, "v0"), seen(1, "v1"), at_ms=30),
        poll(seen(2, "v2"), at_ms=35),
        poll(seen(3, "v3"), seen(4, "v4"), seen(5, "v5"), at_ms=70),
    ]
    history.positions = [
        position(2, 40, commit=True),
        position(2, 50, commit=False),
        position(6, 90, commit=True),
        position(6, 100, commit=False),
    ]
    history.transformed = {f"v{n}'": f"v{n}" for n in range(6)}
    history.transforms = {"t": "out"}
    return history


def lose_an_acknowledged_record(h: History) -> None:
    h.final_committed[P] = [each for each in h.final_committed[P] if each.value != "v2"]
    h.final[P] = [each for each in h.final[P] if each.value != "v2"]
    h.polls.pop(1)


def truncate_the_log(h: History) -> None:
    h.sends.append(send(9, 20))


def write_a_record_twice(h: History) -> None:
    h.final[P].append(seen(12, "v3"))


def give_an_offset_to_two_records(h: History) -> None:
    h.polls[1] = poll(seen(2, "v8"), at_ms=35)


def acknowledge_another_offset(h: History) -> None:
    h.sends[2] = send(2, 3)


def invent_a_record(h: History) -> None:
    h.final[P].append(seen(13, "v\ufffd"))


def show_a_refused_record(h: History) -> None:
    h.sends[8] = send(8, None, outcome=FAILED)
    h.final[P].append(seen(14, "v8"))


def reverse_the_order_of_a_producer(h: History) -> None:
    h.sends[:2] = [send(0, 1), send(1, 0)]
    h.final[P][:2] = h.final_committed[P][:2] = [seen(0, "v1"), seen(1, "v0")]
    h.polls[0] = poll(seen(0, "v1"), seen(1, "v0"), at_ms=30)


def skip_in_a_poll(h: History) -> None:
    h.polls[2] = poll(seen(3, "v3"), seen(5, "v5"), at_ms=70)


def go_back_in_a_poll(h: History) -> None:
    h.polls[0] = poll(seen(1, "v1"), seen(0, "v0"), at_ms=30)


def skip_between_polls(h: History) -> None:
    h.polls.pop(1)


def go_back_between_polls(h: History) -> None:
    h.polls.append(poll(seen(4, "v4"), at_ms=90))


def read_an_aborted_record(h: History) -> None:
    h.polls.append(poll(seen(7, "v6"), at_ms=90))


def read_before_the_commit(h: History) -> None:
    h.polls[2] = replace(h.polls[2], ended_ms=59)


def tear_a_transaction(h: History) -> None:
    h.sends.append(send(9, 6, transaction="x", value="v9"))


def tear_a_transaction_of_unknown_outcome(h: History) -> None:
    h.transactions[0] = replace(h.transactions[0], outcome=UNKNOWN)
    h.final_committed[P].pop()
    h.polls[2] = poll(seen(3, "v3"), seen(4, "v4"), at_ms=70)


def lose_a_position(h: History) -> None:
    h.positions.append(position(2, 110, commit=False))


def forget_a_position(h: History) -> None:
    h.positions.append(position(None, 110, commit=False))


def transform_twice(h: History) -> None:
    h.sends.append(send(20, 6, place=OUT, value="v0''", producer="q"))
    h.final_committed[OUT].append(seen(6, "v0''", OUT))
    h.transformed["v0''"] = "v0"


def skip_an_output(h: History) -> None:
    h.final_committed[OUT].pop()
    h.sends.pop()


CORRUPTED: dict[str, tuple[str, Callable[[History], None]]] = {
    corrupt.__name__: (kind, corrupt)
    for kind, corrupt in [
        ("lost-write", lose_an_acknowledged_record),
        ("unseen", truncate_the_log),
        ("duplicate", write_a_record_twice),
        ("inconsistent-offsets", give_an_offset_to_two_records),
        ("inconsistent-offsets", acknowledge_another_offset),
        ("phantom", invent_a_record),
        ("phantom", show_a_refused_record),
        ("nonmonotonic-send", reverse_the_order_of_a_producer),
        ("int-poll-skip", skip_in_a_poll),
        ("int-nonmonotonic-poll", go_back_in_a_poll),
        ("poll-skip", skip_between_polls),
        ("nonmonotonic-poll", go_back_between_polls),
        ("aborted-read", read_an_aborted_record),
        ("precommitted-read", read_before_the_commit),
        ("torn-transaction", tear_a_transaction),
        ("torn-transaction", tear_a_transaction_of_unknown_outcome),
        ("lost-position", lose_a_position),
        ("lost-position", forget_a_position),
        ("transformed-twice", transform_twice),
        ("not-transformed", skip_an_output),
    ]
}


def kinds(history: History) -> set[str]:
    return {violation.kind for violation in check(history)}


def test_a_faultless_history_has_no_violations() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("name", CORRUPTED)
def test_a_corrupted_history_is_reported(name: str) -> None:
    kind, corrupt = CORRUPTED[name]
    history = deepcopy(good())
    corrupt(history)
    assert kind in kinds(history)


def test_unknown_outcomes_are_no_violations() -> None:
    there, absent = good(), good()
    there.final[P].append(seen(10, "v8"))
    there.final_committed[P].append(seen(10, "v8"))
    there.transforms = absent.transforms = {}
    assert check(there) == []
    absent.transactions[0] = replace(absent.transactions[0], outcome=UNKNOWN)
    absent.final_committed[P] = absent.final_committed[P][:4]
    absent.polls.pop()
    assert check(absent) == []


def test_a_consumer_may_go_back_in_a_new_session() -> None:
    history = good()
    history.polls.append(poll(seen(0, "v0"), seen(1, "v1"), at_ms=95, session=1))
    assert check(history) == []


def test_an_unanswered_commit_may_count() -> None:
    history = good()
    history.positions += [
        position(9, 110, commit=True, outcome=UNKNOWN),
        position(9, 120, commit=False),
        position(6, 130, commit=False),
    ]
    assert check(history) == []
