"""GroupCopy: which committed offsets of a source's group are committed here.

Pure; one for each group of a link. A mirror has the offsets of its source, so a position is copied
as it is, and a consumer that moves to this cluster continues at its record. Rules of this module:

- A position is never ahead of what consumers can read here. One that is (the mirror lags) is
  committed at the mirror's end, and again when the mirror has more: after a failover some records
  are read twice, and none is skipped.
- A group with members here is left alone. What they have committed stays when they have left: from
  then on the source moves the position forward only.
- A position beyond the end goes back to it, a consumer's own one, too: the log was cut in a fail
  back, and records that no one has read will get those offsets.
- Without such a commit the source counts, also backwards: an operator's reset there arrives here.
- Only positions in topics that the link mirrors now: a promoted topic belongs to this cluster.
- What the source deletes is deleted here only if the link says so, and only if it was copied.

What is remembered is lost when another broker takes over. It then takes all positions for copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

Where: TypeAlias = tuple[str, int]
"""Topic and partition."""
NO_EPOCH = -1
LOCAL = -1
"""Stands for an offset that was committed here and is no copy."""


class Position(NamedTuple):
    """A committed offset."""

    offset: int
    """The next record to read."""
    leader_epoch: int = NO_EPOCH
    """That of the record before; -1 if it is not known."""
    metadata: str = ""


class MirrorEnds(NamedTuple):
    """What consumers can read of a mirror partition."""

    start_offset: int
    end_offset: int
    """The high watermark."""
    leader_epoch: int
    """The present one here."""


class GroupHere(msgspec.Struct, frozen=True):
    """A group as its coordinator here knows it."""

    has_members: bool = False
    positions: Mapping[Where, Position] = msgspec.field(default_factory=dict)


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which groups a link copies."""

    groups: tuple[re.Pattern[str], ...] = ()
    excluded: tuple[re.Pattern[str], ...] = ()
    follows_deletions: bool = False
    """Whether positions that the source deletes are deleted here."""

    def copies(self, group_id: str) -> bool:
        """Whether the link copies this group."""
        return any(each.fullmatch(group_id) for each in self.groups) and not any(
            each.fullmatch(group_id) for each in self.excluded
        )


class PositionChanges(msgspec.Struct, frozen=True):
    """What has to be committed and deleted here so that the group stands where it does there."""

    commits: Mapping[Where, Position] = msgspec.field(default_factory=dict)
    deletions: tuple[Where, ...] = ()


class GroupCopy:
    """The copy of one group.

    Args:
        follows_deletions: whether positions that the source deletes are deleted here.
    """

    __slots__ = ("_copied", "_follows_deletions", "_set_back")

    def __init__(self, *, follows_deletions: bool) -> None:
        self._follows_deletions = follows_deletions
        self._copied: dict[Where, int] = {}
        """The offset that was committed last, by partition here, or LOCAL."""
        self._set_back: dict[Where, int | None] = {}
        """What `_copied` will say of positions that go back: whose they are does not change."""

    def plan(
        self,
        source: Mapping[Where, Position],
        mirrored: Mapping[str, str],
        ends: Mapping[Where, MirrorEnds],
        here: GroupHere,
    ) -> PositionChanges:
        """Return what has to be changed now.

        Args:
            source: all positions of the group there, by the source's topics.
            mirrored: the source's topics by the names of their active mirrors.
            ends: those of mirror partitions, as far as they are known.
            here: the group here.
        """
        if here.has_members:
            self._note_members(here)
            return PositionChanges()
        self._set_back.clear()
        for where in [each for each in self._copied if each[0] not in mirrored]:
            del self._copied[where]
        names: dict[str, list[str]] = {}
        for name, topic in mirrored.items():
            names.setdefault(topic, []).append(name)
        commits = dict(self._commits(source, names, ends, here))
        deletions = tuple(self._deletions(source, mirrored, here))
        for where, known in here.positions.items():
            last = _last(ends[where]) if where[0] in mirrored and where in ends else known.offset
            if known.offset > last and where not in commits and where not in deletions:
                commits[where] = self._setting_back(where, known, last)
        return PositionChanges(commits, deletions)

    def on_committed(self, where: Where, offset: int) -> None:
        """Note that a position was committed."""
        copied = self._set_back.get(where, offset)
        if copied is not None:
            self._copied[where] = copied

    def on_deleted(self, where: Where) -> None:
        """Note that a position was deleted."""
        self._copied.pop(where, None)

    def on_failed(self, where: Where) -> None:
        """Note that a change may have been made or not."""
        # A commit without an answer may have been made: taken for one of a member here, it would
        # hold the position against a reset at the source.
        if self._copied.get(where) != LOCAL:
            self._copied.pop(where, None)

    def _note_members(self, here: GroupHere) -> None:
        for where, position in here.positions.items():
            if self._copied.get(where) != position.offset:
                self._copied[where] = LOCAL

    def _commits(
        self,
        source: Mapping[Where, Position],
        names: Mapping[str, list[str]],
        ends: Mapping[Where, MirrorEnds],
        here: GroupHere,
    ) -> Iterator[tuple[Where, Position]]:
        for (topic, partition), there in source.items():
            for name in names.get(topic, ()):
                where = (name, partition)
                readable = ends.get(where)
                if readable is None:
                    continue
                wanted = _within(there, readable)
                known = here.positions.get(where)
                if known == wanted:
                    self._copied[where] = wanted.offset
                elif known is None or self._may_move(where, known, wanted):
                    yield where, wanted

    def _setting_back(self, where: Where, known: Position, offset: int) -> Position:
        copied = self._copied.get(where)
        is_copy = copied == known.offset
        self._set_back[where] = copied if copied is None else offset if is_copy else LOCAL
        return Position(offset, NO_EPOCH, known.metadata)

    def _may_move(self, where: Where, known: Position, wanted: Position) -> bool:
        copied = self._copied.get(where)
        return copied is None or copied == known.offset or known.offset < wanted.offset

    def _deletions(
        self, source: Mapping[Where, Position], mirrored: Mapping[str, str], here: GroupHere
    ) -> Iterator[Where]:
        if not self._follows_deletions:
            return
        for where, known in here.positions.items():
            topic = mirrored.get(where[0])
            is_copy = self._copied.get(where) == known.offset
            if topic is not None and is_copy and (topic, where[1]) not in source:
                yield where


def _last(readable: MirrorEnds) -> int:
    """Return the highest position that consumers here can have."""
    return max(readable.start_offset, readable.end_offset)


def _within(there: Position, readable: MirrorEnds) -> Position:
    """Return a position of the source as it can be committed here."""
    # Below the start, too: retention may be ahead of the source's here, and a consumer that begins
    # at "latest" when its offset is gone would skip all that is left.
    offset = min(max(there.offset, readable.start_offset), _last(readable))
    if offset != there.offset:
        # The record before is another one.
        return Position(offset, NO_EPOCH, there.metadata)
    if there.leader_epoch > readable.leader_epoch:
        # 1. The source elects a leader in epoch 7; nothing is produced in it. 2. A consumer there
        # commits with epoch 7. 3. This mirror still leads in 6: a consumer here that reads 7 takes
        # all metadata for outdated, and waits for newer for ever.
        return Position(offset, NO_EPOCH, there.metadata)
    return there
