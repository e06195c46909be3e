"""Aggregations of tables: rows into groups, and groups into results that can be taken back.

`RegroupStep` makes a revision or two of each change and stands before the repartition topic; an
`AggregateStep` folds them behind it. Rule of the file: what is taken out of a group is what
was put into it, made again of the old value by the same function; so functions have to be
deterministic, and of a row on which one fails nothing is in any group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlog.nodes.table_nodes import Regroup
from streamlog.processing.column_batch import Batch
from streamlog.processing.step import Step, apply_to_new, apply_to_old
from streamlog.tables.change_serdes import Revision

KeyValuePair = tuple[Any, Any]


class RegroupStep(Step):
    """Changes of a table as revisions of groups."""

    def __init__(self, node: Regroup) -> None:
        super().__init__(node.name)
        self._fn = node.fn

    def process(self, batch: Batch) -> None:
        """Take the old values out of their groups, then put the new ones into theirs."""
        ats: list[int] = []
        keys: list[Any] = []
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
        """Group and value of each row as it is now, and as it was."""
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
            raise TypeError(f"group_by of a table must give (group, value) or None, not {pair!r}")
        return None if pair[0] is None or pair[1] is None else pair


def _revisions(
    old: KeyValuePair | None, new: KeyValuePair | None
) -> Sequence[tuple[Any, Revision]]:
    if old is None:
        return () if new is None else ((new[0], Revision(None, new[1])),)
    if new is None:
        return ((old[0], Revision(old[1], None)),)
    if old[0] == new[0]:
        return ((new[0], Revision(old[1], new[1])),)
    return (old[0], Revision(old[1], None)), (new[0], Revision(None, new[1]))
