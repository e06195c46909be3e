"""Ranks: which band, column, and row of a picture a box is in.

Each group is a band with its topics; bands lie below each other. In a band, boxes are in columns by
the longest path that leads to each, and in rows near their neighbours. Not done here: sizes and
positions (`layout`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from streamlog.blueprints.picture import Arrow, Box, Picture

SWEEPS = 4
"""Passes back and forth over the columns; more change nothing in pictures of this size."""


def bands(picture: Picture) -> list[list[Box]]:
    """Return the boxes of each band, from the top; topics are with their first reader or writer."""
    columns = columns_of([box.id for box in picture.boxes], picture.arrows)

    def begins(group: str) -> int:
        return min((columns[box.id] for box in picture.in_group(group)), default=0)

    # The records of a sub-topology come from those above it, unless there is a loop.
    order = {group: at for at, group in enumerate(sorted(picture.groups, key=begins))}
    numbers = {box.id: order[box.group] for box in picture.boxes if box.group}
    arrows = picture.arrows
    readers = {each.start: numbers[each.end] for each in reversed(arrows) if each.end in numbers}
    writers = {each.end: numbers[each.start] for each in reversed(arrows) if each.start in numbers}
    found: defaultdict[int, list[Box]] = defaultdict(list)
    for box in picture.boxes:
        partner = readers.get(box.id, writers.get(box.id, 0))
        found[numbers.get(box.id, partner)].append(box)
    return [found[number] for number in sorted(found)]


def columns_of(names: Sequence[str], arrows: Iterable[Arrow]) -> dict[str, int]:
    """Return the number of boxes on the longest path to each box, without back edges."""
    forward = _forward(names, arrows)
    columns = dict.fromkeys(names, 0)
    # The longest path has fewer arrows than there are boxes, so this many passes are enough.
    for _ in names:
        before = dict(columns)
        for arrow in forward:
            columns[arrow.end] = max(columns[arrow.end], columns[arrow.start] + 1)
        if columns == before:
            break
    # A first node and its topic are placed right before their target: tables next to their joins.
    begins = {*names} - {arrow.end for arrow in forward}
    leads = {arrow.end for arrow in forward} - {a.end for a in forward if a.start not in begins}
    for beginning in (leads, begins):
        for each in sorted(beginning):
            targets = [columns[arrow.end] for arrow in forward if arrow.start == each]
            columns[each] = min(targets, default=columns[each] + 1) - 1
    return columns


def _forward(names: Iterable[str], arrows: Iterable[Arrow]) -> list[Arrow]:
    """Return the arrows without those that close a loop: sub-topologies may feed themselves."""
    following: defaultdict[str, list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        following[arrow.start].append(arrow)
    done: set[str] = set()
    return [arrow for name in names for arrow in _walk(name, following, done)]


def _walk(first: str, following: Mapping[str, list[Arrow]], done: set[str]) -> Iterator[Arrow]:
    """Yield the arrows on the way from a box, depth first; none to a box on the current path."""
    if first in done:
        return
    trail = [(first, iter(following.get(first, ())))]
    on_the_way = {first}
    while trail:
        at, pending = trail[-1]
        found = next(pending, None)
        if found is None:
            trail.pop()
            on_the_way.discard(at)
            done.add(at)
        elif found.end not in on_the_way:
            yield found
            if found.end not in done:
                on_the_way.add(found.end)
                trail.append((found.end, iter(following.get(found.end, ()))))


def rows_of(columns: Mapping[str, int], links: Collection[tuple[str, str]]) -> dict[str, int]:
    """Return the row of each name: near the middle of its neighbours, unique in its column."""
    order = {name: number for number, name in enumerate(columns)}
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for start, end in links:
        neighbours[start].append(end)
        neighbours[end].append(start)
    by_column: defaultdict[int, list[str]] = defaultdict(list)
    for name, column in columns.items():
        by_column[column].append(name)
    rows = {each: row for column in by_column.values() for row, each in enumerate(column)}
    for sweep in range(SWEEPS):
        # Forth, then back: a box moves towards neighbours on both of its sides.
        for column in sorted(by_column, reverse=bool(sweep % 2)):
            wanted = {
                each: sum(rows[other] for other in neighbours[each]) / len(neighbours[each])
                if neighbours[each]
                else rows[each]
                for each in by_column[column]
            }
            taken = -1
            for each in sorted(by_column[column], key=lambda one: (wanted[one], order[one])):
                # At the middle of its neighbours, or on the next free row below.
                taken = rows[each] = max(taken + 1, round(wanted[each]))
    return rows
