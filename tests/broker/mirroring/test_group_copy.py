"""Positions of groups, against the rules written down a second time, on random histories."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.mirroring.group_copy import (
    GroupCopy,
    GroupHere,
    GroupRules,
    MirrorEnds,
    Position,
    Where,
)

MIRRORED = {"eu.orders": "orders", "users": "users"}
PARTITIONS = [(topic, index) for topic in ("orders", "users", "other") for index in (0, 1)]
ENDS = MirrorEnds(0, 100, 5)

positions = st.builds(
    Position, st.integers(0, 60), st.integers(-1, 8), st.sampled_from(["", "m", "é" * 9])
)
tables = st.dictionaries(st.sampled_from(PARTITIONS), positions)
readable = st.builds(MirrorEnds, st.integers(0, 30), st.integers(20, 50), st.integers(0, 8))


def here(known: dict[Where, Position], *, members: bool = False) -> GroupHere:
    return GroupHere(members, dict(known))


def settle(
    copy: GroupCopy,
    source: dict[Where, Position],
    ends: dict[Where, MirrorEnds],
    known: dict[Where, Position],
) -> None:
    """Apply what is planned to the group here."""
    change = copy.plan(source, MIRRORED, ends, here(known))
    for where, position in change.commits.items():
        known[where] = position
        copy.on_committed(where, position.offset)
    for where in change.deletions:
        del known[where]
        copy.on_deleted(where)


mirrored_partitions = st.sampled_from(
    [(name, partition) for name in MIRRORED for partition in (0, 1)]
)


class Model:
    """A group there and here, with the rules as a table of who has committed what here.

    Args:
        follows: whether the link follows deletions.
    """

    def __init__(self, *, follows: bool) -> None:
        self.follows = follows
        self.source: dict[Where, Position] = {}
        self.ends: dict[Where, MirrorEnds] = {}
        self.known: dict[Where, Position] = {}
        self.of_members: set[Where] = set()
        """Where members here have committed since the broker took over."""
        self.copied: set[Where] = set()
        """What this broker knows to be copies."""
        self.take_over()

    def take_over(self) -> None:
        """Let another broker, which remembers nothing, copy the group."""
        self.copy = GroupCopy(follows_deletions=self.follows)
        self.of_members, self.copied = set(), set()

    def commit_here(self, committed: dict[Where, Position]) -> None:
        """Let members commit, which the broker sees before they leave."""
        for where, position in committed.items():
            before = self.known.get(where)
            if before is None or before.offset != position.offset:
                self.of_members.add(where)
            self.known[where] = position
        self.of_members |= self.known.keys() - self.copied
        change = self.copy.plan(self.source, MIRRORED, self.ends, here(self.known, members=True))
        assert not change.commits
        assert not change.deletions

    def lose_answers(self) -> None:
        """Let commits fail without an answer; they were not made."""
        for where in self.copy.plan(self.source, MIRRORED, self.ends, here(self.known)).commits:
            self.copy.on_failed(where)
            self.copied -= {where} - self.of_members

    def settle_and_check(self) -> None:
        """Copy, and hold each position against the rules."""
        before = dict(self.known)
        settle(self.copy, self.source, self.ends, self.known)
        for where in {*before, *self.known}:
            self._check(where, before.get(where))
        again = self.copy.plan(self.source, MIRRORED, self.ends, here(self.known))
        assert not again.commits
        assert not again.deletions

    def _check(self, where: Where, old: Position | None) -> None:
        topic = MIRRORED.get(where[0])
        there = self.source.get((topic or "", where[1]))
        if topic is None or (there is not None and where not in self.ends):
            assert self.known.get(where) == old
        elif there is None:
            gone = self.follows and where in self.copied - self.of_members
            assert self.known.get(where) == (None if gone else self._within_end(where, old))
            self.copied -= {where} if gone else set()
        else:
            start, end, epoch = self.ends[where]
            offset = sorted((start, there.offset, max(start, end)))[1]
            same = offset == there.offset and there.leader_epoch <= epoch
            wanted = Position(offset, there.leader_epoch if same else -1, there.metadata)
            stays = where in self.of_members and old is not None and old.offset >= offset
            if stays and old != wanted:
                assert self.known[where] == self._within_end(where, old)
            else:
                assert self.known[where] == wanted
            if self.known[where] == wanted:
                self.of_members.discard(where)
                self.copied.add(where)

    def _within_end(self, where: Where, old: Position | None) -> Position | None:
        """Return what becomes of a position that is not the source's."""
        start, end, _ = self.ends.get(where, ENDS)
        last = max(start, end)
        return old if old is None or old.offset <= last else Position(last, -1, old.metadata)


