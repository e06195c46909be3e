"""End-of-input questions: what is looked up, in which order, before one is settled."""

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
    """Build a topology with two topics, the second behind two repartitions."""
    app = App("ends")
    a, b = (app.topic(name, key=str, value=str) for name in "ab")
    out = app.topic("out", key=str, value=str)
    far = app.stream(b).rekey(same).repartition(name="way").rekey(same).repartition(name="again")
    app.stream(a).merge(far).to(out)
    return app.topology()


def levels(partition: TopicPartition, source: Source | None) -> list[Level]:
    known = topology()
    return levels_above(known, known.partition_counts({**COUNTS, "out": 1}), partition, source)


def question(partition: TopicPartition, source: Source | None) -> EndQuestion:
    return EndQuestion(EndOfInputQuestion(partition, source, 0, {}, 0), levels(partition, source))


def test_source_topics_have_no_level_above_and_repartitions_have_all_sources() -> None:
    assert levels(A[0], None) == []
    assert levels(WAY[1], None) == [frozenset(B)]
    assert levels(WAY[1], ("b", 0)) == [frozenset(B[:1])]
    assert levels(AGAIN[0], (WAY[1].topic, 1)) == [frozenset(B), frozenset(WAY[1:])]


def test_a_source_is_settled_at_the_end_it_had_when_asked() -> None:
    pending = question(A[0], None)
    assert (pending.wants_ends, pending.wants_committed) == ({A[0]}, frozenset())
    assert not pending.receive_positions({A[0]: 9})  # Its end is not known yet.
    pending.receive_ends({A[0]: 7})
    assert pending.wants_ends == frozenset()
    assert not pending.receive_positions({A[0]: 6})
    assert pending.receive_positions({A[0]: 7})
    assert pending.is_settled


def test_each_level_is_looked_up_after_the_level_above_is_committed() -> None:
    pending = question(AGAIN[0], (WAY[1].topic, 1))
    assert pending.wants_ends == frozenset(B)
    pending.receive_ends({B[0]: 3, B[1]: 0})
    assert pending.wants_committed == frozenset(B)
    assert not pending.receive_committed({B[0]: 2})
    assert pending.receive_committed({B[0]: 3, B[1]: None})
    assert pending.wants_ends == {WAY[1]}
    pending.receive_ends({WAY[1]: 5})
    assert not pending.receive_positions({AGAIN[0]: 99})
    assert pending.receive_committed({WAY[1]: 5})
    assert pending.wants_ends == {AGAIN[0]}
    pending.receive_ends({AGAIN[0]: 4})
    assert pending.receive_positions({AGAIN[0]: 4})
    assert pending.is_settled
    assert (pending.wants_ends, pending.wants_committed) == (frozenset(), frozenset())


def test_a_cycle_is_looked_up_once() -> None:
    app = App("ring")
    a = app.topic("a", key=str, value=str)
    first = app.stream(a)
    back = first.rekey(same).repartition(name="back")
    joined = app.stream(a).merge(back)
    joined.to(app.topic("out", key=str, value=str))
    known = app.topology()
    counts = known.partition_counts({"a": 2, "out": 1})
    partition = TopicPartition("ring-back-repartition", 0)
    found = [part for level in levels_above(known, counts, partition, None) for part in level]
    assert sorted(found) == sorted({*found})
    assert {*A} <= {*found}
