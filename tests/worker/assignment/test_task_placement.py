"""Placement: units stay whole, the load is balanced, and no task moves without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import Placement, make_units, merge_topic_sets

TOPICS = [f"t{number}" for number in range(6)]
layouts = st.tuples(
    st.lists(st.sets(st.sampled_from(TOPICS), min_size=1, max_size=3), min_size=1, max_size=5),
    st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS}),
)
crews = st.lists(st.integers(0, 9).map(lambda n: f"m{n}"), min_size=1, max_size=6, unique=True)


def assigned(
    layout: tuple[list[set[str]], dict[str, int]],
    member_names: list[str],
    owned: dict[str, list[TopicPartition]] | None = None,
) -> dict[str, list[TopicPartition]]:
    groups, counts = layout
    placement = Placement(tuple(merge_topic_sets(groups)))
    return placement.assign(dict.fromkeys(member_names, TOPICS), counts, owned)


def test_groups_that_share_a_topic_are_merged() -> None:
    assert merge_topic_sets([{"a", "b"}, {"c"}, {"b", "d"}, {"d", "c"}]) == [("a", "b", "c", "d")]
    assert merge_topic_sets([{"a"}, {"b"}, set()]) == [("a",), ("b",)]


def test_a_unit_has_one_partition_number_of_each_topic() -> None:
    found = make_units([("a", "b")], {"a": 2, "b": 1})
    assert [unit.partitions for unit in found] == [(("a", 0), ("b", 0)), (("a", 1),)]


@given(layout=layouts, member_names=crews)
def test_every_partition_has_one_worker_and_units_stay_whole(
    layout: tuple[list[set[str]], dict[str, int]], member_names: list[str]
) -> None:
    result = assigned(layout, member_names)
    groups, counts = layout
    owner = {part: member for member, parts in result.items() for part in parts}
    read = {topic for group in groups for topic in group}
    assert sum(map(len, result.values())) == len(owner)
    assert set(owner) == {(topic, n) for topic in read for n in range(counts[topic])}
    for unit in make_units(merge_topic_sets(groups), counts):
        assert len({owner[part] for part in unit.partitions}) == 1


@given(layout=layouts, before=crews, after=crews)
def test_the_load_is_balanced_in_every_group_and_overall(
    layout: tuple[list[set[str]], dict[str, int]], before: list[str], after: list[str]
) -> None:
    result = assigned(layout, after, assigned(layout, before))
    owner = {part: member for member, parts in result.items() for part in parts}
    total: Counter[str] = Counter(dict.fromkeys(after, 0))
    for group in merge_topic_sets(layout[0]):
        count = Counter(dict.fromkeys(after, 0))
        count.update(owner[unit.partitions[0]] for unit in make_units([group], layout[1]))
        assert max(count.values()) - min(count.values()) <= 1
        total.update(count)
    assert max(total.values()) - min(total.values()) <= 1


@given(layout=layouts, member_names=crews)
def test_an_unchanged_membership_keeps_its_assignment(
    layout: tuple[list[set[str]], dict[str, int]], member_names: list[str]
) -> None:
    once = assigned(layout, member_names)
    assert assigned(layout, member_names[::-1], once) == once


@given(count=st.integers(0, 24), member_names=crews)
def test_a_leaving_member_takes_no_partitions_from_the_others(
    count: int, member_names: list[str]
) -> None:
    layout = ([{"t0"}], {"t0": count})
    before = assigned(layout, member_names)
    for leaver in member_names if len(member_names) > 1 else []:
        stay = [member for member in member_names if member != leaver]
        after = assigned(layout, stay, {member: before[member] for member in stay})
        assert all({*before[member]} <= {*after[member]} for member in stay)


def test_a_member_gets_only_units_of_its_topics() -> None:
    placement = Placement((("new", "old"), ("old2",)))
    members = {"v1": ["old", "old2"], "v2": ["new", "old", "old2"]}
    result = placement.assign(members, {"new": 1, "old": 4, "old2": 4})
    owner = {part: member for member, parts in result.items() for part in parts}
    assert {owner[TopicPartition("old", n)] for n in range(4)} == {"v2"}
    assert owner[TopicPartition("new", 0)] == "v2"
    assert len(result["v1"]) == 2
