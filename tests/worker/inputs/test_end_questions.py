"""What is asked, in which order, before a doubt is settled."""

from __future__ import annotations

from streamlog import App
from streamlog.processing.inputs.end_of_input import EndOfInputQuestion
from streamlog.record import TopicPartition
from streamlog.topology import Topology
from streamlog.windows.emit import Source
from streamlog.worker.inputs.end_questions import EndQuestion, Level, levels_above

COUNTS = {"a": 2, "b": 2}
A = [TopicPartition("a", number) for number in range(2)]
B = [TopicPartition("b", number) for number in range(2)]
WAY = [TopicPartition("ends-way-repartition", number) for number in range(2)]
AGAIN = [TopicPartition("ends-again-repartition", number) for number in range(2)]


def same(key: str, _: str) -> str:
    return key


def topology() -> Topology:
    """Two topics, the second one through two repartitions."""
    app = App("ends")
    a, b = (app.topic(name, key=str, value=str) for name in "ab")
    out = app.topic("out", key=str, value=str)
    far = app.stream(b).rekey(same).repartition(name="way").rekey(same).repartition(name="again")
    app.stream(a).merge(far).to(out)
    return app.topology()


def levels(place: TopicPartition, source: Source | None) -> list[Level]:
    known = topology()
    return levels_above(known, known.partition_counts({**COUNTS, "out": 1}), place, source)


def question(place: TopicPartition, source: Source | None) -> EndQuestion:
    return EndQuestion(EndOfInputQuestion(place, source, 0, {}, 0), levels(place, source))


def test_nothing_is_above_a_topic_of_others_and_all_sources_above_a_repartition() -> None:
    assert levels(A[0], None) == []
    assert levels(WAY[1], None) == [frozenset(B)]
    assert levels(WAY[1], ("b", 0)) == [frozenset(B[:1])]
    assert levels(AGAIN[0], (WAY[1].topic, 1)) == [frozenset(B), frozenset(WAY[1:])]


def test_an_input_of_its_own_is_read_to_where_it_ended_when_it_was_asked() -> None:
    asked = question(A[0], None)
    assert (asked.wants_ends, asked.wants_committed) == ({A[0]}, frozenset())
    assert not asked.receive_positions({A[0]: 9})  # It is not known yet where it ends.
    asked.receive_ends({A[0]: 7})
    assert asked.wants_ends == frozenset()
    assert not asked.receive_positions({A[0]: 6})
    assert asked.receive_positions({A[0]: 7})
    assert asked.is_settled


def test_each_level_is_asked_for_only_after_what_is_above_it_was_committed() -> None:
    asked = question(AGAIN[0], (WAY[1].topic, 1))
    assert asked.wants_ends == frozenset(B)
    asked.receive_ends({B[0]: 3, B[1]: 0})
    assert asked.wants_committed == frozenset(B)
    assert not asked.receive_committed({B[0]: 2})
    assert asked.receive_committed({B[0]: 3, B[1]: None})
    assert asked.wants_ends == {WAY[1]}
    asked.receive_ends({WAY[1]: 5})
    assert not asked.receive_positions({AGAIN[0]: 99})
    assert asked.receive_committed({WAY[1]: 5})
    assert asked.wants_ends == {AGAIN[0]}
    asked.receive_ends({AGAIN[0]: 4})
    assert asked.receive_positions({AGAIN[0]: 4})
    assert asked.is_settled
    assert (asked.wants_ends, asked.wants_committed) == (frozenset(), frozenset())


def test_a_ring_is_asked_for_once() -> None:
    app = App("ring")
    a = app.topic("a", key=str, value=str)
    first = app.stream(a)
    back = first.rekey(same).repartition(name="back")
    joined = app.stream(a).merge(back)
    joined.to(app.topic("out", key=str, value=str))
    known = app.topology()
    counts = known.partition_counts({"a": 2, "out": 1})
    place = TopicPartition("ring-back-repartition", 0)
    found = [part for level in levels_above(known, counts, place, None) for part in level]
    assert sorted(found) == sorted({*found})
    assert {*A} <= {*found}