@given(st.data(), st.booleans())
def test_positions_here_follow_the_rules(data: st.DataObject, follows: bool) -> None:
    model = Model(follows=follows)
    for step in data.draw(st.lists(st.integers(0, 4), max_size=12)):
        match step:
            case 0:
                model.source = data.draw(tables)
            case 1:
                model.ends = data.draw(st.dictionaries(mirrored_partitions, readable))
            case 2:
                model.commit_here(data.draw(st.dictionaries(mirrored_partitions, positions)))
            case 3:
                model.lose_answers()
            case _:
                model.take_over()
        model.settle_and_check()


def test_a_position_ahead_of_the_mirror_is_raised_with_it() -> None:
    copy = GroupCopy(follows_deletions=False)
    known: dict[Where, Position] = {}
    source = {("orders", 0): Position(50, 3, "m")}
    for end, expected in ((20, Position(20, -1, "m")), (49, Position(49, -1, "m"))):
        settle(copy, source, {("eu.orders", 0): MirrorEnds(0, end, 5)}, known)
        assert known == {("eu.orders", 0): expected}
    settle(copy, source, {("eu.orders", 0): ENDS}, known)
    assert known == {("eu.orders", 0): Position(50, 3, "m")}
    # The mirror was cut after an unclean election of the source.
    settle(copy, source, {("eu.orders", 0): MirrorEnds(0, 40, 5)}, known)
    assert known == {("eu.orders", 0): Position(40, -1, "m")}


def test_a_reset_at_the_source_arrives_unless_members_here_were_further() -> None:
    copy = GroupCopy(follows_deletions=False)
    where, ends = ("users", 0), {("users", 0): ENDS}
    known: dict[Where, Position] = {}
    settle(copy, {where: Position(50)}, ends, known)
    settle(copy, {where: Position(10)}, ends, known)
    assert known == {where: Position(10)}
    # A consumer of this cluster reads on, and stops.
    known[where] = Position(70)
    copy.plan({where: Position(10)}, MIRRORED, ends, here(known, members=True))
    settle(copy, {where: Position(20)}, ends, known)
    assert known == {where: Position(70)}
    settle(copy, {where: Position(80)}, ends, known)
    assert known == {where: Position(80)}


def test_a_position_of_members_goes_back_to_the_end_where_the_log_was_cut_below_it() -> None:
    """Life 41 of the simulation: after a fail back it stood in front of what no one had read."""
    copy = GroupCopy(follows_deletions=False)
    where = ("users", 0)
    known = {where: Position(36, 2)}
    copy.plan({where: Position(10)}, MIRRORED, {where: ENDS}, here(known, members=True))
    settle(copy, {where: Position(10)}, {where: MirrorEnds(0, 32, 5)}, known)
    assert known == {where: Position(32)}
    # It is still theirs: the source moves it forward only.
    settle(copy, {where: Position(11)}, {where: ENDS}, known)
    assert known == {where: Position(32)}
    settle(copy, {where: Position(33)}, {where: ENDS}, known)
    assert known == {where: Position(33)}


def test_a_promoted_topic_is_left_alone_and_followed_again_after_fail_back() -> None:
    copy = GroupCopy(follows_deletions=True)
    where, ends = ("users", 0), {("users", 0): ENDS}
    known: dict[Where, Position] = {}
    settle(copy, {where: Position(50)}, ends, known)
    known[where] = Position(60)
    promoted = {"eu.orders": "orders"}
    assert not copy.plan({where: Position(51)}, promoted, ends, here(known)).commits
    assert not copy.plan({}, promoted, ends, here(known)).deletions
    settle(copy, {where: Position(51)}, ends, known)
    assert known == {where: Position(51)}


def test_groups_are_named_by_whole_patterns() -> None:
    rules = GroupRules(
        groups=(re.compile("shop.*"), re.compile("audit")), excluded=(re.compile(".*-test"),)
    )
    assert [rules.copies(each) for each in ("shop", "shop-1", "audit", "audit-1", "shop-test")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert not GroupRules().copies("any")
