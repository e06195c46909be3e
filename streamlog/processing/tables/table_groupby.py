"""Aggregations of tables: rows become members of groups, and groups become results.

`RegroupStep` makes one or two revisions of each change, before the repartition topic; an
`AggregateStep` folds them after it. Rule of the file: what is removed from a group equals what was
added to it, computed again from the old value by the same function. So functions have to be
deterministic, and a row on which one fails is in no group.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.nodes.table_nodes import Regroup
from streamlog.processing.column_batch import Batch
from streamlog.processing.step import Step, apply_to_new, apply_to_old
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.tables.change_serdes import Revision

KeyValuePair = tuple[UserKey, UserValue]


class RegroupStep(Step):
    """Turns changes of a table into revisions of groups."""

    def __init__(self, node: Regroup) -> None:
        super().__init__(node.name)
        self._fn = node.fn

    def process(self, batch: Batch) -> None:
        """Remove the old values from their groups, then add the new ones to theirs."""
        ats: list[int] = []
        keys: list[UserKey] = []
        revisions: list[Revision] = []
        for at, (new, old) in enumerate(zip(*self._pairs(batch), strict=True)):
            for key, revision in _revisions(old, new):
                ats.append(at)
                keys.append(key)
                revisions.append(revision)
        rows, times = batch.rows, batch.timestamps
        moved = Batch(
            batch.origin, [rows[at] for at in ats], keys, revisions, [times[at] for at in ats]
        )
        moved.keys_are_raw = moved.values_are_raw = False
        self.forward(moved)

    def _pairs(self, batch: Batch) -> tuple[list[KeyValuePair | None], list[KeyValuePair | None]]:
        """Return group and value of each row, as they are now and as they were before."""
        fn = self._pair
        new: list[KeyValuePair | None] = []
        old: list[KeyValuePair | None] = []
        columns = zip(batch.keys, batch.values, batch.old_values or (), strict=True)
        for at, (key, value, before) in enumerate(columns):
            old.append(None if before is None else apply_to_old(self, batch, at, fn, key, before))
            new.append(None if value is None else apply_to_new(self, batch, at, fn, key, value))
        return new, old

    def _pair(self, key: object, value: object) -> KeyValuePair | None:
        pair = self._fn(key, value)
        if pair is None:
            return None
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise TypeError(f"group_by of a table must return (group, value) or None, not {pair!r}")
        return None if pair[0] is None or pair[1] is None else pair


def _revisions(
    old: KeyValuePair | None, new: KeyValuePair | None
) -> Sequence[tuple[UserKey, Revision]]:
    if old is None:
        return () if new is None else ((new[0], Revision(None, new[1])),)
    if new is None:
        return ((old[0], Revision(old[1], None)),)
    if old[0] == new[0]:
        return ((new[0], Revision(old[1], new[1])),)
    return (old[0], Revision(old[1], None)), (new[0], Revision(None, new[1]))
